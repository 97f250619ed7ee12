"""What may go wrong around the callback in a training by Lightning; for .venv-torch: a function for the work
that fails, workers of the loader that are forked, copies of callback and model while it trains."""

import copy
import io
import os
import pickle
from typing import Any

import lightning
import torch
from healer_steps.lightning import StepTimes
from lightning_program import Model
from torch.utils.data import DataLoader, TensorDataset

asked: list[int] = []


class Copies(lightning.Callback):
    """Behind StepTimes, within a step."""

    def __init__(self, times: StepTimes) -> None:
        self.times = times

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        again = pickle.loads(pickle.dumps(self.times))
        again.on_train_batch_end(trainer, pl_module, None, batch, batch_idx)
        again.on_fit_end(trainer, pl_module)
        copy.deepcopy(self.times)
        torch.save(copy.deepcopy(pl_module.layer), io.BytesIO())
        pickle.dumps(trainer.optimizers[0])


def main() -> None:
    def fails(batch: Any) -> float:
        asked.append(1)
        return batch["input_ids"].numel()

    def tensor(batch: Any) -> torch.Tensor:
        asked.append(1)
        return batch[0].isfinite().sum()

    times = StepTimes(work={"fails": fails, "tensor": tensor}[os.environ["WORK"]])
    loader = DataLoader(TensorDataset(torch.randn(96, 8)), batch_size=8, num_workers=2)
    trainer = lightning.Trainer(
        max_steps=6, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, accumulate_grad_batches=2,
        callbacks=[times, Copies(times)],
    )  # fmt: skip
    trainer.fit(Model(), loader)
    print("steps", trainer.global_step, "asked", len(asked), "sent", times.steps.sent)


if __name__ == "__main__":
    main()
