"""What real runs on a real Slurm sent, replayed: the same nodes are drained, the same jobs requeued.

The recordings are what the tests in tests/system/e2e sent. `RECORDINGS=tests/recordings pytest
tests/system/e2e` records again. Their last snapshot shows what healer did then.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import run
from tests.support.processes import clean_environ

ROOT = Path(__file__).parents[3]
RECORDINGS = sorted((ROOT / "tests/recordings").glob("*.jsonl"))
#: Nodes drained and jobs requeued in each: none of them may ever become empty by an accident.
DONE = {
    "lost-gpu": (1, 1),
    "person-first": (0, 0),
    "shared-node": (1, 1),
    "storm-xid-48": (1, 0),
    "storm-xid-79": (3, 0),
}


def replay(recording: Path) -> bytes:
    """`healer replay --json` with the settings that the proofs had."""
    environ = clean_environ(HEALER_MODE="auto", HEALER_SETTLE_S="0.5")
    done = run(["replay", str(recording), "--json"], environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.encode()


def done_then(recording: Path) -> tuple[set[str], set[str]]:
    """(nodes that healer had drained, jobs that had been restarted) at the recording's end."""
    last: dict[str, Any] = {}
    for line in recording.read_text().splitlines():
        entry = json.loads(line)
        last[entry["route"]] = entry["body"]
    nodes = last["slurm/nodes"]["nodes"]
    drained = {one["name"] for one in nodes if one.get("reason", "").startswith("healer:")}
    return drained, {one["id"] for one in last["slurm/jobs"]["jobs"] if one.get("restarts")}


def test_every_recording_is_known() -> None:
    assert [one.stem for one in RECORDINGS] == sorted(DONE)


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda one: one.stem)
def test_a_replay_does_what_was_done_and_twice_the_same(recording: Path) -> None:
    printed = replay(recording)
    assert replay(recording) == printed
    document = json.loads(printed)
    by_action = {
        name: [one for one in document["actions"] if one["action"] == name] for name in ("drain", "requeue")
    }
    drained, requeued = done_then(recording)
    assert (len(drained), len(requeued)) == DONE[recording.stem]
    assert sorted(one["node"] for one in by_action["drain"]) == sorted(drained)
    assert sorted(one["job"] for one in by_action["requeue"]) == sorted(requeued)
    assert document["differences"] == []
