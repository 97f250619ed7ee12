"""Parses the text of Slurm's commands (with SLURM_TIME_FORMAT=%s).

A job's owner writes parts of its text: its name or comment may contain line breaks and lines that look like
Slurm's. So the text must be unambiguous: one record, every line starts with a key that Slurm prints, no key
occurs twice, and none is optional, because a comment could forge it. Otherwise `Ambiguous` is raised, and the
caller reads JSON.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

from healer.adapters.slurm import parse_json
from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.parse_json import NotUnderstood
from healer.model import BLOCK, Reservation, SlurmJob, SlurmNode
from healer.model.slurm_spelling import job_state
from healer.text import Said, say


class Ambiguous(Exception):
    """The text has more than one reading, or none."""


# --- nodes: only administrators write their text ---------------------------------------------------------

_NODE_START = re.compile(r"^NodeName=(\S+)", re.MULTILINE)
_NODE_KEYS = re.compile(
    r"^   (?:(State)=(\S+)|(ActiveFeatures)=(\S*)|(Gres)=(\S*)|(Partitions)=(\S*)|(BootTime)=(\S+)"
    r"|CPUAlloc=\S+ (?:CPUEfctv=\S+ )?(CPUTot)=(\d+)"
    r"|(NodeAddr)=(\S+)|(NextState)=(\S+)|(Comment)=(.*)|(Extra)=(.*))",
    re.MULTILINE,
)
_NODE_HOST = re.compile(r"^   NodeAddr=\S+ NodeHostName=(\S+)", re.MULTILINE)
_NODE_REASON = re.compile(r"^   Reason=(.*(?:\n {10}.*)*)", re.MULTILINE)
# The names of a directory may have an @ too: the last one is before the time.
_REASON_LINE = re.compile(r"(.*) \[([^\[\]\s]+)@([0-9]+)\]")


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
    host = _NODE_HOST.search(text)
    reason, user, at = _reason(text)
    return parse_json.node(
        parse_json.NodeRecord(
            name=name,
            address=found.get("NodeAddr"),
            hostname=host[1] if host else None,
            state=found.get("State"),
            reason=reason,
            reason_changed_at=at,
            reason_set_by_user=user,
            boot_time=_seconds(found.get("BootTime", "")),
            gres=_plain(found.get("Gres", "")),
            cpus=int(found.get("CPUTot", 0)),
            partitions=_plain(found.get("Partitions", "")),
            active_features=_plain(found.get("ActiveFeatures", "")),
            comment=_plain(found.get("Comment", "").rstrip()),
            extra=_plain(found.get("Extra", "").rstrip()),
            next_state_after_reboot=found.get("NextState"),
        )
    )


def _reason(text: str) -> tuple[str, str, int | None]:
    """Reason, user and time. Slurm appends user and time to the first line of the reason."""
    match = _NODE_REASON.search(text)
    if match is None:
        return "", "", None
    first, *more = match[1].split("\n")
    signed = _REASON_LINE.fullmatch(first.rstrip())
    if signed is None:
        return "\n".join([first.rstrip(), *(line[10:] for line in more)]), "", None
    return "\n".join([signed[1], *(line[10:] for line in more)]), signed[2], _seconds(signed[3])


# --- jobs ------------------------------------------------------------------------------------------------

_JOB_HEAD = re.compile(
    r"JobId=(?P<job>\d+)"
    r"(?: ArrayJobId=(?P<array>\d+) ArrayTaskId=(?P<task>\S+)(?: ArrayTaskThrottle=\d+)?)?"
    r"(?: HetJobId=(?P<het>\d+) HetJobOffset=(?P<offset>\d+))?"
    r" JobName=(?P<name>.*)"
)
#: The first key of each line of 22.05 with -d; Slurm fixes the order of the keys that follow it.
_JOB_LINES = {
    "UserId", "Priority", "JobState", "Requeue", "DerivedExitCode", "RunTime", "SubmitTime", "AccrueTime",
    "StartTime", "SuspendTime", "Partition", "ReqNodeList", "NodeList", "BatchHost", "NumNodes", "TRES",
    "Socks/Node", "JOB_GRES", "MinCPUsNode", "Features", "OverSubscribe", "Command", "WorkDir", "Comment",
    "StdErr", "StdIn", "StdOut", "Power", "TresPerNode", "TresPerJob", "TresPerTask", "TresPerSocket",
    "CpusPerTres", "MemPerTres", "GresEnforceBind", "BatchFeatures", "SystemComment", "MailUser", "Switches",
    "HetJobIdSet", "TresBind", "TresFreq", "NtasksPerTRES",
}  # fmt: skip
# Without Reservation, AdminComment and FedOrigin, which Slurm prints only for some jobs: a line break in a
# name or comment could forge them. Jobs that have one are read from JSON.
_JOB_LINE = re.compile(r"   ([A-Za-z/_]+)=(.*)")
_UID = re.compile(r"\((\d+)\)$")
_JOB_GRES = re.compile(r"     Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)")
_NEEDED = (
    "UserId", "JobState", "Requeue", "SubmitTime", "StartTime", "Partition", "ReqNodeList", "NodeList",
    "MinCPUsNode",
)  # fmt: skip


def job(text: str) -> SlurmJob:
    """The job of `scontrol -d show job ID`. Raises Ambiguous."""
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
            gpus |= dict.fromkeys(words.expand_hosts(gres[1]), words.gpu_indices(gres[2]))
            continue
        match = _JOB_LINE.fullmatch(line)
        if match is None or match[1] not in _JOB_LINES or match[1] in found:
            raise Ambiguous(f"the line {line[:80]!r}")
        found[match[1]] = match[2]
    missing = [key for key in (*_NEEDED, "MinCPUsNode") if key not in found]
    if missing:
        raise Ambiguous(f"no {', '.join(missing)}")
    return _job(head, found, gpus)


def _job(head: re.Match[str], found: dict[str, str], gpus: dict[str, tuple[int, ...] | None]) -> SlurmJob:
    first = _pairs("Priority", found.get("Priority", ""))
    state_line = _pairs("JobState", found["JobState"])
    requeue_line = _pairs("Requeue", found["Requeue"])
    times = _pairs("SubmitTime", found["SubmitTime"]) | _pairs("StartTime", found["StartTime"])
    state, flags = job_state(state_line["JobState"])
    reason, why = words.reason_and_why(_plain(state_line.get("Reason", "")))
    on = words.expand_hosts(found["NodeList"].strip())
    user = _pairs("UserId", found["UserId"])["UserId"]
    wished = _pairs("ReqNodeList", found["ReqNodeList"])
    record = parse_json.JobRecord(
        job_id=int(head["job"]),
        job_state=state_line["JobState"],
        array_job_id=int(head["array"] or 0),
        array_task_id=_decimal(head["task"] or ""),
        nodes=found["NodeList"].strip(),
        restart_cnt=int(requeue_line["Restarts"]),
        requeue=requeue_line["Requeue"] == "1",
        batch_flag=requeue_line["BatchFlag"] == "1",
        name=head["name"],
        user_name=user.partition("(")[0],
        user_id=int(owner[1]) if (owner := _UID.search(user)) else None,
        partition=found["Partition"].split(" ", 1)[0],
        qos=_plain(first.get("QOS", "")),
        comment=found.get("Comment", "").strip(),
        state_reason=reason,
        start_time=_seconds(times["StartTime"]),
        required_nodes=wished.get("ReqNodeList"),
        excluded_nodes=wished.get("ExcNodeList"),
        submit_time=_seconds(times["SubmitTime"]),
        eligible_time=_seconds(times.get("EligibleTime", "")),
        end_time=_seconds(times.get("EndTime", "")),
        exit_code=_exit_code(requeue_line.get("ExitCode", "")),
        account=_plain(first.get("Account", "")),
        dependency=_plain(state_line.get("Dependency", "")),
        priority=_decimal(first.get("Priority", "")),
        het_job_id=int(head["het"] or 0),
        het_job_offset=int(head["offset"] or 0),
        state_description=why,
    )
    held = {node: indices for node, indices in gpus.items() if node in on}
    return parse_json.job(record, _reported_gpus(found, held, running=words.shows_allocation(state, flags)))


def _exit_code(text: str) -> parse_json.ExitCode | None:
    """`3:0` or `0:9`: exit code and signal."""
    code, _, signal = text.partition(":")
    if not (code.isdecimal() and signal.isdecimal()):
        return None
    return parse_json.ExitCode(int(code), parse_json.Signal(int(signal)))


def _reported_gpus(
    found: dict[str, str], gpus: dict[str, tuple[int, ...] | None], *, running: bool
) -> dict[str, tuple[int, ...]]:
    """GPU indices by node: () if the job has none, no entry if Slurm does not report them."""
    asks = (text for key, text in found.items() if key == "JOB_GRES" or key.startswith("Tres"))
    # An empty GRES on every node means no GPUs only for a running job that asked for none.
    none = running and (any(gpus.values()) or not words.names_gpus(*asks))
    return {node: held for node, held in gpus.items() if held is not None and (held or none)}


def _pairs(first: str, rest: str) -> dict[str, str]:
    """The keys and values of a line: `RUNNING Reason=None Dependency=(null)` after `JobState=`. The first of
    two equal keys counts: the field that users may write (WCKey) is last."""
    return dict(reversed(list(_key_and_value(f"{first}={rest}"))))


def _key_and_value(line: str) -> Iterator[tuple[str, str]]:
    for piece in line.split():
        key, _, value = piece.partition("=")
        yield key, value


def _plain(text: str) -> str:
    return "" if text in ("(null)", "None", "N/A") else text


def _decimal(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _seconds(text: str) -> int | None:
    """Unix seconds, which SLURM_TIME_FORMAT=%s prints for times; None for words."""
    return int(text) if text.isdecimal() and len(text) < 20 else None


# --- reservations ----------------------------------------------------------------------------------------

_RESERVATION = re.compile(r"^ReservationName=", re.MULTILINE)
_RESERVATION_NAME = re.compile(r"^ReservationName=(\S+)")
_RESERVATION_PAIR = re.compile(r"(?:^|\s)(StartTime|EndTime|Nodes|Flags|Users|Accounts)=(\S*)")


def reservations(text: str) -> dict[str, Reservation]:
    """All reservations by name. Raises NotUnderstood for an unreadable record, because healer must not miss a
    reservation."""
    starts = [match.start() for match in _RESERVATION.finditer(text)]
    records = [text[start:end] for start, end in pairwise([*starts, len(text)])]
    if not records and text.strip() and "No reservations" not in text:
        raise NotUnderstood(_printed("scontrol show reservation", text))
    return {found.name: found for found in map(_reservation, records)}


def _reservation(text: str) -> Reservation:
    name, found = _RESERVATION_NAME.match(text), dict(_RESERVATION_PAIR.findall(text))
    if name is None or not {"StartTime", "EndTime", "Nodes", "Flags"} <= set(found):
        raise NotUnderstood(_printed("scontrol show reservation", text))
    try:
        return parse_json.reservation(
            parse_json.ReservationRecord(
                name=name[1],
                node_list=found["Nodes"],
                users=found.get("Users"),
                accounts=found.get("Accounts"),
                flags=found["Flags"],
                start_time=int(found["StartTime"]),
                end_time=int(found["EndTime"]),
            )
        )
    except ValueError as error:
        raise NotUnderstood(say("slurm.unread_reservation", name=name[1], error=str(error))) from error


def _printed(program: str, text: str) -> Said:
    return say("slurm.printed", program=program, words=text.strip()[:200])


# --- slurmctld itself ------------------------------------------------------------------------------------

_SERVER = re.compile(r"^Slurmctld\((\w+)\) at (\S+) is (UP|DOWN)", re.MULTILINE)
_QUEUES = {
    "threads": re.compile(r"^Server thread count:\s+(\d+)", re.MULTILINE),
    "agent": re.compile(r"^Agent queue size:\s+(\d+)", re.MULTILINE),
    "dbd": re.compile(r"^DBD Agent queue size:\s+(\d+)", re.MULTILINE),
}


def servers(text: str) -> list[parse_json.Server]:
    """From `scontrol ping`, also if one of them is down. Raises NotUnderstood."""
    found = _SERVER.findall(text)
    if not found:
        raise NotUnderstood(_printed("scontrol ping", text))
    return [parse_json.Server(host, parse_json.role_of(mode), state == "UP") for mode, host, state in found]


def queues(text: str) -> parse_json.Queues:
    """From `sdiag`; None for values that it does not print."""
    found = {name: pattern.search(text) for name, pattern in _QUEUES.items()}
    return parse_json.Queues(**{name: int(match[1]) for name, match in found.items() if match})


# --- topology: the same text since 2.0 -------------------------------------------------------------------

_BLOCK = re.compile(r"^BlockName=(\S+)\b(.*)$", re.MULTILINE)
_SWITCH = re.compile(r"^SwitchName=(\S+) Level=(\d+)\b(.*)$", re.MULTILINE)
_NODES = re.compile(r"\bNodes=(\S+)")


def switches(text: str) -> Mapping[str, tuple[str, ...]]:
    """By node: its switches, leaf first. Empty without topology/tree: topology/block prints BlockName, and a
    flat cluster nothing. Raises NotUnderstood for malformed node names."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name, level, rest in _SWITCH.findall(text):
        for node in _nodes_under("switch", name, rest):
            found.setdefault(node, []).append((int(level), name))
    return {node: tuple(name for _, name in sorted(above)) for node, above in found.items()}


def blocks(text: str) -> Mapping[str, tuple[str, ...]]:
    """By node: its block of topology/block, with the prefix `BLOCK`. Aggregated blocks are skipped."""
    found: dict[str, tuple[str, ...]] = {}
    for name, rest in _BLOCK.findall(text):
        if "+" not in name and "," not in name:
            found |= {node: (f"{BLOCK}{name}",) for node in _nodes_under("block", name, rest)}
    return found


def _nodes_under(what: str, name: str, rest: str) -> tuple[str, ...]:
    nodes = _NODES.search(rest)
    try:
        return words.expand_hosts(nodes[1] if nodes else "")
    except ValueError as error:
        raise NotUnderstood(say(f"slurm.unread_{what}", name=name, error=str(error))) from error
