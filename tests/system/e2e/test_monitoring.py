"""Debian's Prometheus scrapes a whole healer as docs/metrics.md shows. Every query of the dashboards and
every rule that ships is asked there, and what has happened shows in it."""

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.goodput_rows import PostgresGoodput
from healer.embedded import running
from healer.model.goodput import HourSpent, LifeSeen, Spent
from healer.settings import own_sim_socket
from healer.sim.sim_slurm import SimClient
from tests.support.loop import SHIPPED
from tests.support.monitoring import RULE_FILES, alerts, names_in, queries, rules, shipped_dashboards
from tests.support.prometheus import running_prometheus
from tests.support.pulling import exporter
from tests.support.snippets import placed, snippet
from tests.support.stack import scratch_folder
from tests.support.up import Stack
from tests.support.wait import wait_until

PAGE = "metrics.md"
WAIT_S = 90
XID_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."
#: A day of samples is not there after seconds; Grafana chooses its own rate interval.
GIVEN = {"$__rate_interval": "1m", "$cluster": ".*"}


class Site:
    """A healer in which something of everything happens, and what a Prometheus says of it."""

    def __init__(self, stack: Stack, target: str) -> None:
        self.stack, self.prometheus = stack, ""
        self.slurm = SimClient(own_sim_socket(stack.data_dir))
        self.viewer, self.operator = stack.headers("viewer"), stack.headers("operator", "--name", "ada")
        self.target = target
        nodes = wait_until(lambda: self.ask("/nodes")["items"], WAIT_S, what="Slurm's nodes are known")
        self.cluster, self.nodes = nodes[0]["cluster"], [one["name"] for one in nodes]

    def ask(self, path: str) -> Any:
        answer = self.stack.http.get(f"{self.stack.url}/api/v1{path}", headers=self.viewer, timeout=30)
        return answer.raise_for_status().json()

    def post(self, path: str, body: Any, headers: dict[str, str]) -> httpx.Response:
        return self.stack.http.post(f"{self.stack.url}/api/v1{path}", json=body, headers=headers, timeout=30)

    def send(self, node: str) -> None:
        """What a node, its job and a wrong sender send."""
        mine = self.stack.headers("signals", "--node", node)
        entries = [{"seq": 1, "line": XID_79, "time": datetime.now(UTC).isoformat()}]
        kernel = {"node": node, "boot_id": "b1", "entries": entries}
        for path, body in (("heartbeat", {"node": node, "boot_id": "b1"}), ("kernel-log", kernel)):
            assert self.post(f"/signals/{path}", body, mine).status_code == 202
        relay = self.stack.headers("signals")
        step = {"step": 120, "rank": 3, "step_s": 1.93, "node": node}
        job = self.slurm.add_job(nodes=1)
        self.slurm.add_job(nodes=1, held=True)
        for path, body in (
            ("step-times", {"job": job, "restart": 0, "samples": [step]}),
            ("checkpoints", {"job": job, "step": 100, "path": "/ckpt/100", "durable": True}),
            ("heartbeat", {"node": "nosuch", "boot_id": "b1"}),
        ):
            assert self.post(f"/signals/{path}", body, relay).status_code == 202
        assert self.stack.http.get(
            f"{self.stack.url}/api/v1/nodes", headers={"Authorization": f"Bearer heal_{'x' * 43}"}
        ).status_code in (401, 429)
        with socket.create_connection(("127.0.0.1", self.stack.port), 60) as mute:
            mute.settimeout(60)
            assert mute.recv(1000).startswith(b"HTTP/1.1 408"), "it never sent a head"

    def decide(self, node: str) -> None:
        """Until the node is drained. A person says that it was right, and asks for what a guard refuses."""
        (incident,) = wait_until(
            lambda: [one for one in self.ask(f"/incidents?node={node}")["items"] if one.get("drained_at")],
            WAIT_S,
            what="the incident's node is drained",
        )
        body = {"review": "true_fault", "cause": "permanent", "reason": "the GPU is gone"}
        assert self.post(f"/incidents/{incident['id']}/review", body, self.operator).is_success
        self.slurm.person_drain(self.nodes[1], "my own look at it", "bob")
        resume = {"cluster": self.cluster, "node": self.nodes[1], "reason": "it looks well"}
        wait_until(
            lambda: self.post("/playbooks/resume/runs", resume, self.operator).json().get("guard"),
            WAIT_S,
            what="a guard refuses to lift the drain of a person",
            every_s=1,
        )

    # --- what Prometheus knows

    def is_scraped(self) -> bool:
        with suppress(httpx.TransportError):  # it has just started
            ready = self.stack.http.get(f"{self.prometheus}/-/ready", timeout=5).status_code == 200
            return ready and bool(self.series('up{job="healer"} == 1'))
        return False

    def series(self, query: str) -> list[dict[str, Any]]:
        answer = self.stack.http.get(f"{self.prometheus}/api/v1/query", params={"query": query}, timeout=30)
        assert answer.status_code == 200, f"{query}: {answer.text}"
        return answer.json()["data"]["result"]

    def api(self, path: str, **asked: str) -> Any:
        answer = self.stack.http.get(f"{self.prometheus}/api/v1/{path}", params=asked, timeout=30)
        return answer.raise_for_status().json()["data"]


def filled(query: str) -> str:
    """The query as Grafana sends it, with all clusters chosen."""
    for name, value in GIVEN.items():
        query = query.replace(name, value)
    return query


def configured(folder: Path, stack: Stack) -> str:
    """The page's own configuration, for this healer."""
    token = folder / "healer.token"
    command = snippet(PAGE, "Scrape").split()[1:]
    token.write_text(stack.run(*command).stdout.split()[-1])
    for path in RULE_FILES:
        shutil.copy(path, folder)
    text = placed(
        snippet(PAGE, "Scrape", 1),
        {
            "scheme: https": "scheme: http",
            "/etc/prometheus/healer.token": str(token),
            "healer.example": f"127.0.0.1:{stack.port}",
            "/etc/prometheus/healer/*.yml": f"{folder}/[ar]*.yml",
        },
    )
    return yaml.safe_dump(
        yaml.safe_load(text) | {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}}
    )


def count_an_hour(site: Site) -> None:
    """The ledger shows whole hours: one that is over, of a job that made steps."""
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
    engine = make_engine(running.find(site.stack.data_dir).database_url)
    book = PostgresGoodput(engine, site.cluster)
    life = LifeSeen(job="4711", restart=0, queued_at=hour, seen_at=hour, ended_at=hour, state="COMPLETED")
    spent = [HourSpent(hour, 0, 0, kind, "", "", 1800.0) for kind in (Spent.productive, Spent.starting)]
    book.put_lives([life])
    book.put_hours([life], spent, hour + timedelta(hours=1))
    engine.dispose()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with scratch_folder() as folder, exporter() as exports:
        shutil.copytree(SHIPPED, folder / "rules")
        job = {"name": "node", "targets": [exports.at], "labels": {"node": "gpu0003"}, "node": "node"}
        scrape = {"jobs": [job | {"interval_s": 2}]}
        settings = {
            "HEALER_SLURM_ADAPTERS": "sim",
            "HEALER_MODE": "auto",
            "HEALER_GUARD_MAX_NODES": "1",
            "HEALER_RULES_DIR": str(folder / "rules"),
        }
        with Stack(folder, **settings) as stack:
            made = Site(stack, exports.at)
            (folder / "rules/scrape.yaml").write_text(yaml.safe_dump(scrape))
            prometheus = folder / "prometheus"
            prometheus.mkdir()
            with running_prometheus(prometheus, configured(prometheus, stack)) as made.prometheus:
                wait_until(made.is_scraped, WAIT_S, what="healer is scraped")
                count_an_hour(made)
                made.send(made.nodes[0])
                made.decide(made.nodes[0])
                made.send(made.nodes[2])  # once more: a rate needs a counter that grew
                yield made


def test_every_query_of_every_dashboard_returns_series(site: Site) -> None:
    asked = list(queries())
    wait_until(lambda: site.series('healer_scrape_targets{state="up"} == 1'), WAIT_S, what="healer scrapes")
    wait_until(lambda: site.series("healer_runs_last_day"), WAIT_S, what="the run is scraped")

    def empty() -> list[str]:
        return [f"{query.place}: {query.text}" for query in asked if not site.series(filled(query.text))]

    with suppress(AssertionError):
        wait_until(lambda: not empty(), 30, every_s=1)
    assert empty() == []
    assert len(asked) > 50


def test_dashboard_panels_show_past_incidents_and_drains(site: Site) -> None:
    found = {query.place: filled(query.text) for query in queries()}

    def shown(start: str) -> dict[str, float]:
        (place,) = [place for place in found if place.startswith(start)]
        legend = re.findall(r"\{\{(\w+)\}\}", place)
        series = site.series(found[place])
        return {
            " ".join(one["metric"].get(label, "") for label in legend): float(one["value"][1])
            for one in series
        }

    assert shown("fleet.json: Breaker") == {"": 0}
    assert shown("fleet.json: Incidents by rule")["gpu-lost"] >= 1
    assert shown("fleet.json: Nodes out of service")["healer"] >= 1
    assert shown("health.json: Database:") == {"": 1}
    assert shown("detectors.json: Precision by rule") == {"gpu-lost": 1}
    assert shown("jobs.json: Pending")[""] >= 1


def test_the_variable_of_clusters_finds_them(site: Site) -> None:
    for dashboard in shipped_dashboards().values():
        asked = dashboard["templating"]["list"][1]["query"]["query"]
        (name, label) = re.fullmatch(r"label_values\((\w+), (\w+)\)", asked).groups()  # type: ignore[union-attr]
        assert site.api(f"label/{label}/values", **{"match[]": name}) == [site.cluster]


def test_prometheus_evaluates_every_rule_that_ships(site: Site) -> None:
    wanted = sum(len(rules(path)) for path in RULE_FILES)

    def evaluated() -> Any:
        found = [rule for group in site.api("rules")["groups"] for rule in group["rules"]]
        return found if len(found) == wanted and all(one["health"] == "ok" for one in found) else None

    found = wait_until(evaluated, WAIT_S, what="all rules were evaluated without an error", every_s=1)
    assert {one["name"] for one in found if one["type"] == "alerting"} == {one["alert"] for one in alerts()}
    recorded = {one["name"] for one in found if one["type"] == "recording"}
    # A rule that was evaluated before the site had a review has its first value in the next interval.
    wait_until(
        lambda: all(map(site.series, recorded)), WAIT_S, what=f"each of {recorded} has series", every_s=1
    )


def test_series_of_every_alert_exist_while_the_alert_is_silent(site: Site) -> None:
    """A misspelt name would keep an alert silent for ever. This site has no witness and no database disk."""
    named = {name for alert in alerts() for name in names_in(alert["expr"])}
    missing = {name for name in named if not site.series(name)}
    assert missing <= {"healer_audit_witness_age_seconds", "healer_database_disk_free_ratio"}


def test_promtool_finds_nothing_to_say_of_the_metrics(site: Site) -> None:
    text = site.stack.http.get(f"{site.stack.url}/metrics", headers=site.viewer).raise_for_status().content
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_manual_pause_makes_its_alert_pending(site: Site) -> None:
    body = {"scope": "cluster", "name": site.cluster, "cluster": site.cluster, "reason": "a network change"}
    assert site.post("/pauses", body, site.operator).is_success

    def pending() -> list[dict[str, Any]]:
        found = site.api("alerts")["alerts"]
        return [one for one in found if one["labels"]["alertname"] == "HealerPausedLong"]

    (alert,) = wait_until(pending, WAIT_S, what="Prometheus sees the pause", every_s=0.5)
    assert (alert["state"], alert["labels"]["cluster"]) == ("pending", site.cluster)
    assert alert["annotations"]["summary"] == f"{site.cluster} has been paused for a day"
