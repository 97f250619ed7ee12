"""What goes on at a node anyway: planned work, a reboot, power saving, its first minutes, its owner."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from healer.model import ContextKind, Mode
from healer.rulebook.ruleset import RulesInvalid, load
from tests.stories.test_replay import actions, clock, job, jobs, kernel, nodes, played, row
from tests.support.loop import LOST, SHIPPED, later, name, rules_in


def the_one(document: dict[str, Any]) -> dict[str, Any]:
    assert len(document["incidents"]) == 1, document["incidents"]
    return document["incidents"][0]


def with_state(seconds: float, *state: str, **fields: Any) -> dict[str, Any]:
    return nodes(seconds, gpu0001={"state": list(state), **fields})


def beats(node: int, *, until: float, every: float = 10) -> list[dict[str, Any]]:
    moments = [every * step for step in range(int(until / every) + 1)]
    body = {"cluster": nodes()["body"]["cluster"], "node": name(node), "boot_id": "b1"}
    return [row(at, "signals/heartbeat", body) for at in moments]


def merged(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda one: one["at"])


# --- planned work -------------------------------------------------------------------------------------------


def test_fatal_line_in_maintenance_is_kept_and_pages_no_one() -> None:
    rows = (with_state(0, "IDLE", "MAINTENANCE"), kernel(10, 1, LOST), clock(120))
    document = played(*rows)
    found = the_one(document)
    assert (found["severity"], found["cause"], found["rule"]) == ("P3", "maintenance", "gpu-lost")
    assert actions(document) == []
    assert {one["guard"] for one in document["held"]} == {"maintenance"}


@pytest.mark.parametrize("mode", [Mode.suggest, Mode.approve, Mode.shadow])
def test_in_no_mode_is_planned_work_urgent(mode: Mode) -> None:
    rows = (with_state(0, "IDLE", "MAINTENANCE"), kernel(10, 1, LOST), clock(120))
    assert the_one(played(*rows, mode=mode))["severity"] == "P3"


def test_fault_seen_again_after_maintenance_is_handled() -> None:
    rows = (
        with_state(0, "IDLE", "MAINTENANCE"),
        kernel(10, 1, LOST),
        with_state(600, "IDLE"),
        kernel(650, 1, f"{LOST} again"),
        clock(660),
    )
    document = played(*rows)
    found = the_one(document)
    assert found["severity"] == "P1"
    assert found["cause"] != "maintenance"
    drains = [one for one in document["actions"] if one["action"] == "drain"]
    assert [(one["node"], one["at"]) for one in drains] == [(name(1), drains[0]["at"])]
    assert drains[0]["at"] >= later(600).isoformat().replace("+00:00", "Z")


def test_planned_work_on_one_node_says_nothing_of_another() -> None:
    rows = (with_state(0, "IDLE", "MAINTENANCE"), kernel(10, 2, LOST), clock(60))
    document = played(*rows)
    assert the_one(document)["severity"] == "P1"
    assert ("drain", name(2), None) in actions(document)


# --- nodes that start, sleep or have just started -----------------------------------------------------------


@pytest.mark.parametrize(
    "state", [("DOWN", "REBOOT_ISSUED"), ("IDLE", "POWERED_DOWN"), ("IDLE", "POWERING_DOWN")]
)
def test_a_node_that_is_away_by_plan_is_not_silent(state: tuple[str, ...]) -> None:
    rows = merged(*beats(1, until=60), nodes(), with_state(61, *state, "NOT_RESPONDING"), clock(600))
    document = played(*rows)
    assert document["incidents"] == []
    assert document["actions"] == []


def test_the_same_silence_without_a_plan_is_one() -> None:
    rows = merged(*beats(1, until=60), nodes(), with_state(61, "DOWN", "NOT_RESPONDING"), clock(600))
    still = [one["rule"] for one in played(*rows)["incidents"] if one["closed"] is None]
    assert still == ["node-silent"]


def test_gpu_lost_during_node_start_is_reported() -> None:
    rows = (with_state(0, "IDLE", "REBOOT_ISSUED"), kernel(10, 1, LOST), clock(60))
    assert the_one(played(*rows))["rule"] == "gpu-lost"


def test_a_failed_check_just_after_a_boot_waits_for_its_minutes() -> None:
    def failed(seconds: float) -> dict[str, Any]:
        body = {
            "cluster": nodes()["body"]["cluster"],
            "node": name(1),
            "boot_id": "b2",
            "checks": [{"name": "gpu-count", "passed": False, "text": "7 of 8 GPUs"}],
            "time": later(seconds).isoformat().replace("+00:00", "Z"),
        }
        return row(seconds, "signals/hooks/health-check", body)

    booted = with_state(60, "IDLE", boot_id="b2")
    early = played(nodes(), booted, failed(90), clock(120))
    assert early["incidents"] == []
    late = played(nodes(), booted, failed(90), failed(420), clock(480))
    assert [one["rule"] for one in late["incidents"]] == ["node-check"]


# --- the owner has it ---------------------------------------------------------------------------------------


def test_fault_of_a_manually_drained_node_pages_no_one_and_touches_nothing() -> None:
    held = with_state(0, "IDLE", "DRAIN", reason="new fans, anna", reason_user="anna")
    document = played(held, jobs(0, job("4711", name(2))), kernel(10, 1, LOST), clock(120))
    lost = next(one for one in document["incidents"] if one["rule"] == "gpu-lost")
    assert lost["severity"] == "P2"
    assert [one for one in actions(document) if one[1] == name(1)] == []


# --- the file -----------------------------------------------------------------------------------------------


def test_shipped_rules_cover_every_kind_of_context() -> None:
    assert {one.when for one in rules_in(Mode.auto).context} == set(ContextKind)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- {name: a, when: booted, faults: [x], source: s}", "for_min"),
        ("- {name: a, when: maintenance, for_min: 5, faults: [x], source: s}", "for_min"),
        ("- {name: a, when: maintenance, faults: ['xid-*'], source: s}", "must never be suppressed"),
        ("- {name: a, when: maintenance, faults: [x], cause: fabric, source: s}", "severity"),
        ("- {name: a, when: lunch, faults: [x], source: s}", "when"),
        ("- {name: a, when: maintenance, faults: [], source: s}", "empty"),
    ],
)
def test_a_wrong_entry_is_refused_by_line(tmp_path: Path, text: str, why: str) -> None:
    folder = Path(shutil.copytree(SHIPPED, tmp_path / "rules"))
    (folder / "context.yaml").write_text(text + "\n")
    with pytest.raises(RulesInvalid) as caught:
        load(folder, prove=False)
    assert [one.file for one in caught.value.problems] == ["context.yaml"]
    assert why in str(caught.value)
