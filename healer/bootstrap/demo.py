"""The demo's injector as a process of its own: `python -m healer.bootstrap.demo`. The tree starts it."""

import random
import time
from datetime import UTC, datetime

import httpx
from setproctitle import setproctitle

from healer import bootstrap
from healer.adapters.postgres.tokens import PostgresTokens
from healer.model import Role
from healer.ports import SchedulerError
from healer.settings import load
from healer.sim.injector import Injector, RealSite, SimSite
from healer.sim.slurm import SimClient


def main() -> None:
    setproctitle("healer demo-cluster")
    settings = load()
    url = f"http://{settings.listen}"
    _wait_ready(url)
    cluster = bootstrap.cluster_name(settings)
    tokens = PostgresTokens(bootstrap.engine(settings, name="healer demo", pool_size=1), cluster)
    scheduler = bootstrap.scheduler(settings)
    site = SimSite(scheduler) if isinstance(scheduler, SimClient) else RealSite(scheduler.snapshot)
    now = datetime.now(UTC)
    Injector(
        url=url,
        cluster=cluster,
        signals_token=tokens.create(role=Role.signals, name="demo nodes", now=now, by="demo"),
        technician_token=tokens.create(role=Role.operator, name="demo technician", now=now, by="demo"),
        site=site,
        chance=random.Random(),  # noqa: S311 - which node breaks in a demo
        say=lambda text: print(f"{datetime.now(UTC):%H:%M:%S} {text}", flush=True),
    ).run()


def _wait_ready(url: str) -> None:
    while True:
        try:
            if httpx.get(f"{url}/readyz", timeout=2).status_code == 200:
                return
        except (httpx.HTTPError, SchedulerError):
            pass
        time.sleep(0.2)


if __name__ == "__main__":
    main()
