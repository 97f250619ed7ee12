"""Links that went down just now by a line of the kernel. For jobs that stand."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from healer.detection.kernel import read
from healer.model import LinkDown, Observation, ObservationKind, Ruleset
from healer.observations import Picture

#: Faults whose line says that a link of the node is gone, or may be.
LINK_FAULTS = frozenset(
    {
        "nic-link-down", "bond-port-down", "nic-unplugged", "nic-lost", "pcie-link-down",
        "nvlink-peer-missing", "xid-74", "xid-149",
    }
)  # fmt: skip
#: What was told longer ago made no job stand just now.
KEPT = timedelta(minutes=10)
#: Of all Xids only these are read a second time: a storm is long.
_XIDS = frozenset({74, 149})


def note_lines(rules: Ruleset, picture: Picture, live: Sequence[Observation], now: datetime) -> None:
    """Keeps in the picture which nodes lost a link, by their newest line."""
    for seen in live:
        node = seen.component.node
        if node is None or not (seen.kind is ObservationKind.kernel_line or seen.code in _XIDS):
            continue
        reading = read(rules, seen)
        if reading is not None and reading.fault in LINK_FAULTS:
            text = seen.line or reading.text
            picture.links_down[node] = LinkDown(at=seen.arrived_at, text=text)
    old = [node for node, one in picture.links_down.items() if now - one.at > KEPT]
    for node in old:
        del picture.links_down[node]
