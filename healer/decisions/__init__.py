"""Incidents to decisions: `GUARDS` make up the one gate for everything that takes capacity."""

from healer.decisions.book_mismatch import (
    jobs_put_back,
    kept_off,
    runs_to_lift_exclusions,
    runs_to_release_jobs,
    runs_to_start_jobs,
)
from healer.decisions.breaker import after_run_news, next_breaker, reset, storm_roots
from healer.decisions.capacity import limits
from healer.decisions.consent import cannot_be_undone, waits_for_second
from healer.decisions.decide import (
    ASKING,
    adopts,
    decide,
    decision_key,
    decision_of,
    holds_slot,
    is_known_bad_in_service,
    is_untouched,
    new_run,
    out_by_us,
    proposal_of,
    proposal_to_begin,
    refused_restart,
    restart_proposal,
    rides_on_slot,
    run_state_of,
    runs_alongside,
    severity_of,
    takes_nothing,
    takes_slot_later,
    with_restarts,
)
from healer.decisions.guards import (
    ASKED,
    COOLDOWN,
    GUARDS,
    SLOT_VERBS,
    JudgeResult,
    after_grant,
    is_paused,
    judge,
    repairs_of,
    takes_canary,
)
from healer.decisions.node_facts import settings_of
from healer.decisions.permit import permit_of, permit_of_local_check
