"""Processor time and memory of `healer import` and `healer report` over a made site: lines per CPU-second,
largest process; and whether an import that is killed on its way gives the same bytes.

    python -m benchmarks.import_logs [--nodes 1250] [--days 1] [--lines 60] [--bytes N] [--packed] [--kill]

`--lines`: of syslog per node and hour; `--bytes`: of a line at least, on average. The logs are written first,
which is not measured. A month of twenty million lines: `--days 30 --lines 22 --kill`; of 500 million lines
and 200 GB: `--days 30 --lines 556 --bytes 380 --packed`.
"""

import argparse
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._site_logs import write

_ENVIRON = os.environ | {"HEALER_MODE": "auto"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--days", type=float, default=1)
    parser.add_argument("--lines", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packed", action="store_true", help="syslog as .zst")
    parser.add_argument("--bytes", type=int, default=0)
    parser.add_argument("--kill", action="store_true", help="kill -9 twice on the way, and compare")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="import-", dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name, "site")
        folder.mkdir()
        began_s = time.process_time()
        write(
            folder, nodes=given.nodes, days=given.days, lines_per_node_hour=given.lines, seed=given.seed,
            line_bytes=given.bytes, packed=given.packed,
        )  # fmt: skip
        print(f"written in {time.process_time() - began_s:.0f} CPU-seconds", flush=True)
        output = Path(name, "r.jsonl.zst")
        report, cpu_s = _measured("import", *_words(folder, output))
        lines = sum(source["lines"] for source in report["sources"])
        text_bytes = sum(source["read_bytes"] for source in report["sources"])
        print(f"{lines:,} lines, {text_bytes / 1e6:,.0f} MB, {len(report['sources'])} files")
        print(f"import: {lines / cpu_s:,.0f} lines and {text_bytes / cpu_s / 1e6:,.0f} MB per CPU-second")
        print(
            f"500 million such lines on two cores: {500e6 / (lines / cpu_s) / 2 / 60:.0f} min (extrapolated)"
        )
        if given.kill:
            _kill(folder, Path(name, "again.jsonl.zst"), output)
        page = Path(name, "r.html")
        past, _ = _measured("report", "report", str(output), "--output", str(page), "--json")
        print(f"page of {page.stat().st_size / 1e6:.1f} MB")
        print(
            f"{report['entries']} entries, {len(past['incidents'])} incidents, {len(past['deaths'])} deaths"
        )


def _words(folder: Path, output: Path) -> list[str]:
    return ["import", str(folder), "--time-zone", "UTC", "--json", "--output", str(output)]


def _measured(what: str, *words: str) -> tuple[Any, float]:
    """What it printed, and its CPU-seconds."""
    before, began_s, most_kib = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), 0
    with tempfile.TemporaryFile() as answer:
        running = subprocess.Popen(
            [sys.executable, "-m", "healer", *words], stdout=answer, stderr=subprocess.DEVNULL, env=_ENVIRON
        )
        while running.poll() is None:
            most_kib = max(most_kib, _resident_kib(running.pid))
            time.sleep(0.5)
        if running.returncode:
            sys.exit(f"{what}: {running.returncode}")
        answer.seek(0)
        report = json.load(answer)
    used, wall_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began_s
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{what}: {cpu_s:.1f} CPU-seconds, {wall_s:.1f} s at a load of {os.getloadavg()[1]:.0f}, largest"
        f" process {used.ru_maxrss / 1024:.0f} MiB, all together {most_kib / 1024:.0f} MiB",
        flush=True,
    )
    return report, cpu_s


def _resident_kib(pid: int) -> int:
    """Of the process and all below it; what they share counts for each."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    own = next((line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")), "0")
    return int(own) + sum(_resident_kib(int(each)) for each in below)


def _kill(folder: Path, output: Path, whole: Path) -> None:
    """Killed with the first source that is read, and half way; the third start goes on to the end."""
    work = output.with_name(f".import-{output.name}")
    for reads in (1, len(list(folder.iterdir())) // 2):
        running = subprocess.Popen(
            [sys.executable, "-m", "healer", *_words(folder, output)], env=_ENVIRON,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while running.poll() is None and len(list(work.glob("*.read"))) < reads:
            time.sleep(0.05)
        running.send_signal(signal.SIGKILL)
        running.wait()
        print(f"killed with {len(list(work.glob('*.read')))} sources read")
    _measured("import that goes on", *_words(folder, output))
    same = _digest(whole) == _digest(output)
    print("the bytes are the same" if same else "THE BYTES DIFFER")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
