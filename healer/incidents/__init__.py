"""Findings to one incident per cause: the first of `PLACERS` that answers."""

from healer.incidents.book import Book
from healer.incidents.correlate import take_findings
from healer.incidents.impact import by_urgency
from healer.incidents.lifecycle import (
    apply_command,
    clear_since,
    close_what_is_over,
    heard_again,
    measured_pairs,
    our_drains,
)
from healer.incidents.placers import PLACERS
