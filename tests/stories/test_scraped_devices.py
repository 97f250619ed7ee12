"""Targets that healer fetches itself and that are devices: whose their samples are."""

import pytest

from healer.model import ScrapeJob
from healer.ports.measurements import Target
from healer.processes.scraper import NoNode, node_of


def target(host: str, labels: dict[str, str] | None = None) -> Target:
    job = ScrapeJob(name="switches", node="device")
    return Target(job=job, host=host, url=f"http://{host}/metrics", labels=labels or {})


def no_node(_cluster: str, _node: str) -> bool:
    return False


@pytest.mark.parametrize(
    ("host", "labels", "device"),
    [
        ("leaf1", {}, "@leaf1"),
        ("exporter", {"device": "leaf2:161"}, "@leaf2"),
        ("exporter", {"device": "pdu-r01-a"}, "@pdu-r01-a"),
    ],
)
def test_the_label_names_the_device_or_else_the_host(host: str, labels: dict[str, str], device: str) -> None:
    assert node_of(target(host, labels), "pod1", no_node) == device


def test_invalid_name_is_reported() -> None:
    with pytest.raises(NoNode, match="give the target a label `device`"):
        node_of(target("exporter", {"device": "a b"}), "pod1", no_node)
