"""Lightning: `Trainer(callbacks=[healer_steps.lightning.StepTimes()])`."""

from __future__ import annotations

import os
import pickle
import time
from typing import Any, Callable

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback  # type: ignore[no-redef]

from healer_steps._callbacks import quiet
from healer_steps._checkpoints import Folders, folders, lies_under
from healer_steps._step import Step
from healer_steps._steps import Steps
from healer_steps.pytorch import Watch, watch


class StepTimes(Callback):
    """Each optimizer step is a step, with all batches that it accumulates, and has the trainer's number.

    `work(batch)`: its tokens or samples, a number that lies on no GPU (where it fails, the step goes without
    it); `loss`: read the loss of each step (the host then waits for the GPU); `checksum`: of each checkpoint;
    `durable_under`: folders on shared storage, in which what lies when the trainer has saved is whole.
    Checkpoints elsewhere are reported as not durable.
    """

    def __init__(
        self,
        steps: Steps | None = None,
        *,
        work: Callable[[Any], float] | None = None,
        loss: bool = False,
        checksum: bool = False,
        durable_under: Folders = (),
    ) -> None:
        self.steps = steps if steps is not None else Steps(read_tensors=loss)
        self._work = work
        self._loss = loss
        self._checksum = checksum
        self._durable_under = folders(durable_under)
        self._watch: Watch | None = None
        self._step: Step | None = None
        self._losses: list[Any] = []
        self._ended: float | None = None
        #: The step of a checkpoint that the trainer writes or has written and that is not reported yet.
        self._saving: int | None = None
        self._known: dict[str, int] = {}
        #: The work of the step that is open; None once the work of a batch is unknown.
        self._worked: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For another process: without the training that runs in this one, and without a `work` that cannot
        go there (a lambda, where processes are spawned)."""
        state = dict(self.__dict__, _watch=None, _step=None, _ended=None, _losses=[])
        try:
            pickle.dumps(self._work)
        except Exception as error:
            state["_work"] = None
            self.steps._say("pickle", f"another process is given no `work`: {error!r}")
        return state

    @quiet
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.steps._placed(lambda: (trainer.global_rank, trainer.local_rank))
        self._forget()
        self._watch = watch(pl_module, self.steps)
        self._saving, self._known = None, _written(trainer)  # by the training that is gone on with

    @quiet
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._step is None:
            self._checkpoints(trainer)
            if self._ended is not None:
                self.steps.waited(time.perf_counter() - self._ended)
            self._step = self.steps.step(step=int(trainer.global_step))
            self._step.__enter__()
            self._worked = 0.0
        if self._work is not None and self._worked is not None:
            work = self.steps._asked(self._work, batch)
            self._worked = None if work is None else self._worked + work
            self._step.work = self._worked

    @quiet
    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self.steps.comm_done()

    @quiet
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._step is None:
            return
        if self._loss and self.steps.on:
            self._losses.append(outputs.get("loss") if isinstance(outputs, dict) else outputs)
        if int(trainer.global_step) <= self._step.number:
            return  # gradients are still being accumulated
        self._report_loss(self._step)
        self._step.__exit__(None, None, None)
        self._step, self._ended = None, time.perf_counter()

    @quiet
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._ended = None  # what lies between is no waiting for data
        self.steps._rests("evaluation")

    @quiet
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.steps._rests(None)

    @quiet
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._ended = None

    @quiet
    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._checkpoints(trainer)
        self._forget()
        self.steps.flush()  # another fit() may follow

    @quiet
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._forget()
        self.steps.flush()

    def _report_loss(self, step: Step) -> None:
        """The mean over the batches of the step."""
        losses, self._losses = [one for one in self._losses if one is not None], []
        try:
            if losses:
                step.tell(loss=sum(losses[1:], losses[0]) / len(losses))
        except Exception as error:
            self.steps._trouble(error)

    def _forget(self) -> None:
        """What was left of a training that ended, or broke off."""
        if self._watch is not None:
            self._watch.stop()
        self.steps._leave()
        self._watch = self._step = self._ended = None
        self._losses = []

    @quiet
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Of any checkpoint, also one that the training program writes elsewhere."""
        self._saving = int(checkpoint.get("global_step") or trainer.global_step)

    @quiet
    def _checkpoints(self, trainer: Any) -> None:
        """What the trainer's own checkpoint callback has written since the last look."""
        if self._saving is None:
            return
        now = _written(trainer)
        new = {path: at for path, at in now.items() if self._known.get(path) != at}
        if not new:
            return
        step, self._saving, self._known, self._ended = self._saving, None, now, None
        if self.steps.on and not self.steps.settings.rank:
            path = max(new, key=lambda path: new[path])
            durable = lies_under(path, self._durable_under)
            self.steps.checkpoint(path, step, durable=durable, checksum=self._checksum)


def _written(trainer: Any) -> dict[str, int]:
    """Checkpoints that the trainer's own callback names: path -> when it was changed last, in ns. The same
    path may be written again. 0: it is on no local disk, and counts once."""
    callback = getattr(trainer, "checkpoint_callback", None)
    paths = [getattr(callback, name, "") for name in ("best_model_path", "last_model_path")]
    found = {}
    for path in {str(path) for path in (*paths, *getattr(callback, "best_k_models", ())) if path}:
        try:
            found[path] = os.stat(path).st_mtime_ns
        except OSError:
            found[path] = 0
    return found
