"""Debian's Prometheus with a configuration of the test's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import free_port, running


@contextmanager
def running_prometheus(folder: Path, config: str) -> Iterator[str]:
    """Where it answers, soon. Its files lie in `folder`."""
    (folder / "prometheus.yml").write_text(config)
    address = f"127.0.0.1:{free_port()}"
    options = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    )
    with running(folder / "prometheus.log", "prometheus", *options):
        yield f"http://{address}"
