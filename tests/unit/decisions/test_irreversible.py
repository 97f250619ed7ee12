"""DOWN without a person: only a node that healer drained, whose jobs have all been completing for 30 s."""

from typing import Any

import pytest

from healer.model import AnswerKind, Guard, SlurmJob, Verb
from tests.support.gate import NOW, ago, answer, facts, job, node, propose

OURS = "healer:gpu-lost inc:00000001 x"
COMPLETING = job(flags=("COMPLETING",), state="COMPLETING")


def said(
    jobs: list[SlurmJob],
    *,
    state: tuple[str, ...] = ("MIXED", "COMPLETING", "DRAIN"),
    reason: str = OURS,
    **asked: Any,
) -> AnswerKind:
    known = facts([node(1, state=state, reason=reason), node(2), node(3)], jobs=jobs)
    proposal = propose(Verb.down, **({"stuck_since": ago(seconds=31), "ride": True} | asked))
    return answer(Guard.approval, proposal, known).kind


def test_our_node_whose_jobs_cannot_end_needs_no_approval() -> None:
    assert said([COMPLETING]) is AnswerKind.allow


@pytest.mark.parametrize(
    "asked",
    [
        {"stuck_since": ago(seconds=29)},
        {"stuck_since": None},
        {"reason": "PSU", "jobs": [COMPLETING]},
        {"reason": "", "jobs": [COMPLETING]},
        {"state": ("MIXED", "COMPLETING"), "jobs": [COMPLETING]},
        {"jobs": [COMPLETING, job("4712")]},
        {"jobs": [job("4712", state="SUSPENDED")]},
        {"jobs": []},
    ],
    ids=str,
)
def test_anything_else_needs_a_person(asked: dict[str, Any]) -> None:
    assert said(asked.pop("jobs", [COMPLETING]), **asked) is AnswerKind.hold


def test_our_drained_and_empty_node_has_no_job_to_lose() -> None:
    assert said([], state=("IDLE", "DRAIN"), stuck_since=None) is AnswerKind.allow


def test_a_picture_from_before_it_was_seen_proves_nothing() -> None:
    known = facts([node(1, state=("MIXED", "COMPLETING", "DRAIN"), reason=OURS), node(2)], jobs=[COMPLETING])
    proposal = propose(Verb.down, stuck_since=NOW, ride=True)
    assert answer(Guard.approval, proposal, known).kind is AnswerKind.hold
    assert answer(Guard.approval, proposal, known, now=ago(seconds=-40)).kind is AnswerKind.hold


@pytest.mark.parametrize(("people", "kind"), [(1, AnswerKind.hold), (2, AnswerKind.allow)])
def test_with_a_job_at_work_two_people_are_needed(people: int, kind: AnswerKind) -> None:
    asked = {"by": "ann", "approved_by": "bob" if people == 2 else None}
    assert said([job()], state=("MIXED", "DRAIN"), **asked) is kind
