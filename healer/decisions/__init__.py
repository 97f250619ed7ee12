"""Incident -> decision, and the one gate for all that takes capacity away."""

from healer.decisions.ask import decision_of, first_verb, new_run, proposal_of
from healer.decisions.breaker import (
    after_news,
    canary_ended,
    canary_withdrawn,
    next_breaker,
    reset,
    storm_roots,
)
from healer.decisions.decide import decide, severity_of
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
from healer.decisions.outcomes import decision_key, known_bad_in_service, run_state_of

__all__ = [
    "ASKED",
    "GUARDS",
    "SLOT_VERBS",
    "JudgeResult",
    "Limit",
    "after",
    "after_news",
    "canary_ended",
    "canary_withdrawn",
    "decide",
    "decision_key",
    "decision_of",
    "first_verb",
    "judge",
    "known_bad_in_service",
    "limits",
    "new_run",
    "next_breaker",
    "proposal_of",
    "reset",
    "run_state_of",
    "severity_of",
    "storm_roots",
    "takes_canary",
]
