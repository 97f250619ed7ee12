"""What speaks against a node now, for senses that look for the one that slows its job."""

from collections.abc import Iterable

from healer.incidents.lifecycle import SAMPLED_FAULTS
from healer.model import HARDWARE, Incident

#: Titles of one node that are passed on.
_MOST = 4


def open_faults(incidents: Iterable[Incident]) -> dict[str, tuple[str, ...]]:
    """Node -> titles of its open incidents of hardware, or of what comparing found. What people or Slurm do
    with a node, and who is silent, says nothing of how fast it is."""
    found: dict[str, tuple[str, ...]] = {}
    for one in incidents:
        node = one.root.node
        if node is None or not one.is_open or one.clear_since is not None:
            continue
        known = found.get(node, ())
        if (one.fault_class in HARDWARE or one.fault in SAMPLED_FAULTS) and len(known) < _MOST:
            found[node] = (*known, one.title)
    return found
