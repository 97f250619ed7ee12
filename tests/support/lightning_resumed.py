"""Lightning with two batches a step, ended and resumed in one program; for .venv-torch."""

import os

import lightning
import torch
from healer_steps.lightning import StepTimes
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_program import Model
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    folder = os.environ["FOLDER"]
    loader = DataLoader(TensorDataset(torch.randn(96, 8)), batch_size=8)
    callback = StepTimes(work=lambda batch: len(batch[0]), loss=True)
    for steps, path in ((3, None), (5, folder + "/last.ckpt")):
        saver = ModelCheckpoint(dirpath=folder, every_n_train_steps=1, save_last=True, save_top_k=0)
        trainer = lightning.Trainer(
            max_steps=steps, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
            enable_model_summary=False, accumulate_grad_batches=2, callbacks=[callback, saver],
        )  # fmt: skip
        trainer.fit(Model(), loader, ckpt_path=path)
        print("at", trainer.global_step, "sent", callback.steps.sent, "dropped", callback.steps.dropped)


if __name__ == "__main__":
    main()
