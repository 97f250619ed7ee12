"""`Steps`: what a training loop holds in its hands."""

from __future__ import annotations

import atexit
import functools
import os
import time
import weakref
from typing import Any, Callable, Iterable, Iterator, Mapping, TypeVar

from healer_steps._checkpoints import Checkpoints
from healer_steps._environ import Settings
from healer_steps._fork import after_fork
from healer_steps._marks import CudaMarks, HostMarks, Timed, cuda_in_use
from healer_steps._numbers import number, on_device, whole
from healer_steps._sender import CLOSE_S, EVERY_S, Sender, left_s
from healer_steps._step import Rest, Step

#: A rank that is stuck for so long reports where, and repeats it as often.
STANDS_S = 10.0
#: What a program may say of itself between two steps: then it is not waited for.
RESTS = ("checkpoint", "evaluation")

T = TypeVar("T")
N = TypeVar("N")
F = TypeVar("F", bound=Callable[..., Any])


class Steps:
    """Times the steps of this process and sends them to healer, as one rank of its Slurm job.

    `every_s`: how often is sent; `stage`: the pipeline stage; `first_step`: the number of the first step;
    `cuda`: None looks whether torch has used a GPU. Without HEALER_URL nothing is measured or sent.
    """

    def __init__(
        self,
        *,
        every_s: float = EVERY_S,
        stage: int | None = None,
        first_step: int = 0,
        read_tensors: bool = False,
        cuda: bool | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._made = {
            "every_s": every_s, "stage": stage, "first_step": first_step, "read_tensors": read_tensors,
            "cuda": cuda, "environ": None if environ is None else dict(environ),
        }  # fmt: skip
        self.settings = Settings(environ)
        self._sender: Sender | None = None
        if self.settings.url:
            self._sender = Sender(self.settings)
            self._sender.every_s = self._plain("every_s", every_s, _every) or EVERY_S
            why = self.settings.wrong()
            if why:
                self._sender.say("settings", why + ": no step times are sent")
                self._sender = None
            else:
                self._sender.where = self._where
        self._checkpoints = Checkpoints(self._sender) if self._sender is not None else None
        self._stage = self._plain("stage", stage, _stage)
        self._next = self._plain("first_step", first_step, whole) or 0
        self._read_tensors = read_tensors
        self._cuda = cuda
        self._at_end: list[Callable[[], None]] = []
        self._reset()
        if self._sender is not None:
            after_fork(self)
            atexit.register(_close, weakref.ref(self))

    def _reset(self) -> None:
        # The GPU's events, too, are the parent's: a child that asked them would fail.
        self._marks: Any = HostMarks(self._done)
        self._open: Step | None = None
        #: What the training thread does, in or after which step, and since when: one value, read by another
        #: thread.
        self._at: tuple[str, int, float] = ("between", -1, time.monotonic())
        self._data_s: float | None = None
        self._last_end: Any = None

    def __reduce__(self) -> Any:
        """A copy, as a launcher makes it for another process: made alike, with nothing in its queue."""
        return _made, (self._made,)

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def on(self) -> bool:
        """There is a healer to send to."""
        return self._sender is not None

    @property
    def dropped(self) -> int:
        """Samples that were not sent: the queue was full, they grew too old, or the end came."""
        return self._sender.dropped if self._sender is not None else 0

    @property
    def sent(self) -> int:
        return self._sender.sent if self._sender is not None else 0

    def step(self, work: float | None = None, *, step: int | None = None, stage: int | None = None) -> Step:
        """The next step. `work`: its tokens or samples on this rank; `step`: its number, else the next.
        Numbers of any kind; what is none, or lies on a GPU, is left out and said once."""
        which = self._next if step is None else self._plain("step", step, whole)
        if which is None:
            which = self._next
        self._next = which + 1
        if self._sender is None:
            return Step(self, which, None, None, None)
        if work is not None:
            work = self._plain("work", work, number)
        stage = self._stage if stage is None else self._plain("stage", stage, _stage)
        return Step(self, which, work, stage, Timed())

    def data(self, batches: Iterable[T]) -> Iterator[T]:
        """The same batches; how long each was waited for belongs to the step that follows."""
        source = iter(batches)
        while True:
            started = time.perf_counter()
            try:
                batch = next(source)
            except StopIteration:
                return
            self.waited(time.perf_counter() - started)
            yield batch

    def waited(self, data_s: float) -> None:
        """So long was waited for the data of the next step, since the end of the one before."""
        self._data_s = self._plain("data_s", data_s, number)

    def compute_done(self) -> None:
        """`Step.compute_done` of the step that is open, for hooks; nothing when none is."""
        is_open = self._open  # once: a hook may run in another thread
        if is_open is not None:
            self._mark(is_open._timed, "compute")

    def comm_done(self) -> None:
        is_open = self._open
        if is_open is not None:
            self._mark(is_open._timed, "comm")

    def tell(self, loss: Any = None, grad_norm: Any = None) -> None:
        is_open = self._open
        if is_open is not None:
            is_open.tell(loss, grad_norm)

    def wrap(self, function: F, work: float | None = None) -> F:
        """The function, each call of it one step: also as a decorator."""

        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with self.step(work):
                return function(*args, **kwargs)

        return inner  # type: ignore[return-value]

    def checkpoint(
        self, path: Any, step: int | None = None, *, durable: bool = True, checksum: bool = False
    ) -> None:
        """A checkpoint lies at `path` (a file or a folder), reported by rank 0 only, or where no rank is
        known.
        `durable`: it is whole, and where a restarted job finds it. `checksum`: SHA-256 of it, made in the
        background."""
        if self._checkpoints is None:
            return
        try:
            self._look()
            if self.settings.rank:
                return
            last = max(self._next - 1, 0)
            which = last if step is None else self._plain("step", step, whole)
            name = os.fsdecode(path) if isinstance(path, bytes) else str(path)
            self._checkpoints.record(name, last if which is None else which, bool(durable), bool(checksum))
        except Exception as error:
            self._trouble(error)

    def rest(self, what: str = "checkpoint") -> Rest:
        """`with steps.rest("evaluation"):` around what comes between two steps and takes long: `checkpoint`
        or `evaluation`. So it is not taken for a hang."""
        return Rest(self, what)

    def at_end(self, call: Callable[[], None]) -> None:
        """Calls it once, when the next step ends."""
        self._at_end.append(call)

    def flush(self, timeout_s: float = CLOSE_S) -> None:
        """Sends what waits now, as far as one try goes, for at most this long. More steps may follow."""
        if self._sender is None:
            return
        try:
            self._sender.dropped += self._marks.collect()
            self._sender.flush(timeout_s)
        except Exception as error:
            self._trouble(error)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Sends what waits, for at most this long; a second time is nothing. Steps that come later are only
        counted (`dropped`). At the end of the program it comes by itself."""
        if self._sender is None:
            return
        try:
            until = time.monotonic() + timeout_s
            lost = self._marks.finish()
            self._sender.dropped += lost
            if self._checkpoints is not None:
                self._checkpoints.close(timeout_s)
            self._sender.close(max(0.0, until - time.monotonic()))
        except Exception as error:
            self._trouble(error)

    # --- of the training thread, once a step: a few µs, and nothing raised ---

    def _begin(self, step: Step) -> None:
        timed = step._timed
        if timed is None:
            return
        try:
            self._open = step
            self._choose()
            timed.data_s, self._data_s = self._data_s, None
            if timed.data_s is not None and isinstance(self._marks, CudaMarks):
                timed.previous = self._last_end
            timed.start = self._marks.mark()
            self._at = ("compute", step.number, time.monotonic())
        except Exception as error:
            self._trouble(error)

    def _leave(self) -> None:
        """Forgets the step that is open: its training broke off."""
        if self._open is not None:
            self._end(self._open, kept=False)
        self._data_s = None

    def _mark(self, timed: Timed | None, name: str) -> None:
        if timed is None or timed.start is None:
            return
        try:
            setattr(timed, name, self._marks.again(getattr(timed, name)))
            doing = "collective" if name == "compute" else "compute"
            self._at = (doing, self._at[1], time.monotonic())
        except Exception as error:
            self._trouble(error)

    def _end(self, step: Step, kept: bool) -> None:
        timed = step._timed
        if timed is None or timed.start is None or self._sender is None:
            return
        self._open = None
        self._at = ("between", step.number, time.monotonic())
        try:
            if kept:
                self._look()
                timed.end = self._last_end = self._marks.mark()
                timed.about = (time.time(), step)
                lost = self._marks.ended(timed)  # may itself find the queue full, and count that
                self._sender.dropped += lost
            else:
                self._last_end = None
            if self._at_end:
                calls, self._at_end = self._at_end, []
                for call in calls:
                    call()
        except Exception as error:
            self._trouble(error)

    def _done(
        self,
        about: Any,
        step_s: float,
        compute_s: float | None,
        comm_s: float | None,
        data_s: float | None,
    ) -> None:
        at, step = about
        if self._sender is None or not step_s > 0:
            return
        self._sender.put(
            (
                at, step.number, step_s, compute_s, comm_s, data_s, step.work, step.stage, step.loss,
                step.grad_norm,
            )
        )  # fmt: skip

    def _rests(self, what: str | None) -> None:
        """`what` begins; None: it is over."""
        if self._sender is None:
            return
        if what is not None and not (isinstance(what, str) and what in RESTS):
            self._sender.say("rest", f"{what!r} is no rest that healer knows: one of {', '.join(RESTS)}")
            return
        if what == self._at[0]:
            return
        self._at = (what or "between", self._at[1], time.monotonic())
        if what is not None:
            self._sender.wake()

    def _where(self) -> tuple[str, int, float] | None:
        """What is done in which step, and for how long: of a rank that is stuck, or rests. For the sender's
        thread: the training thread does nothing meanwhile that this would disturb."""
        doing, step, since = at = self._at
        open_s = time.monotonic() - since
        if step < 0 or (open_s < STANDS_S and doing not in RESTS):
            return None
        if doing not in RESTS and isinstance(self._marks, CudaMarks):
            is_open = self._open
            try:
                doing, step = self._marks.where(doing, step, is_open._timed if is_open is not None else None)
            except Exception as error:  # the host's location has to do
                self._trouble(error)
        return (doing, step, open_s) if self._at is at else None

    def _look(self) -> None:
        """Which rank this is, as soon as torch knows."""
        if not self.settings.sure:
            self.settings.look()

    def _placed(self, ranks: Callable[[], tuple[Any, Any]]) -> None:
        """For callbacks: rank and local rank, as their trainer gives them."""
        try:
            rank, local_rank = ranks()
            self.settings.placed(int(rank), int(local_rank))
        except Exception as error:
            self._trouble(error)

    def _choose(self) -> None:
        """By the GPU's events as soon as torch has used one."""
        if self._cuda is False or isinstance(self._marks, CudaMarks):
            return
        cuda = cuda_in_use()
        if cuda is not None:
            self._marks = CudaMarks(cuda, self._done)
            self._last_end = None

    # --- what the program reports ---

    def _result(self, value: Any) -> float | None:
        def read(value: Any) -> float | None:
            if not on_device(value):
                return number(value)
            return number(value.item()) if self._read_tensors else None

        return self._plain("loss or gradient norm", value, read)

    def _asked(self, function: Callable[..., Any], *about: Any) -> float | None:
        """What the program's own function says of a step's work; not called where nothing is sent."""
        if self._sender is None:
            return None
        return self._plain("work", function, lambda function: number(function(*about)))

    def _plain(self, name: str, value: Any, read: Callable[[Any], N]) -> N | None:
        """As `read` reads it; None where it cannot, which is said once."""
        try:
            return None if value is None else read(value)
        except Exception as error:
            self._say(name, f"{name} could not be read, and is left out: {error!r}")
            return None

    def _trouble(self, error: Exception) -> None:
        self._say(type(error).__name__, f"a step could not be timed: {error!r}")

    def _say(self, kind: str, text: str) -> None:
        if self._sender is not None:
            self._sender.say(kind, text)


def _stage(value: Any) -> int:
    return whole(value, 2**31 - 1)


def _every(value: Any) -> float:
    every_s = number(value)
    if not 0 < every_s <= 86_400:
        raise ValueError("%r s" % every_s)
    return every_s


def _made(how: dict[str, Any]) -> Steps:
    return Steps(**how)


def _close(one: weakref.ref[Steps]) -> None:
    steps = one()
    if steps is not None:
        steps.close(left_s())
