"""A part that would work on another cluster's Slurm ends at its start; a Slurm that is away stops none."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from healer.adapters.postgres.token_book import PostgresTokenBook
from healer.adapters.postgres.tokens import adopt_key
from healer.adapters.system_clock import SystemClock
from healer.adapters.token_key import KEY_FILE, token_key
from healer.bootstrap import is_own_cluster
from healer.bootstrap.web import web_app
from healer.settings import SettingsError, load
from healer.sim.sim_slurm import SimClient, SimScheduler, SimServer
from tests.support.processes import NOT_ROOT
from tests.support.relays import new_token
from tests.support.seals import seal_all


@pytest.fixture
def other(scratch: Path) -> Iterator[SimServer]:
    """The simulated Slurm of the cluster pod2."""
    server = SimServer(SimScheduler("pod2", SystemClock(), 2), scratch / "slurm.sock")
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize("part", ["worker", "api"])
def test_a_part_on_another_clusters_slurm_ends_with_one_sentence(
    part: str, other: SimServer, scratch: Path
) -> None:
    ended = subprocess.run(
        [*(NOT_ROOT if part == "api" else ()), sys.executable, "-m", "healer", part],
        env=os.environ
        | {
            "HEALER_DATA_DIR": str(scratch / "data"),
            "HEALER_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
            "HEALER_REDIS_URL": "redis://127.0.0.1:1/0",
            "HEALER_CLUSTER": "pod1",
            "HEALER_SLURM_ADAPTERS": "sim",
            "HEALER_SIM_SOCKET": str(other.path),
        },
        capture_output=True,
        check=False,
        text=True,
        timeout=30,
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.strip() == (
        "healer: Slurm on this machine is the cluster pod2, not pod1: correct SLURM_CONF or HEALER_CLUSTER."
    )


def test_unreachable_slurm_gives_no_cluster_name(scratch: Path) -> None:
    assert is_own_cluster(SimClient(scratch / "none.sock"), "pod1") is False


def test_own_cluster_name_is_reported_and_a_different_one_is_fatal(other: SimServer) -> None:
    client = SimClient(other.path)
    assert is_own_cluster(client, "pod2") is True
    with pytest.raises(SettingsError, match="pod2, not pod1"):
        is_own_cluster(client, "pod1")
    client.close()


def test_the_pages_of_a_cluster_open_before_its_slurm_was_ever_read(
    fresh_database: sa.Engine, scratch: Path
) -> None:
    """Where Slurm does not answer on the first day, they say so; and a person finds the way out."""
    key, now = token_key(scratch / KEY_FILE), SystemClock().now()
    with fresh_database.begin() as conn:
        adopt_key(conn, key, now)
    link = PostgresTokenBook(fresh_database, "pod1", key).create(
        new_token("admin", name="ann", once=True), now=now, by="test"
    )
    seal_all(fresh_database)
    settings = {
        "HEALER_DATA_DIR": str(scratch),
        "HEALER_DATABASE_URL": fresh_database.url.render_as_string(hide_password=False),
        "HEALER_REDIS_URL": "redis://127.0.0.1:1",
        "HEALER_CLUSTER": "pod1",
        "HEALER_SLURM_ADAPTERS": "sim",
        "HEALER_SIM_SOCKET": str(scratch / "none.sock"),
    }
    client = TestClient(web_app(load(settings)), base_url="http://127.0.0.1:8080")
    client.post("/sign-in", data={"token": link, "next": "/sessions"})
    for path in ("/", "/incidents", "/runs", "/pauses", "/rules", "/health", "/sessions", "/audit"):
        page = client.get(path)
        assert (page.status_code, "No Slurm snapshot" in page.text) == (200, True), path
