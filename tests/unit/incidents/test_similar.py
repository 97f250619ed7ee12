"""Which incidents are alike, in which order, and how they ended."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from healer.incidents.node_history import similar_to
from healer.model import Component, FaultClass, Incident, IncidentState, Review, Verb
from healer.model.incident import Similarity
from tests.support.loop import CLUSTER, START

MODELS = {"gpu0001": "h100", "gpu0002": "h100", "gpu0003": "a100"}


def incident(number: int, node: str = "gpu0001", gpu: int | None = 3, **fields: Any) -> Incident:
    at = START + timedelta(hours=number)
    given: dict[str, Any] = {
        "id": f"{number:032x}",
        "cluster": CLUSTER,
        "rule": "gpu-fatal",
        "fault": "xid-95",
        "fault_class": FaultClass.fatal,
        "title": "x",
        "root": Component(cluster=CLUSTER, node=node, gpu=gpu),
        "opened": at,
        "updated": at,
        "settle_until": at,
    }
    return Incident(**(given | fields))


HERE = incident(100)


def same(*others: Incident, **fields: Any) -> list[tuple[int, Similarity]]:
    found = similar_to(HERE, others, lambda node: MODELS.get(node, ""), **fields)
    return [(int(one.id, 16), one.same) for one in found]


def test_the_own_part_and_node_come_first_and_each_group_newest_first() -> None:
    others = [
        incident(9, "gpu0002"),
        incident(1, fault="xid-31", rule="gpu-application"),
        incident(2, gpu=5),
        incident(3),
        incident(8, "gpu0002"),
    ]
    assert same(*others) == [
        (3, Similarity.part),
        (2, Similarity.node),
        (1, Similarity.part),
        (9, Similarity.model),
        (8, Similarity.model),
    ]


def test_another_fault_elsewhere_another_model_and_what_was_merged_are_not_alike() -> None:
    others = [
        incident(1, "gpu0002", fault="xid-79", rule="gpu-lost"),
        incident(2, "gpu0003"),
        incident(3, merged_into=HERE.id),
        incident(4, gpu=5, rule="gpu-application", fault="xid-31"),
        HERE,
    ]
    assert same(*others) == []


def test_with_unknown_hardware_only_the_fault_is_compared() -> None:
    assert same(incident(1, "gpu0009")) == [(1, Similarity.fault)]


def test_no_more_than_five_and_none_twice() -> None:
    many = [incident(number) for number in range(1, 20)]
    assert same(*many, *many) == [(number, Similarity.part) for number in (19, 18, 17, 16, 15)]


def test_how_it_ended() -> None:
    drained = START + timedelta(hours=1, minutes=1)
    over = incident(
        1,
        state=IncidentState.resolved,
        drained_at=drained,
        closed=drained + timedelta(minutes=42),
        probation_until=drained + timedelta(days=1),
        closed_why="returned to service by healer: tests passed",
        review=Review.true_fault,
        review_cause="riser",
    )

    def cures(names: Sequence[str]) -> Mapping[str, Sequence[Verb]]:
        return dict.fromkeys(names, (Verb.drain, Verb.reset_gpu, Verb.resume))

    (one,) = similar_to(HERE, [over], lambda _: "", cures)
    assert (one.helped, one.return_s) == (Verb.reset_gpu, 42 * 60)
    assert one.ended == (
        "returned to service by healer: tests passed; back 42 min after the drain; after a GPU reset; "
        "reviewed: true fault (riser)"
    )
    (other,) = similar_to(HERE, [incident(2)], lambda _: "", cures)
    assert (other.ended, other.helped, other.return_s) == ("still open", None, None)
