"""The page of what waits for a person."""

from datetime import timedelta

import msgspec
import pytest
from fastapi.testclient import TestClient

from healer.console.views.queue_view import SHOWN, approval, most_urgent
from healer.console.views.runs_view import run_row
from healer.model import (
    Answer,
    AnswerKind,
    Decision,
    Guard,
    Outcome,
    Proposal,
    Role,
    Run,
    RunState,
    Severity,
    Verb,
)
from healer.ports.answers import Standing
from healer.text import say
from tests.support.console_sample import CLUSTER, NOW, Sample
from tests.support.console_site import Site, make_sample, standing_of

COOKIE = {"Cookie": "healer_session=cookie-good"}


@pytest.fixture
def sample() -> Sample:
    return make_sample(32)


def standing(sample: Sample) -> Standing:
    return standing_of(sample)


def run(name: str, minutes: int, incident: str | None, state: RunState = RunState.waiting_approval) -> Run:
    at = NOW - timedelta(minutes=minutes)
    return Run(
        id=name, cluster=CLUSTER, playbook="drain", state=state, by="ann", reason="x", created_at=at,
        node="gpu0001", incident=incident,
    )  # fmt: skip


def test_the_most_urgent_is_first_and_of_equals_the_oldest(sample: Sample) -> None:
    site = standing(sample)
    by = {severity: one.id for one in site.open_incidents for severity in [one.severity]}
    given = [
        run("p3", 90, by[Severity.P3]), run("late-p1", 1, by[Severity.P1]), run("by hand", 500, None),
        run("early-p1", 9, by[Severity.P1]), run("held", 99, by[Severity.P0], RunState.held),
    ]  # fmt: skip
    found = most_urgent([run_row(one, NOW) for one in given], site)
    assert [row.run.id for row in found] == ["early-p1", "late-p1", "by hand", "p3"]


def test_run_shows_its_plan_its_jobs_and_who_objects(sample: Sample) -> None:
    site = standing(sample)
    assert site.snapshot is not None
    waiting = next(one for one in site.asking if one.state is RunState.waiting_approval and one.node)
    answers = (
        Answer(guard=Guard.pause, kind=AnswerKind.allow, why="No active pauses."),
        Answer(guard=Guard.slots, kind=AnswerKind.hold, why="10 of 10 slots used.", used=10, limit=10),
    )
    decision = Decision(
        at=NOW, cluster=CLUSTER, incident=None, outcome=Outcome.held, why="slots", answers=answers,
        playbook="drain", proposal=Proposal(cluster=CLUSTER, verb=Verb.drain),
    )  # fmt: skip
    detail = msgspec.structs.replace(sample.runs[waiting.id], decisions=(decision,), plan=("Drain", "Wait"))
    found = approval(run_row(waiting, NOW), detail, site, {waiting.playbook: "the node"}, Role.operator)
    assert (found.plan, found.takes) == (("Drain", "Wait"), "the node")
    assert [guard.guard for guard in found.against] == ["slots"]
    assert list(found.jobs) == site.snapshot.jobs_on(waiting.node or "")[:8]
    assert found.buttons and not any(button.key for button in found.buttons)


def test_run_that_no_longer_exists_is_still_shown(sample: Sample) -> None:
    site = msgspec.structs.replace(standing(sample), snapshot=None)
    found = approval(run_row(run("gone", 1, "no such"), NOW), None, site, {}, Role.viewer)
    assert (found.plan, found.jobs, found.incident, found.buttons) == ((), (), None, ())


@pytest.mark.parametrize(("role", "presses"), [(Role.responder, False), (Role.operator, True)])
def test_only_who_may_act_sees_buttons(sample: Sample, role: Role, presses: bool) -> None:
    page = TestClient(Site(sample, role=role).app).get("/approvals", headers=COOKIE).text
    main = page[page.index("<main") : page.index("</main>")]
    assert ("/approve" in main) is presses
    assert ("Only operators can approve or reject." in main) is not presses
    assert main.count("<article") == 3 and "held runs" in main


@pytest.mark.parametrize("path", ["/approvals", "/runs/{run}", "/incidents/{incident}"])
def test_who_may_not_approve_reads_why_beside_the_disabled_button(sample: Sample, path: str) -> None:
    site = Site(sample)
    site.bars = lambda run: say("engine.second_person")
    waits = next(
        one.run
        for one in sample.runs.values()
        if one.run.incident and one.run.state is RunState.waiting_approval
    )
    asked = path.format(run=waits.id, incident=waits.incident)
    page = TestClient(site.app).get(asked, headers=COOKIE).text
    approve = page[page.index(f'data-act="/api/v1/runs/{waits.id}/approve"') :]
    assert " disabled>" in approve[: approve.index("</button>")]
    assert "A step that cannot be undone needs a second person: you requested it yourself" in approve


def test_many_are_cut_and_what_was_written_stays_text(sample: Sample) -> None:
    evil = "<script>alert(1)</script>"
    detail = next(iter(sample.runs.values()))
    for number in range(30):
        one = msgspec.structs.replace(
            detail.run, id=f"r{number}", state=RunState.waiting_approval, reason=evil, by=evil, shadow=False
        )
        sample.runs[one.id] = msgspec.structs.replace(detail, run=one, plan=(evil,))
    page = TestClient(Site(sample).app).get("/approvals", headers=COOKIE).text
    assert page.count("<article") == SHOWN and f"{SHOWN} of 33" in page
    assert evil not in page and "&lt;script&gt;" in page


def test_what_a_run_takes_is_escaped_once(sample: Sample) -> None:
    detail = next(iter(sample.runs.values()))
    run = msgspec.structs.replace(
        detail.run, id="r0", playbook="power-cycle", state=RunState.waiting_approval, shadow=False
    )
    sample.runs["r0"] = msgspec.structs.replace(detail, run=run)
    page = TestClient(Site(sample).app).get("/approvals", headers=COOKIE).text
    assert "takes the node and a job&#39;s work" in page and "&amp;#39;" not in page


def test_nothing_waits() -> None:
    page = TestClient(Site(make_sample(8, empty=True)).app).get("/approvals", headers=COOKIE).text
    assert "Nothing is waiting for a person." in page
