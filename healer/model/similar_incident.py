"""Another incident that is like one, and how it ended."""

from datetime import datetime
from enum import StrEnum

import msgspec

from healer.model.component import Component
from healer.model.words import IncidentState, Review, Severity, Verb


class Same(StrEnum):
    """What two incidents share, the closest first."""

    part = "part"  # the same GPU or other part of the same node, whatever its fault was
    node = "node"  # the same rule on the same node
    model = "model"  # the same fault on another node with the same GPU model
    fault = "fault"  # the same fault; whether the hardware is the same nobody knows


class Similar(msgspec.Struct, frozen=True, kw_only=True):
    """Another incident in short. `ended` says in a sentence how; `helped` is the last repair before its node
    returned, `return_s` the time from the drain to that (None: it did not return, or was not drained)."""

    id: str
    cluster: str
    same: Same
    rule: str
    fault: str
    title: str
    root: Component
    opened: datetime
    closed: datetime | None
    state: IncidentState
    severity: Severity
    review: Review | None
    review_cause: str | None
    ended: str
    helped: Verb | None = None
    return_s: float | None = None
