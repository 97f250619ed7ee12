"""slurmd.log: prologs, epilogs and health checks that failed, with their words; missing GPUs, boots,
memory that ran out.

slurmctld.log has none of these words: there, a drain is `Prolog error`. Messages are those of 20.11 to 25.11;
lines were taken from 22.05 and 24.11 as they ran. In a central syslog, lines of NHC itself count too.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from healer.importing.happenings import Found, JobChange, NodeChange, NodeCheck
from healer.importing.local_stamps import LocalStamps
from healer.importing.node_names import short_name
from healer.importing.slurm_text import messages, without_level
from healer.importing.source_text import Bytes

#: A line without one of these words says nothing here; most lines have none.
WORDS = (
    r"(?:prolog|epilog|health_check|Health check) failed",
    r"can't stat gres\.conf file",
    r" Uptime=[0-9]+",
    r"Detected [0-9]+ oom[-_]kill event",
)
_TELLING = re.compile("|".join(WORDS).encode())
#: As long as the text of a check may be.
TEXT_LETTERS = 500
#: A boot is computed from two clocks: one that moves by less is the same.
_SAME_BOOT_US = 60_000_000


class _Shape(NamedTuple):
    pattern: re.Pattern[str]
    take: Callable[["NodeLog", str, int, re.Match[str]], None]


class NodeLog:
    """Reads what slurmd wrote; in a central syslog, of many nodes. `host`: of a file, which names none."""

    def __init__(self, found: Found, stamps: LocalStamps, host: str = "") -> None:
        self._found, self._stamps, self._host = found, stamps, host
        #: (host, hook) -> when its words came: the summary that follows adds nothing.
        self._worded: dict[tuple[str, str], int] = {}
        self._booted: dict[str, int] = {}

    def read(self, file: Bytes) -> None:
        for at_us, message in messages(file, self._stamps, self._found, _TELLING, self._host):
            self._found.tally.plain -= self.take(self._host, at_us, message)

    def take(self, host: str, at_us: int, message: str) -> int:
        """1 if the message was used, else 0."""
        message = without_level(message)
        for shape in _SHAPES:
            if match := shape.pattern.match(message):
                self._found.nodes.add(short_name(host))
                shape.take(self, host, at_us, match)
                return 1
        return 0

    def _failed(self, host: str, at_us: int, match: re.Match[str]) -> None:
        hook = match["hook"].replace("_", "-")
        self._worded[host, hook] = at_us
        output = match["output"].strip()
        text = f"rc {match['rc']}: {output}" if output else f"rc {match['rc']}"
        self._check(host, at_us, hook, "probe" if hook == "health-check" else hook, text)

    def _nhc_failed(self, host: str, at_us: int, match: re.Match[str]) -> None:
        self._check(host, at_us, "health-check", "probe", f"NHC: {match['output']}")

    def _summed_up(self, host: str, at_us: int, match: re.Match[str]) -> None:
        if self._worded.pop((host, match["hook"]), 0) < at_us - 1_000_000:
            self._check(host, at_us, match["hook"], match["hook"], f"status {match['status']}")

    def _missing(self, host: str, at_us: int, match: re.Match[str]) -> None:
        self._check(host, at_us, "health-check", "gpu-count", f"slurmd: {match[0]}")

    def _check(self, host: str, at_us: int, hook: str, name: str, text: str) -> None:
        self._found.add(at_us, NodeCheck(host, hook, name, text[:TEXT_LETTERS]))

    def _started(self, host: str, at_us: int, match: re.Match[str]) -> None:
        boot_us = at_us - int(match["uptime"]) * 1_000_000
        if abs(boot_us - self._booted.get(host, 0)) > _SAME_BOOT_US:
            self._booted[host] = boot_us
            self._found.add(at_us, NodeChange([host], "booted", at_us=boot_us))

    def _out_of_memory(self, _host: str, at_us: int, match: re.Match[str]) -> None:
        self._found.add(at_us, JobChange(match["job"], "why", False, (), "OUT_OF_MEMORY"))


_SHAPES = tuple(
    _Shape(re.compile(pattern), take)
    for pattern, take in (
        (r"(?P<hook>prolog|epilog|health_check) failed: rc:(?P<rc>\d+) output:(?P<output>.*)",
         NodeLog._failed),
        (r"Health check failed: +(?P<output>.*)", NodeLog._nhc_failed),
        (r"(?:\[job \d+\]|JobId=\d+(?: SLUID=\S+)?) (?P<hook>prolog|epilog)"
         r" failed status=(?P<status>\d+:\d+)",
         NodeLog._summed_up),
        (r"can't stat gres\.conf file \S*(?:nvidia|dri|kfd)\S*: .*", NodeLog._missing),
        (r"CPUs=\d+ .*\bUptime=(?P<uptime>\d{1,9})\b", NodeLog._started),
        (r"Detected \d+ oom[-_]kill event(?:\(s\)|s)? in (?:StepId=|step )(?P<job>\d+)\.",
         NodeLog._out_of_memory),
    )
)  # fmt: skip
