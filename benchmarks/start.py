"""Start to ready, and memory by process, of `healer up` with its embedded servers and a simulated Slurm.

    python benchmarks/start.py [--runs 3]

Cold: an empty data directory (initdb, migrations). Warm: the same directory again. Memory is what each
process adds (PSS: shared pages counted by share), 5 s after ready.
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.processes import descendants
from tests.support.up import Stack


def pss_kib(pid: int) -> int:
    found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found.group(1)) if found else 0


def name_of(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    if words.startswith("postgres") or "/postgres" in words.split(" ")[0]:
        return "postgres, all processes"
    return words if words.startswith("healer") else words.split(" ")[0].rpartition("/")[2]


def started(folder: Path) -> tuple[Stack, float]:
    begun = time.perf_counter()
    stack = Stack(folder, HEALER_SLURM_ADAPTERS="sim", HEALER_CLUSTER="pod1")
    stack.start()
    return stack, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    cold, warm, memory = [], [], defaultdict(list)
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory(prefix="hb-") as name:
            folder = Path(name)
            folder.chmod(0o711)
            stack, took = started(folder)
            cold.append(took)
            stack.stop()
            stack, took = started(folder)
            warm.append(took)
            time.sleep(5)
            assert stack.process is not None
            sums: dict[str, int] = defaultdict(int)
            for pid in (stack.process.pid, *descendants(stack.process.pid)):
                sums[name_of(pid)] += pss_kib(pid)
            for part, kib in sums.items():
                memory[part].append(kib)
            stack.stop()
    print(f"cold start to ready: {statistics.median(cold):.2f} s   warm: {statistics.median(warm):.2f} s")
    for part, kibs in sorted(memory.items(), key=lambda item: -statistics.median(item[1])):
        print(f"{statistics.median(kibs) / 1024:8.1f} MiB  {part}")
    total = sum(statistics.median(kibs) for kibs in memory.values())
    print(f"{total / 1024:8.1f} MiB  together")


if __name__ == "__main__":
    main()
