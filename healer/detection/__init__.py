"""Picture -> findings. Each detector is a function; `detect` runs them all."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from healer.detection import alerts, drains, hooks, kernel, node_tests, silence, slurm_watch
from healer.detection.links_down import note_lines
from healer.detection.match import rule_for
from healer.model import Command, Finding, Observation, Ruleset
from healer.observations import Picture

__all__ = ["detect", "rule_for"]


def detect(
    rules: Ruleset,
    picture: Picture,
    live: Sequence[Observation],
    now: datetime,
    commands: Sequence[Command] = (),
) -> list[Finding]:
    """All findings of this moment. A fault that no rule takes gives none: the last rules take all others."""
    note_lines(rules, picture, live, now)
    found = kernel.findings(rules, live, picture.slurm.nodes if picture.slurm else None)
    told = (
        *hooks.findings(picture, live),
        *silence.findings(picture, now),
        *drains.findings(picture, now),
        *slurm_watch.findings(picture, rules.watches, now),
        *node_tests.findings(picture.cluster, commands),
    )
    for finding in told:
        if rule := rule_for(rules, finding.fault, finding.fault_class):
            found.append(msgspec.structs.replace(finding, rule=rule.name))
    return [*found, *alerts.findings(rules, picture, now)]
