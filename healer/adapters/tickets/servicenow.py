"""Incidents of ServiceNow by its Table API.

https://www.servicenow.com/docs/bundle/zurich-api-reference/page/integrate/inbound-rest/concept/c_TableAPI.html.
The key is in `correlation_id`, which is queried in the database itself, so that new records are found at
once. ServiceNow leaves out a condition on a field that the table lacks or the user may not read, and then
returns any record: the record itself must show the value. Business rules and data policies may change an
update; the record in the answer shows the result.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from healer.adapters.tickets.calls import Access, Answered, Calls, Manner, Reply
from healer.adapters.tickets.desk import Found
from healer.model import Severity, Ticket
from healer.model.shown import cut
from healer.ports.outbound import DeliveryFailed, OtherSystem
from healer.text import Said, say

_SHORT_MAX = 160
_TEXT_MAX = 4000
_ID = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"[A-Z]+\d+")
#: States of an incident: https://www.servicenow.com/docs/csh?topicname=r_IncidentManagementStateModel.html.
_IN_PROGRESS, _RESOLVED, _CLOSED, _CANCELED = "2", "6", "7", "8"
_ENDED = frozenset({_RESOLVED, _CLOSED, _CANCELED})
_FIELDS = "sys_id,number,state"
_KEY = "correlation_id"
#: Urgency and impact, 1 the highest.
_URGENCY = {Severity.P0: "1", Severity.P1: "2"}
_MAY_WRITE = "itil,sn_incident_write,admin"
DEFAULT_CODE = "Solution provided"


class ServiceNowDesk:
    settles_s = 0.0

    def __init__(self, access: Access) -> None:
        """Without a user the token is an OAuth token. The table is `incident` or one with the same states."""
        self._user, self._table = access.user, access.project or "incident"
        self._code = access.closes_by or DEFAULT_CODE
        self._path = f"/api/now/table/{self._table}"
        self.calls = Calls("ServiceNow", access, Manner(words=_words))

    def named(self, name: str) -> Found:
        if not _NUMBER.fullmatch(name):
            raise OtherSystem(name, "ServiceNow")
        found = self._query("number", name)
        if found is None:
            raise DeliveryFailed(say("adapters.snow_gone", name=name), refused=True)
        return found

    def find(self, key: str, since: datetime | None) -> Found | None:
        return self._query(_KEY, key)

    def create(self, ticket: Ticket, key: str) -> Found:
        level = _URGENCY.get(ticket.severity, "3")
        body = {
            "short_description": cut(ticket.title, _SHORT_MAX) or key,
            "description": cut(ticket.text, _TEXT_MAX),
            "urgency": level,
            "impact": level,
            _KEY: key,
            "correlation_display": "healer",
        }
        return _found(self.calls.ask("POST", self._path, query={"sysparm_fields": _FIELDS}, body=body))

    def has_note(self, found: Found, mark: str) -> bool:
        """Journals are text only as display values."""
        query = {"sysparm_fields": "work_notes", "sysparm_display_value": "true"}
        record = self.calls.ask("GET", f"{self._path}/{found.handle}", query=query).object().get("result")
        return isinstance(record, dict) and mark in str(record.get("work_notes") or "")

    def note(self, found: Found, text: str, mark: str) -> None:
        # `[code]` in a journal would be shown as HTML.
        plain = re.sub(r"\[(?=/?code\])", "[ ", text, flags=re.IGNORECASE)
        room = _TEXT_MAX - len(mark) - 1
        self._patch(found, {"work_notes": f"{cut(plain, room)}\n{mark}"})

    def close(self, found: Found, text: str) -> None:
        notes = cut(text, _TEXT_MAX)
        record = self._patch(found, {"state": _RESOLVED, "close_code": self._code, "close_notes": notes})
        if not record.closed:
            raise DeliveryFailed(say("adapters.snow_open", name=found.name))

    def reopen(self, found: Found) -> None:
        if self._patch(found, {"state": _IN_PROGRESS}).closed:
            raise DeliveryFailed(say("adapters.snow_closed", name=found.name))

    def check(self) -> str:
        self._query(_KEY, "healer-check")
        return say("adapters.snow_reads", table=self._table, rights=self._rights())

    # --- helpers ---

    def _rights(self) -> Said:
        """The right to create, by the user's roles if healer may read them; the API has no dry run."""
        unknown = say("adapters.snow_unknown")
        if not re.fullmatch(r"[\w.@-]+", self._user):
            return unknown
        query = {
            "sysparm_query": f"user.user_name={self._user}^role.nameIN{_MAY_WRITE}",
            "sysparm_fields": "role.name",
            "sysparm_limit": "1",
        }
        try:
            rows = self._rows(self.calls.ask("GET", "/api/now/table/sys_user_has_role", query=query))
        except Answered:
            return unknown
        return say("adapters.snow_may", role=str(rows[0].get("role.name"))) if rows else unknown

    def _query(self, field: str, value: str) -> Found | None:
        """The oldest record with this value in this field."""
        parameters = {
            "sysparm_query": f"{field}={value}^ORDERBYsys_created_on",
            "sysparm_fields": f"{_FIELDS},{_KEY}",
            "sysparm_limit": "1",
        }
        try:
            reply = self.calls.ask("GET", self._path, query=parameters)
        except Answered as error:
            # Some releases answer 404 for an empty result.
            if error.reply.status == 404 and "no record" in _words(error.reply.body).lower():
                return None
            raise
        rows = self._rows(reply)
        if rows and rows[0].get(field) != value:
            raise DeliveryFailed(say("adapters.snow_no_filter", table=self._table, field=field), refused=True)
        return _record(rows[0]) if rows else None

    def _rows(self, reply: Reply) -> list[dict[str, Any]]:
        rows = reply.object().get("result")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DeliveryFailed(say("adapters.snow_no_list"))
        return rows

    def _patch(self, found: Found, fields: Mapping[str, str]) -> Found:
        query = {"sysparm_fields": _FIELDS}
        return _found(self.calls.ask("PATCH", f"{self._path}/{found.handle}", query=query, body=fields))


def _found(reply: Reply) -> Found:
    return _record(reply.object().get("result"))


def _record(record: Any) -> Found:
    handle, number = (
        (record.get(name) for name in ("sys_id", "number")) if isinstance(record, dict) else ("", "")
    )
    if not (_ID.fullmatch(str(handle)) and _NUMBER.fullmatch(str(number))):
        raise DeliveryFailed(say("adapters.who_no_number", who="ServiceNow"))
    return Found(name=str(number), handle=str(handle), closed=str(record.get("state")) in _ENDED)


def _words(body: Any) -> str:
    """`{"error": {"message": "…", "detail": "…"}, "status": "failure"}`"""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return str(error or "")
    return "; ".join(str(error[name]) for name in ("message", "detail") if error.get(name))
