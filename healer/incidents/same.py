"""Whether a finding has the cause of an open incident: judges in a row, the first that knows decides."""

from datetime import datetime, timedelta
from typing import NamedTuple

from healer.detection.slurm_watch import each_its_own
from healer.incidents.growth import NEAR, is_near, is_untouched
from healer.incidents.rank import rank_of, rank_told
from healer.incidents.remedies import Policies
from healer.model import (
    HARDWARE,
    FaultClass,
    Finding,
    Incident,
    IncidentState,
)

#: What a model thinks unusual, what changed, or what the node's own tests were slow at, is evidence beside a
#: fault, and no fault of its own.
UNUSUAL = frozenset({"unusual-node", "drifted", "slower-than-fleet"})
#: A job that is slow as a whole: told of no node, and explained by any node of its that is known to be bad.
JOB_SLOW = "job-slow"
#: A job that stands still: that one of its GPUs is gone explains it, what is milder need not.
HANG = "hang"
#: A GPU that is gone: its peers, switches and the driver tell of its links and of what is to be done.
_GONE = frozenset({"xid-79", "gpu-lost"})
_FOLLOWS = ("xid-74", "xid-14", "xid-150", "sxid-", "driver-asks")
#: NVLink 5: units that lose packets when something breaks elsewhere, and what breaks.
_LOSES_PACKETS = frozenset({"xid-144", "xid-145", "xid-146"})
_BREAKS_LINKS = ("xid-14", "xid-150", "xid-74", "xid-79", "gpu-lost", "sxid-")
#: Parts of a node of which none breaks another one, by what names of their faults begin with. The rest (the
#: kernel, PCIe, power, memory of the host) may be behind any of them.
_REALMS = {
    "gpu": ("xid-", "sxid-", "gpu-", "driver-asks", "nvlink", "fabric-", "repeats:xid-", "repeats:sxid-"),
    "network": ("nic-", "ib-", "net-", "roce-", "rdma-"),
    "disk": ("fs-", "disk-", "host-root-", "host-tmp-", "host-inodes-", "host-disk-", "host-raid-"),
}
#: A root that was told so late is still one, where the senders' clocks put it beside what followed from it.
LATE = timedelta(minutes=10)


class Pair(NamedTuple):
    """An open incident of the finding's node, job, place or cable, and the finding."""

    incident: Incident
    finding: Finding
    policies: Policies

    @property
    def same_node(self) -> bool:
        node = self.finding.component.node
        return node is not None and self.incident.root.node == node

    @property
    def hardware(self) -> bool:
        return self.finding.fault_class in HARDWARE and self.incident.fault_class in HARDWARE


def is_same(pair: Pair) -> bool:
    answers = (judge(pair) for judge in _JUDGES)
    return next((answer for answer in answers if answer is not None), False)


def _persons_word(pair: Pair) -> bool | None:
    """A person stopped healer on a node that still worked: that it is gone now is news."""
    one = pair.incident
    return False if one.stopped_by is not None and pair.finding.unusable and not one.unusable else None


def _exactly(pair: Pair) -> bool | None:
    one, finding = pair.incident, pair.finding
    alike = one.fault == finding.fault and one.rule == finding.rule and one.root == finding.component
    return True if alike else None


def _unusual(pair: Pair) -> bool | None:
    beside = pair.finding.fault in UNUSUAL and pair.incident.fault_class in HARDWARE and pair.same_node
    return True if beside else None


def _root_came_late(pair: Pair) -> bool | None:
    """A GPU is gone, and what was told first of its node follows from that."""
    one, finding = pair.incident, pair.finding
    late = pair.same_node and finding.fault in _GONE and one.fault.startswith(_FOLLOWS)
    return False if late and is_untouched(one) and is_near(one, finding) else None


def _of_the_node(pair: Pair) -> bool | None:
    """Worse news about the node is a new incident under the rule that may act on it; it takes the milder one
    in. Anything else belongs to what is already known of the node."""
    one, finding, policies = pair
    if not (pair.hardware and pair.same_node):
        return None
    if are_strangers(one.fault, finding.fault) and not is_near(one, finding):
        return False
    alike = one.fault_class is finding.fault_class
    ours = policies.of(finding).name
    weaker = alike and policies.weaker(one.rule, ours)
    milder = rank_told(finding) <= rank_of(one) or (alike and policies.weaker(ours, one.rule))
    return milder and not (weaker and is_free(one))


def _of_the_cable(pair: Pair) -> bool | None:
    """The other end tells of the same cable: the end that says more is the root."""
    if not pair.hardware or pair.incident.root == pair.finding.component:
        return None
    worse = rank_told(pair.finding) > rank_of(pair.incident)
    return not (worse and is_untouched(pair.incident))


def _of_the_rule(pair: Pair) -> bool | None:
    return pair.incident.rule == pair.finding.rule and not each_its_own(pair.finding.fault)


_JUDGES = (
    _persons_word,
    _exactly,
    _unusual,
    _root_came_late,
    _of_the_node,
    _of_the_cable,
    _of_the_rule,
)


def are_strangers(one: str, other: str) -> bool:
    """Whether faults of these names are of different parts of a node."""
    realms = [
        next((realm for realm, begins in _REALMS.items() if fault.startswith(begins)), None)
        for fault in (one, other)
    ]
    return None not in realms and realms[0] != realms[1]


def is_free(incident: Incident) -> bool:
    """Nothing works on it: what its rule left behind is a shadow's run, or one that waits for leave."""
    return incident.state is IncidentState.open


# --- what a new root explains ------------------------------------------------------------------------------


class Both(NamedTuple):
    """`root` is new; `other` was open before it, of the same node, the same cable, or a job that it hits and
    with no hardware to blame."""

    other: Incident
    root: Incident
    policies: Policies

    @property
    def same_node(self) -> bool:
        return self.other.root.node is not None and self.other.root.node == self.root.root.node

    @property
    def less(self) -> bool:
        return rank_of(self.other) < rank_of(self.root)


def are_apart(both: Both) -> bool:
    """Of one node, and neither comes from the other: GPU, network and disks, told at different times."""
    far = abs(both.root.opened - both.other.opened) > NEAR
    return far and both.same_node and are_strangers(both.other.fault, both.root.fault)


def is_weaker(both: Both) -> bool:
    """What is only watched of the node, or unusual: it goes whatever works on it, and its evidence stays."""
    other, root, policies = both
    watched = other.fault_class is root.fault_class is FaultClass.degraded and both.same_node
    weaker = watched and policies.weaker(other.rule, root.rule)
    return (weaker and is_free(other)) or (other.fault in UNUSUAL and both.same_node)


def worse_while_busy(both: Both) -> bool:
    """Worse news of a node or a job that a run works on: that one ends as it can."""
    worse = (both.same_node and both.less) or _hung_job(both)
    return both.other.run is not None and worse


def is_explained(both: Both) -> bool:
    """Whether the new root is what the other one comes from; nothing works on that."""
    return any(explains(both) for explains in _EXPLAINS)


def _milder(both: Both) -> bool:
    hardware = both.other.fault_class in HARDWARE and both.root.fault_class is FaultClass.fatal
    return hardware and both.same_node and both.less


def _followed(both: Both) -> bool:
    gone = both.root.fault in _GONE and both.other.fault.startswith(_FOLLOWS)
    return gone and both.same_node and is_untouched(both.other)


def _slow_job(both: Both) -> bool:
    return both.other.fault == JOB_SLOW and both.other.root.job in both.root.jobs_hit


def _hung_job(both: Both) -> bool:
    fatal = both.root.fault_class is FaultClass.fatal and both.root.root.node is not None
    return fatal and both.other.fault == HANG and both.other.root.job in both.root.jobs_hit


def _sympathetic(both: Both) -> bool:
    """Errors of the job's processes just before."""
    other, root = both.other, both.root
    lately = root.opened - other.opened <= NEAR or (
        root.opened - other.opened <= LATE and abs(_told_at(root) - _told_at(other)) <= NEAR
    )
    ours = both.same_node or not set(other.jobs_hit).isdisjoint(root.jobs_hit)
    return other.fault_class is FaultClass.application and lately and ours


def _told_at(incident: Incident) -> datetime:
    """When it was by the clock of whoever told it first."""
    return incident.evidence[0].at if incident.evidence else incident.opened


def packets_lost(both: Both) -> bool:
    """Links of a job's other nodes lost what came from the part that broke."""
    other, root = both.other, both.root
    lately = abs(root.opened - other.opened) <= NEAR and is_untouched(other)
    lost = other.fault in _LOSES_PACKETS and other.fault_class is FaultClass.degraded
    broke = root.fault_class is FaultClass.fatal and root.fault.startswith(_BREAKS_LINKS)
    return lately and lost and broke and not set(other.jobs_hit).isdisjoint(root.jobs_hit)


def _other_end(both: Both) -> bool:
    """Of two ends of a cable the one that says more."""
    hardware = both.other.fault_class in HARDWARE and both.other.fault != JOB_SLOW
    return hardware and not both.same_node and both.other.root != both.root.root and both.less


_EXPLAINS = (_milder, _followed, _slow_job, _hung_job, _sympathetic, _other_end)
