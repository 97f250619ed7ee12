"""Debian's ibsim, an InfiniBand fabric of one process, and Debian's diagnostics that look at it. No root, no
adapter, no port: they meet at sockets of the abstract name space."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import clean_environ, running
from tests.support.wait import wait_until


@contextmanager
def fabric(folder: Path, net: str, host: str) -> Iterator[Callable[[str], None]]:
    """The fabric that `net` describes in ibsim's own format, while it runs. What comes runs a command of sh
    in `folder`, at the adapter `host`; it raises CalledProcessError."""
    name = f"healer-{os.getpid()}"
    environ = clean_environ() | {"IBSIM_SOCKNAME": name, "SIM_HOST": host}
    environ["PATH"] += ":/usr/sbin"
    (folder / "net").write_text(net)

    def run(command: str) -> None:
        words = ["ibsim-run", "sh", "-c", command]
        subprocess.run(words, cwd=folder, env=environ, capture_output=True, timeout=60, check=True)

    with running(folder / "ibsim.log", "ibsim", "-s", str(folder / "net"), environ=environ):
        wait_until(lambda: f"@{name}:" in Path("/proc/net/unix").read_text(), 30, what="ibsim listens")
        yield run
