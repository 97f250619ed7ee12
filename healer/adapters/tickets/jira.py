"""Jira: Cloud by REST v3 (e-mail and API token), Data Center by REST v2 (personal access token).

https://developer.atlassian.com/cloud/jira/platform/rest/v3/ and
https://developer.atlassian.com/server/jira/platform/rest/. Issues are found by a label; the search shows an
issue some seconds after its creation. v3 takes texts as Atlassian documents, v2 in wiki markup.
"""

import json
import re
from datetime import datetime
from typing import Any
from urllib.parse import quote

from healer.adapters.tickets.calls import Access, Calls, Manner
from healer.adapters.tickets.desk import Found
from healer.model import Ticket
from healer.model.shown import cut
from healer.ports.outbound import DeliveryFailed, OtherSystem
from healer.text import joined, say

_SUMMARY_MAX = 255
#: Jira's limit on texts is 32,767.
_TEXT_MAX = 30_000
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]*-\d+")
#: Preferred names if a workflow offers several transitions to the category "done".
_ENDS = ("done", "resolved", "closed")
_RESOLUTIONS = ("fixed", "done")
_NEEDED = ("BROWSE_PROJECTS", "CREATE_ISSUES", "ADD_COMMENTS", "TRANSITION_ISSUES")


class JiraDesk:
    settles_s = 60.0

    def __init__(self, access: Access) -> None:
        """Cloud with a user, Data Center without. `closes_by`: the transition or its target status; empty:
        any transition to the category "done"."""
        self._cloud, self._project = bool(access.user), access.project
        self._type, self._closes_by = access.kind, access.closes_by
        self._api = "/rest/api/3" if access.user else "/rest/api/2"
        self.calls = Calls("Jira", access, Manner(words=_words))

    def named(self, name: str) -> Found:
        if not _KEY.fullmatch(name):
            raise OtherSystem(name, "Jira")
        reply = self.calls.ask("GET", self._issue(name), query={"fields": "status"})
        return _found(reply.object())

    def find(self, key: str, since: datetime | None) -> Found | None:
        query = {"jql": f'labels = "{key}" ORDER BY created ASC', "fields": ["status"], "maxResults": 1}
        path = f"{self._api}/search/jql" if self._cloud else f"{self._api}/search"
        issues = self.calls.ask("POST", path, body=query).object().get("issues")
        if not isinstance(issues, list):
            raise DeliveryFailed(say("adapters.jira_search"))
        return _found(issues[0]) if issues else None

    def create(self, ticket: Ticket, key: str) -> Found:
        fields = {
            "project": {"key": self._project},
            "issuetype": {"name": self._type},
            "summary": cut(ticket.title, _SUMMARY_MAX) or key,
            "description": self._text(ticket.text),
            "labels": ["healer", key],
        }
        made = self.calls.ask("POST", f"{self._api}/issue", body={"fields": fields}).object()
        return _found({**made, "fields": {}})

    def has_note(self, found: Found, mark: str) -> bool:
        query = {"orderBy": "-created", "maxResults": "100"}
        reply = self.calls.ask("GET", f"{self._issue(found.handle)}/comment", query=query)
        return mark in json.dumps(reply.object())

    def note(self, found: Found, text: str, mark: str) -> None:
        body = {"body": self._text(text, mark)}
        self.calls.ask("POST", f"{self._issue(found.handle)}/comment", body=body)

    def close(self, found: Found, text: str) -> None:
        offered = self._transitions(found)
        ends = [move for move in offered if _category(move.get("to")) == "done"]
        wanted = self._closes_by.casefold()
        if wanted:
            ends = [move for move in offered if wanted in _names(move)]
        if not ends:
            names = joined((str(move.get("name")) for move in offered), "comma") or say("adapters.nothing")
            end = self._closes_by or say("adapters.jira_done")
            raise DeliveryFailed(
                say("adapters.jira_no_move", end=end, name=found.name, names=names), refused=True
            )
        ends.sort(key=lambda move: min((_ENDS.index(n) for n in _names(move) if n in _ENDS), default=9))
        self._move(found, ends[0])

    def reopen(self, found: Found) -> None:
        open_again = [move for move in self._transitions(found) if _category(move.get("to")) != "done"]
        if not open_again:
            raise DeliveryFailed(say("adapters.jira_no_reopen", name=found.name), refused=True)
        self._move(found, open_again[0])

    def check(self) -> str:
        query = {"projectKey": self._project, "permissions": ",".join(_NEEDED)}
        reply = self.calls.ask("GET", f"{self._api}/mypermissions", query=query)
        given = reply.object().get("permissions") or {}
        missing = [name for name in _NEEDED if not (given.get(name) or {}).get("havePermission")]
        if missing:
            raise DeliveryFailed(
                say("adapters.jira_lacks", rights=joined(missing, "comma"), project=self._project),
                refused=True,
            )
        project = quote(self._project, safe="")
        path = f"{self._api}/issue/createmeta/{project}/issuetypes"
        body = self.calls.ask("GET", path, query={"maxResults": "200"}).object()
        types = [str(item.get("name")) for item in body.get("issueTypes") or body.get("values") or ()]
        if self._type not in types:
            raise DeliveryFailed(
                say(
                    "adapters.jira_type",
                    project=self._project,
                    type=self._type,
                    types=joined(types, "comma") or say("adapters.nothing"),
                ),
                refused=True,
            )
        return say(
            "adapters.jira_may",
            edition="Cloud" if self._cloud else "Data Center",
            type=self._type,
            project=self._project,
        )

    # --- helpers ---

    def _issue(self, name: str) -> str:
        return f"{self._api}/issue/{quote(name, safe='')}"

    def _transitions(self, found: Found) -> list[dict[str, Any]]:
        query = {"expand": "transitions.fields"}
        reply = self.calls.ask("GET", f"{self._issue(found.handle)}/transitions", query=query)
        return [move for move in reply.object().get("transitions") or () if isinstance(move, dict)]

    def _move(self, found: Found, transition: dict[str, Any]) -> None:
        body: dict[str, Any] = {"transition": {"id": transition.get("id")}}
        resolution = (transition.get("fields") or {}).get("resolution") or {}
        if resolution.get("required"):
            body["fields"] = {"resolution": {"name": _resolution(resolution.get("allowedValues") or ())}}
        self.calls.ask("POST", f"{self._issue(found.handle)}/transitions", body=body)

    def _text(self, text: str, mark: str = "") -> Any:
        text = cut(text, _TEXT_MAX)
        if self._cloud:
            lines = [line for line in (*text.split("\n"), mark) if line.strip()]
            texts = [{"type": "text", "text": line} for line in lines]
            paragraphs = [{"type": "paragraph", "content": [text]} for text in texts]
            return {"type": "doc", "version": 1, "content": paragraphs}
        # Logs must not become links, macros or mentions.
        plain = re.sub(r"\{(?=noformat)", "{ ", text, flags=re.IGNORECASE)
        return f"{{noformat}}\n{plain}\n{{noformat}}" + (f"\n{mark}" if mark else "")


def _found(issue: dict[str, Any]) -> Found:
    key = issue.get("key")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise DeliveryFailed(say("adapters.who_no_number", who="Jira"))
    closed = _category((issue.get("fields") or {}).get("status")) == "done"
    return Found(name=key, handle=key, closed=closed)


def _category(status: Any) -> str:
    """`new`, `indeterminate` or `done`, whatever a workflow calls its statuses."""
    category = status.get("statusCategory") if isinstance(status, dict) else None
    return str(category.get("key", "")) if isinstance(category, dict) else ""


def _names(transition: dict[str, Any]) -> set[str]:
    to = transition.get("to") or {}
    return {str(transition.get("name", "")).casefold(), str(to.get("name", "")).casefold()}


def _resolution(allowed: Any) -> str:
    names = [str(value["name"]) for value in allowed if isinstance(value, dict) and value.get("name")]
    better = [name for name in names if name.casefold() in _RESOLUTIONS]
    return (better or names or ["Done"])[0]


def _words(body: Any) -> str:
    """`{"errorMessages": ["…"], "errors": {"field": "…"}}`"""
    if not isinstance(body, dict):
        return ""
    fields, messages = body.get("errors"), body.get("errorMessages")
    parts = list(map(str, messages)) if isinstance(messages, list) else []
    if isinstance(fields, dict):
        parts += [f"{name}: {words}" for name, words in fields.items()]
    return "; ".join(parts) or str(body.get("message") or "")
