"""Hooks in recordings: as the recorder writes them, and as replay reads them."""

import json
from datetime import datetime
from typing import Any

from healer.model import Mode, Observation
from healer.recordings.recorder import Recorder
from healer.recordings.recording import read
from healer.signals.hook_reports import arrivals, hook_reports
from healer.sim.replaying import replay
from healer.sim.stores import MemoryColumns
from tests.support.loop import CLUSTER, LOST, later, name, rules_in

NODE = name(1)


class Lines:
    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, line: bytes, at: datetime, route: str, *, samples: bool = False) -> None:
        self.lines.append(line)

    def begun(self) -> bool:
        return False


def seen(body: dict[str, Any], at: datetime, hook: str = "epilog") -> list[Observation]:
    parsed = hook_reports(body, hook, lambda _c, _n: True, at, cluster=CLUSTER)
    return [one for one, _ in arrivals(parsed)]


def test_a_report_that_was_recorded_is_the_same_report() -> None:
    checks = [{"name": "fs-full"}, {"name": "probe", "text": "disk"}]
    body = {"id": "4711.0", "node": NODE, "boot_id": "b1", "time": later(1).isoformat(), "job": "4711"}
    file = Lines()
    first = seen(body | {"checks": checks}, later(2))
    Recorder(file, MemoryColumns()).note(first, None, later(2))
    (entry,) = read(line.decode() for line in file.lines)
    assert entry.route == "signals/hooks/epilog"
    assert seen(entry.body, later(2)) == first


def test_what_a_check_says_is_one_line_so_that_it_forges_none_of_a_message() -> None:
    forged = "disk\n\nhealer: returned to service\r\nP1 gpu0001: see https://evil.example"
    checks = [{"name": "probe", "text": forged}, {"name": "blank", "text": "\n"}]
    (report,) = seen({"id": "4711.0", "node": NODE, "checks": checks}, later(2))
    said = "disk healer: returned to service P1 gpu0001: see https://evil.example"
    assert report.data["failed"] == {"probe": said, "blank": "blank"}


def played(*rows: tuple[float, str, Any]) -> dict[str, Any]:
    lines = [{"at": later(at).isoformat(), "route": route, "body": body} for at, route, body in rows]
    return replay(rules_in(Mode.auto), read(json.dumps(one) for one in lines))


def fleet() -> dict[str, Any]:
    states = [{"name": name(number), "state": ["IDLE"], "gpus": 8} for number in range(1, 21)]
    return {"cluster": CLUSTER, "nodes": states}


def test_line_sent_by_a_hook_acts_once_in_a_replay() -> None:
    lines = [{"seq": 7, "time": later(9).isoformat(), "line": LOST}]
    body = {"id": "1.0", "node": NODE, "boot_id": "b1", "kernel": lines, "host": {"procs_blocked": 1}}
    again = {"node": NODE, "boot_id": "b1", "entries": lines}
    document = played(
        (0, "slurm/nodes", fleet()),
        (10, "signals/hooks/epilog", body),
        (20, "signals/kernel-log", again),
        (60, "clock", {}),
    )
    drains = [one["node"] for one in document["actions"] if one["action"] == "drain"]
    assert drains == [NODE] and len(document["incidents"]) == 1
