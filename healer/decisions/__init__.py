"""Incident to decision: `GUARDS`, the one gate for all that takes capacity."""

from healer.decisions.book_mismatch import kept_off, releases, take_backs
from healer.decisions.breaker import (
    after_news,
    canary_ended,
    canary_withdrawn,
    next_breaker,
    reset,
    storm_roots,
)
from healer.decisions.capacity import limits
from healer.decisions.decide import (
    adopts,
    beginning,
    decide,
    decision_key,
    decision_of,
    first_verb,
    holds_slot,
    is_untouched,
    known_bad_in_service,
    new_run,
    out_by_us,
    proposal_of,
    restart_asked,
    restart_refused,
    rides_on_slot,
    run_state_of,
    severity_of,
    slot_later,
    stands_beside,
    takes_nothing,
    with_restarts,
)
from healer.decisions.guards import (
    ASKED,
    COOLDOWN,
    GUARDS,
    SLOT_VERBS,
    JudgeResult,
    after,
    is_paused,
    judge,
    takes_canary,
)
from healer.decisions.node_facts import settings_of
from healer.decisions.permit import (
    own_permit,
    permit_of,
)
