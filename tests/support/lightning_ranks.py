"""Lightning starts its own second rank, which nothing in the environment numbers; for .venv-torch."""

import os

import lightning
import torch
from healer_steps.lightning import StepTimes
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning_program import Model
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8)
    saver = ModelCheckpoint(dirpath=os.environ["FOLDER"], every_n_train_steps=2)
    lightning.Trainer(
        max_steps=4, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_progress_bar=False,
        enable_model_summary=False, plugins=[LightningEnvironment()], callbacks=[StepTimes(), saver],
    ).fit(Model(), loader)  # fmt: skip


if __name__ == "__main__":
    main()
