"""What people and runs tell the detector, the only writer of incident structure. Rows in the inbox."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec


class CommandKind(StrEnum):
    acknowledge = "acknowledge"
    resolve = "resolve"
    reopen = "reopen"
    merge = "merge"
    split = "split"  # pyright: ignore[reportAssignmentType] - a word of the contract
    review = "review"
    run_changed = "run_changed"  # a run started, waits, ended, got stuck
    jobs_hit = "jobs_hit"  # listed after the drain was read back
    node_returned = "node_returned"
    test_failed = "test_failed"  # a sweep's test of a node in service


class Command(msgspec.Struct, frozen=True, kw_only=True):
    kind: CommandKind
    cluster: str
    at: datetime
    by: str
    incident: str | None = None
    reason: str = ""
    data: dict[str, Any] = {}
