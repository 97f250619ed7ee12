"""Incident -> decision, and the one gate for all that takes capacity away."""

from healer.decisions.ask import beginning, decision_of, first_verb, new_run, proposal_of
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
    Limit,
    after,
    judge,
    limits,
    takes_canary,
)
from healer.decisions.history import COOLDOWN
from healer.decisions.outcomes import decision_key, known_bad_in_service, run_state_of
from healer.decisions.slots import holds_slot, is_untouched, slot_later

__all__ = [
    "ASKED",
    "COOLDOWN",
    "GUARDS",
    "SLOT_VERBS",
    "JudgeResult",
    "Limit",
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
    "is_untouched",
    "judge",
    "known_bad_in_service",
    "limits",
    "new_run",
    "next_breaker",
    "out_by_us",
    "proposal_of",
    "reset",
    "run_state_of",
    "severity_of",
    "slot_later",
    "storm_roots",
    "takes_canary",
]
