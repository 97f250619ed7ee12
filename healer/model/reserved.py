"""Our own reservations: a node in one is out of service for everybody's jobs but our tests.

Slurm shows such a node without DRAIN, as in anybody's maintenance; only the reservation's name tells it from
planned work. The list of reservations is asked, not the flag MAINTENANCE: that comes seconds later (d.8, 18).
"""

from collections.abc import Mapping

from healer.model.slurm import Reservation, SlurmSnapshot
from healer.model.slurm_node import SlurmNode

#: What the name of every reservation of ours starts with: `healer_<short id of the incident or run>`.
OUR_RESERVATIONS = "healer_"


def reservation_for(incident: str) -> str:
    """The name for the tests of this incident (or run, where there is none): the same however often asked."""
    return f"{OUR_RESERVATIONS}{incident[:8]}"


def is_our_reservation(reservation: Reservation) -> bool:
    return reservation.name.startswith(OUR_RESERVATIONS)


def our_reservation(snapshot: SlurmSnapshot | None, node: str) -> Reservation | None:
    """The reservation of ours that keeps this node out of service."""
    return ours_on(snapshot.reservations, node) if snapshot is not None else None


def ours_on(reservations: Mapping[str, Reservation], node: str) -> Reservation | None:
    """The same of a list that was read alone."""
    found = reservations.values()
    return next((one for one in found if is_our_reservation(one) and node in one.nodes), None)


def only_ours(snapshot: SlurmSnapshot | None, node: SlurmNode) -> bool:
    """That the node is shown as planned work is our own doing, and nobody else's."""
    if snapshot is None or our_reservation(snapshot, node.name) is None:
        return False
    others = (one for one in snapshot.reservations.values() if not is_our_reservation(one))
    theirs = any(one.maintenance and node.name in one.nodes for one in others)
    return not theirs and not {"POWERED_DOWN", "POWERING_DOWN"}.intersection(node.state)
