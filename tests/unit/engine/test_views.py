"""What is derived of stored rows, for the API and the console."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from healer.engine.records import gpu_hours_lost, readiness
from healer.model import Controller, HitBasis, JobHit, Trouble
from healer.ports.answers import CheckpointSeen, Pulse, Requeue, SealState
from healer.ports.request_errors import Unavailable

NOW = datetime(2026, 11, 20, 3, 16, tzinfo=UTC)

SAVED = CheckpointSeen(at=NOW - timedelta(hours=2), step=10)
AGAIN = Requeue(at=NOW - timedelta(hours=1), restarts=0)


@pytest.mark.parametrize(
    ("gpus", "again", "seen", "hit", "lost"),
    [
        (8, [], [], False, 0.0),
        (8, [], [], True, None),
        (8, [AGAIN], [SAVED], True, 8.0),
        (0, [AGAIN], [SAVED], True, None),
        (8, [AGAIN], [], True, None),
        (8, [AGAIN], [msgspec.structs.replace(SAVED, durable=False)], True, None),
        (8, [AGAIN], [msgspec.structs.replace(SAVED, restart=1)], True, None),
        (8, [AGAIN], [msgspec.structs.replace(SAVED, at=NOW)], True, None),
        (8, [AGAIN, msgspec.structs.replace(AGAIN, restarts=1, at=NOW)], [SAVED], True, None),
        (
            8,
            [AGAIN, msgspec.structs.replace(AGAIN, restarts=1, at=NOW)],
            [SAVED, msgspec.structs.replace(SAVED, restart=1, at=NOW - timedelta(minutes=15))],
            True,
            10.0,
        ),
    ],
)
def test_lost_hours_are_shown_only_when_known(
    gpus: int, again: list[Requeue], seen: list[CheckpointSeen], hit: bool, lost: float | None
) -> None:
    assert gpu_hours_lost(gpus, again, seen, hit=hit).hours == lost


def lost_by(basis: HitBasis, hours: float | None, restart: int = 0) -> JobHit:
    return JobHit(job="4711", basis=basis, restart=restart, gpus=8, lost_gpu_hours=hours)


@pytest.mark.parametrize(
    ("lives", "again", "lost"),
    [
        ([lost_by(HitBasis.checkpoint, 4.0), lost_by(HitBasis.start, 2.0, 1)], [AGAIN], (6.0, True)),
        ([lost_by(HitBasis.runs_on, None)], [], (0.0, False)),
        ([lost_by(HitBasis.runs_on, None)], [AGAIN], (8.0, False)),
        ([lost_by(HitBasis.unknown, None)], [], (None, False)),
        ([lost_by(HitBasis.ended, 0.0)], [], (0.0, False)),
    ],
)
def test_incidents_of_a_job_life_take_precedence_over_its_requeue(
    lives: list[JobHit], again: list[Requeue], lost: tuple[float | None, bool]
) -> None:
    by_life = {one.restart: one for one in lives}
    assert gpu_hours_lost(8, again, [SAVED], hit=True, lives=by_life) == lost


def pulse(cluster: str, age_s: float = 2, **fields: object) -> Pulse:
    taken = {"taken_at": NOW - timedelta(seconds=age_s), "detector": True}
    return Pulse(cluster=cluster, **(taken | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(("age_s", "ok"), [(31, False), (30, True), (-30, True), (-31, False)])
def test_readiness_and_the_gate_agree_on_the_snapshot(age_s: float, ok: bool) -> None:
    """With the scheduler's clock ahead every action was held, and the check read "ok: -1188 s old"."""
    check = readiness(lambda: [pulse("pod1", age_s)], NOW, stale_s=30).checks["slurm"]
    assert check["ok"] is ok
    assert ("in the future: check the clocks" in check["text"]) is (age_s == -31)


def test_one_cluster_that_is_well_is_enough() -> None:
    found = readiness(lambda: [pulse("pod1"), pulse("pod2", age_s=31)], NOW, stale_s=30)
    assert found.ready and set(found.checks) == {
        "database", "slurm pod1", "detector pod1", "seal pod1", "slurm pod2", "detector pod2", "seal pod2",
    }  # fmt: skip
    assert found.checks["slurm pod2"]["ok"] is False
    alone = readiness(lambda: [pulse("pod1", detector=False)], NOW, stale_s=30)
    assert not alone.ready and alone.checks["detector"]["text"] == "no detector is active"


def test_slurm_trouble_is_shown_while_the_snapshot_is_fresh() -> None:
    slow = Controller(cluster="pod1", at=NOW, answer_s=9.0, since={Trouble.slow: NOW})
    found = readiness(lambda: [pulse("pod1", controller=slow)], NOW, stale_s=30)
    assert found.ready and [one["what"] for one in found.checks["slurm"]["troubles"]] == ["slow"]


def test_without_a_database_nothing_is_ready() -> None:
    def away() -> list[Pulse]:
        raise Unavailable("the database does not answer")

    found = readiness(away, NOW, stale_s=30)
    assert not found.ready and found.checks == {
        "database": {"ok": False, "text": "the database does not answer"}
    }


@pytest.mark.parametrize(
    ("behind_s", "silent_s", "is_ready", "words"),
    [
        (None, 0, True, "the audit is sealed and witnessed"),
        (59, 299, True, "the audit is sealed and witnessed"),
        (61, 0, False, "No worker seals the audit"),
        (None, 301, True, "The witness file:/w has received no checkpoint"),
        (61, 301, False, "has received no checkpoint since"),
    ],
)
def test_a_seal_that_is_behind_is_not_ready_and_a_witness_that_is_away_is_shown(
    behind_s: float | None, silent_s: float, is_ready: bool, words: str
) -> None:
    since = None if behind_s is None else NOW - timedelta(seconds=behind_s)
    state = SealState(since=since, witnesses={"file:/w": NOW - timedelta(seconds=silent_s)})
    found = readiness(lambda: [pulse("pod1", seal=state)], NOW, stale_s=30)
    assert found.ready is is_ready
    assert words in found.checks["seal"]["text"]
