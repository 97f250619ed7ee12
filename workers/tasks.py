"""The tasks: thin, each calls healer."""

from collections.abc import Callable
from concurrent.futures import Executor

from celery import Celery

from workers.app import RunTask
from workers.broker_messages import ADVANCE


def register(app: Celery, advance: Callable[[str], None], pool: Executor) -> None:
    """Gives the application its one task; Celery's own are taken away, as whoever reaches the broker can ask
    for them. `advance` returns when the run waits or has ended."""

    def advance_run(run: str, *others: str) -> None:
        """All are advanced before it returns; an error of one of them keeps no other back.

        A message is anybody's word: it names runs and says nothing more. What a run may do, the worker reads
        and asks the gate itself.
        """
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
