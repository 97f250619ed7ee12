"""What waits for a person: each run with what it will do, whom it hits, and what stands against it."""

from collections.abc import Mapping, Sequence

import msgspec

from healer.console.views.buttons import Button, run_buttons
from healer.console.views.caps import Cap
from healer.console.views.runs import GuardRow, RunRow, guard_rows, last_decision
from healer.model import AnswerKind, Role, Severity, SlurmJob
from healer.ports.console_answers import OpenIncident, RunDetail, Standing

#: So many with their previews; the page of runs has all.
SHOWN = 20
JOBS_SHOWN = 8


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """`against` are guards that held or refused it when it was last judged; `jobs` run on its node now, and
    `jobs_more` are not listed."""

    row: RunRow
    severity: Severity | None
    incident: OpenIncident | None
    plan: tuple[str, ...]
    takes: str
    jobs: tuple[SlurmJob, ...]
    jobs_more: int
    jobs_known: bool
    why: str
    against: tuple[GuardRow, ...]
    buttons: tuple[Button, ...]


def most_urgent(rows: Sequence[RunRow], standing: Standing) -> list[RunRow]:
    """By the severity of the incident, then the oldest. What a person asked for without one is like P2."""
    known = {one.id: one for one in standing.open_incidents}

    def order(row: RunRow) -> tuple[str, float]:
        incident = known.get(row.run.incident or "")
        return (incident.severity if incident else Severity.P2, row.run.created_at.timestamp())

    return sorted((row for row in rows if row.asks), key=order)


def approval(
    row: RunRow, detail: RunDetail | None, standing: Standing, takes: Mapping[str, str], role: Role
) -> Approval:
    """`takes`: playbook -> what it takes of the cluster."""
    run, picture = row.run, standing.snapshot
    incident = next((one for one in standing.open_incidents if one.id == run.incident), None)
    jobs: list[SlurmJob] = []
    if picture is not None:
        named = picture.jobs.get(run.job) if run.job else None
        jobs = picture.jobs_on(run.node) if run.node else [named] if named else []
    decision = last_decision(detail) if detail else None
    against = [one for one in decision.answers if one.kind is not AnswerKind.allow] if decision else []
    return Approval(
        row=row,
        severity=incident.severity if incident else None,
        incident=incident,
        plan=detail.plan if detail else (),
        takes=takes.get(run.playbook, ""),
        jobs=tuple(jobs[:JOBS_SHOWN]),
        jobs_more=max(0, len(jobs) - JOBS_SHOWN),
        jobs_known=picture is not None and (run.node is None or run.node in picture.nodes),
        why=decision.why if decision else "",
        against=tuple(guard_rows(tuple(against))),
        # Keys would fit several of them: here each is pressed by itself.
        buttons=tuple(msgspec.structs.replace(one, key="") for one in run_buttons(run, role)),
    )


def room(caps: Sequence[Cap]) -> str:
    """`Floor of service: 3 left; Slots: 1 left; …`, of the whole cluster."""
    return "; ".join(f"{cap.name}: {cap.left:,} left" for cap in caps[:3])
