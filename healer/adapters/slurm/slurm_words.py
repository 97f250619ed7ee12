"""Pieces of Slurm's language that text and JSON share: states, GPUs, names, errors."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from healer.model import Reservation, SlurmJob, hostlist
from healer.model.slurm import state_words
from healer.ports.scheduling import SchedulerError, SchedulerRefused, SchedulerUnavailable, UnknownNode

#: What an account lacks whose change of a node is refused (d.4).
NODE_RIGHT = (
    "Changing a node takes AdminLevel=Administrator in accounting, SlurmUser or root; an Operator may not."
)

#: Slurm 22.05 shows one word for a job: a flag hides the base state. This is the base each flag stands on;
#: COMPLETING may stand on any, so it stays what it is.
_HIDDEN_BASE = {
    "CONFIGURING": "RUNNING", "STOPPED": "RUNNING", "RESIZING": "RUNNING", "SIGNALING": "RUNNING",
    "REQUEUED": "PENDING", "REQUEUE_HOLD": "PENDING", "REQUEUE_FED": "PENDING", "SPECIAL_EXIT": "PENDING",
    "RESV_DEL_HOLD": "PENDING", "STAGE_OUT": "COMPLETING", "COMPLETING": "COMPLETING",
}  # fmt: skip

#: What a node's reason can be about. Slurm 24.11 leaves the old reason on a node that was resumed.
_NEEDS_REASON = frozenset(
    {
        "DOWN", "ERROR", "FUTURE", "DRAIN", "FAIL", "INVALID_REG", "MAINTENANCE", "REBOOT_REQUESTED",
        "REBOOT_ISSUED", "POWERED_DOWN", "POWERING_DOWN",
    }
)  # fmt: skip

_GRES_GPU = re.compile(r"(?:^|,)gpu(?::([^:(,]+))??:(\d+)(?=[(,]|$)")
_GRES_INDEX = re.compile(r"(?:^|,)gpu(?::[^:(,]+)?:\d+\(IDX:([0-9,\-]+)\)")

#: GRES that are shares of a GPU: their indices are not those of whole GPUs.
_SHARED_GRES = ("mps", "shard")
_SHARES = re.compile(r"(?:^|,)(?:mps|shard)[:=]|\d+g\.\d+gb")

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,252}")
_RESERVATION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}")
_SIGNAL_NAME = re.compile(r"[A-Z][A-Z0-9]{1,9}")
_USER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}")
_LONGEST_LINE = 4096
_JOB_ID = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10}|\+[0-9]{1,4})?")
#: Words that scontrol takes for more than one node, or for its own host.
_NOT_NODES = frozenset({"all", "localhost"})

NODE_UNKNOWN = 2018
JOB_UNKNOWN = 2017
RESERVATION_UNKNOWN = 2053

#: Slurm's words for an error -> its number (d.4). Slurm 22.05 says "specified" where later releases say
#: "transition requested"; both mean that the node's state does not allow it.
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

#: Words that mean that slurmctld did not answer, or that we cannot speak to it.
_SILENCES = (
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
    # What `scontrol requeue` and `create reservation` say when slurmctld is away (22.05 and 24.11).
    "Unexpected message received",
)
#: Those of them where nothing reached slurmctld, or it turned the caller away before it read what was asked.
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


#: The end of the year 9999, behind which Python has no dates. Slurm takes any number from a user (`--begin`).
_LAST_SECOND = 253402300799


def moment(seconds: float) -> datetime | None:
    """Of Unix seconds; None for 0, for times before 1970, and for those that no calendar reaches."""
    return datetime.fromtimestamp(seconds, UTC) if 0 < seconds <= _LAST_SECOND else None


def node_state(text: str) -> tuple[str, ...]:
    """`IDLE*+DRAIN` -> ("IDLE", "NOT_RESPONDING", "DRAIN"). Unknown flags are carried through."""
    return state_words(text.split("+"))


def reason_stands(state: tuple[str, ...]) -> bool:
    """The node is out, or about to be: its reason is today's. Otherwise what is left of one is history."""
    return not _NEEDS_REASON.isdisjoint(state)


def job_state(words: str | list[str]) -> tuple[str, tuple[str, ...]]:
    """Base state and flags, from one word (before 23.11) or a list."""
    if isinstance(words, list):
        return (words[0], tuple(words[1:])) if words else ("UNKNOWN", ())
    base = _HIDDEN_BASE.get(words)
    return (base, (words,)) if base else (words or "UNKNOWN", ())


def gpus_of_gres(gres: str) -> tuple[int, str]:
    """`gpu:h100:8(S:0-1)` -> (8, "h100"). Several types add up and the first names the model."""
    found = _GRES_GPU.findall(gres)
    return sum(int(count) for _, count in found), next((model for model, _ in found if model), "")


def shares_gpus(gres: str) -> bool:
    """Whether a node offers MIG slices or shares of its GPUs: then its GPUs cannot be counted by it."""
    return _SHARES.search(gres.lower()) is not None


def gpu_indices(gres: str) -> tuple[int, ...] | None:
    """`gpu:h100:2(IDX:0,3)` -> (0, 3); () where it names no GPU. None: it does not tell which."""
    held = tuple(sorted(index for text in _GRES_INDEX.findall(gres) for index in expand_indices(text)))
    shares = any(part in gres for part in _SHARED_GRES)
    return None if shares or len(held) != gpus_of_gres(gres)[0] else held


def names_gpus(*texts: str | None) -> bool:
    """Whether one of a job's TRES or GRES texts asks for GPUs or shares of them."""
    return any(word in text for text in texts if text for word in ("gpu", *_SHARED_GRES))


def checked_node(name: str) -> str:
    """The name, if it can only mean one node to scontrol. UnknownNode otherwise, and nothing is run."""
    if not _NODE_NAME.fullmatch(name) or name.lower() in _NOT_NODES:
        raise UnknownNode(f"{name[:80]!r} is not the name of a Slurm node.", NODE_UNKNOWN)
    return name


def checked_nodes(nodes: str | Sequence[str]) -> list[str]:
    """One name or several, each as `checked_node`. ValueError for none at all."""
    names = [checked_node(name) for name in ([nodes] if isinstance(nodes, str) else nodes)]
    if not names:
        raise ValueError("no node is named")
    return names


def checked_reservation(name: str) -> str:
    """The name of a reservation. SchedulerRefused otherwise, and nothing is run."""
    if not _RESERVATION_NAME.fullmatch(name):
        raise SchedulerRefused(f"{name[:80]!r} is not the name of a reservation.", RESERVATION_UNKNOWN)
    return name


def reservation_flags(reservation: Reservation) -> list[str]:
    """What Slurm is told: MAINT with IGNORE_JOBS for planned work, as jobs may still run there."""
    return sorted({*reservation.flags, *(("MAINT", "IGNORE_JOBS") if reservation.maintenance else ())})


def checked_names(what: str, names: Sequence[str]) -> str:
    """Users or accounts as a list for a command. ValueError for one that is no name."""
    for name in names:
        if not _USER_NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is not the name of {what}")
    return ",".join(names)


def checked_signal(name: str) -> str:
    """`USR1`, `TERM` …. ValueError for anything else."""
    if not _SIGNAL_NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is not the name of a signal")
    return name


def checked_line(what: str, text: str, *, empty: bool = False) -> str:
    """One printable line. ValueError otherwise; also for one without a word, unless it may be `empty`."""
    if len(text) > _LONGEST_LINE or not text.isprintable():
        raise ValueError(f"{what} is one line of at most {_LONGEST_LINE} printable characters")
    if not (text.strip() or (empty and not text)):
        raise ValueError(f"{what} needs a word")
    return text


def checked_job(job: str) -> str:
    """The id (`123`, `123_4` or `123+1`). SchedulerRefused otherwise, and nothing is run."""
    if not _JOB_ID.fullmatch(job):
        raise SchedulerRefused(f"{job[:80]!r} is not the id of a Slurm job.", JOB_UNKNOWN)
    return job


def error(action: str, text: str) -> SchedulerError:
    """What Slurm's words on a failed call mean. Words that nobody knows are a refusal without a number."""
    said = " ".join(text.split())[:300] or "it said nothing"
    whole = f"{action}: {said}"
    for words, code in _REFUSALS:
        if words in said:
            return UnknownNode(whole, code) if code == NODE_UNKNOWN else SchedulerRefused(whole, code)
    if not text.strip() or any(words in said for words in _SILENCES):
        return SchedulerUnavailable(whole, sent=not any(words in said for words in _NOTHING_SENT))
    return SchedulerRefused(whole)


# --- host lists as Slurm prints them: strict. `model.hostlist` also takes a site's globs


def expand_hosts(text: str) -> tuple[str, ...]:
    """Every host named, in order. Empty for `""`, `(null)` and `None`. ValueError on anything malformed."""
    if text in ("", "(null)", "None"):
        return ()
    names = tuple(hostlist.expand(text))
    if any(char in name for name in names for char in "[], "):
        raise ValueError(f"not a hostlist: {text[:200]!r}")
    return names


def expand_indices(text: str) -> tuple[int, ...]:
    """`0-2,5` -> (0, 1, 2, 5). ValueError on anything malformed."""
    numbers = hostlist.expand(f"[{text}]")
    if not all(number.isdecimal() for number in numbers):
        raise ValueError(f"not a list of numbers: {text[:200]!r}")
    return tuple(int(number) for number in numbers)


# --- what a job's record means where every shape says it in the same words

#: slurmctld's description of a hold that it set itself after a failed launch (seen on 22.05 and 24.11).
_LAUNCH_FAILED = "launch failed"
#: Reasons of a hold by an administrator or by Slurm itself (more than MaxBatchRequeue failed launches).
_ADMIN_HOLDS = frozenset({"JobHeldAdmin", "JobHoldMaxRequeue"})
#: The text form of 22.05 shows the description, with `_` for spaces, in the place of `JobHeldUser`.
_HELD_AS = frozenset({"launch_failed_requeued_held", "job_requeued_in_held_state"})
#: Options of a submission stand in front of its script, within so many characters.
_OPTIONS_END = 4096
_UNENDED = frozenset({"PENDING", "RUNNING", "SUSPENDED"})


def held_by(state: str, priority: int | None, reason: str, why: str) -> str:
    """`user`, `admin` (also Slurm itself), or empty: held is pending with priority 0."""
    if state != "PENDING" or priority != 0:
        return ""
    if reason in _ADMIN_HOLDS or why.startswith(_LAUNCH_FAILED):
        return "admin"
    return "user" if reason == "JobHeldUser" else ""


def reason_and_why(text: str) -> tuple[str, str]:
    """The text form's `Reason=`, as JSON tells it: reason and description."""
    return ("JobHeldUser", text.replace("_", " ")) if text in _HELD_AS else (text, "")


def computes(state: str, flags: tuple[str, ...]) -> bool:
    """It holds what it was given, and all of that is shown: a job that is ending shows no GPUs."""
    return state in {"RUNNING", "SUSPENDED"} and "COMPLETING" not in flags


def waits_together(job: SlurmJob) -> bool:
    """A record that stands for array tasks which wait together: no single job to requeue or to start."""
    return bool(job.array_job) and job.array_task is None


def command_id(job: SlurmJob) -> str:
    """What a command must say for it: `5_1` for a task of an array, its own id for all else. Slurm takes the
    plain id of an array's last task for the whole array (d.8, 12)."""
    return job.id if job.array_task is None else f"{job.array_job}_{job.array_task}"


def job_named(name: str, jobs: Mapping[str, SlurmJob]) -> SlurmJob | None:
    """By raw id, as a task (`5_1`) or as a part of a heterogeneous job (`5+1`)."""
    tasks = {command_id(job): job for job in jobs.values()}
    parts = {f"{job.het_job}+{job.het_offset}": job for job in jobs.values()}
    return jobs.get(name) or tasks.get(name) or parts.get(name)


def has_ended(state: str) -> bool:
    """Its exit code and end are facts. A job that is pending or runs shows when it may end at most."""
    return state not in _UNENDED


def exit_code(code: int, signal: int) -> str:
    """`3`, or `0:9` where a signal ended it."""
    return f"{code}:{signal}" if signal else str(code)


def no_kill(submit_line: str) -> bool | None:
    """True where the submission says --no-kill. None: no job record tells it, and a script may say it too.

    A `--no-kill` of the script's own is taken for Slurm's: then nothing is done where something might be. The
    line is its user's and as long as they like (1 MiB was seen): only its beginning is read.
    """
    words = submit_line[:_OPTIONS_END].split()
    told = [word for word in words if word == "-k" or word.partition("=")[0] == "--no-kill"]
    return True if told and not told[-1].endswith("=off") else None
