"""What `HEALER_TICKETS` and the settings beside it must be together. Pure: one sentence, or None."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

WEBHOOK, JIRA, GITHUB, SERVICENOW = "webhook", "jira", "github", "servicenow"
SYSTEMS = (WEBHOOK, JIRA, GITHUB, SERVICENOW)

#: What each takes beside HEALER_TICKETS and the token, and whether it must be set.
_TAKES = {
    JIRA: {"url": True, "project": True, "user": False, "type": False, "close": False},
    GITHUB: {"url": False, "project": True},
    SERVICENOW: {"url": True, "project": False, "user": False, "close": False},
}
_PROJECTS = {
    JIRA: (re.compile(r"[A-Za-z][A-Za-z0-9_]*"), "a project's key, like OPS"),
    GITHUB: (re.compile(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+"), "owner/repository"),
    SERVICENOW: (re.compile(r"[a-z][a-z0-9_]*"), "a table, like incident"),
}
_BESIDE = ("url", "project", "user", "token", "type", "close")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def system(text: str) -> str:
    """Raises ValueError with the words that follow "must be"."""
    if text not in SYSTEMS:
        raise ValueError(f"one of {', '.join(SYSTEMS)}")
    return text


def problem(values: Mapping[str, Any]) -> str | None:
    """`values` by the fields of `healer.settings.Settings`, where they are set."""
    which = values.get("tickets")
    given = [name for name in _BESIDE if f"tickets_{name}" in values]
    if which in (None, WEBHOOK):
        if given:
            wanted = "one of jira, github, servicenow in HEALER_TICKETS"
            return f"{_name(given[0])} is set, which needs {wanted}."
        if which == WEBHOOK and "ticket_webhook_url" not in values:
            return "HEALER_TICKETS is webhook, which needs HEALER_TICKET_WEBHOOK_URL."
        return None
    if "ticket_webhook_url" in values:
        return f"HEALER_TICKETS is {which} and HEALER_TICKET_WEBHOOK_URL is set: keep one."
    takes = {**_TAKES[which], "token": True}
    for name, needed in takes.items():
        if needed and name not in given:
            return f"HEALER_TICKETS is {which}, which needs {_name(name)}."
    for name in given:
        if name not in takes:
            return f"HEALER_TICKETS is {which}, which has no use for {_name(name)}."
    token = values["tickets_token"]
    if "tickets_user" not in values and not (token.isascii() and token.isprintable()):
        return "HEALER_TICKETS_TOKEN must be printable ASCII on one line."
    return _project_problem(which, values) or _url_problem(values)


def _project_problem(which: str, values: Mapping[str, Any]) -> str | None:
    form, words = _PROJECTS[which]
    project = values.get("tickets_project")
    if project is None or form.fullmatch(project):
        return None
    return f"HEALER_TICKETS_PROJECT must be {words}, not {project!r}."


def _url_problem(values: Mapping[str, Any]) -> str | None:
    """The token goes with each request."""
    url = urlsplit(values.get("tickets_url") or "https://api.github.com")
    if "@" in url.netloc or url.query or url.fragment:
        return "HEALER_TICKETS_URL must be an address alone, without user, query or fragment."
    if url.scheme != "https" and url.hostname not in _LOOPBACK:
        return "HEALER_TICKETS_URL must begin with https://: the token goes with each request."
    return None


def _name(field: str) -> str:
    return f"HEALER_TICKETS_{field.upper()}"
