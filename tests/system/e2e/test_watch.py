"""`healer watch` on a real Slurm and a real Prometheus: figures and incidents come, nothing changes."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
import yaml

from healer.adapters.postgres.tokens import PostgresTokens
from healer.embedded import running
from healer.embedded.embedded_slurm import RealSlurm
from tests.support import slurm as slurm_support
from tests.support.exporters import DCGM_OLD
from tests.support.forked import run
from tests.support.processes import clean_environ, descendants, free_port, living
from tests.support.pulling import Server, closed_port, exporter
from tests.support.relays import new_token
from tests.support.seals import sealed
from tests.support.signing_in import press_sign_in
from tests.support.site import CLUSTER
from tests.support.slurm import real_slurm  # noqa: F401 - a fixture
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[3]
#: For a machine that does much else.
WAIT_S = 90.0
NODE = "gpu0003"
#: GPU 4 is not reported any more; its last Xid is.
LOST = """\
DCGM_FI_DEV_XID_ERRORS{{gpu="4",Hostname="{node}"}} 79
DCGM_FI_DEV_GPU_TEMP{{gpu="5",Hostname="{node}"}} 58
"""


class Prometheus:
    """Debian's, with one target that it scrapes each second."""

    def __init__(self, folder: Path, target: Server, series: str = "DCGM_FI_DEV_GPU_TEMP") -> None:
        self.series = series
        self.url = f"http://127.0.0.1:{free_port()}"
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [
                {"job_name": "dcgm", "honor_labels": True, "static_configs": [{"targets": [target.at]}]}
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        with (folder / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=clean_environ(),
            )
        wait_until(self._has_series, WAIT_S, what="Prometheus has scraped the exporter")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)

    def _has_series(self) -> bool:
        try:
            answer = httpx.get(
                f"{self.url}/api/v1/query", params={"query": self.series}, timeout=2, verify=False
            )
            return bool(answer.json()["data"]["result"])
        except (httpx.TransportError, ValueError, KeyError):
            return False


class Watch:
    """The command at work, and a user who opened its link."""

    def __init__(self, folder: Path, slurm_conf: Path, prometheus: str) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.output = folder / "watch.txt"
        self.url = f"http://127.0.0.1:{free_port()}"
        with self.output.open("wb") as output:
            address = self.url.removeprefix("http://")
            command = (sys.executable, "-m", "healer", "watch", "--prometheus", prometheus, "--slurm")
            self.process = subprocess.Popen(
                [*command, "--listen", address],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=clean_environ(
                    HOME=str(self.home), TMPDIR=str(folder), SLURM_CONF=str(slurm_conf), HEALER_MODE="auto"
                ),
                cwd=ROOT,
                start_new_session=True,
            )
        self.seen: set[int] = set()
        wait_until(lambda: "Open " in self.said(), WAIT_S, what="`healer watch` prints its link")
        link = re.search(r"Open\s+(\S+)", self.said())
        assert link is not None
        self.viewer = httpx.Client(base_url=self.url, follow_redirects=True, timeout=20)
        assert press_sign_in(self.viewer, link[1]).status_code == 200

    def said(self) -> str:
        self.seen |= descendants(self.process.pid)
        assert self.process.poll() is None, self.output.read_text()
        return self.output.read_text()

    @property
    def data_dir(self) -> Path:
        (found,) = self.folder.glob("healer-watch-*")
        return found / "data"

    def operator(self) -> httpx.Client:
        """A user who made a token with more rights than the link gives."""
        db = sa.create_engine(running.find(self.data_dir).database_url)
        try:
            tokens = PostgresTokens(
                db, CLUSTER, bytes.fromhex((self.data_dir / "token-key").read_text().strip())
            )
            made = tokens.create(new_token("operator", name="mara"), now=datetime.now(UTC), by="test")
            token = sealed(tokens, made)
        finally:
            db.dispose()
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=20)


@pytest.fixture
def target() -> Iterator[Server]:
    with exporter() as one:
        one.page = DCGM_OLD.format(node=NODE)
        yield one


@pytest.fixture
def prometheus(scratch: Path, target: Server) -> Iterator[Prometheus]:
    one = Prometheus(scratch, target)
    yield one
    one.stop()


@pytest.fixture
def watch(scratch: Path, real_slurm: RealSlurm, prometheus: Prometheus) -> Iterator[Watch]:  # noqa: F811
    one = Watch(scratch, real_slurm.slurm_conf, prometheus.url)
    yield one
    if one.process.poll() is None:
        one.process.terminate()
        one.process.wait(60)


def test_a_cluster_is_watched_and_nothing_of_it_can_be_changed(
    watch: Watch,
    target: Server,
    real_slurm: RealSlurm,  # noqa: F811
) -> None:
    assert "ignored here" in watch.said() and "HEALER_MODE" in watch.said()
    operator = watch.operator()

    def temperatures() -> list[float | None]:
        answer = operator.get(f"/nodes/{CLUSTER}/{NODE}").raise_for_status().json()
        return [gpu["signals"].get("gpu_temp_c") for gpu in answer["gpus"]]

    wait_until(lambda: 58 in temperatures(), WAIT_S, what="the exporter's figure is shown")

    target.page = LOST.format(node=NODE)
    wait_until(
        lambda: operator.get("/incidents", params={"node": NODE}).json()["items"],
        WAIT_S,
        what="the lost GPU is an incident",
    )
    # A person asks for a drain: the worker has no call that could do it.
    asked = operator.post(
        "/playbooks/drain/runs", json={"cluster": CLUSTER, "node": NODE, "reason": "the fans are loud"}
    )
    assert asked.status_code == 202, asked.text
    run = asked.headers["Location"].removeprefix("/api/v1")
    wait_until(
        lambda: operator.get(run).json()["state"] in {"stuck", "waiting"}, WAIT_S, what="the run stops"
    )
    assert "HEALER_READ_ONLY" in operator.get(run).text
    assert not slurm_support.hands(real_slurm).node(NODE).drain

    watch.process.send_signal(signal.SIGINT)
    assert watch.process.wait(60) == 0, watch.output.read_text()
    assert living(watch.seen) == set()
    assert list(watch.folder.glob("healer-watch-*")) == []
    assert list(watch.home.iterdir()) == [], "nothing is left behind"


def _refused(scratch: Path, slurm_conf: Path, *options: str) -> str:
    done = run(["watch", *options], clean_environ(TMPDIR=str(scratch), SLURM_CONF=str(slurm_conf)))
    assert done.returncode != 0
    assert list(scratch.glob("healer-watch-*")) == []
    return done.stderr.removeprefix("healer: ")


def test_each_missing_source_is_reported_in_one_sentence(scratch: Path, real_slurm: RealSlurm) -> None:  # noqa: F811
    conf = real_slurm.slurm_conf
    assert "add --slurm" in _refused(scratch, conf, "--prometheus", "http://127.0.0.1:9090")
    away = _refused(scratch, conf, "--slurm", "--prometheus", f"http://{closed_port()}")
    assert away.startswith("--prometheus: ") and away.count("\n") == 1, away
    with exporter() as other:
        other.page = "a_name_of_the_site 1\n"
        server = Prometheus(scratch, other, "a_name_of_the_site")
        unknown = _refused(scratch, conf, "--slurm", "--prometheus", server.url)
        server.stop()
    assert re.match(r"--prometheus: healer knows none of its \d+ series names\. ", unknown), unknown
    missing = _refused(scratch, scratch / "none.conf", "--slurm", "--prometheus", "http://127.0.0.1:9090")
    assert missing.startswith("Slurm cannot be read: "), missing
