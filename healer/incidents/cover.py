"""What nodes share, or what is worse news of a node, and which silences it explains."""

from healer.detection.silence import PLACES_SILENT
from healer.detection.slurm_conditions import FLEET_OFFLINE, OFFLINE, PLACES_OFFLINE
from healer.model import Incident

_SILENCE = frozenset({"sender-silent", "node-silent"})
_EXPLAINED_BY = {
    **dict.fromkeys(PLACES_SILENT, _SILENCE | {OFFLINE} | PLACES_OFFLINE),
    "fleet-silent": _SILENCE,
    "node-silent": frozenset({OFFLINE, "sender-silent"}),
    **dict.fromkeys(PLACES_OFFLINE, frozenset({OFFLINE})),
    FLEET_OFFLINE: frozenset({OFFLINE, *PLACES_OFFLINE}),
}
#: They are about every node, whichever they name.
_WHOLE_FLEET = frozenset({"fleet-silent", FLEET_OFFLINE})


def covered_by(fault: str) -> frozenset[str]:
    return _EXPLAINED_BY.get(fault, frozenset())


def covers(one: Incident, other: Incident) -> bool:
    """Whether `one` explains the silence of `other`."""
    if other.fault not in covered_by(one.fault):
        return False
    if one.fault in _WHOLE_FLEET:
        return True
    if other.root.node is None:  # Slurm says of the place what its senders' silence said
        return other.root == one.root
    return other.root.node in {part.node for part in (*one.affected, one.root)}
