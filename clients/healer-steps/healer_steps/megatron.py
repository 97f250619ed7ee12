"""Loops as Megatron-LM writes them: `train_step` is one step, `finalize_model_grads_func` the collective.

    train_step = wrap(train_step, steps, work=tokens, told=lambda result: {"grad_norm": result[5]})
    config.finalize_model_grads_func = wrap_finalize(config.finalize_model_grads_func, steps)

`train_step` of today returns loss_reduced, skipped_iter, should_checkpoint, should_exit, exit_code, grad_norm
and more; that of 2023 and before loss_reduced, skipped_iter, grad_norm: there it is `result[2]`.

With pipeline parallel the time before the collective holds the waiting for other stages too; say `stage`, so
that ranks are compared within theirs.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar

from healer_steps._steps import Steps

F = TypeVar("F", bound=Callable[..., Any])


def wrap(
    train_step: F,
    steps: Steps,
    *,
    work: float | Callable[[], float] | None = None,
    told: Callable[[Any], dict[str, Any]] | None = None,
) -> F:
    """`work`: tokens or samples of a step on this rank; `told(result)`: `loss` and `grad_norm` as floats,
    from what train_step returned. What fails in one of them is said once, and left out."""

    @functools.wraps(train_step)
    def inner(*args: Any, **kwargs: Any) -> Any:
        with steps.step(steps._asked(work) if callable(work) else work) as step:
            result = train_step(*args, **kwargs)
            if told is not None and steps.on:
                try:
                    step.tell(**told(result))
                except Exception as error:
                    steps._trouble(error)
            return result

    return inner  # type: ignore[return-value]


def wrap_finalize(finalize: F, steps: Steps) -> F:
    """The function that reduces gradients over ranks: what came before it was compute. None, where the
    config has none yet, stays None."""
    if finalize is None:
        return finalize

    @functools.wraps(finalize)
    def inner(*args: Any, **kwargs: Any) -> Any:
        steps.compute_done()
        result = finalize(*args, **kwargs)
        steps.comm_done()
        return result

    return inner  # type: ignore[return-value]
