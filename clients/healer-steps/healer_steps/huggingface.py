"""Hugging Face: `Trainer(…, callbacks=[healer_steps.huggingface.StepTimes()])`."""

from __future__ import annotations

import os
import time
from typing import Any

from transformers import TrainerCallback

from healer_steps._callbacks import quiet
from healer_steps._checkpoints import Folders, folders, lies_under
from healer_steps._step import Step
from healer_steps._steps import Steps
from healer_steps.pytorch import Watch, watch


class StepTimes(TrainerCallback):
    """Each optimizer step is a step, whatever the accumulation. The loss and gradient norm that the trainer
    logs go with the step that follows; nothing is read from the GPU for them.

    `checksum`: of each checkpoint; `durable_under`: folders on shared storage, in which what lies when the
    trainer says it has saved is whole. Checkpoints elsewhere are reported as not durable.
    """

    def __init__(
        self,
        steps: Steps | None = None,
        *,
        checksum: bool = False,
        durable_under: Folders = (),
    ) -> None:
        self.steps = steps if steps is not None else Steps()
        self._checksum = checksum
        self._durable_under = folders(durable_under)
        self._watch: Watch | None = None
        self._step: Step | None = None
        self._ended: float | None = None
        self._logged: Any = (None, None)

    def __getstate__(self) -> dict[str, Any]:
        """For another process: without the training that runs in this one."""
        return dict(self.__dict__, _watch=None, _step=None, _ended=None, _logged=(None, None))

    @quiet
    def on_train_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        self.steps._placed(lambda: (args.process_index, args.local_process_index))
        self._forget()
        if about.get("model") is not None:
            self._watch = watch(about["model"], self.steps)

    @quiet
    def on_step_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        if self._ended is not None:
            self.steps.waited(time.perf_counter() - self._ended)
        self._step = self.steps.step(step=int(state.global_step))
        self._step.__enter__()
        self._step.tell(*self._logged)
        self._logged = (None, None)

    @quiet
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        self.steps.comm_done()

    @quiet
    def on_step_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step, self._ended = None, time.perf_counter()

    @quiet
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **about: Any) -> None:
        logged = logs or {}
        self._logged = (_float(logged.get("loss")), _float(logged.get("grad_norm")))

    @quiet
    def on_prediction_step(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        self.steps._rests("evaluation")

    @quiet
    def on_evaluate(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        self._ended = None  # what lies between is no waiting for data
        self.steps._rests(None)

    @quiet
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        self._ended = None

    @quiet
    def on_save(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        self._ended = None
        path = os.path.join(args.output_dir, "checkpoint-%d" % state.global_step)
        if not self.steps.on or self.steps.settings.rank:
            return
        # A search of hyperparameters saves in a folder of the trial, which is unknown here.
        if getattr(state, "is_hyper_param_search", False) or not os.path.isdir(path):
            return
        durable = lies_under(path, self._durable_under)
        self.steps.checkpoint(path, int(state.global_step), durable=durable, checksum=self._checksum)

    @quiet
    def on_train_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        self._forget()
        self.steps.flush()  # another train() may follow

    def _forget(self) -> None:
        """What was left of a training that ended, or broke off."""
        if self._watch is not None:
            self._watch.stop()
        self.steps._leave()
        self._watch = self._step = self._ended = None
        self._logged = (None, None)


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
