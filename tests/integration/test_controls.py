"""What people order beside runs, on both ledgers: one transaction with its record, once for each request."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from healer.engine.controls import HEALER, Controls, IncidentCommands
from healer.model import CommandKind, Incident, IncidentState, Mode, Pause, Reference, Review, Rule, Ruleset
from healer.ports.request_errors import Conflict, Invalid, NotFound
from tests.support.ledgers import CLUSTER, START, Bench, bench_of, facts, incident
from tests.support.loop import rules_in

RULE = "gpu-lost"
ANN: Any = {"by": "ann", "reason": "seen", "request": "q1"}


class Desk:
    def __init__(self, bench: Bench) -> None:
        self.bench, self.rules = bench, rules_in()
        self.controls = Controls(bench.ledger, lambda: self.rules, bench.clock)
        self.incidents = IncidentCommands(bench.ledger, lambda: self.rules, bench.clock)

    def rule(self) -> Rule:
        return self.rules.by_name[RULE]

    def give(self, mode: Mode) -> None:
        """The files say this mode."""
        rules = tuple(msgspec.structs.replace(one, mode=mode) for one in self.rules.rules)
        self.rules: Ruleset = msgspec.structs.replace(self.rules, rules=rules)

    def set_mode(self, mode: Mode, request: str = "q1") -> None:
        self.controls.set_mode(self.rule(), mode, by="ann", reason="first week", request=request)

    def mode(self) -> tuple[Mode, str] | None:
        with self.bench.ledger.command() as tx:
            return tx.rule_mode(RULE)

    def save(self, *incidents: Incident) -> None:
        with self.bench.ledger.transaction() as tx:
            for one in incidents:
                tx.save_incident(one)

    def verbs(self) -> list[tuple[str, str]]:
        return [(record.actor, record.verb) for record in self.bench.records()]


@pytest.fixture(params=["memory", "postgres"])
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(bench_of(request))


def reviewed(count: int, review: Review, first: int = 1) -> list[Incident]:
    return [incident(number, review=review) for number in range(first, first + count)]


def test_a_pause_of_all_clusters_is_in_the_audit_of_each(desk: Desk) -> None:
    everywhere = Controls(desk.bench.ledger, lambda: desk.rules, desk.bench.clock, ("pod1", "pod2"))
    everywhere.pause(Pause(id="p1", scope="all", name="", by="ann", reason="x", since=START), request="q1")
    everywhere.end_pause("p1", by="ann", reason="done", request="q2")
    written = [(one.cluster, one.verb) for one in desk.bench.records()]
    assert written == [(name, verb) for verb in ("pause.set", "pause.ended") for name in ("pod1", "pod2")]


def test_a_pause_is_in_force_at_once_and_ends_once(desk: Desk) -> None:
    pause = Pause(id="p1", scope="all", name="", by="ann", reason="roll-out", since=START)
    for _ in range(2):
        assert desk.controls.pause(pause, request="q1") == pause
    assert [one.id for one in facts(desk.bench).pauses] == ["p1"]
    for _ in range(2):
        assert desk.controls.end_pause("p1", by="bob", reason="done", request="q2") == pause
    assert facts(desk.bench).pauses == ()
    with pytest.raises(NotFound, match="no pause p1 is active"):
        desk.controls.end_pause("p1", by="bob", reason="done", request="q3")
    assert desk.verbs() == [("ann", "pause.set"), ("bob", "pause.ended")]
    with desk.bench.ledger.command() as tx:
        assert tx.pause("p1") == pause


def test_a_mode_is_set_once_for_a_request_and_with_its_record(desk: Desk) -> None:
    desk.set_mode(Mode.approve)
    desk.set_mode(Mode.suggest)  # the same request again
    assert desk.mode() == (Mode.approve, "ann")
    (record,) = desk.bench.records()
    assert (record.verb, record.subject) == ("rule.mode_set", f"rule/{RULE}")
    assert (record.data["mode"], record.data["before"]) == ("approve", None)
    assert facts(desk.bench).modes == {RULE: Mode.approve}


def test_auto_is_earned_and_taken_away_again(desk: Desk) -> None:
    desk.give(Mode.approve)
    needed = desk.rules.guards.earn.incidents
    desk.save(*reviewed(needed - 1, Review.true_fault))
    with pytest.raises(Conflict, match=f"{needed} reviewed incidents and {needed - 1}"):
        desk.set_mode(Mode.auto)
    assert (desk.mode(), desk.verbs()) == (None, [])
    desk.save(incident(needed, review=Review.true_fault))
    desk.set_mode(Mode.auto, "q2")
    assert desk.mode() == (Mode.auto, "ann")
    judge(desk, 1, Review.true_fault)
    assert desk.mode() == (Mode.auto, "ann")
    desk.save(*reviewed(needed // 2, Review.false_alarm))
    judge(desk, needed, Review.false_alarm)
    assert desk.mode() == (Mode.approve, HEALER)
    assert len(desk.bench.messages()) == 1
    with pytest.raises(Conflict):
        desk.set_mode(Mode.auto, "q9")


def judge(desk: Desk, number: int, review: Review, press: str = "first") -> None:
    name, request = incident(number).id, f"review-{number}-{press}"
    desk.incidents.review(name, review=review, cause=None, by="ann", reason="seen", request=request)


def test_false_alarms_that_the_detector_has_not_taken_yet_count_together(desk: Desk) -> None:
    """Two people review at once, or the detector is away."""
    desk.give(Mode.auto)
    desk.save(incident(1), incident(2))
    judge(desk, 1, Review.false_alarm)
    assert desk.mode() is None
    judge(desk, 1, Review.true_fault, "changed my mind")
    judge(desk, 2, Review.false_alarm)
    assert desk.mode() is None
    judge(desk, 1, Review.false_alarm, "and again")
    assert desk.mode() == (Mode.approve, HEALER)


def test_the_way_back_to_the_files_auto_is_free_but_for_healers_own_fall(desk: Desk) -> None:
    desk.give(Mode.auto)
    desk.set_mode(Mode.approve)
    desk.set_mode(Mode.auto, "q2")
    assert desk.mode() == (Mode.auto, "ann")
    desk.save(*reviewed(desk.rules.guards.earn.incidents, Review.false_alarm))
    judge(desk, 1, Review.false_alarm)
    with pytest.raises(Conflict, match="cannot be set to auto"):
        desk.set_mode(Mode.auto, "q3")


def test_a_word_on_an_incident_reaches_the_detector_once(desk: Desk) -> None:
    desk.save(incident())
    rows = [desk.incidents.acknowledge(incident().id, **ANN) for _ in range(2)]
    assert rows[0] == rows[1]
    assert not desk.incidents.consumed(rows[0])
    assert [one.kind for one in desk.bench.commands()] == [CommandKind.acknowledge]
    assert desk.verbs() == [("ann", "incident.acknowledged")]


def test_the_first_to_acknowledge_keeps_the_incident_until_another_takes_it_over(desk: Desk) -> None:
    desk.save(incident(acknowledged_by="bob"))
    with pytest.raises(Conflict, match="bob has acknowledged"):
        desk.incidents.acknowledge(incident().id, **ANN)
    assert (desk.bench.commands(), desk.verbs()) == ([], [])
    desk.incidents.acknowledge(incident().id, by="bob", reason="", request="q2")
    desk.incidents.assign(incident().id, to="ann", **ANN)
    assert [one.kind for one in desk.bench.commands()] == [CommandKind.acknowledge, CommandKind.assign]


def test_an_incident_that_a_person_stopped_is_open_and_can_be_reopened(desk: Desk) -> None:
    """Rejecting a run ends healer's work on its incident until that is reopened (docs/operate.md)."""
    desk.save(incident(stopped_by="bob"))
    desk.incidents.reopen(incident().id, **ANN)
    assert [one.kind for one in desk.bench.commands()] == [CommandKind.reopen]


def test_a_word_is_judged_on_the_incident_as_it_is(desk: Desk) -> None:
    over = {"state": IncidentState.resolved, "closed": START, "closed_why": "seen"}
    desk.save(incident(1), incident(2, **over), incident(3, **over, merged_into=incident(1).id))
    say, ids = desk.incidents, [incident(number).id for number in range(1, 4)]
    refused: list[tuple[str, Callable[[], object]]] = [
        ("there is no incident", lambda: say.resolve("none", **ANN)),
        ("already resolved", lambda: say.resolve(ids[1], **ANN)),
        ("the incident is open", lambda: say.reopen(ids[0], **ANN)),
        ("was merged into", lambda: say.reopen(ids[2], **ANN)),
        ("merged into itself", lambda: say.merge(ids[0], into=ids[0], **ANN)),
        ("itself merged", lambda: say.merge(ids[0], into=ids[2], **ANN)),
        ("already resolved", lambda: say.merge(ids[1], into=ids[0], **ANN)),
        ("there is no incident", lambda: say.merge(ids[0], into="none", **ANN)),
        ("no incident was merged", lambda: say.split(ids[1], parts=None, **ANN)),
        ("was not merged into this", lambda: say.split(ids[0], parts=["nothing"], **ANN)),
    ]
    for why, give in refused:
        with pytest.raises((Conflict, Invalid, NotFound), match=why):
            give()
    assert desk.bench.commands() == []
    assert desk.verbs() == []


def test_a_repeat_is_not_refused_for_what_its_first_try_made_of_the_incident(desk: Desk) -> None:
    desk.save(incident(1))
    desk.incidents.resolve(incident(1).id, **ANN)
    desk.save(incident(1, state=IncidentState.resolved, closed=START, closed_why="ann: seen"))
    assert desk.incidents.consumed(desk.incidents.resolve(incident(1).id, **ANN))
    assert len(desk.verbs()) == 1
    assert [one.kind for one in desk.bench.commands()] == [CommandKind.resolve]


def test_split_command_names_the_merged_incidents_for_the_detector(desk: Desk) -> None:
    over = {"state": IncidentState.resolved, "closed": START, "closed_why": "part of it"}
    parts = [incident(number, **over, merged_into=incident(1).id) for number in (2, 3)]
    desk.save(incident(1), *parts)
    ids = {one.id for one in parts}
    desk.incidents.split(incident(1).id, parts=None, by="ann", reason="two faults", request="q1")
    desk.incidents.split(incident(1).id, parts=[parts[1].id], by="ann", reason="one", request="q2")
    every, named = (set(one.data["incidents"]) for one in desk.bench.commands())
    assert (every, named) == (ids, {parts[1].id})
    assert desk.verbs() == [("ann", "incident.split_asked")] * 2


def test_a_note_is_kept_once_and_needs_its_incident(desk: Desk) -> None:
    with pytest.raises(NotFound):
        desk.incidents.note("none", "reseated", by="ann", request="q1")
    desk.save(incident())
    for _ in range(2):
        desk.incidents.note(incident().id, "reseated", by="ann", request="q2")
    (record,) = desk.bench.records()
    assert (record.verb, record.data["note"]) == ("incident.noted", "reseated")


def test_a_reference_replaces_that_of_its_kind_and_is_forgotten_once(desk: Desk) -> None:
    given: dict[str, Any] = {"cluster": CLUSTER, "kind": "h100", "at": START, "by": "ann"}
    first, second = (Reference(node=node, facts={"driver": node}, **given) for node in ("n1", "n2"))
    desk.controls.learn(first, reason="good", request="q1")
    desk.controls.learn(second, reason="better", request="q2")
    with desk.bench.ledger.transaction() as tx:
        assert tx.references() == [second]
    for _ in range(2):
        desk.controls.forget_reference(second, by="bob", reason="sold", request="q3")
    with desk.bench.ledger.transaction() as tx:
        assert tx.references() == []
    assert [verb for _, verb in desk.verbs()] == [
        "reference.learnt",
        "reference.learnt",
        "reference.forgotten",
    ]
