"""Hugging Face: `Trainer(…, callbacks=[healer_steps.huggingface.StepTimes()])`."""

from __future__ import annotations

import os
import time
from typing import Any

from transformers import TrainerCallback

from healer_steps._steps import Step, Steps
from healer_steps.pytorch import watch


class StepTimes(TrainerCallback):
    """Each optimizer step is a step, whatever the accumulation. The loss and gradient norm that the trainer
    logs go with the step that follows; nothing is read from the GPU for them."""

    def __init__(self, steps: Steps | None = None, *, checksum: bool = False) -> None:
        self.steps = steps if steps is not None else Steps()
        self._checksum = checksum
        self._step: Step | None = None
        self._ended: float | None = None
        self._logged: Any = (None, None)

    def on_train_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        if about.get("model") is not None:
            watch(about["model"], self.steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        if self._ended is not None:
            self.steps.waited(time.perf_counter() - self._ended)
        self._step = self.steps.step(step=int(state.global_step))
        self._step.__enter__()
        self._step.tell(*self._logged)
        self._logged = (None, None)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        self.steps.comm_done()

    def on_step_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step, self._ended = None, time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **about: Any) -> None:
        told = logs or {}
        self._logged = (_float(told.get("loss")), _float(told.get("grad_norm")))

    def on_evaluate(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        self._ended = None  # what lies between is no waiting for data

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        self._ended = None

    def on_save(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        self._ended = None
        path = os.path.join(args.output_dir, "checkpoint-%d" % state.global_step)
        self.steps.checkpoint(path, int(state.global_step), checksum=self._checksum)

    def on_train_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
        self.steps.close()


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
