"""What healer holds to be true of an incident: apart from the evidence it rests on, and from what is done."""

from datetime import datetime

import msgspec

from healer.model.component import Component
from healer.model.words import Cause, Verdict


class SetAside(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
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
    set_aside: tuple[SetAside, ...] = ()
    retest: Retest | None = None


class VerdictAt(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict from `at` on."""

    at: datetime
    verdict: IncidentVerdict
