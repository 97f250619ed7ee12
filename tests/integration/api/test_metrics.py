"""/metrics: what it says, to whom, by which names, and while the database is away."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families

from healer.adapters.postgres.arrivals import PostgresScrapes
from healer.adapters.postgres.tables import node_states, requeues, senders, snapshots
from healer.api.metrics import FIGURES
from healer.model import Review, ScrapeState
from healer.model.incident import HitBasis, JobHit
from tests.support.api import CLUSTER, Api, incident, save_incident, serving, snapshot

Labels = tuple[tuple[str, str], ...]


@pytest.fixture
def served(fresh_database: sa.Engine) -> Iterator[tuple[Api, httpx.Client]]:
    with serving(fresh_database) as both:
        yield both


def read(client: httpx.Client, headers: dict[str, str]) -> dict[str, dict[Labels, float]]:
    """Series by name and labels, as a Prometheus would read them."""
    text = client.get("/metrics", headers=headers).raise_for_status().text
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def of(found: dict[str, dict[Labels, float]], name: str, **labels: str) -> float | None:
    return found.get(f"healer_{name}", {}).get(tuple(sorted({"cluster": CLUSTER, **labels}.items())))


def insert(api: Api, table: sa.Table, **row: Any) -> None:
    with api.engine.begin() as conn:
        conn.execute(sa.insert(table).values(**row))


def lost(gpu_hours: float) -> JobHit:
    return JobHit(job="4711", gpus=8, lost_gpu_hours=gpu_hours, basis=HitBasis.checkpoint)


def test_it_counts_what_the_database_holds(served: tuple[Api, httpx.Client]) -> None:
    api, client = served
    headers, now = api.headers("viewer"), datetime.now(UTC)
    made = [
        incident(1, hit=(lost(2.5),), drained_at=datetime.now(UTC)),
        incident(2, review=Review.false_alarm),
    ]
    with api.engine.begin() as conn:
        for one in made:
            save_incident(conn, one)
        drained = {"state": "drained", "held_by": "healer"}
        conn.execute(sa.update(node_states).where(node_states.c.node == "gpu0001").values(drained))
    insert(api, requeues, cluster=CLUSTER, job="4711", restarts=0, run="r1", at=now)
    for who, ago_s in (("gpu0001", 1), ("gpu0002", 600)):
        seen = now - timedelta(seconds=ago_s)
        times = {"first_seen": seen, "last_seen": seen}
        row = {"cluster": CLUSTER, "who": who, "source": "heartbeat", "node": who}
        insert(api, senders, **row, **times, requests=1, bytes=1)
    PostgresScrapes(api.engine).put(ScrapeState(cluster=CLUSTER, at=now, scrapes=7, failed=2, samples=90))
    found = read(client, headers)
    assert of(found, "nodes", state="in_service", held_by="none") == 3
    assert of(found, "nodes", state="drained", held_by="healer") == 1
    assert [of(found, "incidents_open", severity=one) for one in ("P0", "P1")] == [0, 2]
    assert of(found, "incidents_last_day", rule="gpu-lost") == 2
    assert of(found, "reviews_last_month", rule="gpu-lost", review="false_alarm") == 1
    assert of(found, "jobs_hit") == 1
    assert of(found, "gpu_time_lost_last_day_seconds") == 2.5 * 3600
    assert 59 < (of(found, "drain_delay_last_day_seconds", percentile="50") or 0) < 180
    assert of(found, "jobs", state="running") == 1
    assert of(found, "jobs_requeued_total") == 1
    assert (of(found, "senders", route="heartbeat"), of(found, "senders_heard", route="heartbeat")) == (2, 1)
    assert (of(found, "scrapes_total", result="failed"), of(found, "scrape_samples_total")) == (2, 90)
    assert "healer_scrape_report_age_seconds" not in found, "it has no target: it need not run"
    assert found["healer_database_up"] == {(): 1}
    assert found["healer_database_bytes"][()] > 1e6
    assert of(found, "audit_unsealed_records") == 0 and of(found, "breaker_open") == 0
    assert of(found, "runs_active", state="held") == 0


def test_promtool_finds_nothing_to_say_of_it(served: tuple[Api, httpx.Client]) -> None:
    api, client = served
    text = client.get("/metrics", headers=api.headers("viewer")).content
    assert b"healer_build_info{" in text
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_every_figure_that_the_database_gives_has_a_name_and_a_place_for_each_label(
    served: tuple[Api, httpx.Client],
) -> None:
    api, _ = served
    with api.engine.begin() as conn:
        save_incident(conn, incident(1, hit=(lost(1.0),), review=Review.true_fault))
    found = api.services.queries.figures.gauges(datetime.now(UTC))
    assert set(found) <= set(FIGURES)
    for name, values in found.items():
        assert {len(labels) for labels in values} <= {len(FIGURES[name].labels)}, name


def test_a_token_that_is_bound_to_a_cluster_sees_that_cluster_alone(
    served: tuple[Api, httpx.Client],
) -> None:
    api, client = served
    api.snapshots.put(msgspec.structs.replace(snapshot(2), cluster="pod2"))
    with api.engine.begin() as conn:
        failing = {"error": "slurmctld does not answer"}
        conn.execute(sa.update(snapshots).where(snapshots.c.cluster == "pod2").values(failing))
    viewer = api.headers("viewer")
    assert of(read(client, viewer), "slurm_read_failing", cluster="pod2") is None, "it is not in the settings"
    api.app.state.services = replace(api.services, clusters=(CLUSTER, "pod2"))
    assert of(read(client, viewer), "slurm_read_failing", cluster="pod2") == 1
    found = read(client, api.headers("viewer", cluster=CLUSTER))
    named = {
        value for series in found.values() for labels in series for key, value in labels if key == "cluster"
    }
    assert named == {CLUSTER}
    bound = api.headers("viewer", cluster=CLUSTER, node="gpu0001")
    assert client.get("/metrics", headers=bound).status_code == 403


def test_while_the_database_is_away_it_says_so_and_what_this_process_knows(
    served: tuple[Api, httpx.Client], admin: sa.Connection
) -> None:
    api, client = served
    headers = api.headers("viewer")
    assert read(client, headers)["healer_database_up"] == {(): 1}
    name = api.engine.url.database
    admin.execute(sa.text(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false"))
    admin.execute(
        sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"),
        {"name": name},
    )
    found = read(client, headers)
    assert found["healer_database_up"] == {(): 0}
    assert "healer_signals_queued" in found and "healer_inbox_waiting" not in found
    admin.execute(sa.text(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true"))
