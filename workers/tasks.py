"""The tasks: thin, each calls healer."""

from collections.abc import Callable
from concurrent.futures import Executor

import structlog
from celery import Celery

from workers.app import ADVANCE, TOGETHER, RunTask

log = structlog.get_logger()


def register(app: Celery, advance: Callable[[str], None], pool: Executor) -> None:
    """Gives the application its one task; Celery's own are taken away, as whoever reaches the broker can ask
    for them. `advance` returns when the run waits or has ended."""

    def advance_run(*runs: object) -> None:
        """All are advanced before it returns; an error of one of them keeps no other back.

        A message is anybody's word: it names runs and says nothing more. What a run may do, the worker reads
        and asks the gate itself.
        """
        named = [run for run in runs if isinstance(run, str) and run.isprintable()]
        if len(named) < len(runs) or not 0 < len(named) <= TOGETHER:
            log.warning("a message that names no runs is dropped", parts=len(runs))
            return
        run, *others = named
        beside = [pool.submit(advance, other) for other in others]
        try:
            advance(run)
        finally:
            errors = [one.exception() for one in beside]
        if failed := [error for error in errors if error is not None]:
            raise failed[0]

    app.finalize()
    for name in list(app.tasks):
        app.tasks.unregister(name)
    app.task(name=ADVANCE, base=RunTask)(advance_run)
