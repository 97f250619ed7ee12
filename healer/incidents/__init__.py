"""Findings to incidents, one per cause: the first of `PLACERS` that answers decides."""

from healer.incidents.book import Book
from healer.incidents.correlate import take_findings
from healer.incidents.impact import by_urgency
from healer.incidents.lifecycle import (
    apply_command,
    close_if_over,
    find_clear_since,
    healer_drains,
    measured_pairs,
    note_heard_again,
)
from healer.incidents.placers import PLACERS
