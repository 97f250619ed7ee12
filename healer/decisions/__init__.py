"""Incident -> decision, and the one gate for all that takes capacity away."""

from healer.decisions.ask import (
    adopts,
    beginning,
    decision_of,
    first_verb,
    new_run,
    proposal_of,
    restart_asked,
    restart_refused,
    with_restarts,
)
from healer.decisions.breaker import (
    after_news,
    canary_ended,
    canary_withdrawn,
    next_breaker,
    reset,
    storm_roots,
)
from healer.decisions.decide import decide, out_by_us, severity_of
from healer.decisions.gate import (
    ASKED,
    GUARDS,
    SLOT_VERBS,
    JudgeResult,
    after,
    judge,
    limits,
    takes_canary,
)
from healer.decisions.guards import is_paused
from healer.decisions.history import COOLDOWN
from healer.decisions.outcomes import decision_key, known_bad_in_service, run_state_of
from healer.decisions.permit import (
    own_permit,
    permit_of,
    releases,
)
from healer.decisions.places import settings_of
from healer.decisions.remarks import kept_off, take_backs
from healer.decisions.slots import (
    holds_slot,
    is_untouched,
    rides_on_slot,
    slot_later,
    stands_beside,
    takes_nothing,
)

__all__ = [
    "ASKED",
    "COOLDOWN",
    "GUARDS",
    "SLOT_VERBS",
    "JudgeResult",
    "adopts",
    "after",
    "after_news",
    "beginning",
    "canary_ended",
    "canary_withdrawn",
    "decide",
    "decision_key",
    "decision_of",
    "first_verb",
    "holds_slot",
    "is_paused",
    "is_untouched",
    "judge",
    "kept_off",
    "known_bad_in_service",
    "limits",
    "new_run",
    "next_breaker",
    "out_by_us",
    "own_permit",
    "permit_of",
    "proposal_of",
    "releases",
    "reset",
    "restart_asked",
    "restart_refused",
    "rides_on_slot",
    "run_state_of",
    "settings_of",
    "severity_of",
    "slot_later",
    "stands_beside",
    "storm_roots",
    "take_backs",
    "takes_canary",
    "takes_nothing",
    "with_restarts",
]
