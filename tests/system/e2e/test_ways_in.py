"""One running product beside a real Slurm, and what a site already runs sends to it: from the sender to the
incident that a person reads, and to the drain that slurmctld logs.

Prometheus, Alertmanager, the step client, hooks and the follower have proofs of their own beside this one.
"""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from healer.embedded.embedded_slurm import RealSlurm
from tests.support.loop import SHIPPED
from tests.support.processes import clean_environ
from tests.support.pulling import Server, exporter
from tests.support.rsyslog import Rsyslog
from tests.support.site import CLUSTER, PCI, XID_79, Site, site_on
from tests.support.snippets import placed, snippet
from tests.support.stack import scratch_folder
from tests.support.topology_samples import IB
from tests.support.wait import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

WAIT_S = 60
BY_RSYSLOG, BY_OTEL, BY_JOURNAL, IN_OVERLOAD = "gpu0001", "gpu0003", "gpu0004", "gpu0005"
#: Nodes that the sample of ibnetdiscover puts below leaf1.
BELOW_LEAF1 = {"gpu0001", "gpu0002"}
FORGED = f"NVRM: Xid (PCI:{PCI[7]}): 79, pid=1, name=a, GPU has fallen off the bus."
LINKS = 'infiniband_switch_port_link_downed_total{{switch="leaf1",port="2"}} {count}\n'


@dataclass
class Place:
    """The site, its rules, and an exporter of its fabric."""

    site: Site
    rules: Path
    fabric: Server
    folder: Path


@pytest.fixture(scope="module")
def place(real_slurm: RealSlurm) -> Iterator[Place]:
    with scratch_folder() as folder:
        shutil.copytree(SHIPPED, folder / "rules")
        with exporter() as fabric:
            fabric.page = LINKS.format(count=0)
            job = {"name": "fabric", "targets": [fabric.at], "node": "series", "interval_s": 1}
            (folder / "rules" / "scrape.yaml").write_text(yaml.safe_dump({"jobs": [job | {"timeout_s": 1}]}))
            with site_on(real_slurm, HEALER_RULES_DIR=str(folder / "rules")) as site:
                yield Place(site, folder / "rules", fabric, folder)


@pytest.fixture
def site(place: Place) -> Site:
    return place.site


def drained(site: Site, node: str) -> None:
    """slurmctld's own log says so, once, and the reason is healer's."""
    wait_until(lambda: site.drained_by_us(node), WAIT_S, what=f"{node} is drained", every_s=0.1)
    assert site.drains(node) == 1


def test_rsyslog_brings_the_kernels_line_and_no_forged_one(place: Place) -> None:
    site, folder = place.site, place.folder / "r"
    folder.mkdir()
    rsyslog = Rsyslog(folder, site.stack.url, site.token("signals", node=BY_RSYSLOG))
    try:
        rsyslog.start()
        rsyslog.logger("-p", "kern.err", "-t", "kernel", FORGED)
        rsyslog.datagram(f"<3>kernel: [  150.000001] {FORGED}")
        rsyslog.kernel(f"3,9,151000001,-;{XID_79.format(pci=PCI[0])}")
        drained(site, BY_RSYSLOG)
    finally:
        rsyslog.close()
    assert [one["root"]["pci"] for one in site.incidents(BY_RSYSLOG)] == [PCI[0]]


def test_opentelemetrys_sdk_brings_kernel_lines_and_metrics(place: Place) -> None:
    """The program of the page. Its journal is read without the page's filter, so healer itself refuses what a
    user wrote there."""
    site, journal = place.site, place.folder / "otel"
    now_us = int(datetime.now(UTC).timestamp() * 1e6)
    kernel = {"_TRANSPORT": "kernel", "_SOURCE_REALTIME_TIMESTAMP": str(now_us), "_BOOT_ID": "b"}
    records = [
        {"_TRANSPORT": "syslog", "SYSLOG_FACILITY": "0", "SYSLOG_IDENTIFIER": "kernel", "MESSAGE": FORGED},
        kernel | {"SYSLOG_FACILITY": "0", "MESSAGE": XID_79.format(pci=PCI[1])},
    ]
    journal.write_text("".join(json.dumps(one) + "\n" for one in records))
    shown = placed(
        snippet("signals.md", "OpenTelemetry"),
        {
            "https://healer.example": site.stack.url,
            '["journalctl", "-b", "_TRANSPORT=kernel", "-o", "json", "--quiet"]': f'["cat", "{journal}"]',
            '["nvidia-smi", "--query-gpu=index,power.draw", "--format=csv,noheader,nounits"]':
                '["echo", "3, 615.50"]',
            "os.uname().nodename": f'"{BY_OTEL}"',
        },
    )  # fmt: skip
    environ = clean_environ(HEALER_TOKEN=site.token("signals", node=BY_OTEL))
    words = [sys.executable, "-c", shown]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""

    def power() -> Any:
        gpus = site.get(f"/nodes/{CLUSTER}/{BY_OTEL}")["gpus"]
        return next((one["signals"] for one in gpus if one["index"] == 3 and one["signals"]), None)

    assert wait_until(power, WAIT_S, what="the GPU's series")["power_w"] == 615.5
    drained(site, BY_OTEL)
    assert [one["root"]["pci"] for one in site.incidents(BY_OTEL)] == [PCI[1]]


def test_the_journals_lines_come_by_the_documented_command(place: Place) -> None:
    site, token = place.site, place.folder / "token"
    token.write_text(site.token("signals", node=BY_JOURNAL))
    record = {
        "_TRANSPORT": "kernel",
        "_HOSTNAME": BY_JOURNAL,
        "_BOOT_ID": "0b11d014168504bd26ed5fc0bc1c44ae",
        "MESSAGE": f"NVRM: Xid (PCI:{PCI[2]}): 31, pid=4242, name=python3, Ch 00000008, MMU Fault",
    }
    journal = place.folder / "journal"
    journal.write_bytes(httpx.Request("POST", "http://x", json=record).content + b"\n")
    shown = placed(
        snippet("signals.md", "journald"),
        {
            'journalctl "$@" _TRANSPORT=kernel -o json --quiet': f"cat {journal}",
            "/var/lib/healer/cursor": str(place.folder / "cursor"),
            "while :; do": "for once in 1; do",  # what `cat` gives has no end
            "https://healer.example": site.stack.url,
            "/etc/healer/token": str(token),
        },
    )
    done = subprocess.run(["/bin/sh", "-c", shown], capture_output=True, text=True, timeout=60, check=True)
    assert '"accepted":1' in done.stdout, done.stdout + done.stderr
    incident = wait_until(lambda: site.incidents(BY_JOURNAL), WAIT_S, what="the application's incident")[0]
    assert incident["fault"] == "xid-31"
    assert site.drains(BY_JOURNAL) == 0


def test_a_switchs_port_is_scraped_and_the_fabric_says_who_is_behind_it(place: Place) -> None:
    site, fabric = place.site, place.folder / "ib.txt"
    fabric.write_text(IB)
    command = ("topology", "import", str(fabric), "--rules", str(place.rules), "--yes")
    before = site.stack.log("detector").count("rules reloaded")
    assert "switch leaf1" in site.stack.run(*command).stdout
    wait_until(
        lambda: site.stack.log("detector").count("rules reloaded") > before,
        WAIT_S, what="the detector has the topology", every_s=0.2,
    )  # fmt: skip
    for name in BELOW_LEAF1:
        wait_until(lambda name=name: site.get(f"/nodes/{CLUSTER}/{name}")["switches"] == ["leaf1"], WAIT_S)

    def scraped() -> bool:
        items = site.get("/scrape")["items"]
        return bool(items) and all(one["up"] and one["samples"] for one in items)

    wait_until(scraped, WAIT_S, what="the exporter is scraped", every_s=0.3)
    count = 0

    def flapped() -> Any:
        nonlocal count
        count += 1
        place.fabric.page = LINKS.format(count=count)
        found = [one for one in site.open_incidents() if one["root"].get("device") == "leaf1"]
        return next((one for one in found if _behind(one)), None)

    incident = wait_until(flapped, WAIT_S, what="the port's incident names its node", every_s=1)
    assert incident["rule"] == "switch-port-flaps"
    assert _behind(incident) <= BELOW_LEAF1
    assert all(site.node(name).in_service or name == BY_RSYSLOG for name in BELOW_LEAF1)


def _behind(incident: dict[str, Any]) -> set[str]:
    return {part["node"] for part in incident["affected"] if part.get("node")}


def test_a_fault_gets_through_while_metrics_are_shed(site: Site) -> None:
    """The table of samples takes nothing for a while, so metrics pile up to their bound; faults do not."""
    headers = {"Authorization": f"Bearer {site.token('signals')}"}
    body = b"node_load1 1\n" + b"# padding of a very long page\n" * 230_000  # 6.9 MB: ten are too many
    url = f"{site.stack.url}/api/v1/signals/openmetrics?node=gpu0010"
    answers: list[int] = []
    over = threading.Event()

    def send() -> None:
        with httpx.Client(headers=headers, timeout=60) as client:
            while not over.is_set():
                answers.append(client.post(url, content=body).status_code)
                over.wait(0.5)

    senders = [threading.Thread(target=send) for _ in range(14)]
    lock = site.database()
    try:
        lock.execute("SET idle_in_transaction_session_timeout = 0")  # on a slow machine it holds for minutes
        lock.autocommit = False
        lock.execute("LOCK TABLE samples IN SHARE MODE")
        for one in senders:
            one.start()
        wait_until(lambda: 429 in answers, WAIT_S, what="metrics are shed")
        site.kernel(IN_OVERLOAD, XID_79, gpu=3)
        drained(site, IN_OVERLOAD)
        assert not {200, 202, 204} & set(answers), "metrics were stored, so nothing was too much"
    finally:
        over.set()
        lock.close()
        for one in senders:
            if one.ident is not None:
                one.join()

    def counted() -> bool:
        lost = site.get("/signals/losses")["items"]
        return any(one["source"] == "openmetrics" and one["reason"] == "shed" for one in lost)

    wait_until(counted, WAIT_S, what="what was shed is counted")
    assert answers.count(429) >= 1
    after = httpx.post(url, content=b"node_load1 1\n", headers=headers, timeout=60)
    assert after.status_code == 202
