"""What healer would have done with a recording, and what people did: one document, pure.

Each figure rests on rows of the document: incidents by id, holds and deaths by number.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

from healer.model import HARDWARE, Mode, Ruleset
from healer.model.site_past import (
    SILENT_DAYS,
    WAIT_MOST,
    Answer,
    Assumptions,
    Death,
    Hold,
    JobMix,
    LostLife,
    PastReport,
    RuleAdvice,
    Saved,
    Silence,
    WorstNode,
)
from healer.model.slurm import OwnerKind
from healer.sim.past_facts import PastFacts

#: A person's drain answers an incident up to this long after it; and healer's word counts for a drain up to
#: so long before.
ANSWER, BEFORE = timedelta(days=7), timedelta(hours=24)
#: Drains closer than this are at the same time.
SAME = timedelta(minutes=1)
WORST = 10
#: Agreeing drains that a rule needs before its mode is proposed to rise.
PROVEN, SOME = 5, 1
#: Rules over step times, clocks and power: the node works, and slower than it should.
_SLOW = re.compile(
    r"straggler|job-slow|slowness-.*|slower-than-.*"
    r"|.*-(?:slow|slowed|slowdown|slow-at-\w+|power-brake|power-low|clock-low|clock-stuck)"
)
_REMOVING = frozenset({"drain", "down"})
#: Rules that only note what people and Slurm did.
_NOTED = frozenset({"person-drain", "slurm-drain", "program-drain"})


def past_report(
    document: Mapping[str, Any],
    facts: PastFacts,
    rules: Ruleset,
    cluster: str,
    assumed: Assumptions = Assumptions(),
) -> PastReport:
    """`document`: of the replay of the same entries."""
    assert facts.first is not None and facts.last is not None
    incidents = [row for row in document["incidents"] if row["rule"] not in _NOTED]
    hardware = [row for row in incidents if is_hardware(row, rules)]
    hit = _hit(hardware, facts.deaths)
    answers = _answers(document["actions"], incidents, facts)
    return PastReport(
        cluster=cluster,
        since=facts.first,
        until=facts.last,
        nodes=len(facts.gpus),
        gpus=sum(facts.gpus.values()),
        mode=str(Mode.auto),
        incidents=incidents,
        by_class=_by_class(incidents, rules),
        answers=answers,
        holds=facts.holds,
        deaths=facts.deaths,
        hit=hit,
        requeued=[row for row in document["actions"] if row["action"] in {"requeue", "revive"}],
        held_back=list(document["held"]),
        saved=_saved(hardware, answers, facts, hit, assumed),
        slow=[row["id"] for row in incidents if _SLOW.fullmatch(row["rule"])],
        worst=_worst(hardware, facts, hit),
        silent=_silent(facts),
        blind=_blind(facts),
        advice=_advice(incidents, answers),
        jobs=_job_mix(facts, hit),
        imported=facts.imported,
    )


def is_hardware(incident: Mapping[str, Any], rules: Ruleset) -> bool:
    return fault_class(incident, rules) in {str(kind) for kind in HARDWARE}


def fault_class(incident: Mapping[str, Any], rules: Ruleset) -> str:
    """By the rule that took it: what it would act on is a fault of hardware."""
    if incident["cause"] == "application" or incident["rule"].endswith("-application"):
        return "application"
    rule = next((rule for rule in rules.rules if rule.name == incident["rule"]), None)
    if rule is None or not rule.remedy:
        return "informational"
    return "fatal" if "isolate" in incident["nodes"].values() else "degraded"


def _by_class(incidents: Sequence[Mapping[str, Any]], rules: Ruleset) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in incidents:
        found.setdefault(fault_class(row, rules), []).append(row["id"])
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


# --- people's actions


def _answers(
    actions: Sequence[Mapping[str, Any]], incidents: Sequence[Mapping[str, Any]], facts: PastFacts
) -> list[Answer]:
    """healer's drains and people's, by time; then people's drains of which healer saw nothing."""
    by_id = {row["id"]: row for row in incidents}
    people = [hold for hold in facts.holds if hold.owner in {OwnerKind.person, OwnerKind.program}]
    found: list[Answer] = []
    answered: set[int] = set()
    for action in actions:
        incident = by_id.get(action["incident"] or "")
        if action["action"] not in _REMOVING or incident is None:
            continue
        found.append(_answer(action, incident, people, facts))
        if (number := found[-1].hold) is not None:
            answered.add(number)
    seen: dict[str, list[datetime]] = {}
    for row in incidents:
        for node in {row["root"].get("node"), *row["nodes"]} - {None}:
            seen.setdefault(str(node), []).append(_moment(row["opened"]))
    for hold in people:
        if hold.number not in answered:
            found.append(_unanswered(hold, seen.get(hold.node, []), incidents))
    return found


def _answer(
    action: Mapping[str, Any], incident: Mapping[str, Any], people: Sequence[Hold], facts: PastFacts
) -> Answer:
    at, node = _moment(action["at"]), action["node"]
    holds = [
        hold
        for hold in people
        if hold.node == node and hold.at <= at + ANSWER and (hold.until or at) >= at - timedelta(hours=1)
    ]
    hold = min(holds, key=lambda hold: abs(hold.at - at), default=None)
    until = hold.at if hold is not None and hold.at > at else at + ANSWER
    died = [
        death.number
        for death in facts.deaths
        if node in death.nodes and death.start is not None and at < death.start <= until
        and death.state in {"NODE_FAIL", "FAILED", "REQUEUED", "BOOT_FAIL"}
    ]  # fmt: skip
    minutes = None if hold is None else round((hold.at - at).total_seconds() / 60, 1)
    if hold is None:
        word = "confirmed" if died else "unneeded"
    elif abs(hold.at - at) <= SAME:
        word = "same"
    else:
        word = "earlier" if hold.at > at else "later"
    return Answer(
        word=word, node=node, incident=incident["id"], rule=incident["rule"], healer_at=at,
        hold=None if hold is None else hold.number, minutes=minutes, died=died,
    )  # fmt: skip


def _unanswered(hold: Hold, seen: Sequence[datetime], incidents: Sequence[Mapping[str, Any]]) -> Answer:
    """A person's drain that healer's did not answer: seen without a drain, or missed."""
    before = [at for at in seen if hold.at - BEFORE <= at <= hold.at + timedelta(hours=1)]
    if not before:
        return Answer(word="missed", node=hold.node, incident="", rule="", healer_at=None, hold=hold.number)
    at = min(before)
    incident = next(
        row for row in incidents
        if _moment(row["opened"]) == at and hold.node in {row["root"].get("node"), *row["nodes"]}
    )  # fmt: skip
    return Answer(
        word="seen", node=hold.node, incident=incident["id"], rule=incident["rule"], healer_at=at,
        hold=hold.number, minutes=round((hold.at - at).total_seconds() / 60, 1),
    )  # fmt: skip


def _hit(hardware: Sequence[Mapping[str, Any]], deaths: Sequence[Death]) -> dict[str, list[int]]:
    """Incident -> deaths of the jobs that it hit, from a minute before it to an hour after."""
    found: dict[str, list[int]] = {}
    for row in hardware:
        opened, jobs = _moment(row["opened"]), set(row["jobs_hit"])
        its = [
            death.number
            for death in deaths
            if death.job in jobs and opened - SAME <= death.end <= opened + timedelta(hours=1)
        ]
        if its:
            found[row["id"]] = its
    return found


# --- hours


def _saved(
    hardware: Sequence[Mapping[str, Any]],
    answers: Sequence[Answer],
    facts: PastFacts,
    hit: Mapping[str, Sequence[int]],
    assumed: Assumptions,
) -> Saved:
    numbers = {number for each in hit.values() for number in each}
    deaths = {death.number: death for death in facts.deaths}
    bad = {number for answer in answers for number in answer.died} - numbers
    lives = [life for number in sorted(numbers) if (life := _life(deaths[number], on_bad_node=False))]
    bad_lives = [life for number in sorted(bad) if (life := _life(deaths[number], on_bad_node=True))]
    settled = [row for row in hardware if row["jobs_hit"] and row["id"] not in hit]
    return Saved(
        assumed=assumed,
        lives=lives + bad_lives,
        lost=round(sum(life.lost(assumed) for life in lives), 1),
        unknown=len(numbers) - len(lives) + len(settled),
        on_bad_nodes=round(sum(life.lost(assumed) for life in bad_lives), 1),
        waiting=round(sum(life.waiting(assumed) for life in lives), 1),
        cost=round(_cost(answers, facts), 1),
    )


def _life(death: Death, *, on_bad_node: bool) -> LostLife | None:
    """None: what it held, or since when, is unknown."""
    if death.gpu_hours is None:
        return None
    again_at = death.again_at if death.requeue and not on_bad_node else None
    counts = again_at is not None and again_at - death.end <= WAIT_MOST
    waited_s = (again_at - death.end).total_seconds() if again_at is not None and counts else None
    return LostLife(death.gpus, death.gpu_hours / death.gpus, waited_s, on_bad_node)


def _cost(answers: Sequence[Answer], facts: PastFacts) -> float:
    """GPU-hours of nodes drained without need: until the end or a day, when a test would have returned it."""
    assert facts.last is not None
    hours = 0.0
    for answer in answers:
        if answer.word == "unneeded" and answer.healer_at is not None:
            out_s = min((facts.last - answer.healer_at).total_seconds(), 86_400.0)
            hours += facts.gpus.get(answer.node, 0) * out_s / 3600
    return hours


def _worst(
    hardware: Sequence[Mapping[str, Any]], facts: PastFacts, hit: Mapping[str, Sequence[int]]
) -> list[WorstNode]:
    assert facts.last is not None
    incidents: dict[str, list[str]] = {}
    deaths: dict[str, set[int]] = {}
    for row in hardware:
        node = row["root"].get("node")
        if node:
            incidents.setdefault(node, []).append(row["id"])
            deaths.setdefault(node, set()).update(hit.get(row["id"], ()))
    hours: Counter[str] = Counter()
    for hold in facts.holds:
        hours[hold.node] += ((hold.until or facts.last) - hold.at).total_seconds() / 3600  # type: ignore[assignment]
    names = sorted({*incidents, *hours}, key=lambda node: (-len(incidents.get(node, ())), -hours[node], node))
    return [
        WorstNode(
            node=node,
            incidents=incidents.get(node, []),
            deaths=sorted(deaths.get(node, ())),
            hours_out=round(hours[node], 1),
        )
        for node in names[:WORST]
    ]


def _job_mix(facts: PastFacts, hit: Mapping[str, Sequence[int]]) -> JobMix:
    died = {number for numbers in hit.values() for number in numbers}
    half, median = facts.sizes.total() / 2, 0
    for size in sorted(facts.sizes):
        median, half = size, half - facts.sizes[size]
        if half <= 0:
            break
    return JobMix(
        started=facts.sizes.total(),
        largest=max(facts.sizes, default=0),
        median=median,
        died=len(died),
        again=sum(death.again_at is not None for death in facts.deaths if death.number in died),
    )


# --- what cannot be seen


def _silent(facts: PastFacts) -> list[Silence]:
    """Spans of SILENT_DAYS and more in which a node wrote nothing, nodes of the same span together."""
    if not facts.heard or facts.first is None or facts.last is None:
        return []
    first, last = facts.first.date(), facts.last.date()
    spans: dict[tuple[date, date], list[str]] = {}
    for node in sorted(facts.gpus):
        days = sorted(day for day in facts.heard.get(node, ()) if first <= day <= last)
        ends = [first - timedelta(days=1), *days, last + timedelta(days=1)]
        for before, after in pairwise(ends):
            if (after - before).days > SILENT_DAYS:
                spans.setdefault((before + timedelta(days=1), after - timedelta(days=1)), []).append(node)
    return [
        Silence(first=begin, last=end, nodes=nodes)
        for (begin, end), nodes in sorted(spans.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def _blind(facts: PastFacts) -> list[str]:
    """Kinds of signals that the recording does not hold at all, as keys of sentences."""
    routes = set(facts.routes)
    missing = {
        "kernel": not any(route.startswith(("signals/kernel-log", "signals/logs")) for route in routes),
        "metrics": not any(
            route.startswith(("signals/metrics", "signals/openmetrics", "signals/prometheus"))
            for route in routes
        ),
        "steps": "signals/step-times" not in routes,
        "heartbeats": "signals/heartbeat" not in routes,
        "jobs": not facts.sizes,
        "people": not facts.holds,
    }
    return [name for name, is_missing in missing.items() if is_missing]


def _advice(incidents: Sequence[Mapping[str, Any]], answers: Sequence[Answer]) -> list[RuleAdvice]:
    """Per rule that would have drained or opened: what agreed, and the mode to begin with."""
    found = []
    for rule in sorted({row["rule"] for row in incidents}):
        its = [answer for answer in answers if answer.rule == rule and answer.word != "seen"]
        agreed = sum(answer.word in {"earlier", "same", "later", "confirmed"} for answer in its)
        unneeded = sum(answer.word == "unneeded" for answer in its)
        found.append(
            RuleAdvice(
                rule=rule,
                incidents=sum(row["rule"] == rule for row in incidents),
                drains=len(its),
                agreed=agreed,
                unneeded=unneeded,
                mode=_mode(agreed, unneeded),
            )
        )
    return sorted(found, key=lambda row: (-row.agreed, row.unneeded, row.rule))


def _mode(agreed: int, unneeded: int) -> str:
    """No history alone makes a rule automatic."""
    if agreed >= PROVEN and not unneeded:
        return "approve"
    return "suggest" if agreed >= SOME and agreed > unneeded else "shadow"


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
