"""A whole healer with a Slack and an Alertmanager that stand in for the real ones: a fault is one message,
kept up to date and closed with the proof, and the dead man's switch is held."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest
import yaml

from tests.support import chats as stand_in
from tests.support.chats import Chats, serve_chats
from tests.support.loop import SHIPPED
from tests.support.stack import scratch_folder
from tests.support.up import UP, Stack
from tests.support.wait import wait_until


@pytest.fixture(scope="module")
def chats() -> Iterator[Chats]:
    with serve_chats() as served:
        yield served


@pytest.fixture(scope="module")
def stack(chats: Chats) -> Iterator[Stack]:
    with scratch_folder() as folder:
        rules = shutil.copytree(SHIPPED, folder / "rules")
        token = folder / "slack.token"
        token.write_text(f"{stand_in.SLACK_TOKEN}\n")
        slack = {"name": "ops", "kind": "slack", "channel": "C0HEALER", "url": f"{chats.url}/api"}
        notifications = {
            "channels": [
                slack | {"secret": str(token)},
                {"name": "feed", "kind": "alertmanager", "url": chats.url},
            ],
            "routes": [
                {"to": ["ops", "feed"], "how": "channel", "severities": ["P0", "P1"]},
                {"to": ["ops"], "how": "digest", "severities": ["P2", "P3"]},
            ],
            "alive": {"channel": "feed", "every_s": 15},
        }
        (rules / "notifications.yaml").write_text(yaml.safe_dump(notifications))
        environ = {
            "HEALER_SLURM_ADAPTERS": "sim",
            "HEALER_MODE": "auto",
            "HEALER_RULES_DIR": str(rules),
            "HEALER_ALERTMANAGER_TOKEN": stand_in.AM_TOKEN,
        }
        with Stack(folder, command=UP, data_dir=None, **environ) as made:
            yield made


def get(stack: Stack, path: str, **query: str) -> dict:
    answer = stack.http.get(f"{stack.url}/api/v1{path}", params=query, headers=stack.headers("viewer"))
    return answer.raise_for_status().json()


def post(stack: Stack, role: str, path: str, body: dict) -> httpx.Response:
    answer = stack.http.post(f"{stack.url}/api/v1{path}", json=body, headers=stack.headers(role))
    return answer.raise_for_status()


def test_a_fault_is_one_message_from_its_first_word_to_its_end(stack: Stack, chats: Chats) -> None:
    wait_until(lambda: get(stack, "/nodes")["items"], 60, what="Slurm's nodes are known")
    first = get(stack, "/nodes")["items"][0]
    wait_until(lambda: chats.alerts, 60, what="healer reports that it is alive")
    line = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, GPU has fallen off the bus."
    entry = {"time": datetime.now(UTC).isoformat(), "line": line}
    body = {"cluster": first["cluster"], "node": first["name"], "boot_id": "b1", "entries": [entry]}
    post(stack, "signals", "/signals/kernel-log", body)
    wait_until(lambda: chats.slack, 60, what="Slack gets the fault")
    (incident,) = get(stack, "/incidents", node=first["name"])["items"]

    def drained() -> bool:
        runs = get(stack, "/runs", incident=incident["id"])["items"]
        steps = [step for run in runs for step in get(stack, f"/runs/{run['id']}")["steps"]]
        return any(step["id"] == "drain" and step["state"] == "done" for step in steps)

    wait_until(drained, 60, what="the node is drained")
    post(stack, "responder", f"/incidents/{incident['id']}/acknowledge", {})
    post(stack, "responder", f"/incidents/{incident['id']}/resolve", {"reason": "the GPU was seated anew"})

    def closed() -> bool:
        return any("the GPU was seated anew" in one["text"] for one in list(chats.slack.values()))

    wait_until(closed, 60, what="Slack gets the end")
    roots = [one for one in chats.slack.values() if "thread_ts" not in one]
    assert len(roots) == 1
    assert first["name"] in roots[0]["text"]
    assert "Done: drain" in roots[0]["text"]
    assert chats.complaints == []

    def states() -> set[tuple[str, str]]:
        listed = get(stack, "/messages", incident=incident["id"])["items"]
        ours = [one for one in listed if one["channel"] in ("ops", "feed")]
        return {(one["channel"], one["state"]) for one in ours}

    wait_until(lambda: "due" not in {state for _, state in states()}, 60, what="all of it is delivered")
    assert {("ops", "sent"), ("feed", "sent")} <= states()
    # What the playbook's own step said of it meanwhile was a repeat, and over before its time.
    assert {state for _, state in states()} <= {"sent", "over"}
    names = {alert["labels"]["alertname"] for alert in list(chats.alerts.values())}
    assert names == {"HealerAlive", "HealerIncident"}
