"""Where healer's book and Slurm do not agree, and what would make them."""

from datetime import datetime
from enum import StrEnum

import msgspec


class DriftKind(StrEnum):
    """`docs/words.md` explains them."""

    forgotten_drain = "forgotten_drain"
    idle_slot = "idle_slot"
    left_reservation = "left_reservation"
    left_note = "left_note"
    left_exclusion = "left_exclusion"
    unknown_node = "unknown_node"


class Repair(StrEnum):
    """How a drift is repaired. The first two are runs: gate and tests decide as for anybody's."""

    validate = "validate"
    release = "release"
    free_slot = "free_slot"
    end_reservation = "end_reservation"
    clear_note = "clear_note"
    cancel_run = "cancel_run"


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """`what` and `would` are sentences for people; `name` is the reservation, job or run that it is about."""

    kind: DriftKind
    cluster: str
    what: str
    would: str
    repair: Repair
    node: str | None = None
    name: str = ""
    since: datetime | None = None


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one repair. `done` False: nothing was done, and `text` says why."""

    drift: Drift
    done: bool
    text: str
    run: str | None = None
