"""Drains that are not ours become findings: whose they are, and since when."""

import pytest

from healer.detection import WalkInput
from healer.detection.reported import drain_findings
from healer.model import Finding, Reservation, SlurmNode, SlurmSnapshot
from healer.observations import Picture
from tests.support.loop import CLUSTER, START, later, shipped


def found(*nodes: SlurmNode, seconds: float = 60) -> list[Finding]:
    picture = Picture(CLUSTER, watching_since=START)
    shown = {node.name: node for node in nodes}
    picture.show(SlurmSnapshot(cluster=CLUSTER, taken_at=later(seconds), nodes=shown))
    return drain_findings(WalkInput(shipped(), picture, later(seconds)))


def node(*state: str, reason: str = "", user: str = "", name: str = "gpu0001") -> SlurmNode:
    return SlurmNode(
        name=name, state=state, reason=reason, reason_user=user, reason_at=START if reason else None
    )


def test_nothing_without_a_picture_and_nothing_from_nodes_in_service() -> None:
    assert drain_findings(WalkInput(shipped(), Picture(CLUSTER, watching_since=START), START)) == []
    assert found(node("IDLE"), node("ALLOCATED", reason="an old note", name="gpu0002")) == []


def test_ours_are_no_news() -> None:
    assert found(node("IDLE", "DRAIN", reason="healer:gpu-lost inc:12345678 GPU fell off the bus")) == []


def test_drain_of_healer_stays_its_own_after_slurm_appends_text() -> None:
    assert found(node("DOWN", "DRAIN", reason="healer:gpu-lost inc:12345678 x : Not responding")) == []


def test_a_reason_that_only_speaks_of_healer_is_a_persons() -> None:
    (one,) = found(node("IDLE", "DRAIN", reason="see healer:gpu-lost", user="ann"))
    assert one.fault == "person-drain"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Kill task failed", "kill-task-failed"),
        ("Not responding", "not-responding"),
        ("Node unexpectedly rebooted", "rebooted"),
        ("Prolog error", "prolog-error"),
        ("Epilog error", "epilog-error"),
        ("Kill task failed : Not responding", "kill-task-failed"),
    ],
)
def test_slurms_own_drains_by_kind(reason: str, kind: str) -> None:
    (one,) = found(node("IDLE", "DRAIN", reason=reason, user="root"))
    assert one.fault == f"slurm-drain:{kind}"
    assert not one.unusable


def test_a_persons_drain_names_the_person_and_its_age() -> None:
    (one,) = found(node("MIXED", "DRAIN", reason="replacing PSU, CHG-4711", user="ann"))
    assert one.fault == "person-drain"
    assert "ann" in one.text
    assert "replacing PSU, CHG-4711" in one.text
    assert one.at == START


@pytest.mark.parametrize(
    "state", [("IDLE", "DRAIN", "MAINTENANCE"), ("DOWN", "POWERED_DOWN"), ("IDLE", "POWERING_DOWN")]
)
def test_planned_work_is_no_drain(state: tuple[str, ...]) -> None:
    assert found(node(*state, reason="planned", user="ann")) == []


def test_a_persons_drain_amid_our_own_tests_is_theirs() -> None:
    held = node("IDLE", "DRAIN", "MAINTENANCE", reason="PSU", user="ann")
    for kept, faults in (("healer_01234567", ["person-drain"]), ("upgrade", [])):
        picture = Picture(CLUSTER, watching_since=START)
        made = Reservation(name=kept, nodes=(held.name,), users=("root",), maintenance=True)
        picture.show(
            SlurmSnapshot(cluster=CLUSTER, taken_at=START, nodes={held.name: held}, reservations={kept: made})
        )
        assert [one.fault for one in drain_findings(WalkInput(shipped(), picture, START))] == faults


def test_down_without_a_reason_is_slurms() -> None:
    (one,) = found(node("DOWN"))
    assert one.fault == "slurm-drain:not-responding"


def test_down_with_a_persons_words_is_the_persons() -> None:
    (one,) = found(node("DOWN", reason="dead PSU", user="ann"))
    assert one.fault == "person-drain"


def test_the_same_drain_is_the_same_evidence_and_another_one_is_not() -> None:
    held = node("IDLE", "DRAIN", reason="disk", user="ann")
    digests = {
        found(one, seconds=seconds)[0].evidence[0].digest
        for one, seconds in ((held, 60), (held, 600), (node("DOWN", "DRAIN", reason="disk", user="ann"), 60))
    }
    assert len(digests) == 1
    assert found(node("IDLE", "DRAIN", reason="fan", user="ann"))[0].evidence[0].digest not in digests
