"""What a hook costs on a node, beside LBNL NHC's; and 10,000 hook reports in 10 s, none lost.

    python -m benchmarks.hooks [--count 100] [--nhc DIR] [--reports 10000] [--seconds 10]

The node: this machine's own kernel log and processes, a made-up nvidia-smi that prints what eight H100 do,
and an API that answers at once. NHC (`--nhc`: a copy of its sources) looks at the same: / writable and with
room, /tmp with room, the kernel log, nvidia-smi, each process. It sends no request; the hook's figures
include one.

The reports: one of each node, each on a connection of its own as hooks do, over so many seconds into `healer
up`; then the rows are counted.
"""

import argparse
import asyncio
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psycopg

from benchmarks._load import CLUSTER, Product, cpu_s, product
from healer.embedded import running
from tests.support.hooks import Healer, HookNode
from tests.support.stack import make_scratch

GPUS = 8
#: Values of one GPU in `nvidia-smi -q -x`: about 12 kB.
_VALUES = "".join(
    f"<value_{number}>some value of GPU number {number}</value_{number}>" for number in range(160)
)
_NHC_CONF = """\
* || export NVIDIA_SMI_HEALTHMON="{smi}" NVIDIA_SMI_HEALTHMON_ARGS="-q -x"
* || check_fs_mount_rw -f /
* || check_fs_free / 1%
* || check_fs_ifree / 1%
* || check_fs_free {tmp} 1%
* || check_cmd_dmesg -m '!/NVRM: a line that is not there/'
* || check_nvsmi_healthmon
* || check_ps_blacklist no-such-program
"""
#: Reports that are under way at once; what is due later waits for one of these to end.
AT_ONCE = 512


def cost(runs: int, command: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Median wall time, and CPU of one run with all that it starts, in ms."""
    wall, before = [], resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(runs):
        begun = time.perf_counter()
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        wall.append(time.perf_counter() - begun)
        if done.returncode:
            sys.exit(f"{command[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return statistics.median(wall) * 1e3, cpu / runs * 1e3


def node_of(folder: Path, url: str) -> HookNode:
    node = HookNode(folder, url)
    for path in ("proc", "dev/kmsg", "tmp"):
        made = node.root / path
        shutil.rmtree(made) if made.is_dir() else made.unlink()
        made.symlink_to(f"/{path}")
    gpus = "".join(f'<gpu id="0000:{number:02x}:00.0">{_VALUES}</gpu>' for number in range(GPUS))
    (node.root / "smi.xml").write_text(
        f"<nvidia_smi_log><attached_gpus>{GPUS}</attached_gpus>{gpus}</nvidia_smi_log>"
    )
    node.program("usr/bin/nvidia-smi", f"exec /bin/cat {node.root}/smi.xml")
    return node


def hook_beside_nhc(folder: Path, runs: int, nhc: Path | None) -> None:
    with Healer() as healer:
        node = node_of(folder, healer.url)
        for hook in ("prolog", "health-check"):
            command = node.command(hook)
            wall, cpu = cost(runs, command, {"SLURMD_NODENAME": "gpu0001"})
            print(
                f"healer-hook {hook}: {wall:.1f} ms (median of {runs}), {cpu:.1f} ms CPU, its POST included"
            )
        bare = [str(node.root / "usr/bin/nvidia-smi")]
        print(f"  of that nvidia-smi, a script here: {cost(runs, bare, {})[0]:.1f} ms")
    if nhc is None:
        return
    conf = folder / "nhc.conf"
    mounted = {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()}
    conf.write_text(_NHC_CONF.format(tmp="/tmp" if "/tmp" in mounted else "/", smi=bare[0]))
    given = {
        "INCDIR": nhc / "scripts", "HELPERDIR": nhc / "helpers", "CONFFILE": conf, "LOGFILE": "/dev/null",
        "NHC_RM": "slurm", "MARK_OFFLINE": 0, "DETACHED_MODE": 0,
    }  # fmt: skip
    command = ["/bin/bash", str(nhc / "nhc"), *(f"{key}={value}" for key, value in given.items())]
    wall, cpu = cost(runs, command, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    print(f"LBNL NHC, the same checks: {wall:.1f} ms (median of {runs}), {cpu:.1f} ms CPU")


# --- many at once ---


def report(node: str) -> bytes:
    """What a healthy node's health check sends: no lines, eight ports, its own values."""
    ports = {
        f"mlx5_{number}/1": {
            "node_infiniband_state_id": 4,
            "link_downed": 0,
            "symbol_error": 0,
            "port_rcv_errors": 0,
        }
        for number in range(8)
    }
    host = {"procs_blocked": 0, "root_readonly": 0, "root_size_bytes": 1e12, "root_available_bytes": 5e11}
    checks = [{"name": name, "text": ""} for name in ("gpu-lost", "gpu-count", "fs-full", "probe")]
    entry = {"node": node, "id": "b.1", "boot_id": "b", "host": host, "ports": ports, "checks": checks}
    return msgspec.json.encode([entry])


async def send(port: int, token: str, body: bytes) -> float:
    """One report as a hook sends it; seconds until its answer. Ends the program for any but a 2xx."""
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /api/v1/signals/hooks/health-check HTTP/1.0\r\nHost: [::1]\r\n"
    head += f"Authorization: Bearer {token}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    if not answer.startswith(b"HTTP/1.1 202"):
        sys.exit(answer.decode(errors="replace")[:500])
    return time.perf_counter() - begun


async def flood(port: int, token: str, nodes: list[str], over_s: float) -> tuple[float, list[float]]:
    """Reports spread evenly over so many seconds: (until the last answer, seconds of each)."""
    room, begun = asyncio.Semaphore(AT_ONCE), time.perf_counter()

    async def one(number: int, node: str) -> float:
        await asyncio.sleep(max(0.0, begun + number * over_s / len(nodes) - time.perf_counter()))
        async with room:
            return await send(port, token, report(node))

    taken = await asyncio.gather(*(one(number, node) for number, node in enumerate(nodes)))
    return time.perf_counter() - begun, list(taken)


def rows(at: Product) -> int:
    url = running.find(at.stack.data_dir).database_url.replace("postgresql+psycopg:", "postgresql:")
    with psycopg.connect(url) as conn:
        found = conn.execute(
            "SELECT count(*) FROM inbox WHERE kind = 'hook' AND cluster = %s", [CLUSTER]
        ).fetchone()
    return found[0] if found else 0


def many(count: int, over_s: float) -> None:
    folder = make_scratch()
    with product(folder, count) as at:
        nodes = [f"gpu{number:04d}" for number in range(1, count + 1)]
        before = {name: cpu_s(pids) for name, pids in at.processes().items()}
        spent, taken = asyncio.run(flood(at.stack.port, at.token, nodes, over_s))
        after = {name: cpu_s(pids) for name, pids in at.processes().items()}
        cut = statistics.quantiles(taken, n=100)
        cpu = ", ".join(
            f"{name} {after[name] - before[name]:.1f}" for name in after if after[name] - before[name] > 0.5
        )
        print(
            f"{count} reports in {spent:.1f} s: p50 {cut[49] * 1e3:.1f} ms, p99 {cut[98] * 1e3:.1f} ms, "
            f"max {max(taken) * 1e3:.0f} ms; {rows(at)} rows of {count}; CPU seconds: {cpu}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--nhc", type=Path)
    parser.add_argument("--reports", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hb-") as folder:
        hook_beside_nhc(Path(folder), asked.count, asked.nhc)
    if asked.reports:
        many(asked.reports, asked.seconds)


if __name__ == "__main__":
    main()
