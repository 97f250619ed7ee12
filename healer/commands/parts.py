"""The parts of a distributed installation: one process each, shown under these names in process lists."""

import typer

from healer.settings import load


def register(app: typer.Typer) -> None:
    app.command("api")(api)
    app.command("detector")(detector)
    app.command("worker")(worker)
    app.command("scheduler")(scheduler)


def _named(part: str) -> None:
    from setproctitle import setproctitle

    setproctitle(f"healer {part}")


def api() -> None:
    """Run the REST API and the console."""
    settings = load()
    _named("api")
    from healer import bootstrap

    bootstrap.run_api(settings)


def detector() -> None:
    """Run the detector: signals to incidents and decisions. One per cluster; a second one stands by."""
    settings = load()
    _named("detector")
    from healer import bootstrap

    bootstrap.run_detector(settings)


def worker() -> None:
    """Run a worker: it carries out the steps of runs."""
    settings = load()
    _named("worker")
    from healer import bootstrap

    bootstrap.run_worker(settings)


def scheduler() -> None:
    """Run the scheduler: reads Slurm, wakes runs, seals the audit chain, delivers messages."""
    settings = load()
    _named("scheduler")
    from healer import bootstrap

    bootstrap.run_scheduler(settings)
