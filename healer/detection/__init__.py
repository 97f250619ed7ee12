"""From picture and windows to findings: `DETECTORS`, in order.

To add a detector, write a function `findings(walk)` or a `Detector`, add its line to the list, and add its
cases.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from healer.detection.baseline import Baseline
from healer.detection.creep import Creep
from healer.detection.divergence import Divergence
from healer.detection.fleet_figures import FleetFigures
from healer.detection.forecasts import Forecasts
from healer.detection.forest import Forest
from healer.detection.hangs import Hangs
from healer.detection.leaks import Leaks
from healer.detection.lemons import Lemons
from healer.detection.measured import RuleEngine
from healer.detection.protocol import Detector, WalkInput
from healer.detection.readings import read_all
from healer.detection.reported import (
    alert_findings,
    drain_findings,
    hook_findings,
    line_findings,
    link_findings,
    note_reports,
    reboot_findings,
    test_findings,
)
from healer.detection.silence import silence_findings
from healer.detection.stragglers import Stragglers
from healer.detection.watches import watch_findings
from healer.model import Finding, Ruleset
from healer.model.faults import Trait, fault_is


class Sources(NamedTuple):
    """The data sources of detectors over windows. None: there is no such store, as in simulations."""

    rules: Ruleset
    forest: Forest | None = None
    lemons: Lemons | None = None
    figures: FleetFigures | None = None


class OverPicture(NamedTuple):
    """A detector that examines the picture in each walk."""

    findings: Callable[[WalkInput], Iterable[Finding]]


class OverWindows(NamedTuple):
    """A detector that examines measured windows in each tick; None: not available here."""

    make: Callable[[Sources], Detector | None]


DETECTORS: tuple[OverPicture | OverWindows, ...] = (
    OverPicture(line_findings),
    OverPicture(link_findings),
    OverPicture(hook_findings),
    OverPicture(silence_findings),
    OverPicture(drain_findings),
    OverPicture(reboot_findings),
    OverPicture(watch_findings),
    OverPicture(test_findings),
    OverPicture(alert_findings),
    OverWindows(lambda given: RuleEngine(given.rules.detection, given.rules.catalogue)),
    OverWindows(lambda given: Stragglers(given.figures)),
    OverWindows(lambda _: Divergence()),
    OverWindows(lambda _: Baseline()),
    OverWindows(lambda _: Hangs()),
    OverWindows(lambda given: Forecasts(given.rules.forecasts, given.rules.catalogue)),
    OverWindows(lambda _: Creep()),
    OverWindows(lambda _: Leaks()),
    OverWindows(lambda given: given.forest),
    OverWindows(lambda given: given.lemons),
    OverWindows(lambda given: given.figures),
)


def detect(walk: WalkInput) -> list[Finding]:
    """All findings of the picture at this moment. A fault without a matching rule gives none; an alert is
    always returned, as evidence."""
    note_reports(walk)
    found = []
    for detector in DETECTORS:
        for finding in detector.findings(walk) if isinstance(detector, OverPicture) else ():
            if finding.rule or fault_is(finding.fault, Trait.alert):
                found.append(finding)
            elif rule := walk.rules.rule_for(finding.fault, finding.fault_class):
                found.append(msgspec.structs.replace(finding, rule=rule.name))
    return found
