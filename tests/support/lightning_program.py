"""A tiny training by Lightning with the callback, for .venv-torch. Prints what came of it."""

import os

import lightning
import torch
from healer_steps.lightning import StepTimes
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.layer(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    loader = DataLoader(TensorDataset(torch.randn(48, 8)), batch_size=8)
    shared = os.environ["FOLDER"]
    callback = StepTimes(work=lambda batch: len(batch[0]), loss=True, checksum=True, durable_under=shared)
    saver = ModelCheckpoint(dirpath=shared, every_n_train_steps=3, save_top_k=-1)
    trainer = lightning.Trainer(
        max_steps=6, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, val_check_interval=3,
        callbacks=[callback, saver],
    )  # fmt: skip
    trainer.fit(Model(), loader, loader)
    print("sent", callback.steps.sent, "dropped", callback.steps.dropped)


if __name__ == "__main__":
    main()
