"""`healer replay --json`: standard output is one document and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.processes import clean_environ

ROOT = Path(__file__).parents[3]

LINES = [
    {
        "at": "2026-11-20T03:00:00Z",
        "route": "slurm/nodes",
        "body": {"cluster": "pod1", "nodes": [{"name": "a1"}]},
    },
    {"at": "2026-11-20T03:00:01Z", "route": "signals/heartbeat", "body": {"cluster": "pod1", "node": "b1"}},
    {"at": "2026-11-20T03:00:02Z", "route": "signals/of-tomorrow", "body": {}},
]


def test_warnings_do_not_stand_in_the_document() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "healer", "replay", "-", "--json"],
        input="".join(json.dumps(line) + "\n" for line in LINES),
        env=clean_environ(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == {
        "incidents": [],
        "merged": [],
        "actions": [],
        "held": [],
        "differences": [],
    }
    assert "signals rejected" in done.stderr
    assert "signals/of-tomorrow" in done.stderr
