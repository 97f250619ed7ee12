"""Slurm's vocabulary that text, JSON and pyslurm share: states, GRES, names, error messages."""

import re
from collections.abc import Mapping, Sequence

from healer.model import Reservation, SlurmJob, SlurmNode, hostlist
from healer.model.slurm_spelling import state_words
from healer.ports.scheduling import SchedulerError, SchedulerRefused, SchedulerUnavailable, UnknownNode
from healer.text import Said, say

#: The rights that a refused change needs (d.4): `slurm.right_…` of the catalogue.
NODE_RIGHT, JOB_RIGHT, RESERVATION_RIGHT = "node", "job", "reservation"

#: States and flags that a reason explains. Slurm 24.11 leaves the old reason on a resumed node.
_NEEDS_REASON = frozenset(
    {
        "DOWN", "ERROR", "FUTURE", "DRAIN", "FAIL", "INVALID_REG", "MAINTENANCE", "REBOOT_REQUESTED",
        "REBOOT_ISSUED", "POWERED_DOWN", "POWERING_DOWN",
    }
)  # fmt: skip

_GRES_GPU = re.compile(r"(?:^|,)gpu(?::([^:(,]+))??:(\d+)(?=[(,]|$)")
_GRES_INDEX = re.compile(r"(?:^|,)gpu(?::[^:(,]+)?:\d+\(IDX:([0-9,\-]+)\)")

#: GRES for shares of a GPU; their indices are not GPU indices.
_SHARED_GRES = ("mps", "shard")
_SHARES = re.compile(r"(?:^|,)(?:mps|shard)[:=]|\d+g\.\d+gb")

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,252}")
_RESERVATION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}")
_SIGNAL_NAME = re.compile(r"[A-Z][A-Z0-9]{1,9}")
_USER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@$\-]{0,127}")
_LONGEST_LINE = 4096
_JOB_ID = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10}|\+[0-9]{1,4})?")
#: Names that scontrol takes for several nodes, or for its host.
_NOT_NODES = frozenset({"all", "localhost"})

NODE_UNKNOWN = 2018
JOB_UNKNOWN = 2017
RESERVATION_UNKNOWN = 2053

#: Slurm's error messages and their numbers (d.4). For 2180, Slurm 22.05 writes "specified" and later releases
#: "transition requested".
_REFUSALS = (
    ("Invalid job id specified", JOB_UNKNOWN),
    ("Invalid node name", NODE_UNKNOWN),
    ("can not be altered now", 2020),
    ("already completing or completed", 2021),
    ("Job is pending execution", 2024),
    ("Requested operation is presently disabled", 2037),
    ("Only batch jobs are accepted", 2039),
    ("Requested nodes are busy", 2016),
    ("Requested reservation is invalid", RESERVATION_UNKNOWN),
    ("Requested reservation is in use", 2055),
    ("Access denied to requested reservation", 2052),
    ("overlaps with another reservation", 2058),
    ("Duplicate reservation name", 2082),
    ("no longer pending execution", 2073),
    ("Job has already finished", 2084),
    ("not heterogeneous job leader", 2107),
    ("individual component of heterogeneous job", 2108),
    ("Invalid node state", 2180),
    ("Access/permission denied", 2002),
    ("Invalid user id", 2010),
)

#: Messages that mean that slurmctld did not answer, or that healer cannot talk to it.
_UNREACHABLE = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "standby mode",
    "Connection refused",
    "connect failure",
    "Could not establish a configuration source",
    "Unable to process configuration file",
    "authentication",
    "Munge",
    "munge",
    "Transport endpoint",
    "Communication connection failure",
    "Message receive failure",
    "Message send failure",
    "Incompatible versions",
    # From `scontrol requeue` and `create reservation` when slurmctld is down (22.05 and 24.11).
    "Unexpected message received",
)
#: Those of them that mean that slurmctld did not read the request.
_NOTHING_SENT = (
    "(connect failure)",
    "Connection refused",
    "Communication connection failure",
    "Could not establish a configuration source",
    "Unable to process configuration file",
    "Munge encode failed",
    "standby mode",
    "Incompatible versions",
)


def node_named(name: str, found: Mapping[str, SlurmNode]) -> SlurmNode:
    """Slurm also finds a node by its host name. Raises UnknownNode."""
    if name not in found:
        raise UnknownNode(say("slurm.no_node", node=name), NODE_UNKNOWN)
    return found[name]


def node_state(text: str) -> tuple[str, ...]:
    """`IDLE*+DRAIN` -> ("IDLE", "NOT_RESPONDING", "DRAIN"). Unknown flags are kept."""
    return state_words(text.split("+"))


def reason_is_current(state: tuple[str, ...]) -> bool:
    """Whether the node is out of service, or about to be; otherwise its reason is a leftover."""
    return not _NEEDS_REASON.isdisjoint(state)


def gpus_of_gres(gres: str) -> tuple[int, str]:
    """`gpu:h100:8(S:0-1)` -> (8, "h100"). Several types are added up; the first one names the model."""
    found = _GRES_GPU.findall(gres)
    return sum(int(count) for _, count in found), next((model for model, _ in found if model), "")


def shares_gpus(gres: str) -> bool:
    """Whether a node offers MIG slices or shares of its GPUs: then its GRES does not count GPUs."""
    return _SHARES.search(gres.lower()) is not None


def gpu_indices(gres: str) -> tuple[int, ...] | None:
    """`gpu:h100:2(IDX:0,3)` -> (0, 3); () if it names no GPU; None if the indices are unknown."""
    held = tuple(sorted(index for text in _GRES_INDEX.findall(gres) for index in expand_indices(text)))
    shares = any(part in gres for part in _SHARED_GRES)
    return None if shares or len(held) != gpus_of_gres(gres)[0] else held


def names_gpus(*texts: str | None) -> bool:
    """Whether one of a job's TRES or GRES texts asks for GPUs or shares of them."""
    return any(word in text for text in texts if text for word in ("gpu", *_SHARED_GRES))


def checked_node(name: str) -> str:
    """The name, if scontrol takes it for exactly one node. Raises UnknownNode."""
    if not _NODE_NAME.fullmatch(name) or name.lower() in _NOT_NODES:
        raise UnknownNode(say("slurm.not_a_node", name=name[:80]), NODE_UNKNOWN)
    return name


def checked_nodes(nodes: str | Sequence[str]) -> list[str]:
    """One name or several, each as `checked_node`. Raises ValueError for an empty list."""
    names = [checked_node(name) for name in ([nodes] if isinstance(nodes, str) else nodes)]
    if not names:
        raise ValueError("no node is named")
    return names


def checked_reservation(name: str) -> str:
    """The name of a reservation. Raises SchedulerRefused."""
    if not _RESERVATION_NAME.fullmatch(name):
        raise SchedulerRefused(say("slurm.not_a_reservation", name=name[:80]), RESERVATION_UNKNOWN)
    return name


def reservation_flags(reservation: Reservation) -> list[str]:
    """The flags for Slurm; maintenance adds MAINT, and IGNORE_JOBS because jobs may still run there."""
    return sorted({*reservation.flags, *(("MAINT", "IGNORE_JOBS") if reservation.maintenance else ())})


def checked_names(what: str, names: Sequence[str]) -> str:
    """Users or accounts, joined by commas. Raises ValueError for an invalid name."""
    for name in names:
        if not _USER_NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is not the name of {what}")
    return ",".join(names)


def checked_signal(name: str) -> str:
    """`USR1`, `TERM` …. Raises ValueError."""
    if not _SIGNAL_NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is not the name of a signal")
    return name


def checked_line(what: str, text: str, *, empty: bool = False) -> str:
    """One printable line, which may be blank only if `empty`. Raises ValueError."""
    if len(text) > _LONGEST_LINE or not text.isprintable():
        raise ValueError(f"{what} is one line of at most {_LONGEST_LINE} printable characters")
    if not (text.strip() or (empty and not text)):
        raise ValueError(f"{what} needs a word")
    return text


def checked_job(job: str) -> str:
    """The id (`123`, `123_4` or `123+1`). Raises SchedulerRefused."""
    if not _JOB_ID.fullmatch(job):
        raise SchedulerRefused(say("slurm.not_a_job", name=job[:80]), JOB_UNKNOWN)
    return job


def not_done(action: Said) -> Said:
    """`Slurm did not drain gpu0001`"""
    return say("slurm.did_not", what=action)


def error(what: str, text: str) -> SchedulerError:
    """The error for Slurm's message on a failed call; an unknown message is a refusal without a number.
    `what`: what was not done."""
    message = " ".join(text.split())[:300] or say("slurm.said_nothing")
    whole = say("slurm.because", what=what, words=message)
    for words, code in _REFUSALS:
        if words in message:
            return UnknownNode(whole, code) if code == NODE_UNKNOWN else SchedulerRefused(whole, code)
    if not text.strip() or any(words in message for words in _UNREACHABLE):
        return SchedulerUnavailable(whole, sent=not any(words in message for words in _NOTHING_SENT))
    return SchedulerRefused(whole)


# --- host lists as Slurm prints them; `model.hostlist` also accepts a site's globs


def expand_hosts(text: str) -> tuple[str, ...]:
    """All hosts, in order; empty for `""`, `(null)` and `None`. Raises ValueError."""
    if text in ("", "(null)", "None"):
        return ()
    names = tuple(hostlist.expand(text))
    if any(char in name for name in names for char in "[], "):
        raise ValueError(f"not a hostlist: {text[:200]!r}")
    return names


def expand_indices(text: str) -> tuple[int, ...]:
    """`0-2,5` -> (0, 1, 2, 5). Raises ValueError."""
    numbers = hostlist.expand(f"[{text}]")
    if not all(number.isdecimal() for number in numbers):
        raise ValueError(f"not a list of numbers: {text[:200]!r}")
    return tuple(int(number) for number in numbers)


# --- jobs

#: slurmctld's description of a hold after a failed launch (seen on 22.05 and 24.11).
_LAUNCH_FAILED = "launch failed"
#: Reasons of a hold by an administrator or by Slurm itself (more than MaxBatchRequeue failed launches).
_ADMIN_HOLDS = frozenset({"JobHeldAdmin", "JobHoldMaxRequeue"})
#: The text of 22.05 shows the description, with `_` for spaces, instead of `JobHeldUser`.
_HELD_AS = frozenset({"launch_failed_requeued_held", "job_requeued_in_held_state"})
#: The part of a submission's command line that is searched for options.
_OPTIONS_END = 4096
_UNENDED = frozenset({"PENDING", "RUNNING", "SUSPENDED"})


def held_by(state: str, priority: int | None, reason: str, why: str) -> str:
    """Who holds the job: `user`, `admin` (also Slurm itself), or empty. Held is pending with priority 0."""
    if state != "PENDING" or priority != 0:
        return ""
    if reason in _ADMIN_HOLDS or why.startswith(_LAUNCH_FAILED):
        return "admin"
    return "user" if reason == "JobHeldUser" else ""


def reason_and_why(text: str) -> tuple[str, str]:
    """Reason and description, as JSON has them, from the text's `Reason=`."""
    return ("JobHeldUser", text.replace("_", " ")) if text in _HELD_AS else (text, "")


def shows_allocation(state: str, flags: tuple[str, ...]) -> bool:
    """Whether Slurm shows the job's whole allocation; a job that is ending shows no GPUs."""
    return state in {"RUNNING", "SUSPENDED"} and "COMPLETING" not in flags


def is_pending_array(job: SlurmJob) -> bool:
    """Whether the record represents all pending tasks of an array, not a single job."""
    return bool(job.array_job) and job.array_task is None


def command_id(job: SlurmJob) -> str:
    """The id for commands: `5_1` for an array task, otherwise the job id. Slurm takes the plain id of an
    array's last task for the whole array (d.8, 12)."""
    return job.id if job.array_task is None else f"{job.array_job}_{job.array_task}"


def has_ended(state: str) -> bool:
    """Whether exit code and end time are final. Before, the end time is the job's time limit."""
    return state not in _UNENDED


def exit_code(code: int, signal: int) -> str:
    """`3`, or `0:9` if a signal ended it."""
    return f"{code}:{signal}" if signal else str(code)


def no_kill(submit_line: str) -> bool | None:
    """True if the submission has --no-kill; None if unknown: a script may set it too, and no record shows it.

    A `--no-kill` among the script's own arguments counts as well, which errs on the side of doing nothing.
    Only the beginning of the line is read: users make it as long as they like (1 MiB was seen).
    """
    words = submit_line[:_OPTIONS_END].split()
    options = [word for word in words if word == "-k" or word.partition("=")[0] == "--no-kill"]
    return True if options and not options[-1].endswith("=off") else None
