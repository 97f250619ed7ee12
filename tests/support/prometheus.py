"""Debian's Prometheus with a configuration of the test's own."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import free_port


@contextmanager
def running_prometheus(folder: Path, config: str) -> Iterator[str]:
    """Where it answers, soon. Its files lie in `folder`."""
    (folder / "prometheus.yml").write_text(config)
    program = shutil.which("prometheus")
    assert program is not None, "tools/setup --system installs it"
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
         f"--web.listen-address={address}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)
