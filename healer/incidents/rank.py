"""How bad news is: what explains what on a node, and what takes what in."""

import msgspec

from healer.incidents.senses import MEASURED, ended_work
from healer.model import FaultClass, Finding, Incident

_RANK = {
    FaultClass.informational: 0,
    FaultClass.unknown: 1,
    FaultClass.application: 1,
    FaultClass.degraded: 2,
    FaultClass.fatal: 4,
}
#: A fatal level that was measured: less than a fault that was told, which has ended somebody's work.
_MEASURED_FATAL = 3


def marked(finding: Finding) -> Finding:
    """Evidence of a fatal fault that was told knows it: it alone says that work on its GPU has ended."""
    if finding.fault_class is not FaultClass.fatal or finding.evidence[0].sense in MEASURED:
        return finding
    told = tuple(msgspec.structs.replace(one, fatal=True) for one in finding.evidence)
    return msgspec.structs.replace(finding, evidence=told)


def rank_told(finding: Finding) -> int:
    measured = finding.fault_class is FaultClass.fatal and finding.evidence[0].sense in MEASURED
    return _MEASURED_FATAL if measured else _RANK[finding.fault_class]


def rank_of(incident: Incident) -> int:
    opened_by = incident.evidence[0].sense if incident.evidence else None
    measured = opened_by in MEASURED and not ended_work(incident)
    fatal = incident.fault_class is FaultClass.fatal
    return _MEASURED_FATAL if fatal and measured else _RANK[incident.fault_class]
