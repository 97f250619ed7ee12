"""A training job for .venv-torch under an elastic launcher: data-parallel over gloo, it goes on from its
checkpoint at any number of nodes.

Arguments: the trainer (`ddp`, `accelerate`, `lightning`, or `plain`: no training, and no torch, whose import
takes five CPU-seconds of each worker, where a test is of the agents alone), the folder of checkpoint and
logs, the name of this node, the number of steps (0: until it is ended). Each step is a line of JSON in
`NODE.jsonl`.

`asked.json` in the folder may ask for more: a last step, or a moment that lasts (`swapping.Training.bring`).
"""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

BORN_AT = time.time()

if sys.argv[1] != "plain":
    import torch
    from torch import distributed, nn

#: Each step's work, and how often the first rank saves it.
WORK_S, SAVE_EVERY = 0.1, 5
#: So little that each of a few thousand steps has a loss of its own.
LEARNING = 1e-4

TRAINER, FOLDER, NODE, STEPS = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
SAVED, ASKED, BEGUN = FOLDER / "last.pt", FOLDER / "asked.json", FOLDER / "begun"


def write_line(**what: Any) -> None:
    about = {"at": time.time(), "rank": int(os.environ["RANK"]), "world": int(os.environ["WORLD_SIZE"])}
    about["restart"] = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with (FOLDER / f"{NODE}.jsonl").open("a") as file:
        file.write(json.dumps(about | what) + "\n")


def begun(model: nn.Module | None) -> int:
    """The step to go on from, with the model as it was then."""
    if not SAVED.exists():
        return 0
    if model is None:
        return json.loads(SAVED.read_bytes())["step"]
    saved = torch.load(SAVED)
    model.load_state_dict(saved["model"])
    return saved["step"]


def content_of(model: nn.Module | None, step: int) -> bytes:
    """Of a checkpoint."""
    if model is None:
        return json.dumps({"step": step}).encode()
    content = io.BytesIO()
    torch.save({"step": step, "model": model.state_dict()}, content)
    return content.getvalue()


def asked() -> dict[str, Any]:
    """Is replaced, and never taken away."""
    return json.loads(ASKED.read_text()) if ASKED.exists() else {}


def ended(step: int) -> bool:
    last = STEPS or asked().get("last_step", 0)
    return bool(last) and step >= last


def last_as_asked(moment: str, step: int, *, holds: bool) -> None:
    """Says that this rank has come to the moment that was asked for. One that `holds` makes it last."""
    wish = asked()
    if (wish.get("moment"), wish.get("step")) != (moment, step):
        return
    write_line(moment=moment, holds=holds, lasts_s=wish["lasts_s"])
    if holds:
        BEGUN.touch()
        time.sleep(wish["lasts_s"])


def save(model: nn.Module | None, step: int) -> None:
    if int(os.environ["RANK"]) == 0 and step % SAVE_EVERY == 0:
        content, fresh = content_of(model, step), SAVED.with_suffix(".new")
        half = len(content) // 2
        with fresh.open("wb") as file:
            file.write(content[:half])
            file.flush()
            last_as_asked("checkpoint", step, holds=True)
            file.write(content[half:])
        fresh.rename(SAVED)


def loss_of(model: nn.Module) -> torch.Tensor:
    time.sleep(WORK_S)
    return (model(torch.ones(4, 8)) ** 2).mean()


def loop(plain: nn.Module, model: nn.Module, backward: Any) -> None:
    optimizer = torch.optim.SGD(plain.parameters(), lr=LEARNING)
    step = begun(plain)
    write_line(from_step=step, pid=os.getpid(), born_at=BORN_AT, cpu_s=time.process_time())
    while not ended(step):
        optimizer.zero_grad()
        loss = loss_of(model)
        last_as_asked("all-reduce", step, holds=int(os.environ["RANK"]) == asked().get("rank"))
        backward(loss)
        optimizer.step()
        step += 1
        save(plain, step)
        write_line(step=step, loss=float(loss))


def ddp() -> None:
    distributed.init_process_group("gloo")
    plain = nn.Linear(8, 1)
    loop(plain, nn.parallel.DistributedDataParallel(plain), lambda loss: loss.backward())
    distributed.barrier()  # gloo aborts a worker whose peer is gone before it is done with the last step
    distributed.destroy_process_group()


def accelerate() -> None:
    from accelerate import Accelerator

    plain, accelerator = nn.Linear(8, 1), Accelerator(cpu=True)
    loop(plain, accelerator.prepare(plain), accelerator.backward)


def lightning() -> None:
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.plain = nn.Linear(8, 1)
            self.step = begun(self.plain)

        def on_train_start(self) -> None:
            write_line(from_step=self.step)

        def training_step(self, _batch: Any, _number: int) -> torch.Tensor:
            loss = loss_of(self.plain)
            self.shared_loss = float(loss)
            return loss

        def on_train_batch_end(self, *_: Any) -> None:
            self.step += 1
            save(self.plain, self.step)
            write_line(step=self.step, loss=self.shared_loss)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=LEARNING)

    nodes = int(os.environ["GROUP_WORLD_SIZE"])
    trainer = Trainer(
        accelerator="cpu", devices=1, num_nodes=nodes, strategy="ddp", max_steps=STEPS or -1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.zeros(100_000, 1)))


class Peers:
    """The other ranks: the first one hears all, then answers all. As with gloo, a rank whose peer is gone
    fails, and one whose peer is frozen waits."""

    def __init__(self) -> None:
        self._is_first, others = os.environ["RANK"] == "0", int(os.environ["WORLD_SIZE"]) - 1
        at = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if self._is_first:
            with socket.create_server(("", at[1])) as server:
                self._links = [server.accept()[0] for _ in range(others)]
        else:
            self._links = [connected(at)]

    def meet(self) -> None:
        for hears in (self._is_first, not self._is_first):
            for link in self._links:
                if not hears:
                    link.sendall(b".")
                elif not link.recv(1):
                    raise ConnectionError("a peer is gone")


def connected(at: tuple[str, int]) -> socket.socket:
    until = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(at)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def plain() -> None:
    peers, step = Peers(), begun(None)
    write_line(from_step=step, pid=os.getpid())
    while not ended(step):
        time.sleep(WORK_S)
        peers.meet()
        step += 1
        save(None, step)
        write_line(step=step)


if __name__ == "__main__":
    if TRAINER != "plain":
        torch.manual_seed(0)
        torch.set_num_threads(1)
    {"plain": plain, "ddp": ddp, "accelerate": accelerate, "lightning": lightning}[TRAINER]()
