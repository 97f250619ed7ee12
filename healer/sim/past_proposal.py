"""Rules for a site by its own past: shadow mode with each rule's precision, and guards by its size and jobs.

Edits the text of the files, so that a diff shows what was changed, and the comment above it why.
"""

import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from healer.model import GuardSettings
from healer.model.site_past import PastReport, RuleAdvice

_ENTRY = re.compile(r"(\s*)- name: ([\w.-]+)\s*(?:#.*)?")
_MODE = re.compile(r"(\s*)mode: (\w+)")
_WIDTH = 110
#: Files of rules/ whose entries have a mode, in addition to those of detection/.
_WITH_MODES = frozenset(
    {"policies.yaml", "alerts.yaml", "escalations.yaml", "forecasts.yaml", "sharing.yaml"}
)
#: What would act, or ask people to: in the beginning only shadow.
_ASKING = frozenset({"suggest", "approve", "auto"})
_AGREED = frozenset({"earlier", "same", "later", "confirmed"})
_HOUR = timedelta(hours=1)


def proposed(files: Mapping[str, str], report: PastReport, guards: GuardSettings) -> dict[str, str]:
    """The files that change, by name. `files`: those of the rules now, with their `guards`."""
    advice = {row.rule: row for row in report.advice}
    span = f"{report.since:%Y-%m-%d} to {report.until:%Y-%m-%d}"
    changed = {
        name: _in_shadow(text, advice, span)
        for name, text in files.items()
        if name in _WITH_MODES or name.startswith("detection/")
    }
    changed["guards.yaml"] = _guarded(files.get("guards.yaml", ""), _guards(report, guards), span)
    return {name: text for name, text in changed.items() if text != files.get(name, "")}


def _in_shadow(text: str, advice: Mapping[str, RuleAdvice], span: str) -> str:
    lines: list[str] = []
    indent, row = "", None
    for line in text.splitlines():
        if entry := _ENTRY.fullmatch(line):
            indent, row = entry[1], advice.get(entry[2])
            if row is not None:
                lines += [*_comment(_precision(row, span), indent), line, f"{indent}  mode: shadow"]
                continue
        mode = _MODE.match(line)
        if mode is not None and mode[1] == f"{indent}  ":
            if row is not None:
                continue
            if mode[2] in _ASKING:
                lines.append(f"{indent}  mode: shadow  # in the beginning; it was {mode[2]}")
                continue
        lines.append(line)
    return "\n".join(lines) + "\n"


def _precision(row: RuleAdvice, span: str) -> str:
    found = f"{span}: {row.incidents} incidents, {row.drains} drains"
    if not row.drains:
        return f"{found}. No drain says anything about its precision."
    agreed = f"{row.agreed} agreed with people or with later deaths of jobs"
    return (
        f"{found}, {agreed}: precision {row.agreed / row.drains:.2f}. Next mode by this history: {row.mode}."
    )


def _comment(text: str, indent: str = "") -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(text, _WIDTH - len(indent) - 2)]


def _guarded(text: str, guards: Mapping[str, tuple[str, str]], span: str) -> str:
    lines = text.splitlines()
    for field, (value, why) in guards.items():
        new = [*_comment(f"{span}: {why}"), f"{field}: {value}"]
        at = next((n for n, line in enumerate(lines) if line.startswith(f"{field}:")), None)
        lines[len(lines) if at is None else at : len(lines) if at is None else at + 1] = new
    return "\n".join(lines) + "\n"


def _guards(report: PastReport, now: GuardSettings) -> dict[str, tuple[str, str]]:
    """Field of guards.yaml -> (value, why). No cap is wider than now."""
    nodes, jobs = max(1, report.nodes), report.jobs
    out = most_at_once((hold.at, hold.until or report.until) for hold in report.holds)
    drained = [row.healer_at for row in report.answers if row.healer_at and row.word in _AGREED]
    hourly = most_at_once((at, at + _HOUR) for at in drained)
    most = max(1, min(now.max_nodes, out))
    share = max(1, hourly) / nodes
    per_hour = min(now.share_per_hour, math.ceil(share * 1000) / 1000)
    floor = max(now.min_service_share, min(0.98, math.ceil(100 * jobs.largest / nodes) / 100))
    return {
        "max_nodes": (
            str(most),
            f"at most {out} of {nodes} nodes were out of service at once. healer need not hold out more than"
            f" that by itself, and never more than {now.max_nodes}.",
        ),
        "max_share": (
            f"{now.max_share}",
            f"{now.max_share:.0%} of {nodes} nodes are {max(1, int(nodes * now.max_share))}; the lower of"
            " this and max_nodes binds.",
        ),
        "share_per_hour": (
            f"{per_hour}",
            f"drains within one hour that people or deaths of jobs confirmed: at most {hourly}.",
        ),
        "min_service_share": (
            f"{floor:.2f}",
            f"the largest of {jobs.started} jobs held {jobs.largest} of {nodes} nodes, half of them at most"
            f" {jobs.median}: it must find its nodes whatever else is out.",
        ),
        "requeues_per_job": (
            str(now.requeues_per_job),
            f"jobs that died of hardware: {jobs.died}; started again within a day: {jobs.again}.",
        ),
    }


def most_at_once(spans: Iterable[tuple[datetime, datetime]]) -> int:
    """How many spans overlap at most."""

    def ends() -> Iterator[tuple[datetime, int]]:
        for begin, end in spans:
            yield begin, 1
            yield end, -1

    found = running = 0
    for _, change in sorted(ends()):
        running += change
        found = max(found, running)
    return found
