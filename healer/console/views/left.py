"""What is left for a person to do on an incident, most pressing first."""

from datetime import datetime

import msgspec

from healer.console import words
from healer.console.views.buttons import (
    Button,
    acknowledge_button,
    may_act,
    may_respond,
    resume_button,
    review_buttons,
    run_buttons,
)
from healer.console.views.runs import asks, run_row, target
from healer.model import ENDED_RUN_STATES, Incident, Role, RunState, SlurmNode
from healer.model.reasons import SLURM, is_ours
from healer.ports.console_answers import IncidentDetail, RunDetail


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is left for a person. `tone` is ask, warn, bad or plain."""

    tone: str
    text: str
    detail: str = ""
    buttons: tuple[Button, ...] = ()


def left_for_you(detail: IncidentDetail, node: SlurmNode | None, role: Role, now: datetime) -> list[Left]:
    incident = detail.incident
    left: list[Left] = []
    for one in detail.runs:
        run = one.run
        if run.shadow or run.state in ENDED_RUN_STATES:
            continue
        row = run_row(run, now)
        if asks(run) or run.state is RunState.held:
            left.append(
                Left(
                    tone="bad" if run.state is RunState.stuck else "ask" if asks(run) else "warn",
                    text=f"{run.playbook} {target(run)}: {row.word}.",
                    detail=row.why or _held_why(one, detail),
                    buttons=run_buttons(run, role),
                )
            )
    if incident.known_bad_in_service and incident.is_open:
        left.append(
            Left(
                tone="bad",
                text=_known_bad(incident),
                detail=f"New jobs may come there. {_why_in_service(detail)}; a person can, in Slurm.",
            )
        )
    if incident.owner and incident.is_open:
        age = f" {words.ago(incident.owner_since, now)}" if incident.owner_since else ""
        if incident.owner == SLURM.name:
            text = f"Slurm itself took {incident.root.node} out{age}."
            then = "A person may have healer test it and return it (adopt-slurm-drain)."
        else:
            text = f"{incident.owner} drained {incident.root.node}{age} and owns it."
            then = "healer never lifts a drain of others. Ask them, or resume the node in Slurm."
        left.append(Left(tone="plain", text=text, detail=then))
    left += _return(detail, node, role)
    if incident.is_open and not incident.acknowledged_by and may_respond(role):
        left.append(
            Left(
                tone="plain",
                text="Nobody has acknowledged this yet.",
                buttons=(acknowledge_button(incident),),
            )
        )
    if not incident.is_open and incident.review is None and may_respond(role):
        left.append(
            Left(
                tone="plain",
                text="Was this a true fault?",
                detail=f"The answer counts for the precision of rule {incident.rule}.",
                buttons=review_buttons(incident),
            )
        )
    return left


def _known_bad(incident: Incident) -> str:
    bad = incident.bad_nodes
    if len(bad) == 1:
        return f"{bad[0]} is known bad and still in service."
    return f"{len(bad)} nodes are known bad and still in service: {words.names(bad, 5)}."


def _why_in_service(detail: IncidentDetail) -> str:
    stuck = any(one.run.state is RunState.stuck and not one.run.shadow for one in detail.runs)
    return "healer could not drain it" if stuck else "A guard keeps healer from draining it"


def _return(detail: IncidentDetail, node: SlurmNode | None, role: Role) -> list[Left]:
    """Our own drain stands and no run works on the node: it waits for a person."""
    incident = detail.incident
    busy = any(_works(one) for one in detail.runs)
    if node is None or busy or not node.drain or not is_ours(node.reason):
        return []
    if f"inc:{incident.short_id}" not in node.reason:
        return []
    return [
        Left(
            tone="ask",
            text=f"{node.name} stays drained until it is repaired.",
            detail="Resume it when it is; healer then watches its first hours.",
            buttons=(resume_button(incident, node.name),) if may_act(role) else (),
        )
    ]


def _works(one: RunDetail) -> bool:
    """A run that goes on by itself. One that waits without a time to wake waits for the repair."""
    run = one.run
    if run.shadow or run.state in ENDED_RUN_STATES:
        return False
    return run.state is not RunState.waiting or run.wake_at is not None


def _held_why(run: RunDetail, detail: IncidentDetail) -> str:
    """The run's own last words, else those of the guard that holds it."""
    if run.log and run.log[-1].text:
        return run.log[-1].text
    own = [one for one in (*detail.decisions, *run.decisions) if one.run in (None, run.run.id) and one.guard]
    for decision in reversed(own):
        for answer in decision.answers:
            if answer.guard is decision.guard:
                return f"Guard {answer.guard.value}: {answer.why}"
        return decision.why
    return ""
