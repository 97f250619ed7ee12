"""Two replays side by side: what is new, lost, other, earlier or later, and held by another guard."""

from typing import Any

import pytest

from healer.sim.compare import compare, differs

NONE: dict[str, Any] = {"incidents": [], "merged": [], "actions": [], "held": []}


def incident(id: str, rule: str = "gpu-lost", at: str = "03:00:00", **more: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "id": id, "rule": rule, "opened": moment(at), "severity": "P1", "cause": "permanent",
        "title": "a GPU is gone", "root": {"cluster": "pod1", "node": "n1", "gpu": None}, "jobs_hit": [],
        "nodes": {"n1": "isolate"}, "remedy": ["ticket"], "closed": None,
        "evidence": [{"line": "Xid 79", "text": "Xid 79"}],
    }  # fmt: skip
    return defaults | more


def action(incident: str, at: str = "03:00:02", action: str = "drain", node: str = "n1") -> dict[str, Any]:
    return {
        "at": moment(at),
        "action": action,
        "node": node,
        "job": None,
        "incident": incident,
        "mode": "auto",
    }


def held(incident: str, guard: str, at: str = "03:00:02") -> dict[str, Any]:
    row = action(incident, at)
    return {name: row[name] for name in ("at", "action", "node", "job", "incident")} | {
        "guard": guard, "why": f"{guard} says so",
    }  # fmt: skip


def moment(at: str) -> str:
    return f"2026-11-20T{at}Z"


def document(**more: Any) -> dict[str, Any]:
    return NONE | more


def test_the_same_twice_differs_in_nothing() -> None:
    same = document(incidents=[incident("a")], actions=[action("a")], held=[held("a", "mode")])
    found = compare(same, same)
    assert found == {
        "rules": [],
        "incidents": {"new": [], "lost": [], "changed": []},
        "actions": {"new": [], "lost": [], "moved": []},
        "held": [],
    }
    assert not any(differs(found, kind) for kind in ("new-actions", "lost", "any"))


def test_new_and_lost_incidents_and_actions_are_counted_by_rule() -> None:
    other_root = {"cluster": "pod1", "node": "n2", "gpu": 3}
    old = document(incidents=[incident("a")], actions=[action("a")])
    new = document(
        incidents=[incident("b", "slow", root=other_root, evidence=[])], actions=[action("b", node="n2")]
    )
    found = compare(old, new)
    assert [one["id"] for one in found["incidents"]["new"]] == ["b"]
    assert [one["id"] for one in found["incidents"]["lost"]] == ["a"]
    assert [(one["node"], one["rule"], one["held"]) for one in found["actions"]["new"]] == [
        ("n2", "slow", None)
    ]
    assert [one["node"] for one in found["actions"]["lost"]] == ["n1"]
    by_rule = {row["rule"]: row for row in found["rules"]}
    gone, come = by_rule["gpu-lost"], by_rule["slow"]
    assert (gone["before"], gone["after"], gone["incidents_lost"], gone["actions_lost"]) == (1, 0, 1, 1)
    assert (come["before"], come["after"], come["incidents_new"], come["actions_new"]) == (0, 1, 1, 1)
    assert all(differs(found, kind) for kind in ("new-actions", "lost", "any"))


def test_an_incident_that_another_rule_takes_is_the_same_one_changed() -> None:
    found = compare(document(incidents=[incident("a")]), document(incidents=[incident("b", "mine")]))
    (one,) = found["incidents"]["changed"]
    assert (one["id"], one["before_id"], one["changes"]) == ("b", "a", {"rule": ["gpu-lost", "mine"]})
    assert not found["incidents"]["new"] and not found["incidents"]["lost"]
    assert differs(found, "any") and not differs(found, "lost")


@pytest.mark.parametrize(
    ("at", "later_s"), [("02:55:00", -300.0), ("03:10:00", 600.0), ("03:00:30", None), ("05:00:00", "lost")]
)
def test_an_incident_with_other_evidence_is_known_by_rule_root_and_time(at: str, later_s: Any) -> None:
    other = incident("b", at=at, evidence=[])
    found = compare(document(incidents=[incident("a")]), document(incidents=[other]))["incidents"]
    if later_s == "lost":
        assert [len(found[what]) for what in ("new", "lost", "changed")] == [1, 1, 0]
    else:
        assert [one["later_s"] for one in found["changed"]] == ([] if later_s is None else [later_s])


def test_an_action_that_the_other_held_says_by_which_guard() -> None:
    done = document(incidents=[incident("a")], actions=[action("a")])
    kept = document(incidents=[incident("a")], held=[held("a", "hourly")])
    (new,) = compare(kept, done)["actions"]["new"]
    (lost,) = compare(done, kept)["actions"]["lost"]
    assert new["held"]["guard"] == lost["held"]["guard"] == "hourly"


def test_action_held_by_different_guards_is_reported_by_its_first_guard() -> None:
    old = document(incidents=[incident("a")], held=[held("a", "slots"), held("a", "mode", "03:05:00")])
    new = document(incidents=[incident("a")], held=[held("a", "approval")])
    (row,) = compare(old, new)["held"]
    assert (row["guard"], row["before"]["guard"], row["rule"]) == ("approval", "slots", "gpu-lost")


def test_an_action_that_only_one_side_proposes_and_holds_is_a_difference() -> None:
    """In mode approve or shadow a changed rule would else seem to ask for nothing."""
    kept = document(incidents=[incident("a")], held=[held("a", "approval")])
    silent = document(incidents=[incident("a")])
    found = compare(silent, kept)
    (row,) = found["held"]
    assert (row["guard"], row["before"], row["rule"], row["node"]) == ("approval", None, "gpu-lost", "n1")
    assert [(one["rule"], one["held"]) for one in found["rules"]] == [("gpu-lost", 1)]
    assert differs(found, "any") and not differs(found, "new-actions")
    (row,) = compare(kept, silent)["held"]
    assert (row["guard"], row["before"]["guard"], row["rule"]) == (None, "approval", "gpu-lost")


def test_an_action_minutes_later_is_moved_and_each_is_paired_once() -> None:
    twice = [action("a"), action("a", "03:30:00")]
    found = compare(document(actions=twice), document(actions=[action("a", "03:02:02")]))["actions"]
    assert [one["later_s"] for one in found["moved"]] == [120.0]
    assert [one["at"] for one in found["lost"]] == [moment("03:30:00")]


def test_a_lost_incident_that_became_a_part_says_of_which() -> None:
    part = {"id": "a", "into": "w", "rule": "gpu-lost"}
    wave = incident("w", "wave", root={"cluster": "pod1", "node": None}, evidence=[])
    found = compare(document(incidents=[incident("a")]), document(incidents=[wave], merged=[part]))
    assert [one["part_of"] for one in found["incidents"]["lost"]] == ["w"]


def test_pages_are_no_actions() -> None:
    compared = compare(document(), document(actions=[action("a", action="notify")]))
    assert not differs(compared, "any")
