"""The answer to a node's heartbeat says whether healer has taken it out of service, and no more."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.gate_facts import PostgresHooks, grant_slots
from healer.api import node_verdicts
from healer.model import FaultClass, Playbook, Run, RunState, Slot, Step, Verb, Verdict
from healer.ports.transactions import OutOfService
from healer.text import quoted
from tests.support.api import CLUSTER, Api, incident, save_incident, save_run, serving
from tests.support.follower import XID_79, following
from tests.support.wait import wait_until

BEAT = "/api/v1/signals/heartbeat"
NODE = "gpu0001"
Served = tuple[Api, httpx.Client]


@pytest.fixture
def served(fresh_database: sa.Engine) -> Iterator[Served]:
    with serving(fresh_database) as both:
        drain, end = Step(id="drain", do=Verb.drain), Step(id="end", wait="jobs_ended")
        requeue = Step(id="requeue", do=Verb.requeue, for_each="jobs_hit")
        plans = {"at-once": (drain, requeue), "at-job-end": (drain, end, requeue)}
        added = {
            name: Playbook(name=name, title=name, target="node", steps=steps) for name, steps in plans.items()
        }
        rules = both[0].rules
        both[0].rules = msgspec.structs.replace(rules, playbooks=rules.playbooks | added)
        yield both


def verdict_of(served: Served, node: str = NODE, **more: Any) -> dict[str, Any]:
    """The whole answer to the node's own token."""
    api, client = served
    headers = api.headers("signals", node=node, cluster=CLUSTER)
    answer = client.post(BEAT, json={"node": node, "boot_id": "b1", **more}, headers=headers)
    assert answer.status_code == 202, answer.text
    return answer.json()


def state(served: Served, node: str = NODE) -> str:
    return verdict_of(served, node)["verdict"]["state"]


def taken_out(
    api: Api,
    *,
    number: int = 1,
    node: str = NODE,
    drained: bool = True,
    fault_class: str = "fatal",
    by: bool = True,
    playbook: str = "at-once",
) -> str:
    """The node has a slot; its incident's id."""
    one = msgspec.structs.replace(
        incident(number, node), nodes={node: Verdict.isolate}, fault_class=FaultClass(fault_class)
    )
    now = datetime.now(UTC)
    slot = Slot(
        cluster=CLUSTER,
        node=node,
        incident=one.id if by else None,
        run=f"run-{number}",
        granted_at=now,
        drained_at=now if drained else None,
    )
    run = Run(
        id=slot.run, cluster=CLUSTER, playbook=playbook, state=RunState.running, by="healer",
        reason=quoted("x"), created_at=now, node=node, incident=one.id,
    )  # fmt: skip
    with api.engine.begin() as conn:
        save_incident(conn, one)
        save_run(conn, run)
        grant_slots(conn, [slot])
        if drained:
            conn.execute(sa.text("UPDATE slots SET drained_at = now() WHERE node = :node"), {"node": node})
    return one.id


def test_verdict_on_a_node_that_healer_drained_for_a_fault_is_leave(served: Served) -> None:
    assert verdict_of(served)["verdict"] == {"node": NODE, "state": "healthy"}
    about = taken_out(served[0])
    wait_until(lambda: state(served) == "leave", 5, what="the decision is shown")
    verdict = verdict_of(served)["verdict"]
    assert (verdict["incident"], verdict["rule"]) == (about[:8], incident(1, NODE).rule)
    assert verdict["reason"] == str(incident(1, NODE).title)
    assert abs((datetime.now(UTC) - datetime.fromisoformat(verdict["at"])).total_seconds()) < 30
    assert state(served, "gpu0002") == "healthy"
    with served[0].engine.begin() as conn:
        conn.execute(sa.text("UPDATE slots SET released_at = now()"))
    wait_until(lambda: state(served) == "healthy", 5, what="the node has returned")


@pytest.mark.parametrize(
    "less",
    [
        pytest.param({"drained": False}, id="the drain is not read back"),
        pytest.param({"by": False}, id="no incident: a person's drain, or a test of idle nodes"),
        pytest.param({"fault_class": "application"}, id="no fault of the node's hardware"),
        pytest.param({"playbook": "at-job-end"}, id="its jobs may run to their end"),
        pytest.param({"playbook": "of another version"}, id="a plan that is not known"),
    ],
)
def test_less_than_a_drain_for_a_fault_of_the_node_is_healthy(served: Served, less: dict[str, Any]) -> None:
    taken_out(served[0], **less)
    taken_out(served[0], number=2, node="gpu0003")
    # The answer to this one shows that the slots were read after all of it was written.
    wait_until(lambda: state(served, "gpu0003") == "leave", 5, what="the slots are read")
    assert state(served) == "healthy"


def test_a_suspected_node_without_a_slot_is_healthy(served: Served) -> None:
    one = msgspec.structs.replace(incident(1, NODE), nodes={NODE: Verdict.isolate})
    with served[0].engine.begin() as conn:
        save_incident(conn, one)
    taken_out(served[0], number=2, node="gpu0003")
    wait_until(lambda: state(served, "gpu0003") == "leave", 5, what="the slots are read")
    assert state(served) == "healthy"


def test_a_token_of_no_node_gets_no_verdict(served: Served) -> None:
    api, client = served
    taken_out(api)
    answer = client.post(BEAT, json={"node": NODE, "asks": True}, headers=api.headers("signals"))
    assert answer.json() == {"accepted": 1, "duplicates": 0, "unrecognised": 0, "rejected": []}


def test_a_question_is_answered_and_not_stored(served: Served) -> None:
    answer = verdict_of(served, asks=True)
    assert (answer["accepted"], answer["verdict"]["state"]) == (0, "healthy")
    with served[0].engine.connect() as conn:
        assert conn.execute(sa.text("SELECT count(*) FROM inbox")).scalar_one() == 0


def test_a_token_of_another_node_is_refused(served: Served) -> None:
    api, client = served
    headers = api.headers("signals", node="gpu0002", cluster=CLUSTER)
    assert client.post(BEAT, json={"node": NODE, "asks": True}, headers=headers).status_code == 403


def test_while_the_database_does_not_answer_for_long_nothing_is_known(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_out(served[0])
    wait_until(lambda: state(served) == "leave", 5, what="the decision is shown")
    monkeypatch.setattr(node_verdicts, "OLD_S", -1.0)
    assert verdict_of(served)["verdict"] == {"node": NODE, "state": "unknown"}


def test_all_nodes_share_one_read_a_second(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    api, client = served
    reads: list[float] = []
    read = PostgresHooks.out_of_service

    def counted(hooks: PostgresHooks) -> list[OutOfService]:
        reads.append(time.monotonic())
        return read(hooks)

    monkeypatch.setattr(api.services.hooks, "out_of_service", lambda: counted(hooks))
    hooks = PostgresHooks(api.engine, api.snapshots)
    headers = [api.headers("signals", node=f"gpu000{number}", cluster=CLUSTER) for number in range(1, 5)]
    began = time.monotonic()
    for count in range(200):
        body = {"node": f"gpu000{count % 4 + 1}", "asks": True}
        assert (
            client.post(BEAT, json=body, headers=headers[count % 4]).json()["verdict"]["state"] == "healthy"
        )
    assert 1 <= len(reads) <= time.monotonic() - began + 1


def test_follower_has_the_decision_on_the_node_soon_after_the_drain(served: Served, tmp_path: Path) -> None:
    api, _ = served
    with following(tmp_path, str(served[1].base_url), HEALER_CLUSTER=CLUSTER) as follower:
        follower.token.write_text(api.token("signals", node=NODE, cluster=CLUSTER))
        follower.start()

        def written() -> str:
            file = follower.verdict_file
            return json.loads(file.read_text())["state"] if file.exists() else ""

        wait_until(lambda: written() == "healthy", 10, what="the first verdict")
        follower.say(XID_79)
        with api.engine.connect() as conn:
            count = sa.text("SELECT count(*) FROM inbox WHERE kind = 'xid'")
            wait_until(lambda: conn.execute(count).scalar_one() == 1, 10, what="the line is stored")
        taken_out(api)
        drained = time.monotonic()
        wait_until(lambda: written() == "leave", 10, what="the decision is on the node", every_s=0.01)
        assert time.monotonic() - drained < 5  # a heartbeat comes every 10 s
