"""Buttons: each posts JSON to the REST API, with a preview where it changes much."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from healer.console import words
from healer.console.views.fleet_view import NodeKind, NodeRow
from healer.console.views.runs_view import title_of
from healer.decisions import runs_alongside, waits_for_second
from healer.engine.records import IncidentRecord
from healer.model import (
    ENDED_RUN_STATES,
    Incident,
    Input,
    InputType,
    LogEntry,
    Playbook,
    Role,
    Run,
    RunState,
    Verb,
)
from healer.model.grants import ACTING, APPROVING
from healer.playbooks import BEGIN, UNDO
from healer.ports.answers import OpenIncident
from healer.text import Said, quoted, say

#: Shown first on a node in service, as they are used often; all others are under "More playbooks".
_FIRST = frozenset({"drain-at-job-end", "validate", "reboot-validate"})
#: Not offered as playbooks: they have a button elsewhere. `gpu-fatal` by hand is `drain` and `requeue`.
_OWN_BUTTON = frozenset(
    {"drain", "resume", "undrain", "gpu-fatal", "adopt-slurm-drain", "return-to-service", "foreign-drain"}
)
_AT_WORK = frozenset({RunState.running, RunState.waiting, RunState.stuck})


class InputField(msgspec.Struct, frozen=True, kw_only=True):
    """An input of a dialog: a list of `choices` with their `labels`; without them a line of text."""

    name: str
    help: str
    default: str
    required: bool
    choices: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


class Button(msgspec.Struct, frozen=True, kw_only=True):
    """A button that posts JSON. `field` is the text that the API requires (reason, note, or none); `preview`
    is a route that is called with `dry_run=true` before anything is done."""

    label: str
    action: str
    title: str
    effect: str
    body: Mapping[str, str | int | list[str]] = {}
    method: str = "POST"
    field: str = "reason"
    preview: str = ""
    preview_body: dict[str, str] = {}
    primary: bool = False
    key: str = ""
    #: The playbook's inputs, for the dialog; a required one with an empty default has to be chosen.
    inputs: tuple[InputField, ...] = ()
    #: The inputs are fields of the body itself, not the inputs of a playbook.
    flat: bool = False
    #: Listed under "More playbooks".
    more: bool = False
    #: Why this person may not press it; empty if they may.
    barred: str = ""


def nothing_bars(run: Run) -> Said | None:
    """The answer where every operator may approve."""
    return None


def worded(key: str, **args: Any) -> dict[str, Any]:
    """Label, title and effect of a button, by their keys in the catalogue."""
    return {part: say(f"console.button_{key}_{part}", **args) for part in ("label", "title", "effect")}


def _start(playbook: str, body: dict[str, str], **fields: Any) -> Button:
    """Starts the playbook; people first see the guards' answers."""
    route = f"/api/v1/playbooks/{playbook}/runs"
    return Button(
        action=route, body=body, preview=route, preview_body={**body, "reason": "preview"}, **fields
    )


def _on_incident(incident: Incident, verb: str, words: str = "", **fields: Any) -> Button:
    """`words`: the button's key where it is not the verb."""
    return Button(action=f"/api/v1/incidents/{incident.id}/{verb}", **{**worded(words or verb), **fields})


def _approve(run: Run, words: str = "", **fields: Any) -> Button:
    """Approves the question that this page shows, whatever the run asks by the time the button is pressed."""
    seen = {"approve_until": run.approve_until.isoformat()} if run.approve_until else {}
    return _on_run(run, "approve", words, body=seen, primary=True, key="p", **fields)


def _on_run(run: Run, verb: str, words: str = "", **fields: Any) -> Button:
    shown = worded(words or f"run_{verb}", what=title_of(run), playbook=run.playbook, question=run.question)
    return Button(action=f"/api/v1/runs/{run.id}/{verb}", **shown, **fields)


def may_respond(role: Role) -> bool:
    return role in ACTING


def may_act(role: Role) -> bool:
    return role in APPROVING


def run_buttons(
    run: Run, role: Role, bars: Callable[[Run], Said | None] = nothing_bars
) -> tuple[Button, ...]:
    """The buttons of this run for this role. `bars`: why this person may not approve it; None if they may."""
    if not may_act(role) or run.state in ENDED_RUN_STATES:
        return ()
    if run.state in (RunState.waiting_approval, RunState.proposed) or waits_for_second(run):
        on = {"cluster": run.cluster, **({"node": run.node} if run.node else {"job": run.job or ""})}
        on |= {"incident": run.incident} if run.incident else {}
        preview, body = f"/api/v1/playbooks/{run.playbook}/runs", {**on, "reason": "preview"}
        approve = _approve(run, preview=preview, preview_body=body, barred=bars(run) or "")
        return approve, _on_run(run, "reject")
    buttons: list[Button] = []
    if run.state is RunState.waiting and run.question:
        buttons.append(_approve(run, "run_go_on", barred=bars(run) or ""))
    if run.state is RunState.stuck:
        buttons.append(_on_run(run, "retry", body={"epoch": run.epoch}, primary=True))
    buttons.append(_on_run(run, "cancel"))
    if run.state in _AT_WORK:
        buttons.append(_on_run(run, "undo"))
    return tuple(buttons)


def from_here_buttons(run: Run, log: Iterable[LogEntry], role: Role) -> dict[str, Button]:
    """By step: the button that goes back to it. Only for a run that does not work."""
    keys = dict.fromkeys(entry.step for entry in log)
    if not may_act(role) or run.state not in (RunState.stuck, RunState.waiting) or UNDO in keys:
        return {}
    names = [key for key in keys if key != BEGIN and ":" not in key]
    action = f"/api/v1/runs/{run.id}/retry"
    return {
        name: Button(**worded("from_here", name=name), action=action, body={"step": name, "epoch": run.epoch})
        for name in names
    }


def resume_button(incident: Incident, node: str) -> Button:
    return _resume({"cluster": incident.cluster, "node": node, "incident": incident.id})


def _resume(body: dict[str, str], **fields: Any) -> Button:
    return _start(
        "resume", body, **{**worded("resume", node=body["node"]), "primary": True, "key": "r", **fields}
    )


def acknowledge_button(incident: Incident) -> Button:
    return _on_incident(incident, "acknowledge", field="", key="a")


def review_buttons(incident: Incident) -> list[Button]:
    """True fault, false alarm."""
    return [
        _on_incident(incident, "review", review, body={"review": review}, field="cause")
        for review in ("true_fault", "false_alarm")
    ]


def split_buttons(detail: IncidentRecord, role: Role) -> dict[str, Button]:
    """By id of each incident merged into this one, and under an empty id for all of them."""
    merged = [incident.id for incident in detail.merged]
    if not may_respond(role) or not merged:
        return {}
    alone = {name: _split(detail.incident, [name]) for name in merged}
    return alone | ({"": _split(detail.incident, merged)} if len(merged) > 1 else {})


def _split(incident: Incident, parts: list[str]) -> Button:
    what = say("console.buttons_incident", parts=parts[0][:8])
    if len(parts) > 1:
        what = say("console.buttons_incidents", parts=len(parts))
    words = worded("split", what=what, short_id=incident.short_id)
    words |= {"label": say("console.button_split_all_label")} if len(parts) > 1 else {}
    return _on_incident(incident, "split", **words, body={"incidents": parts})


#: Incidents offered to merge into; the queue selects among all.
MERGES_OFFERED = 50


def _merge(incident: Incident, open_incidents: Iterable[OpenIncident]) -> list[Button]:
    """Merges it into another open one: offers those of its node first, then the newest."""
    others = [other for other in open_incidents if other.id != incident.id]
    others.sort(key=lambda other: (other.root.node != incident.root.node, -other.opened.timestamp()))
    offered = others[:MERGES_OFFERED]
    if not offered:
        return []
    into = InputField(
        name="into",
        help=say("console.buttons_incident_goes"),
        default="",
        required=True,
        choices=tuple(other.id for other in offered),
        labels=tuple(_label(other) for other in offered),
    )
    return [_on_incident(incident, "merge", inputs=(into,), flat=True)]


def _label(incident: OpenIncident) -> str:
    where = incident.root.node or incident.root.device or incident.root.job or ""
    return words.labelled(f"{incident.id[:8]} {where}".rstrip(), incident.title)


def _take_over(incident: Incident, me: str) -> list[Button]:
    """Takes an incident that another person has acknowledged."""
    who = incident.acknowledged_by
    if who in (None, me):
        return []
    return [_on_incident(incident, "assign", **worded("take_over", who=quoted(who)), body={"to": me})]


def quiet_buttons(
    incident: Incident, role: Role, open_incidents: Iterable[OpenIncident] = (), *, me: str = ""
) -> list[Button]:
    """Buttons that are always possible and never urgent. `me`: who looks at the page."""
    if not may_respond(role):
        return []

    note = _on_incident(incident, "note", field="note", key="n")
    if incident.is_open:
        _, false_alarm = review_buttons(incident)
        resolve = _on_incident(incident, "resolve")
        again = [_on_incident(incident, "reopen")] if incident.stopped_by is not None else []
        return [
            note,
            *_take_over(incident, me),
            false_alarm,
            resolve,
            *again,
            *_merge(incident, open_incidents),
        ]
    reviews = review_buttons(incident) if incident.review is not None else ()
    return [note, *reviews, _on_incident(incident, "reopen")]


def _by_hand(playbook: Playbook, body: dict[str, str], *, more: bool = False) -> Button:
    """Any playbook of the site on this node: its title says what it does."""
    steps = words.counted(len(playbook.steps), "step")
    return _start(
        playbook.name,
        body,
        label=playbook.name.replace("-", " ").capitalize().replace("Gpu", "GPU"),
        title=words.labelled(quoted(playbook.title), body["node"]),
        effect=say("console.buttons_steps_each_changes_something_asks", counted=steps),
        inputs=tuple(_field(name, given) for name, given in playbook.inputs.items()),
        more=more,
    )


def _field(name: str, given: Input) -> InputField:
    default = given.default
    flag = given.type is InputType.bool
    return InputField(
        name=name,
        help=given.help or name.replace("_", " "),
        default="" if default is None else str(default).lower() if flag else str(default),
        required=given.required,
        choices=("false", "true") if flag else given.choices,
    )


def _only_looks(playbook: Playbook) -> bool:
    """Whether it may run at any time, whatever else works on the node."""
    verbs = {step.do for step in playbook.steps}
    return runs_alongside(playbook) and Verb.collect in verbs and Verb.site_command not in verbs


def node_buttons(
    row: NodeRow, cluster: str, role: Role, playbooks: Iterable[Playbook] = ()
) -> tuple[Button, ...]:
    """Drain and resume by hand, and on a node in service the site's other playbooks for nodes.

    healer's own drain can be resumed, Slurm's adopted and tested; a person's is theirs (law 5). Playbooks
    that only look may be started at any time.
    """
    if not may_act(role):
        return ()
    body = {"cluster": cluster, "node": row.name}
    playbooks = tuple(playbooks)
    if row.in_service:
        return (
            _start("drain", body, **worded("drain", name=row.name)),
            *(
                _by_hand(playbook, body, more=playbook.name not in _FIRST)
                for playbook in playbooks
                if playbook.target == "node" and playbook.name not in _OWN_BUTTON
            ),
        )
    by_name = {playbook.name: playbook for playbook in playbooks}
    resume = (_resume(body, label=say("console.buttons_resume")),) if row.kind is NodeKind.out_healer else ()
    takes_back = by_name.get(_TAKES_BACK.get(row.kind, ""))
    return (
        *resume,
        *([_by_hand(takes_back, body)] if takes_back else []),
        *(_by_hand(playbook, body) for playbook in playbooks if _only_looks(playbook)),
    )


#: The playbook that returns a node, by who took it out.
_TAKES_BACK = {NodeKind.out_healer: "return-to-service", NodeKind.out_slurm: "adopt-slurm-drain"}
