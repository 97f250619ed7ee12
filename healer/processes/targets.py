"""What the scraper fetches, when, and whose it is. Pure."""

from zlib import crc32

from healer.model import DEVICE_MARK
from healer.ports.pull import Target
from healer.signals.devices import device_name
from healer.signals.wire import Known

#: A target that stalls is asked less often, up to so many intervals apart: it holds a connection each time.
STALLED_MOST = 4
HOST, SERIES, DEVICE = "host", "series", "device"


class NoNode(ValueError):
    """The target is of no node of the cluster. The text says why."""


def node_of(target: Target, cluster: str, known: Known) -> str | None:
    """Whose the target's samples are, a device with its mark; None where their own labels say it. Raises
    NoNode.

    A full host name that is no node counts up to its first dot; a label may end with a port.
    """
    rule = target.job.node
    if rule == SERIES:
        return None
    if rule == DEVICE:
        return _device_of(target)
    name = target.host if rule == HOST else target.labels.get(rule, "")
    if not name:
        raise NoNode(f"the target has no label {rule} that names its node")
    plain = name if rule == HOST else name.partition(":")[0]
    for one in (name, plain, plain.partition(".")[0]):
        if one and known(cluster, one):
            return one
    raise NoNode(f"{cluster} has no node {name[:100]}: name it by a label, and that label by `node`")


def _device_of(target: Target) -> str:
    """The target is a device, or stands for one: its label `device` says which, else its own host."""
    name = device_name("instance", target.labels.get("device") or target.host)
    if name is None:
        raise NoNode(f"{target.host[:100]} is no name of a device: give the target a label `device`")
    return DEVICE_MARK + name


def first_due(target: Target, now_s: float) -> float:
    """The first moment of the target's own beat from `now_s` on: targets are spread over their interval by a
    hash of their address, the same after every restart."""
    interval_s = target.job.interval_s
    offset_s = crc32(target.url.encode()) / 2**32 * interval_s
    return now_s + (offset_s - now_s) % interval_s


def next_due(target: Target, last_s: float, now_s: float, stalled: int) -> float:
    """The next moment of that beat after one at `last_s`; `stalled` times in a row it did not end in time."""
    interval_s = target.job.interval_s
    step_s = interval_s * min(STALLED_MOST, 2**stalled)
    behind = max(0.0, now_s - last_s - step_s)
    # Beats that were missed are not made up for.
    return last_s + step_s + -(-behind // interval_s) * interval_s
