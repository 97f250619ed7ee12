"""Incident -> decision, and the one gate for all that takes capacity away."""

from healer.decisions.breaker import (
    canary_ended,
    canary_withdrawn,
    next_breaker,
    reset,
    storm_roots,
)
from healer.decisions.decide import decide, decision_key, known_bad_in_service, severity_of
from healer.decisions.gate import (
    ASKED,
    GUARDS,
    JudgeResult,
    Limit,
    after,
    judge,
    limits,
    slot_for,
    takes_canary,
)

__all__ = [
    "ASKED",
    "GUARDS",
    "JudgeResult",
    "Limit",
    "after",
    "canary_ended",
    "canary_withdrawn",
    "decide",
    "decision_key",
    "judge",
    "known_bad_in_service",
    "limits",
    "next_breaker",
    "reset",
    "severity_of",
    "slot_for",
    "storm_roots",
    "takes_canary",
]
