"""The page's `rules/scrape.yaml` for node_exporter unchanged: its hostlist, and `node: host`."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from healer.model import ScrapeRules
from healer.processes.scraper import list_targets, node_of
from healer.rulebook.ruleset import load
from tests.support.loop import SHIPPED
from tests.support.processes import free_port, running
from tests.support.pulling import Pulled
from tests.support.snippets import placed, snippet
from tests.support.wait import wait_until

SECTION, SHOWN = "node_exporter and dcgm-exporter", "gpu[0001-1250]:9100"
#: Every address of 127.0.0.0/8 is this machine, so two nodes can be named by theirs without a name server.
NODES = ("127.0.0.1", "127.0.0.2")


def rules(folder: Path, **places: str) -> ScrapeRules:
    """The rules that ship, with the page's file among them."""
    made = Path(shutil.copytree(SHIPPED, folder / "rules"))
    (made / "scrape.yaml").write_text(placed(snippet("signals.md", SECTION), places))
    return load(made, prove=False).scrape


def test_the_shown_targets_are_the_nodes(tmp_path: Path) -> None:
    listed = list_targets(rules(tmp_path), "pod1")
    found = [(one.job.name, one.url, node_of(one, "pod1", lambda *_: True)) for one in listed]
    nodes = [f"gpu{number:04d}" for number in range(1, 1251)]
    assert found == [
        *(("node", f"http://{name}:9100/metrics", name) for name in nodes),
        ("dcgm", "http://10.0.0.17:9400/metrics", "gpu0017"),
    ]


@pytest.fixture
def node_exporter(tmp_path: Path) -> Iterator[int]:
    """The port at which Debian's node_exporter simulates both nodes."""
    port = free_port()
    options = [f"--web.listen-address={node}:{port}" for node in NODES]
    with running(tmp_path / "log", "prometheus-node-exporter", *options):
        yield port


def test_a_host_is_the_node(fresh_database: sa.Engine, node_exporter: int, tmp_path: Path) -> None:
    def answers(node: str) -> bool:
        try:
            return httpx.get(f"http://{node}:{node_exporter}/", timeout=5, verify=False).is_success
        except httpx.HTTPError:
            return False

    for node in NODES:
        wait_until(lambda node=node: answers(node), 30, what="node_exporter listens")
    shown = rules(tmp_path, **{SHOWN: f"127.0.0.[1-2]:{node_exporter}"})
    often = msgspec.structs.replace(shown.jobs[0], interval_s=1)
    with Pulled(fresh_database, ScrapeRules(jobs=(often,)), nodes=NODES) as pulled:
        for node in NODES:
            wait_until(lambda node=node: pulled.values(node), 60, what=f"{node} is scraped")
            assert "load1" in {signal for signal, _ in pulled.values(node)}
