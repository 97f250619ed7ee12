"""What healer writes beside a drain: `{"healer": {"incident", "rule", "since", "state"}}`."""

import json
from typing import Any

from healer.model.run import Run
from healer.model.slurm_node import SlurmNode

_KEY = "healer"


def is_our_note(text: str) -> bool:
    if not text.startswith("{"):
        return False
    try:
        told = json.loads(text)
    except ValueError:
        return False
    return isinstance(told, dict) and list(told) == [_KEY]


def note_of(run: Run, state: str, node: SlurmNode) -> str:
    """`since` is when the drain was set; `state` how the run stands."""
    told: dict[str, Any] = {
        "incident": (run.incident or run.id)[:8],
        "rule": run.rule or run.playbook,
        "since": node.reason_at.isoformat() if node.reason_at else None,
        "state": state,
    }
    return json.dumps({_KEY: told}, separators=(",", ":"))
