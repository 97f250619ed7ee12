"""What `scontrol show node` and `scontrol -d show job` print (SLURM_TIME_FORMAT=%s), as nouns.

The text of a job is partly written by its owner: a job's name or comment may hold line breaks and lines that
look like Slurm's own. So a job's text counts only when it can be read in one way: one record, every line
begins with a key that Slurm prints, no key twice, and none that Slurm prints for a few jobs alone, for a
comment could forge it. Otherwise `Ambiguous` is raised and the caller takes JSON.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise

from healer.adapters.slurm import job_words
from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm import strict_hostlist as hostlist
from healer.model import SlurmJob, SlurmNode


class Ambiguous(Exception):
    """This text could be read in more than one way, or not at all."""


# --- nodes: written by administrators alone --------------------------------------------------------------

_NODE_START = re.compile(r"^NodeName=(\S+)", re.MULTILINE)
_NODE_KEYS = re.compile(
    r"^   (?:(State)=(\S+)|(ActiveFeatures)=(\S*)|(Gres)=(\S*)|(Partitions)=(\S*)|(BootTime)=(\S+)"
    r"|(NodeAddr)=(\S+)|(NextState)=(\S+)|(Comment)=(.*)|(Extra)=(.*))",
    re.MULTILINE,
)
_NODE_HOST = re.compile(r"^   NodeAddr=\S+ NodeHostName=(\S+)", re.MULTILINE)
_NODE_REASON = re.compile(r"^   Reason=(.*(?:\n {10}.*)*)", re.MULTILINE)
_REASON_LINE = re.compile(r"(.*) \[([^\[\]@\s]+)@([0-9]+)\]")


def nodes(text: str) -> dict[str, SlurmNode]:
    """All nodes of `scontrol show node`, by name."""
    heads = list(_NODE_START.finditer(text))
    bounds = pairwise([*(head.start() for head in heads), len(text)])
    return {
        head[1]: _node(head[1], text[start:end]) for head, (start, end) in zip(heads, bounds, strict=True)
    }


def _node(name: str, text: str) -> SlurmNode:
    found: dict[str, str] = {}
    for match in _NODE_KEYS.finditer(text):
        key, value = (part for part in match.groups() if part is not None)
        found.setdefault(key, value)
    gres = _plain(found.get("Gres", ""))
    gpus, model = words.gpus_of_gres(gres)
    state = words.node_state(found.get("State", "UNKNOWN"))
    address, host = found.get("NodeAddr", name), _NODE_HOST.search(text)
    hostname = host[1] if host else name
    reason, user, at = _reason(text) if words.reason_stands(state) else ("", "", None)
    return SlurmNode(
        name=name,
        state=state,
        reason=reason,
        reason_user=user,
        reason_at=at,
        gpus=gpus,
        gpu_model=model,
        gpus_shared=words.shares_gpus(gres),
        partitions=_names(found.get("Partitions", "")),
        features=_names(found.get("ActiveFeatures", "")),
        boot_at=_time(found.get("BootTime", "")),
        address="" if address == name else address,
        hostname="" if hostname == name else hostname,
        comment=_plain(found.get("Comment", "").rstrip()),
        extra=_plain(found.get("Extra", "").rstrip()),
        after_reboot=words.node_state(found["NextState"]) if "NextState" in found else (),
    )


def _reason(text: str) -> tuple[str, str, datetime | None]:
    """Slurm puts user and time behind the first line of the reason; more lines stand under it."""
    match = _NODE_REASON.search(text)
    if match is None:
        return "", "", None
    first, *more = match[1].split("\n")
    signed = _REASON_LINE.fullmatch(first.rstrip())
    if signed is None:
        return "\n".join([first.rstrip(), *(line[10:] for line in more)]), "", None
    return "\n".join([signed[1], *(line[10:] for line in more)]), signed[2], _time(signed[3])


# --- jobs ------------------------------------------------------------------------------------------------

_JOB_HEAD = re.compile(
    r"JobId=(?P<job>\d+)"
    r"(?: ArrayJobId=(?P<array>\d+) ArrayTaskId=(?P<task>\S+)(?: ArrayTaskThrottle=\d+)?)?"
    r"(?: HetJobId=(?P<het>\d+) HetJobOffset=(?P<offset>\d+))?"
    r" JobName=(?P<name>.*)"
)
#: The keys that begin a line, as 22.05 prints them with -d; what stands behind the first is fixed by Slurm.
_JOB_LINES = {
    "UserId", "Priority", "JobState", "Requeue", "DerivedExitCode", "RunTime", "SubmitTime", "AccrueTime",
    "StartTime", "SuspendTime", "Partition", "ReqNodeList", "NodeList", "BatchHost", "NumNodes", "TRES",
    "Socks/Node", "JOB_GRES", "MinCPUsNode", "Features", "OverSubscribe", "Command", "WorkDir", "Comment",
    "StdErr", "StdIn", "StdOut", "Power", "TresPerNode", "TresPerJob", "TresPerTask", "TresPerSocket",
    "CpusPerTres", "MemPerTres", "GresEnforceBind", "BatchFeatures", "SystemComment", "MailUser", "Switches",
    "HetJobIdSet", "TresBind", "TresFreq", "NtasksPerTRES",
}  # fmt: skip
# Not among them: Reservation, AdminComment and FedOrigin. Where Slurm prints none, a line break in a name or
# a comment makes one that is no second one. Jobs that have one are read from JSON.
_JOB_LINE = re.compile(r"   ([A-Za-z/_]+)=(.*)")
_UID = re.compile(r"\((\d+)\)$")
_JOB_GRES = re.compile(r"     Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)")
_NEEDED = (
    "UserId",
    "JobState",
    "Requeue",
    "SubmitTime",
    "StartTime",
    "Partition",
    "ReqNodeList",
    "NodeList",
    "MinCPUsNode",
)


def job(text: str) -> tuple[SlurmJob, str]:
    """The one job of `scontrol -d show job ID`, and the id that commands must use for it (`5_1` for a task of
    an array, so that a command never walks the whole array). Ambiguous when that cannot be told."""
    records = text.strip("\n").rstrip().split("\n")
    head = _JOB_HEAD.fullmatch(records[0])
    if head is None:
        raise Ambiguous("the first line is not the head of a job")
    found: dict[str, str] = {}
    gpus: dict[str, tuple[int, ...] | None] = {}
    for line in records[1:]:
        if not line.strip() and "MinCPUsNode" in found:
            continue
        gres = _JOB_GRES.fullmatch(line.rstrip())
        if gres and "NodeList" in found and "MinCPUsNode" not in found:
            gpus |= dict.fromkeys(hostlist.expand(gres[1]), words.gpu_indices(gres[2]))
            continue
        match = _JOB_LINE.fullmatch(line)
        if match is None or match[1] not in _JOB_LINES or match[1] in found:
            raise Ambiguous(f"the line {line[:80]!r}")
        found[match[1]] = match[2]
    missing = [key for key in (*_NEEDED, "MinCPUsNode") if key not in found]
    if missing:
        raise Ambiguous(f"no {', '.join(missing)}")
    array, task = head["array"], head["task"]
    return _job(head, found, gpus), f"{array}_{task}" if array else head["job"]


def _job(head: re.Match[str], found: dict[str, str], gpus: dict[str, tuple[int, ...] | None]) -> SlurmJob:
    first = _pairs("Priority", found.get("Priority", ""))
    state_line = _pairs("JobState", found["JobState"])
    requeue_line = _pairs("Requeue", found["Requeue"])
    times = _pairs("SubmitTime", found["SubmitTime"]) | _pairs("StartTime", found["StartTime"])
    nodes_line = _pairs("ReqNodeList", found["ReqNodeList"])
    state, flags = words.job_state(state_line["JobState"])
    reason, why = job_words.reason_and_why(_plain(state_line.get("Reason", "")))
    priority = int(first["Priority"]) if first.get("Priority", "").isdecimal() else None
    ended = job_words.has_ended(state)
    on = hostlist.expand(found["NodeList"].strip())
    task = head["task"] or ""
    user = _pairs("UserId", found["UserId"])["UserId"]
    return SlurmJob(
        id=head["job"],
        state=state,
        flags=flags,
        nodes=on,
        gpus=_told(found, {node: held for node, held in gpus.items() if node in on}, state, flags),
        restarts=int(requeue_line["Restarts"]),
        requeue=requeue_line["Requeue"] == "1",
        batch=requeue_line["BatchFlag"] == "1",
        name=head["name"],
        user=user.partition("(")[0],
        uid=int(owner[1]) if (owner := _UID.search(user)) else None,
        partition=found["Partition"].split(" ", 1)[0],
        qos=_plain(first.get("QOS", "")),
        comment=found.get("Comment", "").strip(),
        reason=reason,
        start_at=_time(times["StartTime"]),
        excluded=hostlist.expand(nodes_line.get("ExcNodeList", "")),
        submit_at=_time(times["SubmitTime"]),
        eligible_at=_time(times.get("EligibleTime", "")),
        end_at=_time(times.get("EndTime", "")) if ended else None,
        exit_code=_exit_code(requeue_line.get("ExitCode", "")) if ended else None,
        account=_plain(first.get("Account", "")),
        dependency=_plain(state_line.get("Dependency", "")),
        priority=priority,
        held_by=job_words.held_by(state, priority, reason, why),
        array_job=head["array"] or "",
        array_task=int(task) if task.isdecimal() else None,
        het_job=head["het"] or "",
        het_offset=int(head["offset"]) if head["het"] else None,
        why=why,
    )


def _exit_code(text: str) -> str | None:
    """`3:0` -> `3`, `0:9` -> `0:9`."""
    code, _, signal = text.partition(":")
    if not (code.isdecimal() and signal.isdecimal()):
        return None
    return job_words.exit_code(int(code), int(signal))


def _told(
    found: dict[str, str], gpus: dict[str, tuple[int, ...] | None], state: str, flags: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """GPU indices by node: () where the job has none there, no entry where Slurm does not tell."""
    running = state in {"RUNNING", "SUSPENDED"} and "COMPLETING" not in flags
    asks = (text for key, text in found.items() if key == "JOB_GRES" or key.startswith("Tres"))
    # A job that is ending shows an empty GRES on every node, and so would one whose GPUs are not told.
    none = running and (any(gpus.values()) or not words.names_gpus(*asks))
    return {node: held for node, held in gpus.items() if held is not None and (held or none)}


def _pairs(first: str, rest: str) -> dict[str, str]:
    """`RUNNING Reason=None Dependency=(null)` behind the key `JobState` -> its keys and values. The first of
    two alike counts: what a user may write (WCKey) stands last."""
    return dict(reversed(list(_key_and_value(f"{first}={rest}"))))


def _key_and_value(line: str) -> Iterator[tuple[str, str]]:
    for piece in line.split():
        key, _, value = piece.partition("=")
        yield key, value


def _plain(text: str) -> str:
    return "" if text in ("(null)", "None", "N/A") else text


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in _plain(text).split(",") if part)


def _time(text: str) -> datetime | None:
    """Seconds since 1970, which SLURM_TIME_FORMAT=%s makes of Slurm's local times; 0 and words are none."""
    return words.moment(int(text)) if text.isdecimal() and len(text) < 20 else None
