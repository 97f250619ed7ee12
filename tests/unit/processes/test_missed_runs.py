"""Runs that no message brings to a worker, whatever the broker does."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from healer.processes.worker import UNBROUGHT_S, missed_runs


class Later:
    """A pool that works when it is asked to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, call: Callable[..., Any], *words: Any) -> Future[Any]:
        self.waiting.append((Future(), call, words))
        return self.waiting[-1][0]

    def work(self) -> None:
        while self.waiting:
            future, call, words = self.waiting.pop()
            try:
                future.set_result(call(*words))
            except ValueError as error:
                future.set_exception(error)


def test_run_that_stays_due_is_driven_without_a_message_and_only_once() -> None:
    now, due, driven, pool = [0.0], ["r1"], list[str](), Later()
    look = missed_runs(lambda: due, driven.append, pool, lambda: now[0])  # type: ignore[arg-type]

    def after(seconds: float) -> None:
        now[0] += seconds
        look()

    look()
    due.append("r2")
    after(UNBROUGHT_S - 1)
    assert pool.waiting == []
    due.remove("r2")  # a message brought it
    after(1)
    due.append("r2")
    after(UNBROUGHT_S)  # r1 is still being driven
    assert len(pool.waiting) == 1
    pool.work()
    assert driven == ["r1"]
    after(UNBROUGHT_S)
    pool.work()
    assert sorted(driven) == ["r1", "r1", "r2"]


def test_a_run_that_fails_keeps_no_other_back() -> None:
    now, driven, pool = [0.0], list[str](), Later()

    def drive(run: str) -> None:
        driven.append(run)
        raise ValueError(run)

    look = missed_runs(lambda: ["r1", "r2"], drive, pool, lambda: now[0])  # type: ignore[arg-type]
    for _ in range(3):
        look()
        pool.work()
        now[0] += UNBROUGHT_S
    assert sorted(driven) == ["r1", "r1", "r2", "r2"]
