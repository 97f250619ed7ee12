"""Replay: what would have been done with recorded signals, in the shape of the contract."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from healer.bootstrap.rehearse import Ask, rehearsed
from healer.model import Guard, Mode, Ruleset, Verb
from healer.recordings.recording import BadRecording, read
from healer.sim import replaying
from healer.sim.replaying import replay
from tests.support.loop import APPLICATION, CLUSTER, DEGRADED, FATAL, LOST, TEARDOWN, later, name, rules_in

Row = dict[str, Any]


def row(seconds: float, route: str, body: Any = None) -> Row:
    return {"at": later(seconds).isoformat().replace("+00:00", "Z"), "route": route, "body": body}


def nodes(seconds: float = 0, count: int = 20, **states: Row) -> Row:
    """Slurm's nodes; `gpu0001={...}` changes one of them."""
    given = [
        {"name": name(number), "state": ["IDLE"], "gpus": 8, "partitions": ["train"], "boot_id": "b1"}
        | states.get(name(number), {})
        for number in range(1, count + 1)
    ]
    return row(seconds, "slurm/nodes", {"cluster": CLUSTER, "nodes": given})


def jobs(seconds: float = 0, *given: Row) -> Row:
    return row(seconds, "slurm/jobs", {"cluster": CLUSTER, "jobs": list(given)})


def job(number: str = "4711", *where: str, **fields: Any) -> Row:
    return {"id": number, "state": "RUNNING", "nodes": list(where or (name(1), name(2)))} | fields


def kernel(seconds: float, node: int, *texts: str, **fields: Any) -> Row:
    body = {"cluster": CLUSTER, "node": name(node), "boot_id": "b1", "entries": [{"line": t} for t in texts]}
    return row(seconds, "signals/kernel-log", body | fields)


def clock(seconds: float) -> Row:
    return row(seconds, "clock", {})


def played(*rows: Row, mode: Mode = Mode.auto, rules: Ruleset | None = None) -> dict[str, Any]:
    return replay(rules or rules_in(mode), read(json.dumps(one) for one in rows))


def actions(document: dict[str, Any]) -> list[tuple[str, str | None, str | None]]:
    return [(one["action"], one["node"], one["job"]) for one in document["actions"]]


BASIC = (nodes(), jobs(0, job()), kernel(10, 1, LOST), clock(60))


# --- the shape ----------------------------------------------------------------------------------------------


def test_the_document_has_the_contracts_shape() -> None:
    document = json.loads(json.dumps(played(*BASIC)))
    assert {"incidents", "actions", "held"} <= set(document)
    (incident,) = document["incidents"]
    assert {
        "id", "rule", "opened", "severity", "cause", "root", "affected", "nodes", "remedy", "jobs_hit",
        "closed", "evidence",
    } <= set(incident)  # fmt: skip
    assert incident["rule"] == "gpu-lost"
    assert incident["opened"] == "2026-11-20T03:00:10Z"
    assert incident["root"] == {"cluster": CLUSTER, "node": name(1), "pci": "0000:9b:00"}
    assert incident["nodes"] == {name(1): "isolate"}
    assert incident["jobs_hit"] == ["4711"]
    assert incident["remedy"] == ["reboot_node", "ticket"]
    assert incident["closed"] is None
    for action in document["actions"]:
        assert set(action) == {"at", "action", "node", "job", "incident", "mode"}
        assert action["action"] in set(Verb)
        assert action["incident"] == incident["id"]
        assert action["mode"] == "auto"


def test_a_lost_gpu_drains_its_node_requeues_its_job_and_opens_a_ticket() -> None:
    document = played(*BASIC)
    assert actions(document) == [
        ("drain", name(1), None),
        ("requeue", name(1), "4711"),
        ("ticket", name(1), None),
        ("notify", name(1), None),
    ]
    assert document["actions"][0]["at"] == "2026-11-20T03:00:12Z"
    assert document["held"] == []


def test_an_empty_recording_gives_an_empty_document() -> None:
    document = replay(rules_in(), read([]))
    assert (document["incidents"], document["actions"], document["held"]) == ([], [], [])
    assert played(clock(0))["incidents"] == []


# --- determinism --------------------------------------------------------------------------------------------


def test_the_same_input_gives_the_same_bytes() -> None:
    storm = [kernel(10 + number % 7, number, LOST, TEARDOWN, DEGRADED) for number in range(1, 15)]
    rows = sorted([nodes(), jobs(0, job()), *storm, clock(400)], key=lambda one: one["at"])
    assert json.dumps(played(*rows)) == json.dumps(played(*rows))


def test_repeated_signals_change_nothing() -> None:
    again = [kernel(20 + number, 1, LOST, time_of=None) for number in range(3)]
    once, more = played(*BASIC), played(*BASIC[:-1], *again, clock(60))
    assert [one["id"] for one in once["incidents"]] == [one["id"] for one in more["incidents"]]
    assert actions(once) == actions(more)


def test_ids_do_not_depend_on_what_else_is_recorded() -> None:
    other = (nodes(), jobs(0, job()), kernel(5, 9, APPLICATION), kernel(10, 1, LOST), clock(60))
    ids = {one["rule"]: one["id"] for one in played(*other)["incidents"]}
    assert ids["gpu-lost"] == played(*BASIC)["incidents"][0]["id"]


# --- modes and guards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "guard"), [(Mode.shadow, "mode"), (Mode.suggest, "mode"), (Mode.approve, "approval")]
)
def test_actions_held_back_by_the_mode_are_listed_in_held(mode: Mode, guard: str) -> None:
    document = played(*BASIC, mode=mode)
    assert [one for one in actions(document) if one[0] != "notify"] == []
    (held,) = document["held"]
    assert set(held) == {"at", "action", "node", "guard", "why"} | set(held)
    assert (held["action"], held["node"], held["guard"]) == ("drain", name(1), guard)
    assert held["why"]


def test_off_does_nothing_and_says_so() -> None:
    document = played(*BASIC, mode=Mode.off)
    assert [one for one in actions(document) if one[0] != "notify"] == []
    assert [one["guard"] for one in document["held"]] == ["mode"]


def test_a_storm_is_held_by_the_breaker() -> None:
    document = played(nodes(), *[kernel(10, number, LOST) for number in range(1, 6)], clock(60))
    assert {one["guard"] for one in document["held"]} == {"breaker"}
    assert [one for one in actions(document) if one[0] == "drain"] == []
    assert [one["action"] for one in document["actions"]] == ["notify"]


def test_a_job_that_may_not_be_requeued_is_held_by_consent() -> None:
    document = played(nodes(), jobs(0, job(requeue=False)), kernel(10, 1, LOST), clock(60))
    assert ("requeue", name(1), "4711") not in actions(document)
    (held,) = document["held"]
    assert (held["action"], held["guard"]) == ("requeue", "consent")


def test_every_guard_named_is_one_of_the_contracts() -> None:
    document = played(nodes(count=4), *[kernel(10, number, FATAL) for number in (1, 2)], clock(60))
    assert document["held"]
    assert {one["guard"] for one in document["held"]} <= set(Guard)


# --- what Slurm shows ---------------------------------------------------------------------------------------


def test_a_later_snapshot_without_our_drain_is_a_veto() -> None:
    document = played(*BASIC, nodes(120), kernel(130, 1, FATAL), clock(300))
    assert [one for one in actions(document) if one[0] == "drain"] == [("drain", name(1), None)]
    first, second = document["incidents"]
    assert first["closed"] == "2026-11-20T03:02:00Z"
    assert second["closed"] is None
    (held,) = document["held"]
    assert (held["guard"], held["incident"]) == ("ownership", second["id"])


def test_a_later_snapshot_with_our_drain_changes_nothing() -> None:
    incident = played(*BASIC)["incidents"][0]["id"]
    ours = {"state": ["IDLE", "DRAIN"], "reason": f"healer:gpu-lost inc:{incident[:8]} Xid 79"}
    document = played(*BASIC, nodes(120, gpu0001=ours), clock(300))
    assert [one["closed"] for one in document["incidents"]] == [None]
    assert document["held"] == []


def test_what_was_due_before_a_snapshot_is_done_before_it() -> None:
    """A recording of production shows healer's drain within the second in which it was due."""
    signals = nodes(), jobs(), kernel(10.3, 1, LOST), clock(10.9)
    said = played(*signals, clock(60))
    reason = f"healer:gpu-lost inc:{said['incidents'][0]['id'][:8]} Xid 79: GPU fell off the bus"
    recorded = *signals, nodes(12.6, gpu0001={"state": ["IDLE", "DRAIN"], "reason": reason}), clock(60)
    assert actions(played(*recorded)) == actions(said)
    (held, *_) = played(*recorded, mode=Mode.approve)["held"]
    assert (held["action"], held["node"], held["guard"]) == ("drain", name(1), "approval")


def test_a_persons_drain_is_an_incident_that_ends_and_may_come_again() -> None:
    drained = {"state": ["IDLE", "DRAIN"], "reason": "replacing PSU"}
    document = played(nodes(0, gpu0003=drained), nodes(600), nodes(4000, gpu0003=drained), clock(4600))
    assert [one["rule"] for one in document["incidents"]] == ["person-drain", "person-drain"]
    assert len({one["id"] for one in document["incidents"]}) == 2
    assert [one["closed"] is None for one in document["incidents"]] == [False, True]
    assert document["actions"] == []


def test_slurms_own_drain_is_an_incident() -> None:
    drained = {"state": ["IDLE", "DRAIN"], "reason": "Kill task failed"}
    document = played(nodes(0, gpu0003=drained), clock(60))
    assert [one["rule"] for one in document["incidents"]] == ["slurm-drain"]


def test_on_a_shared_node_only_the_job_on_the_faulty_gpu_is_requeued() -> None:
    beat = {
        "cluster": CLUSTER,
        "node": name(1),
        "gpus": [{"index": 5, "pci": "0000:9b:00", "uuid": "GPU-x"}],
    }
    both = [
        job("1", name(1), gpus={name(1): [0, 1, 2, 3]}),
        job("2", name(1), gpus={name(1): [4, 5, 6, 7]}),
    ]
    document = played(
        nodes(), jobs(0, *both), row(1, "signals/heartbeat", beat), kernel(10, 1, LOST), clock(60)
    )
    assert [one for one in actions(document) if one[0] == "requeue"] == [("requeue", name(1), "2")]
    assert document["incidents"][0]["jobs_hit"] == ["2"]


def test_lines_of_an_earlier_boot_are_history() -> None:
    document = played(nodes(), kernel(10, 1, LOST, boot_id="b0"), clock(60))
    # A boot that Slurm's own picture does not show, and a line that says nothing of its age.
    assert len(document["incidents"]) == 1
    old = played(
        nodes(),
        nodes(5, gpu0001={"boot_id": "b2"}),
        kernel(10, 1, LOST, boot_id="b1"),
        clock(60),
    )
    assert old["incidents"] == []


def test_the_line_of_a_new_boot_acts_before_slurm_shows_the_boot() -> None:
    entry = {"line": LOST, "time": later(8).isoformat()}
    body = {"cluster": CLUSTER, "node": name(1), "boot_id": "b2", "entries": [entry]}
    document = played(nodes(), clock(5), row(10, "signals/kernel-log", body), clock(60))
    assert len(document["incidents"]) == 1


def test_fleet_that_stops_beating_drains_no_node() -> None:
    beats = [
        row(
            second + number / 100,
            "signals/heartbeat",
            {"cluster": CLUSTER, "node": name(number), "boot_id": "b1"},
        )
        for second in range(0, 120, 10)
        for number in range(1, 21)
    ]
    document = played(nodes(), *beats, clock(600))
    assert [one["rule"] for one in document["incidents"] if one["closed"] is None] == ["signals-lost"]
    assert [one for one in actions(document) if one[0] != "notify"] == []


def test_text_routes_have_their_query_in_the_route() -> None:
    text = row(10, f"signals/kernel-log?cluster={CLUSTER}&node={name(1)}&boot_id=b1", f"{LOST}\n")
    document = played(nodes(), text, clock(60))
    assert [one["rule"] for one in document["incidents"]] == ["gpu-lost"]


def test_time_passes_without_a_clock_entry_too() -> None:
    document = played(nodes(), kernel(10, 1, LOST))
    assert ("drain", name(1), None) in actions(document)


def test_clock_entries_let_time_pass() -> None:
    short = played(nodes(), kernel(10, 1, APPLICATION), clock(60))
    long = played(nodes(), kernel(10, 1, APPLICATION), clock(7200))
    assert short["incidents"][0]["closed"] is None
    assert long["incidents"][0]["closed"] is not None


def test_a_still_week_passes_in_hours_and_what_is_open_in_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    walked, walk = list[datetime](), replaying.Loop.walk

    def counted(loop: replaying.Loop, *given: Any) -> int:
        walked.append(loop.ledger.clock.now())
        return walk(loop, *given)

    monkeypatch.setattr(replaying.Loop, "walk", counted)
    week_s = 7 * 86400.0
    [incident] = played(nodes(), jobs(), kernel(100, 1, APPLICATION), clock(week_s))["incidents"]
    opened, closed = (datetime.fromisoformat(incident[name]) for name in ("opened", "closed"))
    assert timedelta(hours=1) <= closed - opened < timedelta(minutes=62)
    assert sum(at > closed + timedelta(hours=2) for at in walked) < 7 * 24


def test_a_signal_of_an_unknown_node_is_rejected_and_the_rest_goes_on() -> None:
    stranger = kernel(10, 1, LOST)
    stranger["body"]["node"] = "nobody"
    document = played(nodes(), stranger, kernel(11, 1, LOST), clock(60))
    assert [one["root"]["node"] for one in document["incidents"]] == [name(1)]


def test_drains_in_only_recording_or_replay_are_reported_as_differences() -> None:
    ours = {"state": ["IDLE", "DRAIN"], "reason": "healer:gpu-lost inc:12345678 x"}
    document = played(nodes(), nodes(10, gpu0005=ours), kernel(20, 1, LOST), clock(60))
    differences = {one["node"]: (one["recorded"], one["replayed"]) for one in document["differences"]}
    assert differences == {
        name(5): ("2026-11-20T03:00:10Z", None),
        name(1): (None, "2026-11-20T03:00:22Z"),
    }


# --- broken recordings --------------------------------------------------------------------------------------

GOOD = json.dumps(nodes())


def edited(change: Callable[[Row], None]) -> str:
    one = kernel(10, 1, LOST)
    change(one)
    return json.dumps(one)


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        "[]",
        "nonsense",
        '{"at":"2026-11-20T03:00:10Z","route":"clock","body":' + "[" * 9999 + "]" * 9999 + "}",
        '{"at":"2026-11-20T03:00:10Z","route":"signals/kernel-log","body":' + "[" * 900 + "]" * 900 + "}",
        json.dumps({"route": "clock"}),
        json.dumps({"at": "yesterday", "route": "clock"}),
        json.dumps({"at": "2026-11-20T03:00:00", "route": "clock"}),
        json.dumps({"at": "2026-11-20T02:00:00Z", "route": "clock"}),
        json.dumps({"at": "2026-11-20T03:00:10Z", "route": 7}),
        json.dumps(row(10, "slurm/nodes")),
        json.dumps(row(10, "slurm/nodes", {"cluster": CLUSTER})),
        json.dumps(row(10, "slurm/nodes", {"cluster": CLUSTER, "nodes": [{"state": ["IDLE"]}]})),
        json.dumps(row(10, "slurm/nodes", {"cluster": CLUSTER, "nodes": [{"name": "a", "gpus": "x"}]})),
        json.dumps(row(10, "slurm/jobs", {"cluster": CLUSTER, "jobs": [{"id": "1"}]})),
        json.dumps(row(10, "slurm/jobs", {"cluster": CLUSTER, "jobs": 3})),
        json.dumps(row(10, "signals/kernel-log")),
        json.dumps(row(10, "signals/kernel-log", {"node": name(1)})),
        json.dumps(row(10, "signals/heartbeat", 7)),
    ],
)
def test_a_broken_line_is_an_error_that_names_it(bad: str) -> None:
    with pytest.raises(BadRecording, match="line 3"):
        replay(rules_in(), read([GOOD, "", bad, json.dumps(clock(3600))]))


def test_the_rows_of_a_second_cluster_are_an_error_that_names_the_line() -> None:
    """They would take the place of the first one's: clusters number their nodes alike."""
    other = row(5, "slurm/nodes", {"cluster": "pod2", "nodes": []})
    with pytest.raises(BadRecording, match="line 2: slurm/nodes: cluster pod2 after pod1"):
        replay(rules_in(), read(json.dumps(line) for line in (nodes(), other)))


def test_an_unknown_route_is_passed_over() -> None:
    document = played(nodes(), row(5, "signals/of-tomorrow", {"x": 1}), kernel(10, 1, LOST), clock(60))
    assert len(document["incidents"]) == 1


def test_a_rehearsal_goes_by_the_modes_that_were_set_while_running(tmp_path: Path) -> None:
    """A rule that earned auto drains; the files still say shadow."""
    recording = tmp_path / "lost.jsonl"
    recording.write_text("".join(json.dumps(one) + "\n" for one in BASIC))
    before = rules_in(Mode.shadow)
    milder = (msgspec.structs.replace(one, playbook=None) for one in before.rules if one.name == "gpu-lost")
    after = msgspec.structs.replace(
        before, rules=(*milder, *(one for one in before.rules if one.name != "gpu-lost"))
    )
    ask = Ask(CLUSTER, str(recording), later(-60), later(60), True, {"gpu-lost": Mode.auto})
    found = rehearsed(ask, before, after, lambda _: None)
    assert "drain" in {one["action"] for one in found["actions"]["lost"]}
