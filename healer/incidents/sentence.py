"""What an engineer would say of an incident in one breath. Made of the fault's own words."""

import re

from healer.incidents.senses import ended_work
from healer.model import (
    REMEDY_LADDER,
    Cause,
    Component,
    FaultClass,
    HitBasis,
    Incident,
    JobHit,
    Remedy,
    Verdict,
)

#: Longer than this nobody reads in one breath, and a pager cuts it.
LONGEST = 200

_CODE = re.compile(r"(?:^|:)(s?xid)-(\d+)$")
#: What stands before the fault's own words in a line's title: `Xid 79: `, `SXid 20034 on NVSwitch 2: `.
_TITLE_HEAD = re.compile(r"^S?Xid \d+(?: on [^:,]+)?(?:, link \d+)?: ")
#: A title that is a clause about the thing itself: its subject gives way to the place.
_SUBJECT = re.compile(
    r"^(?:An? |The )?(GPU|node|NVSwitch|NVLink|switch|job) (?=(?:has|is|was|does|did|cannot|could|fell|"
    r"failed|stopped|answers|offers|waits|went|goes|moves|draws|stays|takes|asks|receives|throws|computes|"
    r"multiplies|works|tells|gives)\b)",
    re.IGNORECASE,
)
#: First words that keep their capital within a sentence, beside those with a capital further on (`RoCE`).
#: It ends the program that it hit, which Slurm learns later, or never.
_CONTAINED = "xid-94"
#: Faults without a number that are a GPU's.
_OF_GPUS = frozenset({"gpu-lost", "gpu-init-failed"})
_NAMES = frozenset({"Slurm", "Prometheus", "Lustre"})
#: The same without a verb: `GPU memory above its limit`, `GPU page fault (MMU)`.
_BARE = re.compile(r"^GPU (?=[a-z\d])")

#: What `healer.detection.kernel` says of a code without a row.
_NOT_LISTED = "in no catalogue"

_UNTIL = {
    Remedy.restart_service: "its service is restarted",
    Remedy.reset_gpu_when_idle: "the GPU is reset",
    Remedy.drain_then_reset: "the GPU is reset",
    Remedy.reboot_node: "it is rebooted",
    Remedy.power_cycle: "it is power-cycled",
    Remedy.replace: "the part is replaced",
}
_MAY_WAIT = {
    Remedy.requeue_job: "it may wait: the job can be requeued",
    Remedy.restart_service: "it may wait for a restart of the service",
    Remedy.reset_gpu_when_idle: "it may wait until the GPU is idle and reset",
    Remedy.drain_then_reset: "it may wait until the node is empty and the GPU reset",
    Remedy.reboot_node: "it may wait for a reboot",
    Remedy.power_cycle: "it may wait for a power cycle",
    Remedy.replace: "the part is to be replaced",
}


def code_of(fault: str) -> str:
    """`Xid 79`, `SXid 20034`; empty for a fault without a number."""
    if fault.startswith("driver-asks"):
        return "Xid 154"
    found = _CODE.search(fault)
    return f"{'SXid' if found[1] == 'sxid' else 'Xid'} {found[2]}" if found else ""


def sure_words(certainty: float) -> str:
    """`certain`, `very likely, 95 %`, `likely, 80 %`, `unsure, 50 %`."""
    if certainty >= 0.98:
        return "certain"
    word = "very likely" if certainty >= 0.9 else "likely" if certainty >= 0.7 else "unsure"
    return f"{word}, {certainty:.0%}".replace("%", " %")


def place(root: Component) -> str:
    """`GPU 3 of gpu0017`, `NVSwitch 2 of gpu0005`, `gpu0009`, `switch leaf-3`, `pdu-r01`, `job 4711`."""
    part = ""
    if root.gpu is not None:
        part = f"GPU {root.gpu}"
    elif root.link is not None:
        part = f"{root.switch} link {root.link}" if root.switch else f"NVLink {root.link}"
    elif root.nic:
        part = root.nic
    elif root.switch and root.node:
        part = root.switch
    elif root.pci:
        part = f"the device at {root.pci}"
    elif root.part and root.device:
        part = root.part
    whole = root.node or (f"switch {root.switch}" if root.switch else "") or root.device or ""
    if not whole:
        whole = f"job {root.job}" if root.job else f"cluster {root.cluster}"
    return f"{part} of {whole}" if part else whole


def sentence_of(incident: Incident, certainty: float) -> str:
    """At most 200 characters: what is broken, how sure, what follows, whom it hit if there is room."""
    if incident.fault_class is FaultClass.unknown and incident.is_open and code_of(incident.fault):
        return _fitted([_unknown(incident)], ["healer watches it and asks you once"], [""])
    sure = ", ".join(one for one in (code_of(incident.fault), sure_words(certainty)) if one)
    whole = _subject(incident)
    short = whole[: whole.find(": ", whole.find(": ") + 2)] if whole.count(": ") > 1 else whole
    heads = [f"{head} ({sure})" for head in (whole, short)]
    room = LONGEST - len(sure) - len("… ().")
    if len(whole) > room:
        heads = [f"{whole[:room].rstrip()}… ({sure})"]
    return _fitted(heads, [_follows(incident), ""], _jobs(incident))


def _fitted(heads: list[str], follows: list[str], jobs: list[str]) -> str:
    """The first that fits: the jobs are given up last but for the head, and the whole of a head first."""
    for tail in follows:
        for told in jobs:
            for head in heads:
                text = "; ".join(part for part in (head, tail, told) if part)
                if len(text) < LONGEST:
                    return f"{begun(text)}."
    head = heads[-1]
    return f"{begun(head if len(head) < LONGEST else f'{head[: LONGEST - 2]}…')}."


def begun(text: str) -> str:
    """With a capital, unless it begins with a name."""
    return text[:1].upper() + text[1:] if text.partition(" ")[0].isalpha() else text


def _unknown(incident: Incident) -> str:
    code, where = code_of(incident.fault), _where(incident)
    if _NOT_LISTED in incident.title:
        return f"No catalogue knows {code} on {where}"
    return f"The catalogue leaves open what {code} on {where} means ({_TITLE_HEAD.sub('', incident.title)})"


def _where(incident: Incident) -> str:
    """Xids are told of GPUs alone, also where only the address is known."""
    root, where = incident.root, place(incident.root)
    of_gpu = code_of(incident.fault).startswith("Xid") or incident.fault in _OF_GPUS
    if of_gpu and root.node and place(root) == root.node and incident.root.pci is None:
        gpus = len({one.pci for one in incident.affected if one.node == root.node and one.pci})
        return f"{gpus} GPUs of {root.node}" if gpus > 1 else f"a GPU of {root.node}"
    return where.replace("the device at ", "the GPU at ") if of_gpu else where


def _subject(incident: Incident) -> str:
    """Where, and what: `GPU 3 of gpu0017 fell off the bus`, `gpu0009: memory above its limit`."""
    where = _where(incident)
    what = " ".join(_TITLE_HEAD.sub("", incident.title).split()).rstrip(".")
    root = incident.root
    named = root.node or root.device or root.switch or root.job
    if named and re.search(rf"\b{re.escape(named)}\b", what):
        return what
    found = _SUBJECT.match(what)
    of_gpus = where.endswith(f"GPUs of {named}") or where == f"a GPU of {named}"
    if found and (found[1].lower() in _kinds(incident) or (of_gpus and found[1] == "GPU")):
        return f"{where} {what[found.end() :]}"
    return f"{where}: {_within(_BARE.sub('', what))}"


def _within(text: str) -> str:
    """Without its capital, unless that is a name's."""
    first = text.partition(" ")[0]
    name = first in _NAMES or (len(first) > 1 and not first[1:].islower())
    return text if name else text[:1].lower() + text[1:]


def _kinds(incident: Incident) -> set[str]:
    """What the root is, in the words of titles."""
    root = incident.root
    part = {
        "gpu": root.gpu is not None or root.pci is not None,
        "nvlink": root.link is not None,
        "nvswitch": root.switch is not None and root.node is not None,
        "switch": root.part is None and (root.device or root.switch) is not None and root.node is None,
        "job": root.job is not None and root.node is None,
    }
    kinds = {kind for kind, so in part.items() if so}
    return kinds or ({"node"} if root.node and not root.nic else set())


_NOT_THE_NODE = {
    Cause.application: "the job's own doing: no hardware is blamed",
    Cause.storage: "not the nodes, but the storage that they wait for",
    Cause.fabric: "not the nodes, but what they share",
    Cause.maintenance: "planned work: nothing is done",
}


def _follows(incident: Incident) -> str:
    if incident.merged_into is not None:
        return f"explained by incident {incident.merged_into[:8]}"
    if not incident.is_open:
        return f"over: {_within(incident.closed_why)}" if incident.closed_why else "it is over"
    blamed = max(incident.nodes.values(), key=list(Verdict).index, default=Verdict.healthy)
    remedy = next((one for one in incident.remedy if one in REMEDY_LADDER), Remedy.none)
    if incident.cause is Cause.maintenance or blamed is Verdict.healthy:
        no_node = "" if incident.root.node else "no node is blamed"
        return _NOT_THE_NODE.get(incident.cause, no_node)
    if blamed is Verdict.isolate:
        node = "the node" if len(incident.nodes) == 1 else f"its {len(incident.nodes)} nodes"
        may = "cannot be used" if incident.unusable else "should take no jobs"
        return f"{node} {may} until {_UNTIL.get(remedy, 'a person has looked')}"
    return _MAY_WAIT.get(remedy, "it may wait") if blamed is Verdict.suspect else "healer watches it"


def _jobs(incident: Incident) -> list[str]:
    """Whose work ended with it, and that the job's other nodes are well where only one is blamed: the whole,
    then shorter ones."""
    lost = [one for one in incident.hit if one.ended_at is not None]
    how = "crashed with it" if ended_work(incident) else "lost work by it"
    if len(lost) > 1:
        return [f"{len(lost)} jobs {how}", ""]
    if lost:
        told = f"{_job(lost[0])} {how}"
        return [told + _others(lost[0], incident), told, ""]
    running = [one for one in incident.hit if one.basis is HitBasis.runs_on]
    lone = len(running) == 1 and running[0].job != incident.root.job
    if lone and incident.fault == _CONTAINED:
        return [f"Slurm shows job {running[0].job} at work", ""]
    return [f"job {running[0].job} runs on", ""] if lone else [""]


def _job(one: JobHit) -> str:
    return f"{one.gpus} ranks of job {one.job}" if one.gpus > 1 else f"job {one.job}"


def _others(one: JobHit, incident: Incident) -> str:
    blamed = sum(verdict is not Verdict.healthy for verdict in incident.nodes.values())
    if one.nodes < 2 or blamed != 1:
        return ""
    return f"; its other {f'{one.nodes - 1} nodes are' if one.nodes > 2 else 'node is'} well"
