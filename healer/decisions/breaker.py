"""The circuit breaker: opens on a storm of one fault class or on failing actions, and never closes by itself.

closed -> open (storm, failing actions) -> half_open (reset by a named person) -> closed (the canary
succeeded) or open again (the canary failed, or a new storm).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec

from healer.decisions.node_facts import place_of, planned_window, settings_of
from healer.incidents.certainty import agreed_at, lacks_senses, unproven_senders
from healer.model import (
    REMOVING_VERBS,
    Breaker,
    BreakerState,
    FaultClass,
    GateFacts,
    GuardSettings,
    Incident,
    Root,
    Rule,
    Ruleset,
    RunState,
    by_opening,
    storm_size,
)
from healer.text import NO_WORDS, Said, joined, say

STORM_WINDOW = timedelta(minutes=5)
#: More than half of the last ten removing steps failed; fewer than four show nothing.
ACTIONS_COUNTED = 10
ACTIONS_AT_LEAST = 4

_WITHDRAWN = frozenset({RunState.cancelled, RunState.rejected, RunState.undone})
_WORKED = frozenset({RunState.waiting, RunState.done})


def threshold(settings: GuardSettings, nodes: int) -> int:
    """The number of distinct roots of one fault class in 5 minutes that make a storm: at least 3, at most
    8."""
    return storm_size(settings.breaker_share, nodes)


def is_off(settings: GuardSettings) -> bool:
    """Whether the breaker is switched off: by share 1.0."""
    return settings.breaker_share >= 1.0


def storm_roots(
    incidents: Iterable[Incident], facts: GateFacts, rules: Ruleset, now: datetime
) -> tuple[Root, ...]:
    """The roots of the last 5 minutes that would take capacity away, one per rule and node, oldest first.

    Held ones count too, or a storm would hide itself. Left out: planned work, nodes that were already out,
    parts of other incidents, and claims that rest only on a relay's text or on fewer senses than the rule
    needs, so that a false report, or a job with slow ranks, cannot stop healing.
    """
    found: dict[tuple[str, str], Root] = {}
    for incident in sorted(incidents, key=by_opening):
        rule, node = rules.by_name.get(incident.rule), incident.root.node
        if rule is None or node is None or not _removes(rule, incident, rules):
            continue
        if unproven_senders(incident) or lacks_senses(incident, rule, now):
            continue
        began = max(incident.seen_again or incident.opened, agreed_at(incident, rule))
        if began <= now - STORM_WINDOW or incident.node_was_out or incident.plan or incident.merged_into:
            continue
        seen = facts.slurm_node(node)
        if seen and planned_window(rules, incident.cluster, seen, incident.opened, facts.snapshot):
            continue
        root = Root(
            node=node,
            rule=incident.rule,
            at=began,
            incident=incident.id,
            driver=seen.driver if seen else "",
            switch=place_of(rules, incident.cluster, seen).switch if seen else "",
        )
        found.setdefault((incident.rule, node), root)
    return tuple(found.values())


def _removes(rule: Rule, incident: Incident, rules: Ruleset) -> bool:
    """Whether the rule's playbook takes capacity away; for a fatal fault, a playbook that is not loaded is
    assumed to."""
    if rule.playbook is None:
        return False
    playbook = rules.playbooks.get(rule.playbook)
    if playbook is None:
        return incident.unusable or incident.fault_class is FaultClass.fatal
    return any(step.do in REMOVING_VERBS for step in playbook.steps)


def next_breaker(
    breaker: Breaker,
    roots: Sequence[Root],
    actions: Sequence[bool],
    nodes: int,
    rules: Ruleset,
    now: datetime,
) -> Breaker:
    """The breaker after checking roots and actions.

    `actions`: the last removing steps, oldest first, True = worked. `nodes`: GPU nodes that Slurm knows.
    While open it only collects further roots. Roots that were counted before a reset never open it again.
    """
    settings = settings_of(rules, breaker.cluster)
    counted = {root.incident for root in breaker.roots}
    fresh = tuple(root for root in roots if root.incident not in counted)
    if breaker.state is BreakerState.open:
        more = tuple(root for root in fresh if root.rule in {root.rule for root in breaker.roots})
        return msgspec.structs.replace(breaker, roots=(*breaker.roots, *more)) if more else breaker
    if is_off(settings):
        return breaker
    if why := _storm(fresh, threshold(settings, nodes)):
        worst = _worst(fresh)
        return _opened(breaker, why, tuple(root for root in fresh if root.rule == worst), now)
    # While half-open, only the canary decides: the failures before the reset would open it again immediately.
    if breaker.state is BreakerState.closed and (why := _failing(actions)):
        return _opened(breaker, why, (), now)
    return breaker


def _opened(breaker: Breaker, why: Said, roots: tuple[Root, ...], now: datetime) -> Breaker:
    return Breaker(cluster=breaker.cluster, state=BreakerState.open, since=now, why=why, roots=roots)


def _worst(roots: Sequence[Root]) -> str:
    """The rule with the most distinct nodes; ties are broken by name, so that a replay gives the same."""
    counts = Counter(rule for rule, _ in {(root.rule, root.node) for root in roots})
    return min(counts, key=lambda rule: (-counts[rule], rule))


def _storm(roots: Sequence[Root], limit: int) -> Said | None:
    """Why these roots make a storm; None if they do not."""
    if not roots:
        return None
    worst = _worst(roots)
    of_rule = [root for root in roots if root.rule == worst]
    count = len({root.node for root in of_rule})
    if count < limit:
        return None
    shared = [
        say(f"decisions.all_{word}", name=values.pop())
        for word, values in (
            ("with_driver", {root.driver for root in of_rule}),
            ("under_switch", {root.switch for root in of_rule}),
        )
        if len(values) == 1 and "" not in values
    ]
    if not shared:
        return say("decisions.storm", nodes=count, fault=worst, limit=limit)
    return say(
        "decisions.storm_shared", nodes=count, fault=worst, limit=limit, shared=joined(shared, "comma")
    )


def _failing(actions: Sequence[bool]) -> Said | None:
    """Why the actions open the breaker: the last one failed, and with it more than half of the last ten."""
    last = list(actions)[-ACTIONS_COUNTED:]
    failed = last.count(False)
    if len(last) < ACTIONS_AT_LEAST or last[-1] or failed * 2 <= len(last):
        return None
    return say("decisions.steps_failed", failed=failed, all=len(last))


def reset(breaker: Breaker, person: str, reason: str, now: datetime) -> Breaker:
    """The breaker after a named person's reset: half-open. Raises ValueError if the name or reason is
    missing, or if it is not open."""
    if not person.strip() or not reason.strip():
        raise ValueError(say("decisions.reset_needs_person"))
    if breaker.state is not BreakerState.open:
        raise ValueError(say(f"decisions.reset_of_{breaker.state}"))
    return msgspec.structs.replace(
        breaker, state=BreakerState.half_open, since=now, reset_by=person, reset_reason=reason, canary=None
    )


def after_run_news(breaker: Breaker, run: str, state: RunState, now: datetime) -> Breaker:
    """The breaker after a run changed. Only the half-open breaker's canary matters.

    Closed if the canary worked (the roots stay for the cool-down), open again if it got stuck. A cancelled,
    rejected or undone canary proves nothing: the next run may be the canary.
    """
    if breaker.state is not BreakerState.half_open or breaker.canary != run:
        return breaker
    if state in _WITHDRAWN:
        return msgspec.structs.replace(breaker, canary=None)
    if state in _WORKED:
        return msgspec.structs.replace(
            breaker, state=BreakerState.closed, since=now, why=NO_WORDS, canary=None
        )
    if state is RunState.stuck:
        why = say("decisions.canary_failed", run=run, who=breaker.reset_by)
        return msgspec.structs.replace(breaker, state=BreakerState.open, since=now, why=why, canary=None)
    return breaker
