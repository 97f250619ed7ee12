"""Shapes of answers that the API itself makes. JSON names are the field names.

Those that it only hands on, as it has read them, are in `healer.ports.api_answers`.
"""

from datetime import datetime

import msgspec

from healer.model import DetectionRule, ForecastRule, Mode, Review, Rule, Verdict


class ForecastCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a rule's forecasts; `healer.model.ForecastScore` with what follows from it."""

    open: int
    hits: int
    misses: int
    void: int
    unforeseen: int
    precision: float | None
    recall: float | None


class RuleView(msgspec.Struct, frozen=True, kw_only=True):
    """`precision` = true faults / (true faults + false alarms) of the reviews, None before the first.

    `recall` is None: nobody counts faults that no rule saw. Of a forecast both are by what then happened, and
    `forecasts` counts it. `measured`: what a detection rule watches, `follows`: what a forecast does; None
    for the rules of policies.yaml. `last_incident_at`: when it last opened an incident. `first_runs`: so many
    more runs wait for a person, as the rule or its playbook is new or changed (mode auto alone asks for it).
    """

    rule: Rule
    mode: Mode
    mode_from: str
    incidents: int
    reviews: dict[Review, int]
    precision: float | None
    recall: float | None = None
    mode_by: str | None = None
    mode_reason: str | None = None
    mode_at: datetime | None = None
    measured: DetectionRule | None = None
    last_incident_at: datetime | None = None
    follows: ForecastRule | None = None
    forecasts: ForecastCounts | None = None
    first_runs: int = 0


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to signals: every entry falls into exactly one of the four. `rejected` tells of the first
    1,000; `rejected_more` is the number of the others, and left out when there are none."""

    accepted: int
    duplicates: int
    unrecognised: int
    rejected: list["Rejected"] = []
    rejected_more: int | msgspec.UnsetType = msgspec.UNSET


class HookAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a hook's report. `may_refuse` is the gate's permit for a non-zero exit."""

    verdict: Verdict
    may_refuse: bool
    reason: str
    accepted: int = 0
    duplicates: int = 0
    unrecognised: int = 0
    rejected: list["Rejected"] = []


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    reason: str
