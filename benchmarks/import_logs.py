"""Processor time and memory of `healer import` over a made site: lines per CPU-second, largest process.

    python -m benchmarks.import_logs [--nodes 1250] [--days 1] [--lines 60] [--packed]

`--lines`: of syslog per node and hour. The logs are written first, which is not measured.
"""

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._site_logs import write


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--days", type=float, default=1)
    parser.add_argument("--lines", type=float, default=60)
    parser.add_argument("--packed", action="store_true", help="syslog as .gz")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="import-") as name:
        folder = Path(name, "site")
        folder.mkdir()
        made = write(folder, nodes=given.nodes, days=given.days, lines_per_node_hour=given.lines)
        text_bytes = sum(path.stat().st_size for path in folder.iterdir())
        for path in made.syslog if given.packed else ():
            path.with_suffix(".gz").write_bytes(gzip.compress(path.read_bytes(), 1))
            path.unlink()
        command = [sys.executable, "-m", "healer", "import", str(folder), "--time-zone", "UTC", "--json"]
        began_s = time.monotonic()
        done = subprocess.run(
            [*command, "--output", str(Path(name, "r.jsonl.zst"))], capture_output=True, check=True,
            env=os.environ | {"HEALER_MODE": "auto"},
        )  # fmt: skip
        wall_s = time.monotonic() - began_s
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        report = json.loads(done.stdout)
    cpu_s = used.ru_utime + used.ru_stime
    lines = sum(source["lines"] for source in report["sources"])
    print(f"{lines:,} lines, {text_bytes / 1e6:,.0f} MB, {len(report['sources'])} files")
    print(f"{report['entries']} entries")
    print(f"{cpu_s:.1f} CPU-seconds, {wall_s:.1f} s: {lines / cpu_s:,.0f} lines per CPU-second")
    print(f"500 million such lines on two cores: {500e6 / (lines / cpu_s) / 2 / 60:.0f} min")
    print(f"largest process: {used.ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
