"""A change of a rule file, tried over what was recorded."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec


class RehearsalState(StrEnum):
    queued = "queued"
    running = "running"
    done = "done"
    failed = "failed"
    cancelled = "cancelled"


#: One of a cluster may be in these at a time.
UNDER_WAY = frozenset({RehearsalState.queued, RehearsalState.running})


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """`text` is what `file` of `rules/` would say, `before` what it says now (None: there is no such file).

    The newest `days` that are recorded are replayed with both, with what was measured if `samples`.
    `progress`: 0 to 1. `problem`: why it failed. `result`: the comparison (`docs/recordings.md`), the new
    rules being the later ones, and what each changed rule opened (`opened`).
    """

    id: str
    cluster: str
    file: str
    text: str
    before: str | None
    days: float
    samples: bool
    by: str
    reason: str
    created_at: datetime
    state: RehearsalState = RehearsalState.queued
    ended_at: datetime | None = None
    progress: float = 0.0
    #: How long it takes yet at the pace of its last minute; None where that is not known.
    left_s: float | None = None
    problem: str = ""
    result: dict[str, Any] | None = None


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule as edited opened in a replay: `digest` says which text that is (`Ruleset.texts`).

    `missed`: incidents that only the old text opened.
    """

    rule: str
    digest: str
    incidents: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()


class Outcomes(msgspec.Struct, frozen=True, kw_only=True):
    """How the real incidents of the same ids turned out. `missed_true`: true faults that the rule as edited
    opens no more. `counted`: it was made proof, by whom and when."""

    rule: str
    digest: str
    right: int = 0
    wrong: int = 0
    unknown: int = 0
    missed_true: int = 0
    missed_wrong: int = 0
    counted_by: str = ""
    counted_at: datetime | None = None
