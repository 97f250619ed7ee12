"""When late evidence shows that the root lies elsewhere than where the incident opened."""

import msgspec

from healer.incidents.growth import is_untouched, with_parts
from healer.model import HARDWARE, Component, FaultClass, Finding, Incident

#: So many links of one NVSwitch that fail are the switch's.
SWITCH_LINKS = 2
#: So many GPUs of one node with the same fault are the node's: its board, its power, its driver.
NODE_GPUS = 4


def other_root(incident: Incident, finding: Finding) -> Incident:
    """The incident with the root that explains all of it; the finding has just joined."""
    if not is_untouched(incident):
        return incident
    root = _job(incident, finding) or _nvswitch(incident, finding) or _node(incident, finding)
    if root is None or root == incident.root:
        return incident
    before = incident.root
    affected = tuple(part for part in incident.affected if part != root)
    anew = msgspec.structs.replace(incident, root=root, affected=affected)
    return msgspec.structs.replace(anew, affected=with_parts(anew, (before,)))


def _job(incident: Incident, finding: Finding) -> Component | None:
    """Processes of one job fail on several nodes, or several GPUs of one: it is the job, and none of them."""
    if incident.fault_class is not FaultClass.application or len(incident.jobs_hit) != 1:
        return None
    root, where = incident.root, finding.component
    if root.node is None or where.node is None:
        return None
    if where.node == root.node and None in (root.pci, where.pci):
        return None
    if (where.node, where.pci) == (root.node, root.pci):
        return None
    return Component(cluster=incident.cluster, job=incident.jobs_hit[0])


def _node(incident: Incident, finding: Finding) -> Component | None:
    """The same line of the kernel of many GPUs of one node."""
    where, root = finding.component, incident.root
    same = finding.fault == incident.fault and where.node is not None and where.node == root.node
    if not same or incident.fault_class not in HARDWARE or root.pci is None or root.switch is not None:
        return None
    told = (one.component for one in incident.evidence if one.line)
    if len({one.pci for one in told if one.node == root.node and one.pci}) < NODE_GPUS:
        return None
    return Component(cluster=incident.cluster, node=root.node)


def _nvswitch(incident: Incident, finding: Finding) -> Component | None:
    """Several links of one switch in the node."""
    where = finding.component
    if where.switch is None or where.node is None or where.node != incident.root.node:
        return None
    told = (one.component for one in incident.evidence)
    links = {one.link for one in told if one.switch == where.switch and one.link is not None}
    if len(links) < SWITCH_LINKS:
        return None
    return Component(cluster=where.cluster, node=where.node, pci=where.pci, switch=where.switch)
