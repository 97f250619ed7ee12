"""A training job for .venv-torch: DistributedDataParallel over gloo, one rank of which grows slow.

It runs until it is ended. `SLOW_RANK`, `SLOW_FROM` (a step) and `CHECKPOINT` (a path) say what happens in it.
Each rank writes its process id beside the checkpoint, as `pid-RANK`.
"""

import os
import time
from pathlib import Path

import healer_steps
import torch
from healer_steps.pytorch import watch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

#: Each step's work on each rank, and how much longer the slow one takes: far above what a busy machine adds.
WORK_S, SLOWER_S = 0.2, 0.3


def main() -> None:
    rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(32, 64), torch.randn(32, 1)
    Path(os.environ["CHECKPOINT"]).with_name(f"pid-{rank}").write_text(str(os.getpid()))
    slow_rank, slow_from = int(os.environ["SLOW_RANK"]), int(os.environ["SLOW_FROM"])
    with healer_steps.Steps(every_s=0.5) as steps:
        watch(model, steps, optimizer)
        number = 0
        while True:
            with steps.step(work=32) as step:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                time.sleep(WORK_S + (SLOWER_S if rank == slow_rank and number >= slow_from else 0.0))
                loss.backward()
                optimizer.step()
                step.tell(loss=float(loss))
            number += 1
            if number == 10 and rank == 0:
                torch.save(model.state_dict(), os.environ["CHECKPOINT"])
                steps.checkpoint(os.environ["CHECKPOINT"], number, checksum=True)


if __name__ == "__main__":
    main()
