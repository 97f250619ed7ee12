"""Replay of a large cluster's recording, streamed: CPU time and memory per recorded hour.

`python -m benchmarks.replay --nodes 1250 --minutes 60` writes a folder as the recorder does (a heartbeat of
each node every 10 s, jobs that come and go, one lost GPU an hour, with `--samples` 30 signals of 8 GPUs every
5 s) and replays it. A month is 720 such hours; memory is looked at half way and at the end.
`--idle`: nothing but heartbeats. `--gauge`: nothing but one node's temperatures each minute.
`--silent`: three heartbeats of each node a minute, and none of the first after ten minutes.

`python -m benchmarks.replay --recording FILE` replays one, such as `healer simulate --record` writes.
"""

import argparse
import itertools
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from healer.bootstrap import log_to_stderr
from healer.bootstrap.offline import entries_of, replayed, span_of
from healer.model import Mode, Ruleset
from healer.processes.scheduler import share_of
from healer.recordings.recording_folder import RecordingFolder, recordings
from healer.rulebook import ruleset
from healer.settings import shipped_rules
from healer.sim.sim_clock import SimClock

START = datetime(2026, 11, 1, tzinfo=UTC)
BEAT_S, JOB_EVERY_S, SAMPLE_S = 10, 4, 5
GPUS, SIGNALS = 8, 30
XID_79 = "NVRM: Xid (PCI:0000:9b:00): 79, pid=4711, name=python, GPU has fallen off the bus."


def names(nodes: int) -> list[str]:
    return [f"gpu{number:04d}" for number in range(1, nodes + 1)]


def entries(
    nodes: int, minutes: int, signals: list[str], *, idle: bool
) -> Iterator[tuple[datetime, str, Any, bool]]:
    """(when, route, body, whether it is a sample), by time."""
    known = names(nodes)
    rows = [{"name": one, "state": ["IDLE"], "gpus": GPUS, "gpu_model": "h100"} for one in known]
    yield START, "slurm/nodes", {"cluster": "pod1", "nodes": rows, "again": True}, False
    yield START, "slurm/jobs", {"cluster": "pod1", "jobs": [], "again": True}, False
    for second in range(1, minutes * 60):
        at = START + timedelta(seconds=second)
        if second % JOB_EVERY_S == 0 and not idle:
            number = second // JOB_EVERY_S
            node = known[number % nodes]
            job = {"id": str(number), "state": "RUNNING", "nodes": [node], "user": "ann"}
            gone = [str(number - 200)] if number > 200 else []
            yield at, "slurm/jobs", {"cluster": "pod1", "changed": [job], "gone": gone}, False
        beats = [{"cluster": "pod1", "node": node} for node in known[second % BEAT_S :: BEAT_S]]
        yield at, "signals/heartbeat", beats, False
        if second % 3600 == 1800 and not idle:
            line = {"time": at.isoformat(), "line": XID_79}
            node = known[(second // 3600 * 7) % nodes]
            yield at, "signals/kernel-log", {"cluster": "pod1", "node": node, "entries": [line]}, False
        if signals:
            yield at, "signals/metrics", _reports(known[second % SAMPLE_S :: SAMPLE_S], at, signals), True


def slow_gauge(nodes: int, minutes: int) -> Iterator[tuple[datetime, str, Any, bool]]:
    """The same shape: one node reports one signal each minute."""
    yield from itertools.islice(entries(nodes, 0, [], idle=True), 2)
    for minute in range(1, minutes):
        at, value = START + timedelta(minutes=minute), 50 + minute % 5
        report = {"cluster": "pod1", "node": names(1)[0], "gpu": {"gpu_temp_c": [value] * GPUS}}
        yield at, "signals/metrics", [report], True


def one_silent(nodes: int, minutes: int) -> Iterator[tuple[datetime, str, Any, bool]]:
    yield from itertools.islice(entries(nodes, 0, [], idle=True), 2)
    for second in range(20, minutes * 60, 20):
        live = names(nodes)[second > 600 :]
        beats = [{"cluster": "pod1", "node": node} for node in live]
        yield START + timedelta(seconds=second), "signals/heartbeat", beats, False


def _reports(nodes: list[str], at: datetime, signals: list[str]) -> list[dict[str, Any]]:
    gpu = {name: [40 + (at.second + index) % 30 for index in range(GPUS)] for name in signals}
    return [{"cluster": "pod1", "node": node, "time": at.isoformat(), "gpu": gpu} for node in nodes]


def recorded(folder: Path, rows: Iterator[tuple[datetime, str, Any, bool]]) -> None:
    clock = SimClock(START)
    made = RecordingFolder(folder, max_bytes=10**12, max_age=timedelta(days=400), now=clock.now)
    for at, route, body, samples in rows:
        clock.set(at)
        made.begun()
        line = json.dumps({"at": at.isoformat(), "route": route, "body": body}, separators=(",", ":"))
        made.write(line.encode(), at, route, samples=samples)
    made.close()


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def measure_replay(rules: Ruleset, recording: Path) -> None:
    """What a replay of it takes, and its memory at each quarter of its span."""
    span = span_of([recording], None, None)
    assert span is not None
    memory = {0.25: 0.0, 0.5: 0.0, 0.75: 0.0, 1.0: 0.0}

    def look(at: datetime) -> None:
        share = share_of(at, span)
        memory[next(one for one in memory if share <= one)] = resident_mb()

    begun_s, cpu_s = time.monotonic(), time.process_time()
    report, _ = replayed(rules, entries_of([recording], None, None), progress=look)
    cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - begun_s
    days, megabytes = (span[1] - span[0]) / timedelta(days=1), recording.stat().st_size / 1e6
    print(f"{recording.name}: {days:.1f} days, {megabytes:.0f} MB; load {os.getloadavg()[0]:.1f}")
    print(f"CPU {cpu_s:.0f} s, {wall_s:.0f} s by the clock")
    print("memory " + ", ".join(f"{at:.0%} {one:.0f} MB" for at, one in memory.items()))
    print(
        f"{len(report['incidents'])} incidents, {len(report['actions'])} actions, {len(report['held'])} held"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--samples", action="store_true")
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--gauge", action="store_true")
    parser.add_argument("--silent", action="store_true")
    parser.add_argument("--recording", type=Path)
    chosen = parser.parse_args()
    log_to_stderr()
    rules = ruleset.load(shipped_rules(), default_mode=Mode.auto, prove=False)
    if chosen.recording is not None:
        measure_replay(rules, chosen.recording)
        return
    signals = [name for name, one in rules.catalogue.signals.items() if one.scope == "gpu"][:SIGNALS]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        sampled = signals if chosen.samples else []
        rows = entries(chosen.nodes, chosen.minutes, sampled, idle=chosen.idle)
        if chosen.gauge or chosen.silent:
            rows = (slow_gauge if chosen.gauge else one_silent)(chosen.nodes, chosen.minutes)
        recorded(folder, rows)
        size = recordings(folder).bytes
        memory: list[float] = []
        begun = time.process_time()
        report, _ = replayed(
            rules, entries_of([folder], None, None), progress=lambda _: memory.append(resident_mb())
        )
        cpu_s = time.process_time() - begun
    hours = chosen.minutes / 60
    halves = memory[len(memory) // 2], memory[-1]
    print(f"{chosen.nodes} nodes, {hours:g} h, {'with' if chosen.samples else 'without'} samples")
    print(f"packed {size / 1e6 / hours:.1f} MB an hour, {size / 1e9 / hours * 720:.1f} GB a month")
    print(f"CPU {cpu_s / hours:.2f} s an hour, {cpu_s / hours * 720 / 3600:.1f} h a month")
    print(f"memory {halves[0]:.0f} MB at half, {halves[1]:.0f} MB at the end")
    print(f"{len(report['incidents'])} incidents, {len(report['actions'])} actions")


if __name__ == "__main__":
    main()
