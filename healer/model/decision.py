"""Incident -> decision: what was proposed, what each guard answered, what came of it."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from healer.model.gate import Urgency
from healer.model.words import Guard, Mode, Remedy, Verb


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """One capacity-removing (or returning) step that asks the gate.

    `by` is the person who asked, None for healer itself. `rule` and `mode` are the incident's; a person's
    proposal has mode auto. `approved_by` names who approved it, `agreed_by` who agreed to the restart of this
    very job when they started or approved a run on its node. `ride`: the node's slot is already held by
    this incident, so slot guards and mode were answered before.
    """

    cluster: str
    verb: Verb
    node: str | None = None
    job: str | None = None
    incident: str | None = None
    run: str | None = None
    rule: str = ""
    playbook: str = ""
    remedy: Remedy = Remedy.none
    mode: Mode = Mode.auto
    unusable: bool = False
    fatal: bool = False
    by: str | None = None
    approved_by: str | None = None
    agreed_by: str | None = None
    ride: bool = False
    #: The node is to be the partner of another one in its tests, whether or not its own turn has come.
    borrows: bool = False
    #: A slow node is searched among this and others: a fault that is open on it and not fatal is no reason
    #: to leave it out.
    suspect: bool = False
    #: The run only begins: it looks and waits before it takes anything, and asks again then.
    begins: bool = False
    #: Restart count of the job a requeue is about.
    restarts: int | None = None
    #: Its drain takes over what Slurm itself drained or set down.
    adopts: bool = False
    #: Since when all jobs of the node were seen completing, by the run's own log.
    stuck_since: datetime | None = None
    #: The run that asks began then; None: it has not begun.
    begun_at: datetime | None = None
    #: It is a command of the site that takes capacity: the node has to be drained and empty.
    empties: bool = False
    #: It was let go before, and only what is left of it is asked for.
    granted: bool = False
    #: Whom it goes before, and whom after; None where no incident asks.
    urgency: Urgency | None = None


class AnswerKind(StrEnum):
    allow = "allow"
    hold = "hold"
    refuse = "refuse"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One guard's answer with its figure. `why` is a sentence for people.

    `limit` and `used` are what the guard compared, in the unit the sentence names; `frees_at` is when the
    answer may change by itself, None when only a person or an event changes it.
    """

    guard: Guard
    kind: AnswerKind
    why: str
    limit: float | None = None
    used: float | None = None
    frees_at: datetime | None = None


class Outcome(StrEnum):
    act = "act"
    held = "held"
    refused = "refused"
    nothing = "nothing"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Stored whole, also when nothing is done. `guard` names the guard that kept it back."""

    at: datetime
    cluster: str
    incident: str | None
    playbook: str | None
    outcome: Outcome
    why: str
    proposal: Proposal | None = None
    answers: tuple[Answer, ...] = ()
    guard: Guard | None = None
    run: str | None = None
    facts: dict[str, Any] = {}
