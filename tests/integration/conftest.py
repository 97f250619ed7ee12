"""The benches of the contract suite, each a parameter of the fixture `bench`."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from healer.adapters.slurm.preferred import PreferredScheduler
from healer.adapters.slurm.rest import RestScheduler
from healer.adapters.slurm.rest_token import CommandToken
from healer.adapters.system_clock import SystemClock
from healer.embedded.embedded_slurm import RealSlurm
from healer.sim.sim_slurm import SimClient, SimScheduler, SimServer, SlurmTimes
from tests.integration.benches import Bench, RealBench, SimBench
from tests.support import slurm, trixie
from tests.support.fake_pyslurm import fake_pyslurm
from tests.support.slurm import hands, real_slurm  # noqa: F401 - a fixture
from tests.support.wait import wait_until

BENCHES = [
    "sim",
    "sim-socket",
    "pyslurm-fake",
    pytest.param("cli", marks=pytest.mark.slurm),
    pytest.param("cli-24.11", marks=pytest.mark.slurm),
    pytest.param("rest-24.11", marks=pytest.mark.slurm),
]


def simulated() -> SimScheduler:
    """As quick as the real ones: no wait of two minutes here either."""
    return SimScheduler(
        "pod1",
        SystemClock(),
        32,
        times=SlurmTimes(
            cred_expire_s=slurm.CRED_EXPIRE_S, slurmd_timeout_s=slurm.SLURMD_TIMEOUT_S, boot_s=1
        ),
    )


@pytest.fixture
def real_bench(real_slurm: RealSlurm) -> Iterator[RealBench]:  # noqa: F811
    bench = RealBench(real_slurm, hands(real_slurm))
    yield bench
    bench.clean()


@pytest.fixture(params=BENCHES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    match request.param:
        case "sim":
            yield SimBench(simulated())
        case "sim-socket":
            server = SimServer(simulated(), tmp_path / "sim.sock")
            server.start()
            client = SimClient(server.path)
            yield SimBench(client)
            client.close()
            server.stop()
        case "pyslurm-fake":
            yield from pyslurm_bench(tmp_path / "sim.sock")
        case "cli":
            yield request.getfixturevalue("real_bench")
        case "cli-24.11":
            newest = RealBench(trixie.started(), hands(trixie.started()))
            yield newest
            newest.clean()
        case _:
            yield from rest_bench(trixie.started())


def pyslurm_bench(socket: Path) -> Iterator[SimBench]:
    """A stand-in for pyslurm 24.11, and the simulated Slurm itself for what it cannot do."""
    sim = simulated()
    server = SimServer(sim, socket)
    server.start()
    adapter = fake_pyslurm(socket)
    yield SimBench(sim, adapter, hidden=frozenset({"gpus", "dbd_queue"}))
    adapter.close()
    server.stop()


def rest_bench(cluster: trixie.TrixieSlurm) -> Iterator[RealBench]:
    """slurmrestd, and for what it has no address for the command line, as a site would have it."""
    make = [str(cluster.bin_dir / "scontrol"), "token", "username=root", "lifespan=3600"]
    token = CommandToken(["env", f"SLURM_CONF={cluster.slurm_conf}", *make])
    rest = RestScheduler(cluster.rest_url, user=None, token=token)
    found = RealBench(cluster, rest, PreferredScheduler([rest, hands(cluster)]))
    yield found
    found.clean()
    rest.close()


@pytest.fixture
def sim_process(tmp_path: Path) -> Iterator[SimClient]:
    """A simulated Slurm in a process of its own, as `healer up` starts it."""
    path = tmp_path / "s.sock"
    child = subprocess.Popen(
        [sys.executable, "-m", "healer.sim.sim_slurm", "--socket", str(path), "--nodes", "4"]
    )
    try:
        wait_until(path.exists, 20, what="the simulated Slurm's socket")
        client = SimClient(path)
        yield client
        client.close()
    finally:
        child.terminate()
        child.wait(10)
