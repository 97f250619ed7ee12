"""The demo's injector as a process of its own: `python -m healer.bootstrap.demo`. The tree starts it."""

import random
import time
from datetime import UTC, datetime

import httpx
from setproctitle import setproctitle

from healer import bootstrap
from healer.adapters.postgres.tokens import PostgresTokens
from healer.model import Role, SlurmSnapshot
from healer.ports.slurm import Scheduler, SchedulerError
from healer.settings import SettingsError, load
from healer.sim.injector import PACE, Injector
from healer.sim.nodes import NodesClient
from healer.sim.senders import Senders
from healer.sim.sites import RealSite, SimSite
from healer.sim.slurm import SimClient
from healer.sim.telemetry import SimTelemetry


def main() -> None:
    setproctitle("healer demo-cluster")
    settings = load()
    if settings.sim_nodes_socket is None:
        raise SettingsError("HEALER_SIM_NODES_SOCKET must name the socket of the simulated nodes.")
    url = f"http://{settings.listen}"
    _wait_ready(url)
    cluster = bootstrap.cluster_name(settings)
    tokens = PostgresTokens(bootstrap.engine(settings, name="healer demo", pool_size=1), cluster)
    scheduler = bootstrap.scheduler(settings)
    first = scheduler.adapters[0]
    site = SimSite(first) if isinstance(first, SimClient) else RealSite(scheduler.snapshot)
    now = datetime.now(UTC)
    chance = random.Random()  # noqa: S311 - which node breaks in a demo
    shown = _first_picture(scheduler)
    sensors = SimTelemetry(cluster, list(shown.nodes), start=now, seed=chance.getrandbits(32), pace=PACE)
    senders = Senders(
        url=url,
        cluster=cluster,
        token=tokens.create(role=Role.signals, name="demo nodes", now=now, by="demo"),
        snapshot=site.snapshot,
        sensors=sensors,
        chance=chance,
    )
    Injector(
        url=url,
        cluster=cluster,
        technician_token=tokens.create(role=Role.operator, name="demo technician", now=now, by="demo"),
        site=site,
        senders=senders,
        nodes=NodesClient(settings.sim_nodes_socket),
        chance=chance,
        say=lambda text: print(f"{datetime.now(UTC):%H:%M:%S} {text}", flush=True),
    ).run()


def _first_picture(scheduler: Scheduler) -> SlurmSnapshot:
    while True:
        try:
            return scheduler.snapshot()
        except SchedulerError:
            time.sleep(0.2)


def _wait_ready(url: str) -> None:
    while True:
        try:
            if httpx.get(f"{url}/readyz", timeout=2, trust_env=False).status_code == 200:
                return
        except (httpx.HTTPError, SchedulerError):
            pass
        time.sleep(0.2)


if __name__ == "__main__":
    main()
