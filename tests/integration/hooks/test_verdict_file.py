"""healer-follow writes down on the node what healer thinks of it, for the node's other programs."""

import json
import os
import stat
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.follower import XID_79, Following, Hub, following, heard
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy

LEAVE = {
    "node": "gpu0001",
    "state": "leave",
    "incident": "0a1b2c3d",
    "rule": "gpu-lost",
    "reason": "Xid 79: GPU fell off the bus",
    "at": "2026-11-20T03:00:00Z",
}


def written(node: Following) -> dict[str, Any]:
    return json.loads(node.verdict_file.read_text()) if node.verdict_file.exists() else {}


def asks(hub: Hub) -> list[Any]:
    return [beat for beat in hub.beats() if beat.get("asks")]


def test_verdict_of_a_heartbeat_is_written_whole_and_readable_by_all(node: Following, hub: Hub) -> None:
    hub.verdict = LEAVE | {"secret": "x", "rule": "r"}
    node.start()
    wait_until(lambda: written(node), 10, what="the verdict is written")
    told = written(node)
    heard_at = datetime.fromisoformat(told.pop("heard_at"))
    assert told == LEAVE | {"rule": "r"}
    assert abs((datetime.now(UTC) - heard_at).total_seconds()) < 20
    assert stat.S_IMODE(node.verdict_file.stat().st_mode) == 0o644
    assert stat.S_IMODE(node.verdict_file.parent.stat().st_mode) == 0o755
    assert os.listdir(node.verdict_file.parent) == ["verdict.json"]


def test_after_a_fault_line_it_asks_until_the_decision_is_there(node: Following, hub: Hub) -> None:
    hub.verdict = {"node": "gpu0001", "state": "healthy"}
    node.start()
    wait_until(lambda: written(node), 10, what="the verdict is written")
    assert not asks(hub)
    node.say(XID_79)
    wait_until(lambda: len(asks(hub)) >= 2, 10, what="it asks")
    assert written(node)["state"] == "healthy"
    assert asks(hub)[0].keys() == {"node", "boot_id", "asks"}  # nothing that would be stored
    hub.verdict, decided = LEAVE, time.monotonic()
    wait_until(
        lambda: written(node)["state"] == "leave", 10, what="the decision is on the node", every_s=0.01
    )
    assert time.monotonic() - decided < 3  # a heartbeat comes every 10 s
    count = len(asks(hub))
    time.sleep(1.5)  # the decision is known: there is nothing to wait for that would end this
    assert len(asks(hub)) == count


def test_healer_without_time_for_questions_is_not_asked_again(node: Following, hub: Hub) -> None:
    hub.verdict = {"node": "gpu0001", "state": "healthy"}
    node.start()
    wait_until(lambda: written(node), 10, what="the verdict is written")
    hub.answers.extend(
        [(202, {}, {"accepted": 1, "rejected": []}), (503, {}, {})]
    )  # the line's, the question's
    node.say(XID_79)
    wait_until(lambda: not hub.answers, 10, what="the question was refused")
    node.say("NVRM: the next line")
    wait_until(lambda: "NVRM: the next line" in hub.lines(), 10, what="the next line is delivered")
    assert not asks(hub)  # what was refused is not among them


def test_an_ordinary_line_asks_nothing(node: Following, hub: Hub) -> None:
    hub.verdict = {"node": "gpu0001", "state": "healthy"}
    node.start()
    node.say("NVRM: loading", "EXT4-fs error (device sda1)")
    heard(hub, "NVRM: loading", "EXT4-fs error (device sda1)")
    node.say(XID_79)
    wait_until(lambda: asks(hub), 10, what="a fault line asks")
    assert hub.lines()[-1] == XID_79


@pytest.mark.parametrize("verdict", [None, {"state": "burn"}, {"state": 7}, ["leave"], "leave"])
def test_what_is_no_verdict_is_not_written_and_stops_nothing(node: Following, hub: Hub, verdict: Any) -> None:
    hub.verdict = verdict
    node.start()
    node.say(XID_79)
    wait_until(lambda: len(asks(hub)) >= 2, 10, what="it goes on")
    assert not written(node)
    heard(hub, XID_79)


def test_where_the_file_cannot_be_written_lines_go_on(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "taken").write_text("a file, no folder")
    hub.verdict = LEAVE
    with following(tmp_path, hub.url, HEALER_VERDICT_FILE=str(tmp_path / "taken/verdict.json")) as node:
        node.start()
        wait_until(lambda: "the verdict cannot be written" in node.printed(), 10, what="it says so")
        node.say(XID_79)
        heard(hub, XID_79)
