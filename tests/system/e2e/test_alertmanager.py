"""Debian's Alertmanager, set up as docs/signals.md shows, sends to a whole healer: an alert opens an
incident, its repeat is a duplicate, and its end is the incident's end."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.processes import clean_environ, free_port
from tests.support.snippets import placed, snippet
from tests.support.stack import scratch_folder
from tests.support.up import Stack
from tests.support.wait import wait_until

PAGE = "signals.md"
PROGRAM = "prometheus-alertmanager"


class Alertmanager:
    """One on free ports and a folder of its own, with the configuration that the page shows."""

    def __init__(self, folder: Path, stack: Stack) -> None:
        program = shutil.which(PROGRAM)
        assert program, f"{PROGRAM} is not installed: tools/setup --system installs it"
        folder.mkdir()
        token = folder / "healer.token"
        token.write_text(stack.token("signals"))
        text = placed(
            snippet(PAGE, "Alertmanager"),
            {"https://healer.example": stack.url, "/etc/alertmanager/healer.token": str(token)},
        )
        # Five minutes and four hours are its own defaults; the test does not wait that long.
        config = yaml.safe_load(text)
        config["route"] |= {"group_wait": "1s", "group_interval": "1s", "repeat_interval": "2s"}
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = folder / "log.txt"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    program,
                    f"--config.file={folder / 'alertmanager.yml'}",
                    f"--storage.path={folder / 'data'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                    "--cluster.listen-address=",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=clean_environ(),
            )
        wait_until(self._ready, 30, what="Alertmanager is ready")

    def _ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text(errors="replace")
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=2, verify=False).status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)

    def post_alert(self, labels: dict[str, str], *, begun: datetime, ended: datetime | None = None) -> None:
        """As Prometheus does."""
        alert: dict[str, Any] = {"labels": labels, "startsAt": begun.isoformat()}
        alert["annotations"] = {"summary": f"{labels['alertname']} of {labels['instance']}"}
        if ended is not None:
            alert["endsAt"] = ended.isoformat()
        httpx.post(f"{self.url}/api/v2/alerts", json=[alert], timeout=10).raise_for_status()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with scratch_folder() as folder, Stack(folder, HEALER_SLURM_ADAPTERS="sim") as made:
        yield made


@pytest.fixture(scope="module")
def alertmanager(stack: Stack) -> Iterator[Alertmanager]:
    with scratch_folder() as folder:
        made = Alertmanager(folder / "alertmanager", stack)
        yield made
        made.stop()


def asked(stack: Stack, path: str, viewer: dict[str, str]) -> Any:
    return stack.http.get(f"{stack.url}/api/v1{path}", headers=viewer, timeout=20).raise_for_status().json()


def counted(stack: Stack, viewer: dict[str, str], result: str) -> float:
    """What the API's own figures say of the route."""
    text = stack.http.get(f"{stack.url}/metrics", headers=viewer, timeout=20).raise_for_status().text
    name = f'healer_signals_total{{result="{result}",route="alertmanager"}} '
    lines = [one for one in text.splitlines() if one.startswith(name)]
    return sum(float(one.rsplit(" ", 1)[1]) for one in lines)


def test_an_alert_its_repeat_and_its_end(stack: Stack, alertmanager: Alertmanager) -> None:
    viewer = stack.headers("viewer")
    nodes = wait_until(lambda: asked(stack, "/nodes", viewer)["items"], 30, what="Slurm's nodes are known")
    cluster, node = nodes[0]["cluster"], nodes[0]["name"]
    begun = datetime.now(UTC) - timedelta(seconds=5)
    clock = {"alertname": "NodeClockNotSynchronising", "instance": f"{node}:9100", "severity": "warning"}
    own = {"alertname": "TeamCoffeeLow", "instance": f"{node}:9100"}
    for labels in (clock, own):
        alertmanager.post_alert(labels, begun=begun)

    def of_node() -> list[dict[str, Any]]:
        return asked(stack, f"/nodes/{cluster}/{node}", viewer)["alerts"]

    wait_until(lambda: len(of_node()) == 2, 60, what="both alerts fire")
    assert {one["name"]: one["rule"] for one in of_node()} == {
        "NodeClockNotSynchronising": "alert-clock",
        "TeamCoffeeLow": None,
    }

    def incidents() -> list[dict[str, Any]]:
        return [one for one in asked(stack, "/incidents", viewer)["items"] if one["root"].get("node") == node]

    (incident,) = wait_until(incidents, 60, what="the alert that rules name opens an incident")
    assert (incident["rule"], incident["state"]) == ("alert-clock", "open")
    wait_until(
        lambda: counted(stack, viewer, "duplicate") >= 2,
        60,
        what="Alertmanager repeats, and it is a duplicate",
    )
    assert len(incidents()) == 1
    assert counted(stack, viewer, "rejected") == 0

    alertmanager.post_alert(clock, begun=begun, ended=datetime.now(UTC))
    (over,) = wait_until(
        lambda: [one for one in incidents() if one["state"] == "resolved"], 60, what="the end is heard"
    )
    assert "resolved" in over["closed_why"]
    wait_until(lambda: [one["name"] for one in of_node()] == ["TeamCoffeeLow"], 60, what="it fires no more")
    assert asked(stack, "/runs", viewer)["items"] == []


def test_an_event_is_sent_as_the_page_shows_it(stack: Stack, scratch: Path) -> None:
    token = scratch / "token"
    token.write_text(stack.token("signals"))
    viewer = stack.headers("viewer")
    nodes = wait_until(lambda: asked(stack, "/nodes", viewer)["items"], 30, what="Slurm's nodes are known")
    cluster, node = nodes[1]["cluster"], nodes[1]["name"]
    program = placed(
        snippet(PAGE, "CloudEvents"),
        {"https://healer.example": stack.url, "/etc/healer/token": str(token), "gpu0001": node},
    )
    done = subprocess.run(
        ["/bin/sh", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=clean_environ() | {"PATH": os.environ["PATH"]},
    )
    assert '"accepted":1' in done.stdout, done.stdout + done.stderr
    (shown,) = asked(stack, f"/nodes/{cluster}/{node}", viewer)["alerts"]
    assert (shown["name"], shown["text"]) == ("OutletTripped", "outlet 7 of row 3 tripped")


def test_grafanas_contact_point_names_our_route() -> None:
    config = yaml.safe_load(snippet(PAGE, "Grafana"))
    (receiver,) = config["contactPoints"][0]["receivers"]
    assert receiver["type"] == "webhook" and receiver["disableResolveMessage"] is False
    assert receiver["settings"]["url"] == "https://healer.example/api/v1/signals/alertmanager"
