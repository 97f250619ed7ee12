"""slurmctld.log: states of nodes, drains with their reasons, reboots, jobs that start, end and are requeued.

Messages are those of 20.11 to 25.11; lines were taken from 22.05 and 24.11 as they ran. The log names no
user: who drained a node is known from `sinfo -R` or `scontrol show node`.
"""

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from healer.adapters.slurm import slurm_words as words
from healer.importing.happenings import Found, JobChange, NodeChange
from healer.importing.local_stamps import LocalStamps, is_time
from healer.importing.slurm_text import message_of, messages, without_level
from healer.importing.source_text import Bytes
from healer.text import said_by, say

_JOB = r"JobId=(?P<job>\d+(?:[_+][^\s(]{1,20}\((?P<raw>\d+)\))?)"
_NODES = r"(?P<nodes>[A-Za-z0-9_.,\[\]-]+)"


class _Shape(NamedTuple):
    pattern: re.Pattern[str]
    take: Callable[["ControllerLog", int, re.Match[str]], None]


#: A line without one of these words says nothing here; most lines have none.
_TELLING = re.compile(
    rb"state set to|reason set to|respond|returned to service|unexpectedly rebooted|reboot request"
    rb"|Allocate JobId|Started JobId|_job_complete|Requeuing JobId|requeue job JobId|REQUEST_KILL_JOB"
    rb"|Time limit exhausted|slurmd error running|started on cluster|missing from batch node"
    rb"|Prolog or job env setup failure|epilog error on|state to INVAL with reason"
)
#: How a job ended, until its `done` comes.
_ENDINGS_MOST = 100_000
#: A boot time is of the node's clock.
_CLOCKS_US = 300_000_000


class ControllerLog:
    """Reads the messages of one log in their order."""

    def __init__(self, found: Found, stamps: LocalStamps) -> None:
        self._found, self._stamps = found, stamps
        #: Job -> (state, exit code), learnt before the line that ends it.
        self._endings: dict[str, tuple[str, str]] = {}
        #: Node -> why, for the drain by slurmctld itself that follows.
        self._failed: dict[str, str] = {}

    def read(self, file: Bytes) -> None:
        for at_us, message in messages(file, self._stamps, self._found, _TELLING):
            self._found.tally.plain -= self.take(at_us, message)

    def take(self, at_us: int, message: str) -> int:
        """1 if the message was used, else 0."""
        message = without_level(message)
        for shape in _SHAPES:
            if match := shape.pattern.match(message):
                try:
                    shape.take(self, at_us, match)
                except ValueError as error:  # an invalid hostlist
                    self._found.tally.skip(say("importing.not_understood", why=said_by(error)), message)
                return 1
        return 0

    # --- nodes

    def _nodes(self, match: re.Match[str]) -> list[str]:
        names = list(words.expand_hosts(match["nodes"]))
        self._found.nodes.update(names)
        return names

    def _node(self, at_us: int, change: NodeChange) -> None:
        self._found.add(at_us, change)

    def _reason(self, at_us: int, match: re.Match[str]) -> None:
        nodes, reason = self._nodes(match), match["reason"].strip()
        for node in nodes:
            self._found.marks.saw(drain_mark(node, reason), at_us)
        self._node(at_us, NodeChange(nodes, "reason", reason=reason))

    def _state(self, at_us: int, match: re.Match[str]) -> None:
        self._node(at_us, NodeChange(self._nodes(match), "state", state=words.node_state(match["state"])))

    def _slurms_drain(self, at_us: int, match: re.Match[str]) -> None:
        for node in self._nodes(match):
            self._node(at_us, NodeChange([node], "reason", reason=self._failed.pop(node, ""), user="slurm"))
            self._node(at_us, NodeChange([node], "state", state=("DRAINED",)))

    def _silent(self, at_us: int, match: re.Match[str]) -> None:
        word = "down" if match["down"] else "silent"
        self._node(at_us, NodeChange(self._nodes(match), word, reason="Not responding", user="slurm"))

    def _rebooted(self, at_us: int, match: re.Match[str]) -> None:
        boot_us = int(match["boot"] or 0) * 1_000_000
        boot_us = boot_us if is_time(boot_us) else 0
        if boot_us > at_us + _CLOCKS_US:
            hours = (boot_us - at_us) / 3.6e9
            self._found.tally.note(say("importing.boot_after_line", hours=hours))
        reason = "Node unexpectedly rebooted"
        self._node(
            at_us, NodeChange(self._nodes(match), "rebooted", reason=reason, user="slurm", at_us=boot_us)
        )

    def _changed(self, at_us: int, match: re.Match[str], word: str) -> None:
        self._node(at_us, NodeChange(self._nodes(match), word))

    def _will_drain(self, _at_us: int, match: re.Match[str], why: str = "") -> None:
        if len(self._failed) < _ENDINGS_MOST:
            self._failed |= dict.fromkeys(self._nodes(match), why or match["why"].strip())

    # --- jobs

    def _started(self, at_us: int, match: re.Match[str]) -> None:
        job, nodes = _job(match), self._nodes(match)
        self._endings.pop(job, None)
        self._found.marks.saw(f"start {job}", at_us)
        row = {"partition": match["partition"]}
        self._found.add(at_us, JobChange(job, "start", False, nodes, "RUNNING", None, row))

    def _ending(self, _at_us: int, match: re.Match[str]) -> None:
        how, number = match["how"], match["number"] or "0"
        if how == "WEXITSTATUS":
            found = ("COMPLETED" if number == "0" else "FAILED", number)
        elif how == "WTERMSIG":
            found = ("CANCELLED" if number == "15" else "FAILED", f"0:{number}")
        elif how == "OOM failure":
            found = ("OUT_OF_MEMORY", "0:125")
        else:
            found = ("NODE_FAIL" if "node fail" in how else "CANCELLED", "0")
        self._ends(_job(match), found)

    def _ends(self, job: str, found: tuple[str, str]) -> None:
        before = self._endings.get(job)
        if before is None or before[0] not in {"NODE_FAIL", "TIMEOUT"}:
            if len(self._endings) >= _ENDINGS_MOST:
                self._endings.clear()
            self._endings[job] = found

    def _timed_out(self, _at_us: int, match: re.Match[str]) -> None:
        self._ends(_job(match), ("TIMEOUT", "0"))

    def _killed(self, at_us: int, match: re.Match[str]) -> None:
        """Slurm ends a cancelled job at once, and does not mention it again."""
        self._ended(at_us, _job(match), ("CANCELLED", "0:15"))

    def _done(self, at_us: int, match: re.Match[str]) -> None:
        job = _job(match)
        self._ended(at_us, job, self._endings.pop(job, ("COMPLETED", "0")))

    def _ended(self, at_us: int, job: str, how: tuple[str, str]) -> None:
        self._found.marks.saw(f"end {job}", at_us)
        row = {"exit_code": how[1]}
        self._found.add(at_us, JobChange(job, "end", False, (), how[0], None, row))

    def _requeued(self, at_us: int, match: re.Match[str]) -> None:
        self._found.add(at_us, JobChange(_job(match), "requeue", False))

    def _failed_with_node(self, at_us: int, match: re.Match[str]) -> None:
        self._found.add(at_us, JobChange(_job(match), "end", False, (), "NODE_FAIL"))

    def _controller(self, _at_us: int, match: re.Match[str]) -> None:
        self._found.cluster = match["cluster"]


_SHAPES = tuple(
    _Shape(re.compile(pattern), take)
    for pattern, take in (
        (rf"(?:sched: )?Allocate {_JOB} NodeList={_NODES} .*?Partition=(?P<partition>\S+)",
         ControllerLog._started),
        (rf"(?:sched(?:/\w+)?: )?_?start_job: Started {_JOB} in (?P<partition>\S+) on {_NODES}",
         ControllerLog._started),
        (rf"_job_complete: {_JOB} (?P<how>WEXITSTATUS|WTERMSIG) (?P<number>\d+)", ControllerLog._ending),
        (rf"_job_complete: {_JOB} (?P<how>OOM failure|cancelled by[\w ]+)(?P<number>)",
         ControllerLog._ending),
        (rf"_job_complete: {_JOB} done", ControllerLog._done),
        (rf"update_node: node {_NODES} reason set to: (?P<reason>.*)", ControllerLog._reason),
        (rf"update_node: node {_NODES} state set to (?P<state>\S+)", ControllerLog._state),
        (rf"drain_nodes: node {_NODES} state set to DRAIN", ControllerLog._slurms_drain),
        (rf"Nodes? {_NODES} not responding(?P<down>, setting DOWN)?", ControllerLog._silent),
        (rf"[Nn]ode {_NODES} now responding", partial(ControllerLog._changed, word="heard")),
        (rf"(?:\w+: )?[Nn]ode {_NODES} returned to service", partial(ControllerLog._changed, word="back")),
        (rf"(?:\w+: )?[Nn]ode {_NODES} unexpectedly rebooted(?: boot_time=(?P<boot>\d{1,12}))?",
         ControllerLog._rebooted),
        (rf"reboot request (?:queued|issued) for nodes? {_NODES}",
         partial(ControllerLog._changed, word="reboot")),
        (rf"requeue job {_JOB} due to failure of node", ControllerLog._failed_with_node),
        (rf"Requeuing {_JOB}", ControllerLog._requeued),
        (rf"_slurm_rpc_kill_job\w*: REQUEST_KILL_JOB {_JOB} ", ControllerLog._killed),
        (rf"Time limit exhausted for {_JOB}", ControllerLog._timed_out),
        (rf"slurmd error running {_JOB}(?: SLUID=\S+)? on [Nn]ode\(s\)={_NODES}: (?P<why>.*)",
         ControllerLog._will_drain),
        (rf"\w+: Prolog or job env setup failure on node {_NODES}, draining",
         partial(ControllerLog._will_drain, why="Prolog error")),
        (rf"\w+: {_JOB} epilog error on {_NODES}, draining",
         partial(ControllerLog._will_drain, why="Epilog error")),
        (rf"Setting node {_NODES} state to INVAL with reason:(?P<why>.*)", ControllerLog._will_drain),
        (r"slurmctld version \S+ started on cluster (?P<cluster>[\w.-]+)", ControllerLog._controller),
    )
)  # fmt: skip


def drain_mark(node: str, reason: str) -> str:
    """By the beginning of the reason, which is all that `sinfo -R` prints."""
    return f"drain {node} {reason[:18].strip()}"


def _job(match: re.Match[str]) -> str:
    """The raw id: `7` of `6_1(7)`."""
    return match["raw"] or match["job"]


def is_controller_log(lines: Iterable[bytes]) -> bool:
    return any(
        b"slurmctld version" in line
        or (_TELLING.search(line) and any(shape.pattern.match(message_of(line)) for shape in _SHAPES))
        for line in lines
    )
