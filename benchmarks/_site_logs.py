"""A made month of a site, as the site keeps it: syslog, slurmctld.log and sacct, with faults that people
answer late. Written line by line, so a month of 1,250 nodes needs no memory. The same seed gives the same
bytes."""

import itertools
import math
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self, cast

import numpy as np
from zstandard import ZstdCompressor

BEGIN = datetime(2026, 10, 20, tzinfo=UTC)
_LONG = (
    "kernel: [{s:12.6f}] Lustre: 2211:0:(client.c:2295:ptlrpc_expire_one_request()) @@@ Request sent has"
    " timed out for slow reply: [sent {n}/real {n}] req@00000000{n:08x} x{n}/t0(0) o400->MGC10.0.0.{d}@o2ib"
    "@10.0.0.1 lens 224/224 e 0 to 1 dl {n} ref 1 fl Rpc:XNQr/0/ffffffff rc 0/-1 job:'kworker.0'",
    'dcgm-exporter[1822]: time="2026-10-20T00:00:00Z" level=info msg="Collected" gpu={d} fields=57 took={n}us'
    " hostname=gpu0001 driver=580.95.05 collector=dcp subsystem=profiling retry=false endpoint=:9400/metrics"
    " exported=DCGM_FI_DEV_SM_CLOCK,DCGM_FI_DEV_GPU_TEMP,DCGM_FI_DEV_POWER_USAGE,DCGM_FI_PROF_SM_ACTIVE,"
    "DCGM_FI_PROF_DRAM_ACTIVE,DCGM_FI_PROF_NVLINK_TX_BYTES,DCGM_FI_PROF_NVLINK_RX_BYTES",
    'containerd[1490]: time="2026-10-20T00:00:00.{n:09d}Z" level=info msg="ImageUpdate event name:'
    '\\"registry.example/train/megatron@sha256:{n:064x}\\" labels:{{key:\\"io.cri-containerd.image\\"'
    ' value:\\"managed\\"}} labels:{{key:\\"org.opencontainers.image.revision\\" value:\\"{n:040x}\\"}}"',
    'node_exporter[1811]: ts=2026-10-20T00:00:00.000Z caller=collector.go:169 level=error msg="collector'
    ' failed" name=infiniband duration_seconds=0.000{n} err="failed to read file /sys/class/infiniband'
    '/mlx5_{d}/ports/1/counters/VL15_dropped: invalid argument; previous failure {n} s ago of this scrape"',
)
_NOISE = (
    "systemd[1]: Started Session {n} of User root.",
    "systemd[1]: session-{n}.scope: Deactivated successfully.",
    "slurmd[2211]: launch task StepId={n}.0 request from UID:1000 GID:1000 HOST:10.0.0.9 PORT:4242",
    "slurmd[2211]: [{n}.batch] done with step",
    "kernel: [{s:12.6f}] audit: type=1400 audit({n}.{d}:77): apparmor=STATUS",
    "kernel: [{s:12.6f}] perf: interrupt took too long ({n} > 2500), lowering rate",
    "sshd[{d}]: Accepted publickey for mara from 10.0.0.1 port {n} ssh2",
    "CRON[{n}]: (root) CMD (run-parts /etc/cron.hourly)",
    "nvidia-persistenced[901]: device 0000:9b:00.0 - persistence mode enabled.",
    "kernel: [{s:12.6f}] mlx5_core 0000:1a:00.0 ib{d}: Link up",
    *_LONG,
    *_LONG,
)
#: Texts of noise made once, of which each line takes one; one in so many is the driver's.
_TEXTS, _DRIVER = 4096, 1024
#: Texts of one second of noise at least, made for each day, and what holds the place of the time in them.
_SECONDS, _TIME = 300, "@" * 15
#: Numbers in a message that differ each time it is written. The first digit stays: none begins with 0.
_NUMBER = re.compile(rb"(?<=[0-9])[0-9]{4,}")
_LOADED = "kernel: [{s:12.6f}] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 2026"
_X = "NVRM: Xid (PCI:0000:9b:00):"
_FAULTS = (
    # (line, what people write, how often of all, the node is of no use any more)
    (_X + " 79, pid={n}, name=python, GPU has fallen off the bus.", "xid 79", 3, True),
    (_X + " 48, pid={n}, name=python, DBE (double bit error) ECC Error", "ECC", 2, True),
    ("NVRM: Xid (PCI:0000:1b:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on"
     " link 3(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", "nvlink", 2, True),
    (_X + " 13, pid={n}, name=python, Graphics Exception: ESR 0x505730=0x1", "", 12, False),
    (_X + " 31, pid={n}, name=python, Ch 00000008, intr 00000000. MMU Fault", "", 6, False),
)  # fmt: skip


class Made(NamedTuple):
    """Where the files lie, and what is true of them."""

    syslog: list[Path]
    slurmctld: Path
    sacct: Path
    lines: int
    #: (node, when it broke, when people drained it)
    broken: list[tuple[str, datetime, datetime]]


class _Faulty(NamedTuple):
    at_s: float
    node: str
    kind: int


def write(
    folder: Path,
    *,
    nodes: int,
    days: float,
    lines_per_node_hour: float,
    seed: int = 1,
    line_bytes: int = 0,
    packed: bool = False,
) -> Made:
    """`line_bytes`: mean length of the noise's messages at least, by more of the long ones. `packed`: syslog
    as .zst, packed while it is written."""
    chance = random.Random(seed)
    names = [f"gpu{number:04d}" for number in range(1, nodes + 1)]
    faults = sorted(_faults(chance, names, days))
    drains = {fault: fault.at_s + chance.uniform(600, 5 * 3600) for fault in faults if _FAULTS[fault.kind][3]}
    sacct, slurmctld = folder / "sacct.txt", folder / "slurmctld.log"
    _write_slurm(chance, names, days * 86400, drains, (slurmctld, sacct))
    syslog = _Syslog(folder, days, lines_per_node_hour * nodes / 3600, packed)
    files, lines = _write_syslog(chance, names, faults, syslog, line_bytes)
    broken = [(fault.node, _at(fault.at_s), _at(drain)) for fault, drain in drains.items()]
    return Made(files, slurmctld, sacct, lines, broken)


def _faults(chance: random.Random, names: list[str], days: float) -> Iterator[_Faulty]:
    count = max(4, round(len(names) * days / 60))
    kinds = [kind for kind, fault in enumerate(_FAULTS) for _ in range(fault[2])]
    for _ in range(count):
        yield _Faulty(chance.uniform(0.02, 0.9) * days * 86400, chance.choice(names), chance.choice(kinds))


def _at(after_s: float) -> datetime:
    return BEGIN + timedelta(seconds=after_s)


def _write_slurm(
    chance: random.Random,
    names: list[str],
    span_s: float,
    drains: dict[_Faulty, float],
    files: tuple[Path, Path],
) -> None:
    """Jobs of one to eight nodes, one after the other on groups of eight; a fault ends the job there, and the
    job starts again a while later."""
    events: list[tuple[float, str]] = [(0.0, "slurmctld version 24.11.5 started on cluster pod1")]
    rows: list[tuple[float, str]] = []
    broken: dict[str, list[tuple[float, float]]] = {}
    for fault, drain_s in drains.items():
        broken.setdefault(fault.node, []).append((fault.at_s, drain_s))
        reason = _FAULTS[fault.kind][1]
        events.append((drain_s, f"update_node: node {fault.node} reason set to: {reason}"))
        events.append((drain_s, f"update_node: node {fault.node} state set to DRAINED"))
        back_s = drain_s + chance.uniform(4, 48) * 3600
        events.append((back_s, f"update_node: node {fault.node} state set to IDLE"))
    job = 1000
    for first in range(0, len(names), 8):
        group, at_s = names[first : first + 8], chance.uniform(0, 3600)
        while at_s < span_s:
            job += 1
            end_s, state = at_s + chance.uniform(0.2, 12) * 3600, "COMPLETED"
            hit = [
                when
                for node in group
                for when, until in broken.get(node, ())
                if at_s < until and when < end_s
            ]
            if hit:
                end_s, state = max(min(hit), at_s + 30.0) + 20, "NODE_FAIL"
            rows.append((at_s, _row(job, group, at_s, end_s, state)))
            at_s = end_s + (chance.uniform(300, 7200) if hit else 60)
    with files[0].open("w") as log:
        log.writelines(
            f"[{_at(at):%Y-%m-%dT%H:%M:%S}.{int(at * 1000) % 1000:03d}] {text}\n"
            for at, text in sorted(events)
        )
    with files[1].open("w") as table:
        table.write("JobIDRaw|JobName|User|Partition|State|ExitCode|Start|End|NodeList|AllocTRES\n")
        table.writelines(row for _, row in sorted(rows))


def _row(job: int, group: list[str], at_s: float, end_s: float, state: str) -> str:
    group_of = int(group[0][3:])
    user = f"user{group_of % 17}"
    nodes = f"{group[0]}" if len(group) == 1 else ",".join(group)
    tres = f"cpu={len(group)},gres/gpu={8 * len(group)},node={len(group)}"
    start, end = _at(at_s), _at(end_s)
    times = f"{start:%Y-%m-%dT%H:%M:%S}|{end:%Y-%m-%dT%H:%M:%S}"
    return f"{job}|train{group_of}|{user}|train|{state}|0:0|{times}|{nodes}|{tres}\n"


class _Syslog(NamedTuple):
    folder: Path
    days: float
    lines_per_second: float
    packed: bool

    def opened(self, day: int) -> tuple[Path, BinaryIO]:
        path = self.folder / f"messages-{day:02d}{'.zst' if self.packed else ''}"
        file = path.open("wb", buffering=1 << 20)
        if self.packed:
            return path, cast(BinaryIO, ZstdCompressor(level=1).stream_writer(file))
        return path, file


def _write_syslog(
    chance: random.Random, names: list[str], faults: list[_Faulty], syslog: _Syslog, line_bytes: int
) -> tuple[list[Path], int]:
    """A file for each day, as a central syslog server writes it: RFC 3164, no year. The lines of a second are
    one of the day's texts, with its time and other numbers in each line."""
    spoken: dict[int, list[bytes]] = {}
    for number, fault in enumerate(faults):
        text = _FAULTS[fault.kind][0].format(n=1000 + number)
        spoken.setdefault(int(fault.at_s), []).append(
            f"{fault.node} kernel: [{fault.at_s:12.6f}] {text}\n".encode()
        )
    digits = np.random.default_rng(chance.randrange(2**32))
    files, lines = [], 0
    for day in range(math.ceil(syslog.days)):
        seconds = _seconds(chance, names, syslog.lines_per_second, line_bytes)
        path, file = syslog.opened(day)
        files.append(path)
        with file:
            for second in range(day * 86400, min(int(syslog.days * 86400), (day + 1) * 86400)):
                stamp = _stamp(second).encode()
                noise = chance.choice(seconds)
                file.write(noise.at(stamp, digits))
                file.write(b"".join(b"%b %b" % (stamp, line) for line in spoken.get(second, ())))
                lines += noise.lines + len(spoken.get(second, ()))
    return files, lines


class _Second(NamedTuple):
    """Noise of one second, and where its times and its numbers are."""

    text: np.ndarray
    times: np.ndarray
    numbers: np.ndarray
    lines: int

    @classmethod
    def of(cls, lines: list[tuple[str, str]]) -> Self:
        text, times, numbers = bytearray(), [], []
        for node, message in lines:
            times.append(len(text))
            text += f"{_TIME} {node} ".encode()
            numbers += [
                place + len(text)
                for match in _NUMBER.finditer(message.encode())
                for place in range(*match.span())
            ]
            text += f"{message}\n".encode()
        places = np.array(times, np.int64)[:, None] + np.arange(len(_TIME))
        return cls(np.frombuffer(bytes(text), np.uint8), places, np.array(numbers, np.int64), len(lines))

    def at(self, stamp: bytes, digits: np.random.Generator) -> memoryview:
        text = self.text.copy()
        if self.lines:
            text[self.times] = np.frombuffer(stamp, np.uint8)
            text[self.numbers] = digits.integers(ord("0"), ord("9") + 1, len(self.numbers), np.uint8)
        return text.data


def _seconds(
    chance: random.Random, names: list[str], lines_per_second: float, line_bytes: int
) -> list[_Second]:
    noise = list(_NOISE)
    while sum(map(len, noise)) < line_bytes * len(noise):
        noise.append(max(_LONG, key=len))
    texts = [
        (noise[n % len(noise)] if n % _DRIVER else _LOADED).format(
            n=chance.randrange(10_000, 100_000), s=chance.uniform(1, 3e6), d=n % 10
        )
        for n in range(_TEXTS)
    ]
    chance.shuffle(texts)
    # The two lengths have no common factor, so every node writes every text.
    lines = zip(itertools.cycle(chance.sample(names, len(names))), itertools.cycle(texts[:-3]), strict=False)
    left, found = 0.0, []
    for _ in range(max(_SECONDS, math.ceil(20 * len(names) / lines_per_second))):
        left += lines_per_second
        count = int(left)
        left -= count
        found.append(_Second.of(list(itertools.islice(lines, count))))
    return found


def _stamp(second: int) -> str:
    moment = _at(second)
    return f"{moment:%b} {moment.day:2d} {moment:%H:%M:%S}"
