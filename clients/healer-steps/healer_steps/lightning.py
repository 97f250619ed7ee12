"""Lightning: `Trainer(callbacks=[healer_steps.lightning.StepTimes()])`."""

from __future__ import annotations

import time
from typing import Any, Callable

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback  # type: ignore[no-redef]

from healer_steps._steps import Step, Steps
from healer_steps.pytorch import watch


class StepTimes(Callback):
    """Each training batch is a step. `work(batch)`: its tokens or samples; `loss`: read the loss of each step
    (the host then waits for the GPU); `checksum`: of each checkpoint."""

    def __init__(
        self,
        steps: Steps | None = None,
        *,
        work: Callable[[Any], float] | None = None,
        loss: bool = False,
        checksum: bool = False,
    ) -> None:
        self.steps = steps if steps is not None else Steps(read_tensors=loss)
        self._work = work
        self._loss = loss
        self._checksum = checksum
        self._step: Step | None = None
        self._ended: float | None = None
        self._saved = ""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        watch(pl_module, self.steps)
        self.steps._next = int(trainer.global_step)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._checkpoints(trainer)
        if self._ended is not None:
            self.steps.waited(time.perf_counter() - self._ended)
        self._step = self.steps.step(self._work(batch) if self._work is not None else None)
        self._step.__enter__()

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self.steps.comm_done()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._step is None:
            return
        if self._loss:
            self._step.tell(loss=outputs.get("loss") if isinstance(outputs, dict) else outputs)
        self._step.__exit__(None, None, None)
        self._step, self._ended = None, time.perf_counter()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._ended = None  # what lies between is no waiting for data

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._ended = None

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._checkpoints(trainer)
        self.steps.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.steps.close()

    def _checkpoints(self, trainer: Any) -> None:
        """What the trainer's own checkpoint callback has written since the last look."""
        told = getattr(trainer, "checkpoint_callback", None)
        path = getattr(told, "_last_checkpoint_saved", "") or getattr(told, "best_model_path", "")
        if path and path != self._saved:
            self._saved, self._ended = path, None
            self.steps.checkpoint(path, int(trainer.global_step), checksum=self._checksum)
