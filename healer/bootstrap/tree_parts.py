"""Parts of `healer up` and `healer demo` alone: simulated Slurm and nodes, the demo's faults; the preload."""

import json
import os
import random
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path

import httpx
from setproctitle import setproctitle

from healer import bootstrap
from healer.embedded.tree import Part
from healer.model import SlurmSnapshot
from healer.model.shown import shown
from healer.ports.scheduling import SchedulerError, SlurmReads
from healer.rulebook.proven import code_digest
from healer.rulebook.ruleset import RulesInvalid
from healer.rulebook.source import parse_ahead
from healer.settings import SIM_FOLDER, Settings, SettingsError, load, own_url, rules_folder
from healer.sim.nodes import NodesClient
from healer.sim.nodes import main as run_nodes
from healer.sim.sim_slurm import SimClient
from healer.sim.sim_slurm import main as run_slurm
from healer.text import in_language, say
from healer.text.language import of_locale


def with_slurm(
    parts: Sequence[Part], path: Path, nodes: int, cluster: str | None = None, *, several: bool = False
) -> list[Part]:
    """These parts behind a simulated Slurm with `nodes` nodes that listens at `path`. They start once it
    listens, as parts ask Slurm for its name where HEALER_CLUSTER is not set. `cluster`: its ClusterName,
    default pod1. `several`: the part is named after the cluster."""
    called = ["--socket", str(path), "--nodes", str(nodes)] + ([f"--cluster={cluster}"] if cluster else [])
    name = f"sim-slurm-{cluster}" if several else "sim-slurm"
    slurm = Part(name, partial(run_slurm, called), None, by_worker=True)
    return [slurm, *(_after(part, path) for part in parts)]


def _after(part: Part, path: Path) -> Part:
    return replace(part, wanted=lambda: _listens(path) and part.wanted())


def _listens(path: Path) -> bool:
    """Whether a server listens; the socket of a killed one does not count."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(1)
        try:
            asked.connect(str(path))
        except OSError:
            return False
    return True


def demo_parts(nodes_socket: Path | None) -> tuple[Part, Part]:
    """The parts of the simulated nodes and of their faults."""
    nodes = partial(run_nodes, ["--socket", str(nodes_socket)])
    # It plays those who break and repair the cluster, so it reaches all of it.
    injector = Part("demo-cluster", run_injector, None, by_worker=True)
    return Part("sim-nodes", nodes, None, by_worker=True), injector


def run_injector() -> None:
    """Runs the demo's faults in a process of its own."""
    from healer.sim.demo_story import PACE, Injector, RealSite, Senders, SimSite
    from healer.sim.sim_telemetry import SimTelemetry

    setproctitle("healer demo-cluster")
    settings = load()
    if settings.sim_nodes_socket is None:
        raise SettingsError(say("setup.sim_nodes_socket_must"))
    url = own_url(settings)
    _wait_ready(url)
    cluster = bootstrap.cluster_name(settings)
    tokens = _tokens(settings.data_dir / SIM_FOLDER / bootstrap.DEMO_TOKENS)
    slurm = bootstrap.slurm_reads(settings)
    simulated = slurm.adapters[0].name == "sim"
    site = SimSite(SimClient(bootstrap.sim_socket(settings))) if simulated else RealSite(slurm.snapshot)
    now = datetime.now(UTC)
    chance = random.Random()  # noqa: S311 - which node breaks in a demo
    first = _first_picture(slurm)
    sensors = SimTelemetry(cluster, list(first.nodes), start=now, seed=chance.getrandbits(32), pace=PACE)
    senders = Senders(
        url=url,
        cluster=cluster,
        token=tokens["demo nodes"],
        snapshot=site.snapshot,
        sensors=sensors,
        chance=chance,
    )
    headers = {"Authorization": f"Bearer {tokens['demo technician']}"}
    Injector(
        people=httpx.Client(base_url=url, headers=headers, timeout=10, trust_env=False),
        site=site,
        senders=senders,
        nodes=NodesClient(settings.sim_nodes_socket),
        chance=chance,
        announce=_print_story,
    ).run()


def _print_story(text: str) -> None:
    """In the language of the terminal that the demo was started on."""
    local = in_language(text, of_locale(os.environ))
    print(f"{datetime.now(UTC):%H:%M:%S} {shown(local)}", flush=True)


def _first_picture(slurm: SlurmReads) -> SlurmSnapshot:
    while True:
        try:
            return slurm.snapshot()
        except SchedulerError:
            time.sleep(0.2)


def _tokens(file: Path) -> dict[str, str]:
    while not file.exists():
        time.sleep(0.2)
    return json.loads(file.read_text())


def _wait_ready(url: str) -> None:
    while True:
        try:
            if httpx.get(f"{url}/readyz", timeout=2, trust_env=False).status_code == 200:
                return
        except (httpx.HTTPError, SchedulerError):
            pass
        time.sleep(0.2)


#: Modules that import many others. What only some sites use is left to the part that needs it.
_MODULES = (
    "workers.app",  # before Celery, which it configures
    "workers.tasks",
    "healer.bootstrap.detector_part",
    "healer.bootstrap.web",
    "celery.apps.worker",
    "celery.concurrency.thread",
    "celery.worker.consumer",
    "redis",  # kombu hides that it is missing
    "kombu.transport.redis",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "healer.api.handshakes",
    "httpx",
)


def preload(settings: Settings) -> None:
    """Imports and reads what several parts need, once for all of them."""
    for name in _MODULES:
        import_module(name)
    code_digest()
    parse_ahead(rules_folder(settings))
    for cluster in settings.each():
        with suppress(RulesInvalid):  # each part says it, or begins with the rules of before
            bootstrap.load_site_rules(rules_folder(cluster), cluster, prove=False)
