"""One step, and one rest between two, as a training loop holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from healer_steps._marks import Timed

if TYPE_CHECKING:
    from healer_steps._steps import Steps


class Step:
    """One step, open between `with` and its end. What fails in it is said in the log and never raised.

    A step that ends with an exception is not reported.
    """

    __slots__ = ("_steps", "_timed", "grad_norm", "loss", "number", "stage", "work")

    def __init__(
        self, steps: Steps, number: int, work: float | None, stage: int | None, timed: Timed | None
    ) -> None:
        self._steps = steps
        self._timed = timed
        self.number = number
        self.work = work
        self.stage = stage
        self.loss: float | None = None
        self.grad_norm: float | None = None

    def __enter__(self) -> Step:
        self._steps._begin(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self._steps._end(self, kept=kind is None)

    def compute_done(self) -> None:
        """All work before the collective is done: the gradients are there, the wait for others begins.

        Called several times in one step, the last one counts.
        """
        self._steps._mark(self._timed, "compute")

    def comm_done(self) -> None:
        """The collective is over."""
        self._steps._mark(self._timed, "comm")

    def tell(self, loss: Any = None, grad_norm: Any = None) -> None:
        """Numbers of any kind. A tensor on a GPU is passed over, because reading it makes the host wait for
        the GPU; with `Steps(read_tensors=True)` it is read by its `.item()`."""
        if self._timed is None:
            return
        if loss is not None:
            self.loss = loss if type(loss) is float else self._steps._result(loss)
        if grad_norm is not None:
            self.grad_norm = grad_norm if type(grad_norm) is float else self._steps._result(grad_norm)


class Rest:
    """A rest between two steps, as a context."""

    __slots__ = ("_steps", "_what")

    def __init__(self, steps: Steps, what: str) -> None:
        self._steps, self._what = steps, what

    def __enter__(self) -> Rest:
        self._steps._rests(self._what)
        return self

    def __exit__(self, *_: Any) -> None:
        self._steps._rests(None)
