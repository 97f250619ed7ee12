"""When a target is fetched, and whose it is."""

import pytest

from healer.model import ScrapeJob, ScrapeRules, TargetGroup
from healer.ports.measurements import Target
from healer.processes.scraper import NoNode, first_due, list_targets, next_due, node_of


def target(number: int = 1, interval_s: float = 15, **more: object) -> Target:
    host = f"gpu{number:04d}"
    job = ScrapeJob(name="dcgm", interval_s=interval_s, node=str(more.get("node", "host")))
    return Target(job, str(more.get("host", host)), f"http://{host}:9400/metrics", more.get("labels", {}))  # type: ignore[arg-type]


def test_targets_are_spread_over_their_interval() -> None:
    due = [first_due(target(number), 1000.0) for number in range(1250)]
    assert all(1000 <= one < 1015 for one in due)
    by_second = [sum(second <= one - 1000 < second + 1 for one in due) for second in range(15)]
    assert max(by_second) < 2 * 1250 / 15
    assert min(by_second) > 1250 / 15 / 2


def test_the_beat_is_the_same_after_a_restart() -> None:
    first, later = first_due(target(), 1000.0), first_due(target(), 1777.7)
    assert (later - first) % 15 == pytest.approx(0, abs=1e-6) or (later - first) % 15 == pytest.approx(15)


def test_beats_that_were_missed_are_not_made_up_for() -> None:
    assert next_due(target(), 100.0, 101.0, 0) == 115.0
    assert next_due(target(), 100.0, 161.0, 0) == 175.0


@pytest.mark.parametrize(("stalled", "after_s"), [(0, 15), (1, 30), (2, 60), (9, 60)])
def test_a_target_that_stalls_is_asked_less_often(stalled: int, after_s: float) -> None:
    assert next_due(target(), 100.0, 110.0, stalled) == 100.0 + after_s


def known(cluster: str, node: str) -> bool:
    return (cluster, node) == ("pod1", "gpu0001")


@pytest.mark.parametrize(
    ("one", "node"),
    [
        (target(), "gpu0001"),
        (target(host="gpu0001.hall.example"), "gpu0001"),
        (target(host="10.0.0.1", node="machine", labels={"machine": "gpu0001"}), "gpu0001"),
        (target(host="10.0.0.1", node="instance", labels={"instance": "gpu0001.hall:9100"}), "gpu0001"),
        (target(host="10.0.0.1", node="series"), None),
    ],
)
def test_whose_a_target_is(one: Target, node: str | None) -> None:
    assert node_of(one, "pod1", known) == node


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (target(2), "pod1 has no node gpu0002"),
        (target(host="10.0.0.1"), "name it by a label"),
        (target(node="machine"), "no label machine"),
    ],
)
def test_target_without_an_owner_says_so(one: Target, why: str) -> None:
    with pytest.raises(NoNode, match=why):
        node_of(one, "pod1", known)


def listed(*jobs: ScrapeJob) -> list[Target]:
    return list_targets(ScrapeRules(jobs=jobs), "pod1")


def test_targets_are_those_of_the_job_and_of_its_groups_each_once() -> None:
    group = TargetGroup(("h2:9100", "[::1]:9100"), {"rack": "r2"})
    job = ScrapeJob(name="node", targets=("h1:9100", "h2:9100"), groups=(group,), labels={"rack": "r1"})
    assert [(one.host, one.labels) for one in listed(job)] == [
        ("h1", {"rack": "r1"}),
        ("h2", {"rack": "r1"}),
        ("::1", {"rack": "r2"}),
    ]


def test_targets_of_another_cluster_are_not_scraped() -> None:
    groups = (TargetGroup(("h1:1",), {"cluster": "pod2"}), TargetGroup(("h2:1",), {"cluster": "pod1"}))
    jobs = (
        ScrapeJob(name="a", groups=groups),
        ScrapeJob(name="b", targets=("h3:1",), cluster="pod2"),
        ScrapeJob(name="c", targets=("h4:1",), cluster="pod1"),
    )
    assert [one.host for one in listed(*jobs)] == ["h2", "h4"]


@pytest.mark.parametrize(
    ("labels", "url"),
    [
        ({"__metrics_path__": "metrics"}, "http://h1:9100/metrics"),
        ({"__metrics_path__": "@evil.example/x"}, "http://h1:9100/@evil.example/x"),
        ({"__metrics_path__": ":80@evil.example/x"}, "http://h1:9100/:80@evil.example/x"),
        ({"__metrics_path__": ".evil.example/x"}, "http://h1:9100/.evil.example/x"),
        ({"__metrics_path__": ""}, "http://h1:9100/own"),
        ({"__scheme__": "https"}, "https://h1:9100/own"),
        ({"__scheme__": ""}, "http://h1:9100/own"),
        ({"__address__": "evil.example:80"}, "http://h1:9100/own"),
        (
            {"__metrics_path__": "/snmp", "__param_target": "a b&c", "__param_module": "if_mib"},
            "http://h1:9100/snmp?target=a+b%26c&module=if_mib",
        ),
        ({"__metrics_path__": "/snmp?x=1", "__param_target": "tor1"}, "http://h1:9100/snmp?x=1&target=tor1"),
    ],
)
def test_labels_say_how_and_never_another_host(labels: dict[str, str], url: str) -> None:
    (one,) = listed(ScrapeJob(name="node", path="/own", groups=(TargetGroup(("h1:9100",), labels),)))
    assert one.url == url
    assert not {"__scheme__", "__metrics_path__", "__param_target"} & one.labels.keys()
