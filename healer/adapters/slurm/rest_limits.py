"""What slurmrestd has no address for, by release (d.1 and d.4 of the facts)."""

from collections.abc import Mapping
from types import MappingProxyType

from healer.model import SlurmCall

#: The first release that has a version of the REST interface.
RELEASES = {39: "23.02", 40: "23.11", 41: "24.05", 42: "24.11", 43: "25.05", 44: "25.11", 45: "26.05"}

#: Many nodes in one call: before this version they are sent one by one.
MANY_NODES = 42

_RESERVATIONS, _REQUEUE, _KILL = 43, 45, 40
_SINCE = {
    SlurmCall.reserve: ("reservations", _RESERVATIONS),
    SlurmCall.change_reservation: ("reservations", _RESERVATIONS),
    SlurmCall.unreserve: ("reservations", _RESERVATIONS),
    SlurmCall.requeue: ("requeue", _REQUEUE),
    SlurmCall.revive: ("requeue", _REQUEUE),
    # Before, slurmrestd knows no single task of an array and would mean all of it.
    SlurmCall.signal: ("signals to one task of an array", _KILL),
    SlurmCall.cancel: ("ending one task of an array", _KILL),
}
_NEVER = {
    SlurmCall.reboot: "reboot",
    SlurmCall.cancel_reboot: "cancel_reboot",
    SlurmCall.notify: "notify",
    SlurmCall.topology: "topology",
}


def lacking(number: int) -> Mapping[SlurmCall, str]:
    """What v0.0.`number` cannot do, and why."""
    speaks = f"this slurmrestd speaks v0.0.{number}"
    found = {
        call: f"{what} by REST begin{'s' if not what.endswith('s') else ''} with Slurm {RELEASES[since]} "
        f"(v0.0.{since}); {speaks}"
        for call, (what, since) in _SINCE.items()
        if number < since
    }
    found |= {
        call: f"slurmrestd has no {what} in any release; the command line (cli) has"
        for call, what in _NEVER.items()
    }
    return MappingProxyType(found)
