"""For .venv-torch: of two agents one leaves after the other, whose worker has ended, has begun to meet it
again, but before torch takes that one out of the round. Says how long the other then needs.

Arguments: a free port, and the verdict file of the agent that leaves."""

import sys
import threading
import time
from pathlib import Path
from typing import Any

from healer_steps.torchrun import Watched
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousParameters


class Held:
    """torch's handler, which lets nothing happen until it is released."""

    def __init__(self, handler: Any) -> None:
        self._handler, self.entered, self.released = handler, threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    def next_rendezvous(self) -> Any:
        self.entered.set()
        self.released.wait()
        return self._handler.next_rendezvous()


def agent(port: str, addr: str, verdict: str) -> Watched:
    environ = {"HEALER_NODE": addr, "HEALER_VERDICT_FILE": verdict, "HEALER_SWAP": "1"}
    return Watched(
        RendezvousParameters(
            "c10d", f"127.0.0.1:{port}", "job", 1, 2, local_addr=addr, is_host=addr == "127.0.0.1"
        ),
        environ,
        restarts=3,
    )


def main(port: str, verdict: str) -> None:
    stays, leaves = agent(port, "127.0.0.1", "/none"), agent(port, "127.0.0.2", verdict)
    first = [threading.Thread(target=one.next_rendezvous) for one in (stays, leaves)]
    for one in first:
        one.start()
    for one in first:
        one.join()
    stays._handler = held = Held(stays._handler)
    found: list[Any] = []
    again = threading.Thread(target=lambda: found.append(stays.next_rendezvous()))
    again.start()
    held.entered.wait()
    Path(verdict).with_suffix(".fresh").rename(verdict)

    def leave() -> None:
        try:
            leaves.num_nodes_waiting()
        except SignalException:
            print("it has left", flush=True)

    leaving, began = threading.Thread(target=leave), time.monotonic()
    leaving.start()
    while not leaves.left:
        time.sleep(0.01)
    held.released.set()
    for one in (again, leaving):
        one.join()
    print(f"{found[0].world_size} goes on after {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
