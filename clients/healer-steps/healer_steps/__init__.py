"""Reports to healer how long the steps of a training job take.

    import healer_steps

    with healer_steps.Steps() as steps:
        for batch in steps.data(loader):
            with steps.step(work=tokens) as step:
                loss = model(batch)
                loss.backward()
                optimizer.step()

Nothing here waits for healer, raises into the training, or does anything at all without HEALER_URL. How
compute is separated from communication: `healer_steps.pytorch.watch`, `.lightning`, `.huggingface`,
`.megatron`.
"""

from healer_steps._step import Step
from healer_steps._steps import Steps

__all__ = ["Step", "Steps"]
__version__ = "0.1.0"
