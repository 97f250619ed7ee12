"""A tiny training by Lightning that prints its bar and writes metrics.csv, for .venv-torch."""

import os
import time

import lightning
import torch
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

BARS = {"tqdm": [TQDMProgressBar()], "rich": [RichProgressBar()], "none": []}


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        time.sleep(0.05)
        loss = self.layer(batch[0]).square().mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    bar = BARS[os.environ["BAR"]]
    many = {"max_steps": 20} if os.environ.get("BY") == "steps" else {"max_epochs": 2}
    trainer = lightning.Trainer(
        **many, accelerator="cpu", devices=1, log_every_n_steps=2,
        logger=CSVLogger(os.environ["FOLDER"]), enable_model_summary=False,
        enable_progress_bar=bool(bar), callbacks=bar,
    )  # fmt: skip
    rows = 160 if "max_steps" in many else 80
    trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(rows, 8)), batch_size=8))


if __name__ == "__main__":
    main()
