"""Incident -> decision, and the one gate for all that takes capacity away."""

from healer.decisions.ask import decision_of, first_verb, proposal_of
from healer.decisions.breaker import (
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
    JudgeResult,
    Limit,
    after,
    judge,
    limits,
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
    "decision_of",
    "first_verb",
    "judge",
    "limits",
    "next_breaker",
    "proposal_of",
    "reset",
    "severity_of",
    "storm_roots",
    "takes_canary",
]
