"""`POST /signals/hooks/…`: stored before it is answered, and a permit only where the gate gives one."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.gate_facts import grant_slots
from healer.adapters.postgres.tables import pauses, slots
from healer.api.request_preamble import parse
from healer.model import Pause, Run, RunState, Slot, SlurmNode, Verdict
from tests.support.api import CLUSTER, XID_79, Api, incident, save_incident, save_run, serving, snapshot
from tests.support.wait import wait_until

Served = tuple[Api, httpx.Client]
NODE = "gpu0001"


@pytest.fixture
def served(fresh_database: sa.Engine) -> Iterator[Served]:
    with serving(fresh_database) as both:
        yield both


def report(key: str = "4711.0", node: str = NODE, **more: Any) -> dict[str, Any]:
    return {"node": node, "id": key, "time": datetime.now(UTC).isoformat(), "boot_id": "b1", **more}


def send(served: Served, body: Any, hook: str = "epilog", status: int = 202, **bound: Any) -> dict[str, Any]:
    api, client = served
    headers = api.headers("signals", **bound)
    answer = client.post(f"/api/v1/signals/hooks/{hook}", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def rows(api: Api, statement: str) -> list[tuple[Any, ...]]:
    with api.engine.connect() as conn:
        return [tuple(row) for row in conn.execute(sa.text(statement))]


def isolated(api: Api, node: str = NODE, verdict: Verdict = Verdict.isolate) -> str:
    """An open incident that isolates the node, or thinks less badly of it; its id."""
    one = incident(1, node)
    one = msgspec.structs.replace(one, nodes={node: verdict})
    with api.engine.begin() as conn:
        save_incident(conn, one)
    return one.id


def taken(api: Api, about: str, node: str = NODE, state: RunState = RunState.running) -> None:
    """A run of the incident holds the node's slot."""
    now = datetime.now(UTC)
    run = Run(
        id="run-1",
        cluster=CLUSTER,
        playbook="drain",
        state=state,
        by="healer",
        reason="lost",
        created_at=now,
        node=node,
        incident=about,
        rule="gpu-lost",
    )
    with api.engine.begin() as conn:
        save_run(conn, run)
        grant_slots(conn, [Slot(cluster=CLUSTER, node=node, incident=about, run=run.id, granted_at=now)])


# --- stored ---


def test_lines_checks_and_samples_are_stored_before_the_answer(served: Served) -> None:
    body = report(
        job="4711",
        restarts=0,
        kernel=[{"seq": 7, "line": XID_79}, {"seq": 8, "line": "usb 1-1: new device"}],
        host={"load1": 3.5},
        nvidia_smi="<nvidia_smi_log><attached_gpus>1</attached_gpus><gpu id='0000:9b:00.0'>"
        "<minor_number>0</minor_number><uuid>GPU-1</uuid><pci><pci_bus_id>0000:9b:00.0</pci_bus_id></pci>"
        "<temperature><gpu_temp>61 C</gpu_temp></temperature></gpu></nvidia_smi_log>",
        checks=[{"name": "probe", "text": "ERROR:  nhc:  disk"}, {"name": "fs-full"}],
    )
    answer = send(served, body, "prolog")
    assert (answer["accepted"], answer["unrecognised"], answer["rejected"]) == (2, 1, [])
    assert (answer["verdict"], answer["may_refuse"]) == ("healthy", False)
    kinds = dict(rows(served[0], "SELECT kind, doc->'data' FROM inbox"))
    assert {"xid", "hook"} <= set(kinds)
    assert kinds["hook"]["failed"] == {"probe": "ERROR:  nhc:  disk"} and kinds["hook"]["passed"] == [
        "fs-full"
    ]
    reports, _ = served[0].services.queries.signals.node_signals(
        CLUSTER, NODE, datetime.now(UTC) - timedelta(hours=1)
    )
    assert sorted(value for one in reports for value in one.values.tolist()) == [3.5, 61.0]


def test_a_line_that_came_by_another_way_is_no_second_one(served: Served) -> None:
    api, client = served
    line = {"node": NODE, "boot_id": "b1", "entries": [{"seq": 7, "line": XID_79}]}
    client.post("/api/v1/signals/kernel-log", json=line, headers=api.headers("signals"))
    answer = send(served, report(kernel=[{"seq": 7, "line": XID_79}]))
    assert (answer["accepted"], answer["duplicates"]) == (1, 1)


def test_reports_of_a_spool_keep_their_time_and_the_last_one_is_answered(served: Served) -> None:
    then = datetime.now(UTC) - timedelta(hours=2)
    isolated(served[0], "gpu0002")
    old = report("1.0", node="gpu0002", host={"load1": 9.0}) | {"time": then.isoformat()}
    answer = send(served, [old, report("2.0")])
    assert (answer["accepted"], answer["verdict"]) == (2, "healthy")
    times = rows(served[0], "SELECT (doc->>'event_at')::timestamptz FROM inbox WHERE node = 'gpu0002'")
    assert times == [(then,)]
    assert rows(served[0], "SELECT 1 FROM samples") == [], "what was so then is not so now"


def test_a_spool_holds_reports_of_all_hooks(served: Served) -> None:
    send(served, [report("1.0", hook="prolog"), report("1.0", hook="epilog"), report("b.1")], "health-check")
    hooks = rows(served[0], "SELECT doc #>> '{data,hook}' FROM inbox ORDER BY id")
    assert hooks == [("prolog",), ("epilog",), ("health-check",)]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"node": "nosuch"}, "nosuch is not a node"),
        ({"checks": [{"name": "Bad Name"}]}, "not a check name"),
        ({"time": "yesterday"}, "time"),
        ({"kernel": [{"line": "x" * 5000}]}, "kernel: line: 5000 bytes"),
        ({"id": "with blank"}, "id"),
    ],
)
def test_a_wrong_report_loses_no_other_and_gets_no_permit(
    served: Served, wrong: dict[str, Any], why: str
) -> None:
    taken(served[0], isolated(served[0]))
    answer = send(served, [report("1.0"), report("2.0") | wrong])
    assert answer["accepted"] == 1 and not answer["may_refuse"]
    assert answer["rejected"][0]["index"] == 1 and why in answer["rejected"][0]["reason"]


def test_a_token_bound_to_a_node_speaks_of_it_alone(served: Served) -> None:
    send(served, report(), node=NODE)
    send(served, [report("1.0"), report("2.0", node="gpu0002")], node=NODE, status=403)
    assert len(rows(served[0], "SELECT 1 FROM inbox")) == 1


def test_a_long_list_is_taken_as_a_short_one_is(served: Served) -> None:
    lines = [{"seq": number, "line": "usb 1-1: new device"} for number in range(1000)]
    long = [report(f"{number}.0", kernel=lines) for number in range(3)]
    assert send(served, long, node=NODE)["unrecognised"] == 3000
    send(served, [*long, report("9.0", node="gpu0002")], node=NODE, status=403)
    wrong = send(served, [*long, report("10.0", node="nosuch")])
    assert [one["index"] for one in wrong["rejected"]] == [3]
    assert "x" * 100_000 not in send(served, "x" * 100_000, status=422)["detail"]


def test_a_long_body_is_read_beside_the_event_loop_and_a_short_one_in_it() -> None:
    read = [asyncio.run(parse(size, threading.get_ident)) for size in (64 * 1024, 64 * 1024 + 1)]
    assert [one == threading.get_ident() for one in read] == [True, False]


def test_a_body_that_is_no_report_is_refused_whole(served: Served) -> None:
    send(served, 7, status=422)


# --- permitted ---


def test_a_node_that_healer_takes_out_now_permits_a_failure_and_writes_it_down(served: Served) -> None:
    api, _ = served
    about = isolated(api)
    taken(api, about)
    answer = send(served, report(job="4711", restarts=0), "prolog")
    assert (answer["verdict"], answer["may_refuse"]) == ("isolate", True)
    assert about[:8] in answer["reason"]
    ((doc,),) = rows(api, "SELECT doc FROM permits")
    assert (doc["incident"], doc["run"], doc["hook"], doc["job"]) == (about, "run-1", "prolog", "4711")
    lasts = datetime.fromisoformat(doc["until"]) - datetime.fromisoformat(doc["at"])
    assert lasts == timedelta(seconds=60)
    assert rows(api, "SELECT verb, subject FROM audit_records WHERE actor = 'healer'") == [
        ("hook.permitted", f"node/{NODE}")
    ]


@pytest.mark.parametrize("is_own", [False, True], ids=["a relay", "the node"])
def test_only_the_node_itself_says_that_its_hook_has_failed(served: Served, is_own: bool) -> None:
    """Else the next drain by a failed prolog, whoever made it, would count as healer's and be lifted."""
    api, _ = served
    failed = {"checks": [{"name": "gpu-lost", "text": "gone"}], "refused": "gpu-lost"}
    sender = {"name": NODE, "node": NODE} if is_own else {"name": "rack 3", "vouches": ""}
    send(served, report("4711.0", **failed), "prolog", **sender)
    assert len(rows(api, "SELECT 1 FROM permits")) == is_own


def test_the_same_hook_twice_hears_the_same_and_is_written_once(served: Served) -> None:
    taken(served[0], isolated(served[0]))
    first, second = send(served, report()), send(served, report())
    assert first["may_refuse"] and second["may_refuse"] and second["duplicates"] == 1
    assert len(rows(served[0], "SELECT 1 FROM permits")) == 1


def test_a_permit_of_another_day_lets_no_hook_fail(served: Served) -> None:
    """slurmctld numbers jobs from the start again once it lost its state; reports are kept for an hour."""
    api = served[0]
    taken(api, isolated(api))
    assert send(served, report())["may_refuse"]
    aged = "doc || jsonb_build_object('until', now() - interval '1 day')"
    with api.engine.begin() as conn:
        conn.execute(sa.text(f"UPDATE permits SET doc = {aged}"))
        conn.execute(sa.text("DELETE FROM inbox WHERE kind = 'hook'"))
    assert not send(served, report())["may_refuse"]


def test_a_hook_that_was_not_permitted_is_not_when_it_runs_again(served: Served) -> None:
    assert not send(served, report())["may_refuse"]
    taken(served[0], isolated(served[0]))
    assert not send(served, report())["may_refuse"]
    count = itertools.count(4712)
    wait_until(
        lambda: send(served, report(f"{next(count)}.0"))["may_refuse"], what="another hook is permitted"
    )


def test_a_health_check_is_never_permitted(served: Served) -> None:
    taken(served[0], isolated(served[0]))
    answer = send(served, report(), "health-check")
    assert (answer["verdict"], answer["may_refuse"]) == ("isolate", False)


def test_bad_node_left_in_service_is_reported_and_not_permitted(served: Served) -> None:
    isolated(served[0])
    answer = send(served, report())
    assert (answer["verdict"], answer["may_refuse"]) == ("isolate", False)


@pytest.mark.parametrize("verdict", [Verdict.healthy, Verdict.watch, Verdict.suspect])
def test_below_isolate_no_hook_may_fail_even_while_a_run_holds_the_node(
    served: Served, verdict: Verdict
) -> None:
    taken(served[0], isolated(served[0], verdict=verdict))
    answer = send(served, report())
    assert (answer["verdict"], answer["may_refuse"]) == (verdict, False)


def test_a_permit_is_waited_for_while_it_is_being_decided(served: Served) -> None:
    api, _ = served
    about = isolated(api)
    later = threading.Timer(0.5, taken, (api, about))
    later.start()
    answer = send(served, report(kernel=[{"seq": 1, "line": XID_79}]))
    later.join()
    assert answer["may_refuse"]


@pytest.mark.parametrize("state", [RunState.cancelled, RunState.stuck, RunState.waiting_approval])
def test_a_run_that_will_not_drain_permits_nothing(served: Served, state: RunState) -> None:
    taken(served[0], isolated(served[0]), state=state)
    assert not send(served, report())["may_refuse"]


def test_a_pause_holds_a_permit_back_like_any_drain(served: Served) -> None:
    api, _ = served
    taken(api, isolated(api))
    pause = Pause(id="p1", scope="all", name="", by="ann", reason="hands off", since=datetime.now(UTC))
    with api.engine.begin() as conn:
        conn.execute(sa.insert(pauses).values(**msgspec.structs.asdict(pause)))
    assert not send(served, report())["may_refuse"]


def test_an_old_picture_of_slurm_permits_nothing(served: Served) -> None:
    api, _ = served
    taken(api, isolated(api))
    old = msgspec.structs.replace(snapshot(), taken_at=datetime.now(UTC) - timedelta(minutes=2))
    api.snapshots.put(old)
    assert not send(served, report())["may_refuse"]


def test_a_node_that_a_person_holds_permits_nothing(served: Served) -> None:
    api, _ = served
    taken(api, isolated(api))
    theirs = SlurmNode(name=NODE, state=("IDLE", "DRAIN"), reason="bob: PSU 2", reason_user="bob", gpus=8)
    shown = snapshot()
    api.snapshots.put(msgspec.structs.replace(shown, nodes={**shown.nodes, NODE: theirs}))
    assert not send(served, report())["may_refuse"]


@pytest.mark.parametrize("hook", ["prolog", "epilog"])
def test_no_hook_may_fail_on_a_node_that_is_drained(served: Served, hook: str) -> None:
    """The jobs that start there are healer's own tests."""
    api, _ = served
    taken(api, isolated(api))
    with api.engine.begin() as conn:
        conn.execute(sa.update(slots).values(drained_at=datetime.now(UTC)))
    answer = send(served, report("4712.0", job="4712"), hook)
    assert (answer["verdict"], answer["may_refuse"]) == ("isolate", False)


def test_a_hook_that_failed_unanswered_is_known_as_ours_from_its_spool(served: Served) -> None:
    then = datetime.now(UTC) - timedelta(minutes=5)
    failed = report(checks=[{"name": "gpu-lost", "text": "gone"}], refused="gpu-lost") | {
        "time": then.isoformat()
    }
    send(served, [failed, report("2.0")], "prolog")
    send(served, [failed], "prolog")
    ((doc,),) = rows(served[0], "SELECT doc FROM permits")
    assert (doc["check"], doc["incident"]) == ("gpu-lost", None)
    assert datetime.fromisoformat(doc["at"]) == then


def test_a_hook_cannot_claim_to_have_failed_for_a_check_that_passed(served: Served) -> None:
    send(served, report(checks=[{"name": "gpu-lost"}], refused="gpu-lost"), "prolog")
    assert rows(served[0], "SELECT 1 FROM permits") == []
