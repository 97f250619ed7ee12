"""PyTorch: where a step's compute ends, found by hooks, with nothing to write into the loop.

    watch(model, steps, optimizer)

The gradient of one parameter comes last in every backward: when it is there, this rank has computed, and
waits for others. Which one that is, is learnt in the first step. So it works with DistributedDataParallel,
which sends gradients while others are still computed. Where collectives stand within forward and backward
(FSDP, ZeRO 3, tensor and pipeline parallel), `compute_s` holds the waiting for them too.
"""

from __future__ import annotations

from typing import Any

from healer_steps._steps import Steps


def watch(module: Any, steps: Steps, optimizer: Any = None) -> Watch:
    """`module`: the model, wrapped or not. With `optimizer` the collective counts as over when its step
    begins: backward has returned by then. `stop()` of what is returned ends it."""
    watching = Watch(steps)
    if steps.on:
        try:
            watching.start(module, optimizer)
        except Exception as error:
            steps._trouble(error)
            watching.stop()  # some of the hooks would mean something else
    return watching


class Watch:
    """Hooks on every parameter for one step; then on the last one alone."""

    def __init__(self, steps: Steps) -> None:
        self._parameters: list[Any] = []
        self._steps = steps
        self._handles: list[Any] = []
        self._stays: list[Any] = []
        self._last = -1

    def start(self, module: Any, optimizer: Any) -> None:
        if optimizer is not None and hasattr(optimizer, "register_step_pre_hook"):
            self._stays.append(optimizer.register_step_pre_hook(lambda *_: self._steps.comm_done()))
        self._parameters = [one for one in module.parameters() if one.requires_grad]
        for index, parameter in enumerate(self._parameters):
            self._handles.append(_on_gradient(parameter, self._hook(index)))

    def stop(self) -> None:
        """Takes every hook away."""
        for handle in self._handles + self._stays:
            handle.remove()
        self._handles, self._stays, self._parameters = [], [], []

    def _hook(self, index: int) -> Any:
        def fired(*_: Any) -> None:
            if self._last < 0:
                self._steps.at_end(self._learnt)
            self._last = index
            self._steps.compute_done()

        return fired

    def _learnt(self) -> None:
        if not self._parameters:  # stopped meanwhile
            return
        for handle in self._handles:
            handle.remove()
        last = self._parameters[self._last]
        self._stays.append(_on_gradient(last, lambda *_: self._steps.compute_done()))
        self._handles, self._parameters = [], []


def _on_gradient(parameter: Any, call: Any) -> Any:
    """torch 2.1 and later report when a gradient was accumulated; before that, when it came."""
    register = getattr(parameter, "register_post_accumulate_grad_hook", None)
    return register(call) if register is not None else parameter.register_hook(call)
