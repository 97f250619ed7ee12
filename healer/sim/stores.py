"""Stores in memory for replay, simulation and tests: checkpoints, evidence files, site commands, and
columns."""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from healer.model import Column, CommandSeen, EvidenceFile, JobCheckpoint, Observation, ObservationKind
from healer.ports.clock import Clock
from healer.ports.measurements import TooManyColumns
from healer.ports.node_exec import CommandFailed, EvidenceBroken
from healer.text import say


class MemoryCheckpoints:
    """`healer.ports.transactions.Checkpoints`. Keeps only the newest durable one of each job."""

    def __init__(self) -> None:
        self._newest: dict[str, JobCheckpoint] = {}

    def take(self, checkpoints: Iterable[JobCheckpoint]) -> None:
        """Takes durable checkpoints."""
        for checkpoint in checkpoints:
            newest = self._newest.get(checkpoint.job)
            if newest is None or (newest.restart, newest.step, newest.at) < (
                checkpoint.restart,
                checkpoint.step,
                checkpoint.at,
            ):
                self._newest[checkpoint.job] = checkpoint

    def hear(self, signals: Iterable[Observation]) -> None:
        """Takes the durable checkpoints among these signals."""
        self.take(
            JobCheckpoint(
                job=signal.component.job or "",
                restart=int(signal.data["restart"]),
                step=int(signal.data["step"]),
                path=str(signal.data["path"]),
                at=signal.event_at,
                arrived_at=signal.arrived_at,
            )
            for signal in signals
            if signal.kind is ObservationKind.checkpoint and signal.data["durable"]
        )

    def newest_durable(self, job: str, since: datetime | None = None) -> JobCheckpoint | None:
        found = self._newest.get(job)
        return found if found is None or since is None or found.arrived_at >= since else None


class MemoryEvidence:
    """`healer.ports.node_exec.EvidenceBook`."""

    def __init__(self) -> None:
        self._pieces: dict[str, dict[int, bytes]] = {}
        self._finished: dict[str, EvidenceFile] = {}

    def stored(self, file: str) -> int:
        return len(self._joined(file))

    def add(self, file: EvidenceFile, start: int, data: bytes) -> None:
        if file.id not in self._finished:
            self._pieces.setdefault(file.id, {}).setdefault(start, data)

    def finish(self, file: EvidenceFile) -> None:
        if hashlib.sha256(self._joined(file.id)).hexdigest() != file.bundle.sha256:
            self._pieces.pop(file.id, None)
            raise EvidenceBroken(say("adapters.evidence_other", file=file.id, node=file.node))
        self._finished.setdefault(file.id, file)

    def files(self, *, incident: str | None = None, run: str | None = None) -> list[EvidenceFile]:
        fits = (file for file in self._finished.values() if file.incident == incident or incident is None)
        return sorted((file for file in fits if run in (None, file.run)), key=lambda file: (file.at, file.id))

    def file(self, file: str) -> EvidenceFile | None:
        return self._finished.get(file)

    def content(self, file: str) -> bytes:
        return self._joined(file) if file in self._finished else b""

    def _joined(self, file: str) -> bytes:
        pieces = self._pieces.get(file, {})
        return b"".join(pieces[start] for start in sorted(pieces))


class SimCommands:
    """`healer.ports.node_exec.SiteCommands`. `plant` sets what a program answers; others are missing."""

    def __init__(self, clock: Clock, *, takes_s: float = 5.0) -> None:
        self._clock, self._takes = clock, timedelta(seconds=takes_s)
        self.machine = "machine 1"
        self._answers: dict[str, tuple[int | None, str]] = {}
        self._runs: dict[str, tuple[datetime, tuple[str, ...], CommandSeen]] = {}

    def plant(self, program: str, code: int | None = 0, output: str = "") -> None:
        """Exit `code` None: it never ends and is killed at its timeout."""
        self._answers[program] = (code, output)

    def started(self) -> list[tuple[str, ...]]:
        """The arguments of each started command, in order."""
        return [argv for _, argv, _ in self._runs.values()]

    def start(self, key: str, argv: tuple[str, ...], timeout_s: float) -> None:
        if key in self._runs:
            return
        if argv[0] not in self._answers:
            raise CommandFailed(f"{argv[0]} is missing, or healer's user may not start it")
        code, output = self._answers[argv[0]]
        seen = CommandSeen(state="timed_out" if code is None else "ended", code=code, output=output)
        ends = timedelta(seconds=timeout_s) if code is None else self._takes
        self._runs[key] = (self._clock.now() + ends, argv, seen)

    def look(self, key: str) -> CommandSeen:
        if key not in self._runs:
            return CommandSeen(state="never")
        ends_at, _, seen = self._runs[key]
        return seen if self._clock.now() >= ends_at else CommandSeen(state="running")

    def place(self) -> str:
        return self.machine


class MemoryColumns:
    """`ports.ColumnBook` of one process. Numbers count from 1."""

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._ids: dict[Column, int] = {}
        self._columns: dict[int, Column] = {}

    def ids(self, columns: Sequence[Column]) -> list[int]:
        new = dict.fromkeys(column for column in columns if column not in self._ids)
        if len(self._ids) + len(new) > self._limit:
            raise TooManyColumns(f"more than {self._limit} different series")
        for column in new:
            number = len(self._ids) + 1
            self._ids[column] = number
            self._columns[number] = column
        return [self._ids[column] for column in columns]

    def columns(self, ids: Iterable[int]) -> dict[int, Column]:
        return {number: self._columns[number] for number in ids if number in self._columns}
