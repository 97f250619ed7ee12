"""What goes on at a node, as Slurm and the node's own word tell it. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

from healer.model import ContextKind, ContextRule, Maintenance, SlurmJob, SlurmNode
from healer.model.reasons import is_none, is_ours, slurm_kind

#: An older picture of Slurm says nothing of what goes on now.
PICTURE_LASTS = timedelta(minutes=5)
#: Faults whose entries are kept: of hooks and drains by foreign reasons there may be any number.
_FAULTS_KEPT = 10_000

_REBOOTING = frozenset({"REBOOT_ISSUED", "POWERING_UP"})
_ASLEEP = frozenset({"POWERED_DOWN", "POWERING_DOWN"})


class Going(NamedTuple):
    """One thing that goes on at a node; `since` where it begins with a moment, `until` where its end is
    known beforehand."""

    kind: ContextKind
    text: str
    since: datetime | None = None
    until: datetime | None = None


class ContextTable:
    """The entries of `rules/context.yaml` that speak of a fault, looked up once for each fault."""

    def __init__(self, rules: tuple[ContextRule, ...]) -> None:
        self.rules = rules
        self._known: dict[str, tuple[ContextRule, ...]] = {}

    def of(self, fault: str) -> tuple[ContextRule, ...]:
        known = self._known.get(fault)
        if known is None:
            if len(self._known) >= _FAULTS_KEPT:
                self._known.clear()
            fits = (one for one in self.rules if _named(fault, one.faults) and not _named(fault, one.but))
            known = self._known[fault] = tuple(fits)
        return known

    def lasts(self, kind: ContextKind) -> timedelta:
        """How long what begins with a moment explains anything at all; 0: nothing is judged by it."""
        return max((one.lasts for one in self.rules if one.when is kind), default=timedelta(0))


@lru_cache(maxsize=4)
def table_of(rules: tuple[ContextRule, ...]) -> ContextTable:
    """One table for each set of rules, kept as long as it is in use."""
    return ContextTable(rules)


def at_node(
    node: SlurmNode,
    *,
    planned: Maintenance | None,
    booted_at: datetime | None,
    driver: tuple[str, datetime] | None,
) -> list[Going]:
    """What goes on there but for its jobs. `planned`: the work planned there now; `booted_at`: as healer
    heard it (Slurm tells it too); `driver`: the version that it was given while healer looked, and when."""
    found = []
    state = "+".join(node.state)
    if _ASLEEP.intersection(node.state):
        found.append(Going(ContextKind.power_saving, f"Slurm saves power with it ({state})"))
    elif planned is not None:
        found.append(Going(ContextKind.maintenance, f"planned work: {planned.why}", until=planned.until))
    if _REBOOTING.intersection(node.state):
        found.append(Going(ContextKind.rebooting, f"it is being started anew ({state})"))
    booted = [at for at in (node.boot_at, booted_at) if at is not None]
    if booted:
        at = max(booted)
        found.append(Going(ContextKind.booted, f"it booted at {at:%H:%M:%S} UTC", at))
    if driver is not None:
        version, since = driver
        text = f"its driver is {version} since {since:%H:%M:%S} UTC"
        found.append(Going(ContextKind.new_driver, text, since))
    if node.drain and not (is_ours(node.reason) or is_none(node.reason) or slurm_kind(node.reason)):
        who = node.reason_user or "somebody"
        found.append(Going(ContextKind.drained, f"{who} has drained it: {node.reason}"))
    return found


def at_jobs(jobs: Sequence[SlurmJob | None]) -> Going | None:
    """When the first of these jobs began; None without any, or if one of them is not known."""
    began = [job.start_at for job in jobs if job is not None and job.start_at is not None]
    if not jobs or len(began) != len(jobs):
        return None
    at = min(began)
    return Going(ContextKind.job_start, f"its job began at {at:%H:%M:%S} UTC", at)


def _named(fault: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(fault, glob) for glob in globs)
