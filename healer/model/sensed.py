"""What one tick over the fleet found."""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from healer.model.component import Component
from healer.model.finding import Finding


class LinkDown(msgspec.Struct, frozen=True, kw_only=True):
    """A link of a node went down: when healer heard of it, and what said so."""

    at: datetime
    text: str


class Sensed(msgspec.Struct, frozen=True, kw_only=True):
    """`findings` are new ones. `clear_since`: (fault, component) -> since when its cause is known to be gone.

    What is not known is in neither: missing data opens nothing and closes nothing.
    """

    at: datetime
    findings: tuple[Finding, ...] = ()
    clear_since: Mapping[tuple[str, Component], datetime] = {}
