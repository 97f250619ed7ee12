"""Debian's own Alertmanager takes what healer sends it: an alert that is open, one that is over, the dead
man's switch."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from healer.adapters.notify.alertmanager import Alertmanager
from healer.model import Severity, Stage
from healer.ports.outbound import Notice
from tests.support.processes import free_port, running
from tests.support.wait import wait_until

PROGRAM = "prometheus-alertmanager"
CONFIGURATION = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("alertmanager")
    (folder / "alertmanager.yml").write_text(CONFIGURATION)
    address = f"127.0.0.1:{free_port()}"
    arguments = (
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    )
    with running(folder / "log.txt", PROGRAM, *arguments):
        wait_until(lambda: _is_ready(f"http://{address}"), 30, what="Alertmanager is ready")
        yield f"http://{address}"


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=2, verify=False).status_code == 200
    except httpx.TransportError:
        return False


def active(url: str) -> dict[str, dict[str, Any]]:
    """By name, what it holds to be firing."""
    found = httpx.get(f"{url}/api/v2/alerts", params={"active": "true"}, timeout=10).json()
    return {one["labels"]["alertname"]: one for one in found}


def notice(stage: Stage = Stage.opened) -> Notice:
    return Notice(
        id=f"1f2e3d4c:{stage}",
        thread="1f2e3d4c",
        cluster="pod1",
        title="P1 GPU 3 of gpu0017 fell off the bus",
        lines=("Where: GPU 3 of gpu0017",),
        severity=Severity.P1,
        page=False,
        stage=stage,
        node="gpu0017",
        at=datetime.now(UTC) - timedelta(seconds=5),
        console="https://healer.example/incidents/1f2e3d4c",
    )


def test_an_incident_fires_until_its_end(url: str) -> None:
    manager = Alertmanager(url)
    manager.send(notice(), "")
    manager.renew([notice()])
    fires = wait_until(lambda: active(url).get("HealerIncident"), 30, what="the alert fires")
    assert fires is not None
    assert fires["labels"]["incident"] == "1f2e3d4c"
    assert fires["generatorURL"] == "https://healer.example/incidents/1f2e3d4c"
    assert datetime.fromisoformat(fires["endsAt"]) > datetime.now(UTC)
    manager.send(notice(Stage.resolved), "x")
    wait_until(lambda: "HealerIncident" not in active(url), 30, what="the alert is over")


def test_an_incident_fires_though_our_clock_is_behind(url: str) -> None:
    """It was taken for ended at once: the page was sent, and no one saw it."""
    manager = Alertmanager(url, now=lambda: datetime.now(UTC) - timedelta(minutes=10))
    for _ in range(2):
        manager.send(notice(), "")
        assert "HealerIncident" in active(url)
    manager.send(notice(Stage.resolved), "x")
    wait_until(lambda: "HealerIncident" not in active(url), 30, what="the alert is over")


def test_dead_mans_switch_fires_when_it_is_not_renewed(url: str) -> None:
    manager = Alertmanager(url)
    manager.alive(("pod1",), timedelta(seconds=60))
    wait_until(lambda: "HealerAlive" in active(url), 30, what="the switch is held")
    manager.alive(("pod1",), timedelta(seconds=1))
    wait_until(lambda: "HealerAlive" not in active(url), 30, what="the switch is let go")
