"""What the page of reports reads of a period: times, losses, and how good each rule was."""

from datetime import datetime

import msgspec

from healer.ports.api_answers import Spread, Stats


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Incidents of one cause or one class of fault, and how long each part took, as `Stats` has it."""

    name: str
    incidents: int = 0
    detect: Spread
    decide: Spread
    drain: Spread
    to_return: Spread


class RuleFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one rule's incidents of the period: how many drained a node, and what people said of them."""

    rule: str
    incidents: int = 0
    drained: int = 0
    true_faults: int = 0
    false_alarms: int = 0
    false_drains: int = 0

    @property
    def precision(self) -> float | None:
        judged = self.true_faults + self.false_alarms
        return self.true_faults / judged if judged else None


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """`returned` nodes that healer brought back in the period, and how many of those had a hardware fault
    again within their probation."""

    since: datetime
    stats: Stats
    by_class: tuple[Group, ...] = ()
    by_cause: tuple[Group, ...] = ()
    by_rule: tuple[RuleFigures, ...] = ()
    returned: int = 0
    relapsed: int = 0
