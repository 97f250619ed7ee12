"""The fire drill: a backup of a year's history of 1,250 nodes, and its restore on a machine that has nothing.

    python -m benchmarks.restore [--nodes 1250] [--days 365]

The rows have the numbers and sizes of a real year; their contents are made up, the audit's links too. Prints
sizes and times. A `healer up` afterwards is not part of it: see `benchmarks/start.py`.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa

from benchmarks._history import fill
from healer.embedded.server_alone import server_alone


def timed(what: str, *words: str | Path, **environ: str) -> None:
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "healer", *map(str, words)], check=True, env=os.environ | environ,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="healer-drill-", dir=given.folder))
    folder.chmod(0o711)
    try:
        secret, file = folder / "passphrase", folder / "b.tar"
        secret.write_text("the passphrase of the drill\n")
        with server_alone(folder / "one") as url:
            engine = sa.create_engine(url)
            fill(engine, given.nodes, given.days)
            engine.dispose()
            environ = {"HEALER_DATABASE_URL": url, "HEALER_DATA_DIR": str(folder / "one")}
            timed("backup", "backup", file, "--passphrase-file", secret, **environ)
        print(f"file: {file.stat().st_size / 1e6:.0f} MB", flush=True)
        shutil.rmtree(folder / "one")
        timed("restore", "restore", file, "--data-dir", folder / "two", "--passphrase-file", secret)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
