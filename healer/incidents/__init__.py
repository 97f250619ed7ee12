"""Findings -> one incident per cause."""

from healer.incidents.correlate import Correlator
from healer.incidents.forgotten import forgotten_drains, our_drains
from healer.incidents.lifecycle import (
    apply_command,
    clear_since,
    close_what_is_over,
    find_vetoes,
    heard_again,
    idle_slots,
    is_measured,
    slots_of_gone_nodes,
)
from healer.incidents.severity import by_urgency

__all__ = [
    "Correlator",
    "apply_command",
    "by_urgency",
    "clear_since",
    "close_what_is_over",
    "find_vetoes",
    "forgotten_drains",
    "heard_again",
    "idle_slots",
    "is_measured",
    "our_drains",
    "slots_of_gone_nodes",
]
