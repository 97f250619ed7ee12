"""The presses a person may make: each posts JSON to the REST API, with a preview where it changes much."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from healer.console.views.fleet_view import NodeKind, NodeRow
from healer.console.views.runs_view import target
from healer.decisions import runs_alongside
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
from healer.playbooks import BEGIN, UNDO
from healer.ports.answers import OpenIncident

#: Shown where they fit; `gpu-fatal` by hand is `drain` and `requeue`.
#: On a node in service: the ones that are wanted often. All others stand under "More playbooks".
_FIRST = frozenset({"drain-at-job-end", "validate", "reboot-validate"})
_OWN_BUTTON = frozenset(
    {"drain", "resume", "undrain", "gpu-fatal", "adopt-slurm-drain", "return-to-service", "foreign-drain"}
)
_ACT = frozenset({Role.operator, Role.admin})
_AT_WORK = frozenset({RunState.running, RunState.waiting, RunState.stuck})
_RESPOND = frozenset({Role.responder, Role.operator, Role.admin})


class InputField(msgspec.Struct, frozen=True, kw_only=True):
    """`choices` make a list to choose from, `labels` are how they read; without them it is a line of text."""

    name: str
    help: str
    default: str
    required: bool
    choices: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


class Button(msgspec.Struct, frozen=True, kw_only=True):
    """A press that posts JSON. `field` is the text the API wants with it (reason, note, or none);
    `preview` is a route that is asked with `dry_run=true` before anything is done."""

    label: str
    action: str
    title: str
    effect: str
    body: Mapping[str, str | list[str]] = {}
    method: str = "POST"
    field: str = "reason"
    preview: str = ""
    preview_body: dict[str, str] = {}
    primary: bool = False
    key: str = ""
    #: What the playbook may be given, for the dialog; an empty default of a required one has to be chosen.
    inputs: tuple[InputField, ...] = ()
    #: What the fields give are parts of the body itself, not the inputs of a playbook.
    flat: bool = False
    #: Stands under "More playbooks".
    more: bool = False


def _start(playbook: str, body: dict[str, str], **told: Any) -> Button:
    """A press that starts the playbook; people see first what the guards say."""
    where = f"/api/v1/playbooks/{playbook}/runs"
    return Button(action=where, body=body, preview=where, preview_body={**body, "reason": "preview"}, **told)


def may_respond(role: Role) -> bool:
    return role in _RESPOND


def may_act(role: Role) -> bool:
    return role in _ACT


def run_buttons(run: Run, role: Role) -> tuple[Button, ...]:
    """What this role may press on this run."""
    if not may_act(role) or run.state in ENDED_RUN_STATES:
        return ()
    what = f"{run.playbook} {target(run)}"

    def press(label: str, word: str, title: str, effect: str, **told: Any) -> Button:
        return Button(label=label, action=f"/api/v1/runs/{run.id}/{word}", title=title, effect=effect, **told)

    if run.state in (RunState.waiting_approval, RunState.proposed):
        on = {"cluster": run.cluster, **({"node": run.node} if run.node else {"job": run.job or ""})}
        if run.incident:
            on["incident"] = run.incident
        effect = f"healer starts {what} at once. Each step still asks the guards."
        preview = f"/api/v1/playbooks/{run.playbook}/runs"
        told = {"preview": preview, "preview_body": {**on, "reason": "preview"}, "primary": True, "key": "p"}
        approve = press(f"Approve {run.playbook}", "approve", f"Approve {what}", effect, **told)
        effect = "This run ends here and nothing is done. The incident stays open."
        return approve, press("Reject", "reject", f"Reject {what}", effect)
    buttons: list[Button] = []
    if run.state is RunState.waiting and run.question:
        effect = "The run goes on with its next step. Each step still asks the guards."
        buttons.append(press("Approve", "approve", f"Approve {what}", effect, primary=True, key="p"))
    if run.state is RunState.stuck:
        effect = "healer looks at the world anew and goes on from the step that did not succeed."
        buttons.append(press("Try again", "retry", f"Try {what} again", effect, primary=True))
    effect = "The run stops after the step it is in. What was done stays done; a drain stays."
    buttons.append(press("Cancel run", "cancel", f"Cancel {what}", effect))
    if run.state in _AT_WORK:
        effect = (
            "healer takes back what this run did, the last step first: its drain and its "
            "reservation end. What cannot be taken back stays, and is named."
        )
        buttons.append(press("Take back", "undo", f"Take back {what}", effect))
    return tuple(buttons)


def from_here_buttons(run: Run, log: Iterable[LogEntry], role: Role) -> dict[str, Button]:
    """By step: the press that goes back to it. Only where the run stands still."""
    keys = dict.fromkeys(entry.step for entry in log)
    if not may_act(role) or run.state not in (RunState.stuck, RunState.waiting) or UNDO in keys:
        return {}
    names = [key for key in keys if key != BEGIN and ":" not in key]
    return {
        name: Button(
            label="From here",
            action=f"/api/v1/runs/{run.id}/retry",
            title=f"Go back to {name}",
            effect=f"healer does {name} and all after it anew. What stands already is not done twice.",
            body={"step": name},
        )
        for name in names
    }


def resume_button(incident: Incident, node: str) -> Button:
    body = {"cluster": incident.cluster, "node": node, "incident": incident.id}
    return _resume(body, label=f"Resume {node}", key="r")


def _resume(body: dict[str, str], **told: Any) -> Button:
    node = body["node"]
    effect = f"healer lifts its own drain on {node}; new jobs may start there at once."
    title = f"Return {node} to service"
    return _start("resume", body, title=title, effect=effect, primary=True, **told)


def acknowledge_button(incident: Incident) -> Button:
    return Button(
        label="Acknowledge",
        action=f"/api/v1/incidents/{incident.id}/acknowledge",
        title="Acknowledge",
        effect="Says that you look after this incident. It stops nothing.",
        field="",
        key="a",
    )


def review_button(incident: Incident, review: str, label: str, effect: str) -> Button:
    return Button(
        label=label,
        action=f"/api/v1/incidents/{incident.id}/review",
        title=label,
        effect=effect,
        body={"review": review},
        field="cause",
    )


def review_buttons(incident: Incident) -> tuple[Button, ...]:
    return (
        review_button(incident, "true_fault", "True fault", "Counts as a hit for the rule."),
        review_button(incident, "false_alarm", "False alarm", "Counts against the rule's precision."),
    )


def split_buttons(detail: IncidentRecord, role: Role) -> dict[str, Button]:
    """By id of what was merged into the incident, and under an empty one for all of it."""
    merged = [one.id for one in detail.merged]
    if not may_respond(role) or not merged:
        return {}
    alone = {name: _split(detail.incident, [name], "Split off") for name in merged}
    return alone | ({"": _split(detail.incident, merged, "Split all")} if len(merged) > 1 else {})


def _split(incident: Incident, parts: list[str], label: str) -> Button:
    what = f"incident {parts[0][:8]}" if len(parts) == 1 else f"{len(parts)} incidents"
    return Button(
        label=label,
        action=f"/api/v1/incidents/{incident.id}/split",
        title=f"Split {what} from {incident.short_id}",
        effect="Each is an incident of its own again, acknowledged by you; only a person merges it anew.",
        body={"incidents": parts},
    )


#: So many other incidents are offered to merge into; the queue selects among all.
MERGES_OFFERED = 50


def _merge(incident: Incident, open_ones: Iterable[OpenIncident]) -> list[Button]:
    """Into another open one: those of its node first, then the newest."""
    others = [one for one in open_ones if one.id != incident.id]
    others.sort(key=lambda one: (one.root.node != incident.root.node, -one.opened.timestamp()))
    offered = others[:MERGES_OFFERED]
    if not offered:
        return []
    into = InputField(
        name="into",
        help="The incident that goes on",
        default="",
        required=True,
        choices=tuple(one.id for one in offered),
        labels=tuple(_named(one) for one in offered),
    )
    return [
        Button(
            label="Merge into",
            action=f"/api/v1/incidents/{incident.id}/merge",
            title="Merge this incident into another one",
            effect="It ends as a part of that one. It can be split off again.",
            inputs=(into,),
            flat=True,
        )
    ]


def _named(one: OpenIncident) -> str:
    where = one.root.node or one.root.device or one.root.job or ""
    return f"{one.id[:8]} {where}: {one.title}" if where else f"{one.id[:8]}: {one.title}"


def quiet_buttons(incident: Incident, role: Role, open_ones: Iterable[OpenIncident] = ()) -> list[Button]:
    """What is always possible and never urgent."""
    if not may_respond(role):
        return []
    base = f"/api/v1/incidents/{incident.id}"
    buttons = [
        Button(label="Note", action=f"{base}/note", title="Write a note",
               effect="Everybody who reads this incident sees it.", field="note", key="n"),
    ]  # fmt: skip
    if incident.is_open:
        buttons += [
            review_button(incident, "false_alarm", "False alarm", "Counts against the rule's precision."),
            Button(label="Resolve", action=f"{base}/resolve", title="Resolve this incident",
                   effect="Closes it. Nothing is done on the node or in Slurm."),
            *_merge(incident, open_ones),
        ]  # fmt: skip
    else:
        if incident.review is not None:
            buttons += review_buttons(incident)
        buttons.append(Button(label="Reopen", action=f"{base}/reopen", title="Reopen this incident",
                              effect="healer looks at it again and may act."))  # fmt: skip
    return buttons


def _by_hand(playbook: Playbook, body: dict[str, str], *, more: bool = False) -> Button:
    """Any playbook of the site's on this node: what it does stands in its own title."""
    return _start(
        playbook.name,
        body,
        label=playbook.name.replace("-", " ").capitalize().replace("Gpu", "GPU"),
        title=f"{playbook.title}: {body['node']}",
        effect=f"{len(playbook.steps)} steps; each that changes something asks the guards first.",
        inputs=tuple(_field(name, one) for name, one in playbook.inputs.items()),
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
    """It may be asked for at any time, whoever has the node."""
    verbs = {step.do for step in playbook.steps}
    return runs_alongside(playbook) and Verb.collect in verbs and Verb.site_command not in verbs


def node_buttons(
    row: NodeRow, cluster: str, role: Role, playbooks: Iterable[Playbook] = ()
) -> tuple[Button, ...]:
    """Drain and resume by hand, and on a node in service the site's other playbooks for nodes.

    Our own drain can be resumed, Slurm's own taken over and tested; a person's is theirs (law 5). What only
    looks may be asked for at any time.
    """
    if not may_act(role):
        return ()
    body = {"cluster": cluster, "node": row.name}
    playbooks = tuple(playbooks)
    looks = tuple(_by_hand(one, body) for one in playbooks if _only_looks(one))
    if row.in_service:
        others = [one for one in playbooks if one.target == "node" and one.name not in _OWN_BUTTON]
        effect = f"No new job starts on {row.name}; running jobs go on."
        return (
            _start("drain", body, label="Drain", title=f"Drain {row.name}", effect=effect),
            *(_by_hand(one, body, more=one.name not in _FIRST) for one in others),
        )
    if row.kind is NodeKind.out_healer:
        tested = (_by_hand(one, body) for one in playbooks if one.name == "return-to-service")
        return (_resume(body, label="Resume"), *tested, *looks)
    if row.kind is NodeKind.out_slurm:
        adopt = (_by_hand(one, body) for one in playbooks if one.name == "adopt-slurm-drain")
        return (*adopt, *looks)
    return looks
