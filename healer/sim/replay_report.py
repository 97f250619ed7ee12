"""The document of a replay: incidents, actions, what was held, and differences to what was done."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from healer.incidents.incident_verdict import newest_verdict
from healer.incidents.node_history import similar_to
from healer.model import (
    Decision,
    Incident,
    LogEntry,
    Message,
    Outcome,
    Ruleset,
    Run,
    Similar,
    SlurmSnapshot,
    StepEvent,
    Ticket,
    TicketStage,
    Verb,
    by_opening,
)
from healer.model.faults import HEALER_DRAIN
from healer.model.incident import SIMILAR_MAX
from healer.sim.ledger_tables import Tables
from healer.text import to_plain


def report(
    tables: Tables, rules: Ruleset, shown: SlurmSnapshot | None, recorded_drains: Mapping[str, datetime]
) -> dict[str, Any]:
    """`shown` is Slurm's last picture, for the GPU models of nodes."""
    actions = _actions(tables)
    rows = _IncidentRows(tables, rules, shown)
    # A recorded repair took longer than the replay's own: its drain is not a forgotten one.
    incidents = (
        incident
        for incident in tables.incidents.values()
        if incident.fault != HEALER_DRAIN or incident.root.node not in recorded_drains
    )
    opened = sorted(incidents, key=by_opening)
    whole = {
        "incidents": [rows.incident(incident) for incident in opened if incident.merged_into is None],
        "merged": [_merged(incident) for incident in opened if incident.merged_into is not None],
        "actions": actions,
        "held": _held(tables),
        "differences": _differences(actions, recorded_drains),
    }
    return to_plain(whole)


def since(document: dict[str, Any], at: datetime) -> dict[str, Any]:
    """The document without incidents that opened, and actions that were done, before `at`."""
    by = {"incidents": "opened", "merged": "opened", "actions": "at", "held": "at"}
    kept = {
        name: [row for row in document[name] if datetime.fromisoformat(row[field]) >= at]
        for name, field in by.items()
    }
    moments = ("recorded", "replayed")
    kept["differences"] = [
        row
        for row in document["differences"]
        if any(row[name] and datetime.fromisoformat(row[name]) >= at for name in moments)
    ]
    return document | kept


def _merged(incident: Incident) -> dict[str, Any]:
    """A row for an incident that was merged into another. Actions and holds keep its id."""
    return {
        "id": incident.id,
        "into": incident.merged_into,
        "rule": incident.rule,
        "opened": moment(incident.opened),
        "closed": moment(incident.closed) if incident.closed else None,
        "root": to_plain(incident.root),
        "why": incident.closed_why,
    }


def moment(at: datetime) -> str:
    """RFC 3339 in UTC, with the fraction of the second if there is one."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


class _IncidentRows:
    """Rows of incidents with their verdict and similar incidents."""

    def __init__(self, tables: Tables, rules: Ruleset, shown: SlurmSnapshot | None) -> None:
        self._tables, self._rules = tables, rules
        self._nodes = shown.nodes if shown is not None else {}
        self._done = _done_by_incident(tables)
        self._alike: dict[tuple[str, str | None], list[Incident]] = {}
        for incident in sorted(tables.incidents.values(), key=by_opening, reverse=True):
            for key in {("fault", incident.fault), ("node", incident.root.node)}:
                self._alike.setdefault(key, []).append(incident)

    def incident(self, incident: Incident) -> dict[str, Any]:
        kept = self._tables.verdicts.get(incident.id, ())
        verdict = newest_verdict(kept, incident, self._rules)
        return _incident(incident) | {
            "hit": to_plain(incident.hit),
            "verdict": to_plain(verdict),
            "similar": [
                {"id": other.id, "same": str(other.same), "ended": other.ended}
                for other in self._similar(incident)
            ],
        }

    def _similar(self, incident: Incident) -> list[Similar]:
        same_node = self._alike[("node", incident.root.node)] if incident.root.node is not None else []
        near = [*self._alike[("fault", incident.fault)][:SIMILAR_MAX], *same_node[:SIMILAR_MAX]]
        return similar_to(
            incident,
            near,
            lambda node: self._nodes[node].gpu_model if node in self._nodes else "",
            lambda names: {name: self._done.get(name, []) for name in names},
        )


def _done_by_incident(tables: Tables) -> dict[str, list[Verb]]:
    """By incident: the verbs that its runs completed, oldest first."""
    found: dict[str, list[Verb]] = {}
    for run in tables.runs.values():
        if run.incident is not None and not run.shadow:
            log = tables.log.get(run.id, [])
            done = [entry for entry in log if entry.event is StepEvent.done and "verb" in entry.data]
            found.setdefault(run.incident, []).extend(Verb(entry.data["verb"]) for entry in done)
    return found


def _incident(incident: Incident) -> dict[str, Any]:
    return {
        "id": incident.id,
        "rule": incident.rule,
        "opened": moment(incident.opened),
        "severity": incident.severity,
        "cause": incident.cause,
        "root": to_plain(incident.root),
        "affected": to_plain(incident.affected),
        "nodes": {name: str(verdict) for name, verdict in sorted(incident.nodes.items())},
        "remedy": list(incident.remedy),
        "jobs_hit": list(incident.jobs_hit),
        "closed": moment(incident.closed) if incident.closed else None,
        "evidence": [
            {"at": moment(e.at), "component": to_plain(e.component), "text": e.text, "line": e.line}
            for e in incident.evidence
        ],
        "title": incident.title,
        "state": str(incident.state),
        "owner": incident.owner,
        "counted": dict(sorted(incident.counted.items())),
        "known_bad_in_service": incident.known_bad_in_service,
    }


def _actions(tables: Tables) -> list[dict[str, Any]]:
    found = []
    for run_id, log in tables.log.items():
        run = tables.runs[run_id]
        found += [_action(run, entry) for entry in log if _acted(run, entry)]
    by_runs = {row["incident"] for row in found if row["action"] == Verb.ticket}
    for at, message in tables.sent:
        verb = _sent(message)
        if verb is Verb.notify or (verb is Verb.ticket and message.incident not in by_runs):
            incident = tables.incidents.get(message.incident or "")
            node = incident.root.node if incident else None
            found.append(_row(at, str(verb), node=node, job=None, incident=message.incident, mode="auto"))
    return sorted(
        found, key=lambda row: (row["at"], row["incident"] or "")
    )  # stable: a run's own order stays


def _sent(message: Message | Ticket) -> Verb | None:
    """A page, or a new ticket; None: nothing that counts as an action."""
    if isinstance(message, Ticket):
        return Verb.ticket if message.stage is TicketStage.opened else None
    return Verb.notify if message.page else None


def _acted(run: Run, entry: LogEntry) -> bool:
    """Whether the entry is a completed action. A notice to the owner of a job does not count."""
    acted = entry.event is StepEvent.done and not run.shadow
    is_notice = entry.data.get("verb") == Verb.notify and ":" in entry.step
    return acted and not is_notice and "verb" in entry.data


def _action(run: Run, entry: LogEntry) -> dict[str, Any]:
    job = entry.step.partition(":")[2] or run.job
    verb = str(entry.data["verb"])
    return _row(entry.at, verb, node=run.node, job=job or None, incident=run.incident, mode=str(run.mode))


def _row(
    at: datetime, action: str, *, node: str | None, job: str | None, incident: str | None, mode: str
) -> dict[str, Any]:
    return {
        "at": moment(at), "action": action, "node": node, "job": job, "incident": incident, "mode": mode,
    }  # fmt: skip


def _held(tables: Tables) -> list[dict[str, Any]]:
    """Each guard that held or refused an action, once per incident, action and target."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for decision in tables.decisions:
        if decision.outcome not in {Outcome.held, Outcome.refused} or decision.proposal is None:
            continue
        row = _held_row(decision)
        key = (row["incident"], row["action"], row["node"], row["job"], row["guard"])
        rows.setdefault(key, row)
    return sorted(rows.values(), key=lambda row: (row["at"], row["incident"] or "", row["action"]))


def _held_row(decision: Decision) -> dict[str, Any]:
    asked = decision.proposal
    assert asked is not None
    return {
        "at": moment(decision.at),
        "action": str(asked.verb),
        "node": asked.node,
        "job": asked.job,
        "incident": asked.incident,
        "guard": str(decision.guard),
        "why": decision.why,
    }


def _differences(
    actions: list[dict[str, Any]], recorded_drains: Mapping[str, datetime]
) -> list[dict[str, Any]]:
    """Nodes that healer drained in the recording and not now, or the other way round."""
    now = {row["node"]: row["at"] for row in reversed(actions) if row["action"] == "drain"}
    rows = []
    for node in sorted({*now, *recorded_drains} - (now.keys() & recorded_drains.keys())):
        then = recorded_drains.get(node)
        rows.append({"node": node, "recorded": moment(then) if then else None, "replayed": now.get(node)})
    return rows
