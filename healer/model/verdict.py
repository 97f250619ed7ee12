"""What healer holds to be true of an incident: apart from the evidence it rests on, and from what is done."""

from datetime import datetime
from enum import StrEnum

import msgspec

from healer.model.component import Component
from healer.model.vocabulary import Cause, IncidentState, Review, Severity, Verb, Verdict


class RuledOut(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was considered and did not carry: a signal that follows from the root, planned work, a node in its
    first minutes. `what` and `why` are for people; `count` is how often it came."""

    at: datetime
    what: str
    why: str
    component: Component | None = None
    count: int = 1


class Retest(msgspec.Struct, frozen=True, kw_only=True):
    """What decides whether a fault is transient or permanent. `name` is a word of `rules/ladders.yaml`."""

    name: str
    text: str


class IncidentVerdict(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The verdict on nodes and cause. `certainty` is 0..1; `sentence` is what an engineer would say in one
    breath; `why` its reasons, each a line or figure with its source."""

    nodes: dict[str, Verdict]
    cause: Cause
    certainty: float
    sentence: str
    why: tuple[str, ...] = ()
    set_aside: tuple[RuledOut, ...] = ()
    retest: Retest | None = None


class VerdictAt(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict from `at` on."""

    at: datetime
    verdict: IncidentVerdict


#: Of the same node, and of the same fault, so many are looked at, the newest.
SIMILAR_MAX = 50


class Similarity(StrEnum):
    """What two incidents share, the closest first."""

    part = "part"  # the same GPU or other part of the same node, whatever its fault was
    node = "node"  # the same rule on the same node
    model = "model"  # the same fault on another node with the same GPU model
    fault = "fault"  # the same fault; whether the hardware is the same nobody knows


# Wide: an object of the API's answer: what a page shows of the other incident, copied flat.
class Similar(msgspec.Struct, frozen=True, kw_only=True):
    """Another incident in short. `ended` says in a sentence how; `helped` is the last repair before its node
    returned, `return_s` the time from the drain to that (None: it did not return, or was not drained)."""

    id: str
    cluster: str
    same: Similarity
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
