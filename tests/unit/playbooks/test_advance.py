"""`advance`: the state of a run follows from its log alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healer.model import LogEntry, Playbook, Step, StepEvent, Verb
from healer.playbooks import Ask, Do, Finish, Intent, RecordFacts, Skip, Sleep, advance, stuck_keys
from tests.support.loop import START, later, shipped

BOOK = Playbook(
    name="book",
    title="A book",
    target="node",
    steps=(
        Step(id="drain", title="Drain the node", do=Verb.drain, retries=2),
        Step(id="jobs", check="jobs_hit"),
        Step(id="requeue", do=Verb.requeue, for_each="jobs_hit", retries=1),
        Step(id="repair", wait="repair"),
        Step(id="resume", do=Verb.resume),
    ),
)
DRAINED = ("drain", "started"), ("drain", "done")


def entry(step: str, event: str, at: float = 0, **data: Any) -> LogEntry:
    attempt = data.pop("attempt", 1)
    text = data.pop("text", "")
    return LogEntry(
        run="r1",
        at=later(at),
        epoch=1,
        step=step,
        event=StepEvent(event),
        attempt=attempt,
        text=text,
        data=data,
    )


def listed(**jobs: int) -> list[LogEntry]:
    """The log up to the list of jobs hit; names are given as j4711."""
    return [
        *(entry(*one) for one in DRAINED),
        entry("jobs", "done", jobs={job[1:]: restarts for job, restarts in jobs.items()}),
    ]


def next_of(*log: LogEntry, at: float = 0) -> Intent:
    return advance(BOOK, log, later(at))


def wanted(intent: Intent) -> tuple[str, int, bool]:
    assert isinstance(intent, Do), intent
    return intent.key, intent.attempt, intent.fresh


def test_it_begins_with_the_first_step() -> None:
    assert wanted(next_of()) == ("drain", 1, True)


def test_started_and_nothing_more_means_look_first() -> None:
    assert wanted(next_of(entry("drain", "started"))) == ("drain", 1, False)


@pytest.mark.parametrize("over", ["done", "skipped"])
def test_done_and_skipped_go_on_to_the_next(over: str) -> None:
    assert wanted(next_of(entry("drain", over))) == ("jobs", 1, True)


def test_each_job_of_the_list_has_a_part_of_its_own() -> None:
    log = listed(j1=0, j2=3)
    assert wanted(next_of(*log)) == ("requeue:1", 1, True)
    assert wanted(next_of(*log, entry("requeue:1", "done"))) == ("requeue:2", 1, True)
    over = [*log, entry("requeue:1", "done"), entry("requeue:2", "skipped")]
    assert wanted(next_of(*over)) == ("repair", 1, True)


def test_no_job_hit_no_part() -> None:
    assert wanted(next_of(*listed())) == ("repair", 1, True)


def test_a_part_that_waits_holds_no_other_part_back() -> None:
    waits = entry("requeue:1", "waiting", wake_at=later(60).isoformat())
    assert wanted(next_of(*listed(j1=0, j2=0), waits)) == ("requeue:2", 1, True)


def test_a_part_that_is_stuck_holds_no_other_part_back() -> None:
    stuck = entry("requeue:1", "failed", final=True)
    assert wanted(next_of(*listed(j1=0, j2=0), stuck)) == ("requeue:2", 1, True)
    asked = next_of(*listed(j1=0, j2=0), stuck, entry("requeue:2", "done"))
    assert isinstance(asked, Ask)
    assert asked.key == "requeue:1"


def test_the_next_step_waits_for_all_parts() -> None:
    waits = entry("requeue:1", "waiting", wake_at=later(60).isoformat())
    slept = next_of(*listed(j1=0, j2=0), waits, entry("requeue:2", "done"))
    assert isinstance(slept, Sleep)
    assert (slept.key, slept.until) == ("requeue:1", later(60))


def test_of_several_waits_the_first_to_end_counts() -> None:
    waits = [
        entry("requeue:1", "waiting", wake_at=later(60).isoformat()),
        entry("requeue:2", "held", wake_at=later(20).isoformat()),
    ]
    slept = next_of(*listed(j1=0, j2=0), *waits)
    assert isinstance(slept, Sleep)
    assert slept.until == later(20)


def test_a_wait_that_is_over_looks_again() -> None:
    waits = entry("drain", "waiting", wake_at=later(10).isoformat())
    assert isinstance(next_of(waits, at=9.9), Sleep)
    assert wanted(next_of(waits, at=10)) == ("drain", 1, False)


@pytest.mark.parametrize(
    ("event", "attempt"), [("waiting", 1), ("held", 1), ("failed", 2)], ids=["waiting", "held", "failed"]
)
def test_a_wait_that_a_clock_ahead_has_written_is_over(event: str, attempt: int) -> None:
    """The clock of its worker was set back by an hour, or another worker goes on."""
    waits = entry("drain", event, at=3600, wake_at=later(3605).isoformat())
    assert wanted(next_of(waits)) == ("drain", attempt, False)


def test_endless_wait_is_for_a_person() -> None:
    slept = next_of(*listed(), entry("repair", "waiting", wake_at=None), at=1e6)
    assert isinstance(slept, Sleep)
    assert slept.until is None


def test_a_failure_is_tried_again_with_growing_pauses() -> None:
    first = next_of(entry("drain", "failed", at=0))
    assert isinstance(first, Sleep)
    assert first.until == later(1)
    assert wanted(next_of(entry("drain", "failed", at=0), at=1)) == ("drain", 2, False)
    second = next_of(entry("drain", "failed", at=10, attempt=2), at=10)
    assert isinstance(second, Sleep)
    assert second.until == later(12)


def test_pauses_stop_growing_at_a_minute() -> None:
    patient = Playbook(name="p", title="p", target="node", steps=(Step(id="a", do=Verb.drain, retries=50),))
    slept = advance(patient, [entry("a", "failed", attempt=30)], START)
    assert isinstance(slept, Sleep)
    assert slept.until == later(60)


def test_after_the_last_attempt_a_person_is_asked_what_went_wrong() -> None:
    asked = next_of(entry("drain", "failed", attempt=3, text="Slurm says no."), at=1e6)
    assert isinstance(asked, Ask)
    assert "Drain the node" in asked.question
    assert "Slurm says no." in asked.question
    assert "failed after 3 attempts: " in asked.question


def test_one_attempt_is_in_the_singular() -> None:
    once = Playbook(name="p", title="p", target="node", steps=(Step(id="a", do=Verb.drain, retries=0),))
    asked = advance(once, [entry("a", "failed", text="No.")], START)
    assert isinstance(asked, Ask) and "failed after 1 attempt: No." in asked.question


def test_a_final_failure_asks_at_once() -> None:
    assert isinstance(next_of(entry("drain", "failed", final=True), at=1e6), Ask)


def test_a_persons_retry_begins_again_and_looks_first() -> None:
    log = [entry("drain", "failed", attempt=3), entry("drain", "retry")]
    assert wanted(next_of(*log)) == ("drain", 1, False)


def test_a_retry_begins_all_parts_again_that_are_stuck_and_no_other() -> None:
    log = [
        *listed(j1=0, j2=0, j3=0),
        entry("requeue:1", "failed", final=True),
        entry("requeue:2", "failed", attempt=9),
        entry("requeue:3", "done"),
    ]
    assert stuck_keys(BOOK, log, START) == ["requeue:1", "requeue:2"]
    assert stuck_keys(BOOK, listed(j1=0), START) == []


def test_undone_is_a_question_for_a_person() -> None:
    assert isinstance(next_of(entry("drain", "undone")), Ask)


def test_all_steps_over_is_the_end() -> None:
    log = [*listed(j1=0), entry("requeue:1", "done"), entry("repair", "done"), entry("resume", "done")]
    assert isinstance(next_of(*log), Finish)


def test_the_list_of_jobs_is_the_latest_that_was_read_back() -> None:
    log = [*listed(j1=0), entry("jobs", "retry"), entry("jobs", "done", jobs={"2": 1})]
    assert wanted(next_of(*log)) == ("requeue:2", 1, True)


# --- whatever the log says ----------------------------------------------------------------------------------

KEYS = st.sampled_from(["drain", "jobs", "requeue:1", "requeue:2", "repair", "resume", "taken-over", "other"])
DATA = st.fixed_dictionaries(
    {},
    optional={
        "wake_at": st.one_of(st.none(), st.sampled_from([later(-60).isoformat(), later(60).isoformat()])),
        "final": st.just(True),
        "jobs": st.dictionaries(st.sampled_from(["1", "2"]), st.integers(0, 3)),
    },
)
LOGS = st.lists(
    st.builds(
        LogEntry,
        run=st.just("r1"),
        at=st.sampled_from([later(-60), START]),
        epoch=st.just(1),
        step=KEYS,
        event=st.sampled_from(list(StepEvent)),
        attempt=st.integers(1, 6),
        data=DATA,
    ),
    max_size=12,
)


@given(log=LOGS, book=st.sampled_from([BOOK, *shipped().playbooks.values()]))
def test_every_log_has_a_next_intent_and_always_the_same(log: list[LogEntry], book: Playbook) -> None:
    intent = advance(book, log, START)
    assert isinstance(intent, Do | Sleep | Ask | Skip | Finish | RecordFacts)
    assert advance(book, list(log), START) == intent
    if isinstance(intent, Sleep) and intent.until is not None:
        assert intent.until > START
        assert not isinstance(advance(book, log, intent.until), Sleep) or intent != advance(
            book, log, intent.until
        )


@given(log=LOGS)
def test_finished_step_is_not_repeated_without_a_person(log: list[LogEntry]) -> None:
    last = {one.step: one for one in log}
    intent = advance(BOOK, log, START)
    if isinstance(intent, Do) and intent.key in last:
        assert last[intent.key].event not in {StepEvent.done, StepEvent.skipped, StepEvent.undone}
        assert not intent.fresh


# --- steps on a condition, and ends before the end ---------------------------------------------------------

TESTED = Playbook(
    name="tested",
    title="Tested",
    target="node",
    steps=(
        Step(id="test", do=Verb.diagnose),
        Step(id="ticket", do=Verb.ticket, when="test.failed"),
        Step(id="repair", wait="repair", when="test.failed"),
        Step(id="resume", do=Verb.resume, when="test.passed"),
    ),
)


def after(*log: LogEntry) -> Intent:
    return advance(TESTED, log, later(0))


@pytest.mark.parametrize(("passed", "skipped"), [(True, "ticket"), (False, "")])
def test_a_step_is_for_one_verdict(passed: bool, skipped: str) -> None:
    intent = after(entry("test", "done", passed=passed))
    if skipped:
        assert isinstance(intent, Skip) and (intent.key, intent.why) == (skipped, "only when test failed")
    else:
        assert wanted(intent) == ("ticket", 1, True)


def test_step_without_a_verdict_has_passed() -> None:
    log = [entry("test", "done"), entry("ticket", "skipped"), entry("repair", "skipped")]
    assert wanted(after(*log)) == ("resume", 1, True)


def test_a_step_that_was_skipped_has_neither_passed_nor_failed() -> None:
    for key in ("ticket", "repair", "resume"):
        intent = after(entry("test", "skipped"), *(entry(one, "skipped") for one in _before(key)))
        assert isinstance(intent, Skip) and intent.key == key


def _before(key: str) -> list[str]:
    ids = [step.id for step in TESTED.steps[1:]]
    return ids[: ids.index(key)]


def test_a_step_that_could_not_be_done_asks_and_is_no_verdict() -> None:
    assert isinstance(after(entry("test", "failed", final=True, text="no way to the node")), Ask)


def test_each_step_that_is_not_met_is_noted_once() -> None:
    log = [entry("test", "done", passed=True), entry("ticket", "skipped")]
    intent = after(*log)
    assert isinstance(intent, Skip) and intent.key == "repair"
    assert wanted(after(*log, entry("repair", "skipped"))) == ("resume", 1, True)


def test_a_verdict_after_a_retry_is_the_last_one() -> None:
    log = [entry("test", "done", passed=False), entry("test", "retry"), entry("test", "done", passed=True)]
    assert isinstance(after(*log), Skip)


@pytest.mark.parametrize("event", ["done", "skipped"])
def test_a_step_may_end_the_run(event: str) -> None:
    intent = after(entry("test", event, ends_run=True, text="well again"))
    assert isinstance(intent, Finish) and intent.why == "well again"


def test_repeated_wait_for_a_moment_precedes_its_step() -> None:
    book = Playbook(
        name="b",
        title="b",
        target="node",
        steps=(Step(id="moment", wait="empty"), Step(id="drain", do=Verb.drain)),
    )
    log = [
        entry("moment", "done"),
        entry("drain", "held", wake_at=later(-1).isoformat(), guard="slots"),
        entry("moment", "retry"),
    ]
    assert wanted(advance(book, log, later(0))) == ("moment", 1, False)
    assert wanted(advance(book, [*log, entry("moment", "done")], later(0))) == ("drain", 1, False)
