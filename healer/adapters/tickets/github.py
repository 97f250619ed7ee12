"""Issues of a GitHub repository: https://docs.github.com/rest/issues/issues.

The key is a line of the issue's text. The list of issues shows a new one at once, the search only later; so
the list since the start of the incident is read first.
"""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from healer.adapters.tickets.calls import Access, Answered, Calls, Manner, Reply, utc_now
from healer.adapters.tickets.desk import Found
from healer.adapters.webhook import retry_after_s
from healer.model import Ticket
from healer.model.shown import cut
from healer.ports.outbound import DeliveryFailed, OtherSystem
from healer.text import say

URL = "https://api.github.com"
_TITLE_MAX = 256
#: GitHub's limit on texts is 65,536.
_TEXT_MAX = 60_000
_PAGE = 100
_PAGES_MAX = 10
#: How far GitHub's clock may be behind ours.
_CLOCKS = timedelta(minutes=10)
#: The pause of a secondary rate limit without a duration (GitHub: at least a minute).
_SECONDARY_S = 60.0
_NAME = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")


class GitHubDesk:
    settles_s = 0.0

    def __init__(self, access: Access) -> None:
        """`access.url`: the API, on GitHub Enterprise Server `https://github.example/api/v3`."""
        self._repository, self._path = access.project, f"/repos/{access.project}"
        headers = {"accept": "application/vnd.github+json", "x-github-api-version": "2022-11-28"}
        self.calls = Calls("GitHub", access, Manner(words=_words, pause_s=_pause_s), headers)

    def named(self, name: str) -> Found:
        """Also in another repository: the setting may have changed since, or a person may have transferred
        the issue, which GitHub then answers with its new address."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise OtherSystem(name, "GitHub")
        path = f"/repos/{match[1]}/issues/{match[2]}"
        try:
            issue = self.calls.ask("GET", path).object()
        except Answered as error:
            moved = self.calls.path_of(error.reply.headers.get("location", ""))
            if error.reply.status != 301 or moved is None:
                raise
            path, issue = moved, self.calls.ask("GET", moved).object()
        return Found(name=name, handle=path, closed=_is_closed(issue))

    def find(self, key: str, since: datetime | None) -> Found | None:
        line = _key_line(key)
        issues = [issue for page in self._read(key, since) for issue in page]
        found = [issue for issue in issues if "pull_request" not in issue and line in _lines(issue)]
        return self._found(min(found, key=lambda issue: issue.get("number") or 0)) if found else None

    def create(self, ticket: Ticket, key: str) -> Found:
        body = {
            "title": cut(ticket.title, _TITLE_MAX) or key,
            "body": f"{_fenced(ticket.text)}\n\n{_key_line(key)}",
            "labels": ["healer"],
        }
        return self._found(self.calls.ask("POST", f"{self._path}/issues", body=body).object())

    def has_note(self, found: Found, mark: str) -> bool:
        path = f"{found.handle}/comments"
        for page in range(1, _PAGES_MAX + 1):
            query = {"per_page": str(_PAGE), "page": str(page)}
            comments = self.calls.ask("GET", path, query=query).list()
            if any(mark in str(comment.get("body") or "") for comment in comments):
                return True
            if len(comments) < _PAGE:
                break
        return False

    def note(self, found: Found, text: str, mark: str) -> None:
        body = {"body": f"{_fenced(text)}\n\n<!-- {mark} -->"}
        self.calls.ask("POST", f"{found.handle}/comments", body=body)

    def close(self, found: Found, text: str) -> None:
        self._set(found, {"state": "closed", "state_reason": "completed"})

    def reopen(self, found: Found) -> None:
        self._set(found, {"state": "open"})

    def check(self) -> str:
        """Checks the right to create: an issue without a title is invalid (422) only for those who may."""
        about = self.calls.ask("GET", self._path).object()
        if about.get("archived"):
            raise DeliveryFailed(say("adapters.github_archived", name=self._repository), refused=True)
        if about.get("has_issues") is False:
            raise DeliveryFailed(say("adapters.github_issues_off", name=self._repository), refused=True)
        try:
            self.calls.ask("POST", f"{self._path}/issues", body={})
        except Answered as error:
            if error.reply.status != 422:
                raise
        return say("adapters.github_may", name=self._repository)

    # --- its own ways ---

    def _read(self, key: str, since: datetime | None) -> Iterator[list[dict[str, Any]]]:
        """Pages of issues created since then, newest first; if there are too many, finally the results of the
        search."""
        oldest = f"{since - _CLOCKS:%Y-%m-%dT%H:%M:%SZ}" if since else ""
        order = {"state": "all", "sort": "created", "direction": "desc", "per_page": str(_PAGE)}
        for page in range(1, (_PAGES_MAX if since else 1) + 1):
            query = {**order, "page": str(page), **({"since": oldest} if oldest else {})}
            issues = self.calls.ask("GET", f"{self._path}/issues", query=query).list()
            yield issues
            last = str(issues[-1].get("created_at", "")) if issues else ""
            if len(issues) < _PAGE or (oldest and last < oldest):
                return
        yield self._searched(key)

    def _searched(self, key: str) -> list[dict[str, Any]]:
        query = {"q": f'"{key}" in:body is:issue repo:{self._repository}', "per_page": "100"}
        answer = self.calls.ask("GET", "/search/issues", query=query).object()
        items = answer.get("items")
        if answer.get("incomplete_results") or not isinstance(items, list):
            raise DeliveryFailed(say("adapters.github_search"))
        return [item for item in items if isinstance(item, dict)]

    def _set(self, found: Found, fields: dict[str, str]) -> None:
        reply = self.calls.ask("PATCH", found.handle, body=fields)
        if reply.object().get("state") != fields["state"]:
            raise DeliveryFailed(say("adapters.github_not_set", name=found.name, state=fields["state"]))

    def _found(self, issue: dict[str, Any]) -> Found:
        number = issue.get("number")
        if not isinstance(number, int):
            raise DeliveryFailed(say("adapters.who_no_number", who="GitHub"))
        name = f"{self._repository}#{number}"
        return Found(name=name, handle=f"{self._path}/issues/{number}", closed=_is_closed(issue))


def _is_closed(issue: dict[str, Any]) -> bool:
    return issue.get("state") == "closed"


def _key_line(key: str) -> str:
    return f"Ticket key: {key}"


def _lines(issue: dict[str, Any]) -> list[str]:
    return [line.strip() for line in str(issue.get("body") or "").splitlines()]


def _fenced(text: str) -> str:
    """The text in a code block: logs must not become links or mentions."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{cut(text, _TEXT_MAX)}\n{fence}"


def _pause_s(reply: Reply) -> float | None:
    """403 and 429 also mean rate limits:
    https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api."""
    if reply.status not in (403, 429):
        return None
    if (wish := retry_after_s(reply.headers)) is not None:
        return wish
    reset = reply.headers.get("x-ratelimit-reset", "")
    if reply.headers.get("x-ratelimit-remaining") == "0" and reset.isascii() and reset.isdigit():
        return max(1.0, float(reset) - utc_now().timestamp())
    message = str(reply.body.get("message", "")) if isinstance(reply.body, dict) else ""
    return _SECONDARY_S if reply.status == 429 or "secondary rate limit" in message.lower() else None


def _words(body: Any) -> str:
    """`{"message": "Validation Failed", "errors": [{"field": "title", "code": "missing_field"}]}`"""
    if not isinstance(body, dict):
        return ""
    found = [str(body.get("message") or "")]
    for error in body.get("errors") or ():
        if isinstance(error, dict):
            field = f"{error.get('field', '')} {error.get('code', '')}".strip()
            found.append(str(error.get("message") or field))
    return "; ".join(part for part in found if part)
