"""Leavers: lists and ends everything that a person holds. A pause remains, because it keeps healer from
acting."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from healer.engine.controls import IncidentCommands
from healer.model import Incident, Pause, Run, RunState
from healer.ports.account_book import Account
from healer.ports.answers import Page
from healer.ports.clock import Clock
from healer.ports.queries import IncidentQuery, Queries, RunQuery
from healer.ports.request_errors import Conflict, Invalid
from healer.ports.service_accounts import OpenSession, TokenBook, TokenRow, is_person, person_of
from healer.text import say

T = TypeVar("T")
_PAGE = 500
#: Runs that wait for a person's decision.
_ASKING = (RunState.proposed, RunState.waiting_approval, RunState.held)


class HeldIncident(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    cluster: str
    title: str


class AskedRun(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    cluster: str
    playbook: str
    state: RunState
    node: str | None = None
    job: str | None = None


class PersonHolds(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens`: in force, accounts that the person owns among them. `incidents`: open, acknowledged by or
    assigned to the person. `runs`: asked for by the person or an account, and not permitted yet."""

    name: str
    tokens: list[TokenRow]
    sessions: list[OpenSession]
    incidents: list[HeldIncident]
    runs: list[AskedRun]
    pauses: list[Pause]
    #: The local account for signing in with a password; None at a site with an identity provider.
    account: Account | None = None


class PersonEnded(msgspec.Struct, frozen=True, kw_only=True):
    """`left`: what is still in the person's name: runs that others approve or reject, pauses that others
    end."""

    name: str
    to: str | None
    tokens: list[TokenRow]
    sessions: int
    incidents: list[HeldIncident]
    left: PersonHolds


class Leavers:
    """Raises Unavailable."""

    def __init__(self, book: TokenBook, queries: Queries, incidents: IncidentCommands, clock: Clock) -> None:
        self.book, self._queries, self._incidents, self._clock = book, queries, incidents, clock

    def holds(self, name: str) -> PersonHolds:
        """Everything that this person holds; empty lists if there is nothing."""
        now, queries = self._clock.now(), self._queries
        opened = _all(lambda cursor: queries.incidents.page(_OPEN, limit=_PAGE, cursor=cursor))
        asking = _all(lambda cursor: queries.runs.page(_WAITS, limit=_PAGE, cursor=cursor))
        return PersonHolds(
            name=name,
            tokens=self.book.listed(person=name, in_force_at=now),
            sessions=self.book.sessions_of(name, now),
            incidents=[_incident(incident) for incident in opened if incident.acknowledged_by == name],
            runs=[_run(run) for run in asking if person_of(run.by) == name],
            pauses=[pause for pause in queries.clusters.pauses(now) if person_of(pause.by) == name],
            account=self.book.account_of(name),
        )

    def end(self, name: str, *, to: str | None, by: str, reason: str, request: str) -> PersonEnded:
        """Ends the person's tokens, accounts and sessions, and hands their incidents to another person.
        Access is revoked first, and a repeat completes what is left. Raises Invalid, Conflict."""
        held = self.holds(name)
        self._check(held, to, by)
        now = self._clock.now()
        ended = self.book.end_person(name, by=by, now=now, reason=reason)
        for incident in held.incidents:
            self._incidents.assign(
                incident.id, to=to or "", by=by, reason=reason, request=f"{request}:{incident.id[:8]}"
            )
        left = msgspec.structs.replace(held, tokens=[], sessions=[], incidents=[], account=None)
        return PersonEnded(
            name=name, to=to, tokens=ended, sessions=len(held.sessions), incidents=held.incidents, left=left
        )

    def _check(self, held: PersonHolds, to: str | None, by: str) -> None:
        name = held.name
        if not is_person(name):
            raise Conflict(say("engine.account_is_revoked", name=name))
        if person_of(by) == name:
            raise Conflict(say("engine.not_oneself"))
        if held.incidents and not to:
            raise Invalid("to", say("engine.name_another", name=name, n=len(held.incidents)))
        if to is not None and (to == name or not is_person(to)):
            raise Invalid("to", say("engine.another_person", name=name))


_OPEN = IncidentQuery(open=True)
_WAITS = RunQuery(states=_ASKING)


def _all(page: Callable[[str | None], Page[T]]) -> Iterator[T]:
    cursor: str | None = None
    while True:
        found = page(cursor)
        items: Sequence[T] = found.items
        yield from items
        cursor = found.next_cursor
        if cursor is None:
            return


def _incident(incident: Incident) -> HeldIncident:
    return HeldIncident(id=incident.id, cluster=incident.cluster, title=incident.title)


def _run(run: Run) -> AskedRun:
    return AskedRun(
        id=run.id, cluster=run.cluster, playbook=run.playbook, state=run.state, node=run.node, job=run.job
    )
