"""The tasks: thin, each calls healer."""

from collections.abc import Callable

from celery import Celery

from workers.app import ADVANCE, RunTask


def register(app: Celery, advance: Callable[[str], None]) -> None:
    """Gives the application its one task. `advance` returns when the run waits or has ended."""

    def advance_run(run: str) -> None:
        advance(run)

    app.task(name=ADVANCE, base=RunTask)(advance_run)
