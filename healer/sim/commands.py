"""The site's commands in memory: what each program answers is planted, and time passes through the clock."""

from datetime import datetime, timedelta

from healer.model import CommandSeen
from healer.ports.clock import Clock
from healer.ports.site_commands import CommandFailed


class SimCommands:
    """`healer.ports.site_commands.SiteCommands`. `plant` says what a program answers; others are missing."""

    def __init__(self, clock: Clock, *, takes_s: float = 5.0) -> None:
        self._clock, self._takes = clock, timedelta(seconds=takes_s)
        self._answers: dict[str, tuple[int | None, str]] = {}
        self._runs: dict[str, tuple[datetime, tuple[str, ...], CommandSeen]] = {}

    def plant(self, program: str, code: int | None = 0, output: str = "") -> None:
        """None: it never ends by itself, and is killed at the end of its time."""
        self._answers[program] = (code, output)

    def started(self) -> list[tuple[str, ...]]:
        """The words of each that was started, in their order."""
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
