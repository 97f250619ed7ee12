"""People's commands about incidents, and those that are not about runs: pauses, modes of rules, references.

Each command is judged in one transaction with its audit record, which carries the id of the request: a
repeated request is found by it and changes nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from healer.decisions.consent import demotion_reason, promotion_obstacle
from healer.engine.command import Order
from healer.model import (
    AuditRecord,
    Command,
    CommandKind,
    Incident,
    Mode,
    Pause,
    Reference,
    Review,
    Rule,
    Ruleset,
    audit_record,
)
from healer.ports.clock import Clock
from healer.ports.commanding import CommandLedger, CommandTx
from healer.ports.request_errors import Conflict, Invalid, NotFound
from healer.ports.service_accounts import is_person
from healer.telling.news import demotion_message, flood_message
from healer.text import quoted, say

#: The author of a mode that healer itself has lowered.
HEALER = "healer"


class Controls:
    """Raises NotFound, Conflict, and Unavailable if the database does not answer; in that case nothing was
    done.

    With several clusters, the ledger is that of the first one, and also takes records that belong to no
    cluster. A pause of all clusters is audited in each of `clusters`.
    """

    def __init__(
        self, ledger: CommandLedger, rules: Callable[[], Ruleset], clock: Clock, clusters: Sequence[str] = ()
    ) -> None:
        self._ledger, self._rules, self._clock = ledger, rules, clock
        self._clusters = clusters or (ledger.cluster,)

    def pause(self, pause: Pause, *, request: str) -> Pause:
        """Stores the pause. A repeat of the request returns the pause that the first one made."""
        with self._ledger.command() as tx:
            if not tx.add_pause(pause):
                return tx.pause(pause.id) or pause
            data = {name: value for name, value in msgspec.to_builtins(pause).items() if value}
            data["request"] = request
            for cluster in self._clusters_of(pause):
                subject = f"pause/{pause.id}"
                tx.audit(audit_record(cluster, pause.since, pause.by, "pause.set", subject, **data))
            return pause

    def _clusters_of(self, pause: Pause) -> Sequence[str]:
        return (pause.cluster,) if pause.cluster else self._clusters

    def end_pause(self, pause: str, *, by: str, reason: str, request: str) -> Pause:
        now, subject = self._clock.now(), f"pause/{pause}"
        with self._ledger.command() as tx:
            ended = tx.end_pause(pause, by=by, at=now)
            if ended is not None:
                data = {"reason": reason, "request": request}
                for cluster in self._clusters_of(ended):
                    tx.audit(audit_record(cluster, now, by, "pause.ended", subject, **data))
                return ended
            earlier = _ended_before(tx, pause, request)
            if earlier is None:
                raise NotFound(say("engine.no_pause", pause=pause))
            return earlier

    def ended_pause(self, pause: str, *, request: str) -> Pause | None:
        """The pause that an earlier try of this request ended; None if there was no such try."""
        with self._ledger.command() as tx:
            return _ended_before(tx, pause, request)

    def learn(self, reference: Reference, *, reason: str, request: str) -> None:
        """Stores the reference, in place of the present one of its kind."""
        subject = f"reference/{reference.kind}"
        data = {"reason": reason, "node": reference.node, "facts": reference.facts, "request": request}
        with self._ledger.command() as tx:
            if tx.audited(subject, request):
                return
            tx.save_reference(reference)
            verb = "reference.learnt"
            tx.audit(audit_record(reference.cluster, reference.at, reference.by, verb, subject, **data))

    def forget_reference(self, reference: Reference, *, by: str, reason: str, request: str) -> None:
        subject = f"reference/{reference.kind}"
        data = {"reason": reason, "node": reference.node, "request": request}
        with self._ledger.command() as tx:
            if tx.drop_reference(reference):
                tx.audit(
                    audit_record(
                        reference.cluster, self._clock.now(), by, "reference.forgotten", subject, **data
                    )
                )

    def set_mode(self, rule: Rule, mode: Mode, *, by: str, reason: str, request: str) -> None:
        """Sets the rule's mode at run time. Raises Conflict if auto is not earned. Going back to the mode in
        the files needs no proof, unless healer itself took auto away or would do so now."""
        rules = self._rules()
        earn = rules.guards.earn
        with self._ledger.command() as tx:
            if tx.audited(f"rule/{rule.name}", request):
                return
            before = tx.rule_mode(rule.name)
            if mode is Mode.auto:
                back = rules.mode_of(rule) is Mode.auto and (before is None or before[1] != HEALER)
                proof = tx.proof(rule.name, earn.incidents, digests=rules.digests)
                # Even if a person set another mode since, a rule that would lose auto at its next review does
                # not get it back.
                fell = demotion_reason(mode, proof, earn) is not None
                why = promotion_obstacle(proof, earn) if fell or not back else None
                if why is not None:
                    raise Conflict(say("engine.no_auto", rule=rule.name, why=why))
            order = Order(rule.name, by, reason, request, self._clock)
            store_mode(tx, self._ledger.cluster, order, before[0] if before else None, mode)

    def audit(self, record: AuditRecord) -> None:
        """Stores a record of something that the API itself decides: refusals, downloads of evidence."""
        with self._ledger.command() as tx:
            tx.audit(record)

    def report_flood(self, addresses: Sequence[str], refused: int) -> None:
        """Notifies people, at most once an hour, of addresses whose credentials have been refused for a long
        time."""
        cluster, now = self._ledger.cluster, self._clock.now()
        message = flood_message(cluster, addresses, refused, now)
        data = {"addresses": [*addresses], "refused": refused}
        with self._ledger.command() as tx:
            tx.queue_message(message)
            tx.audit(audit_record(cluster, now, "healer", "access.flooded", "access", **data))


def _ended_before(tx: CommandTx, pause: str, request: str) -> Pause | None:
    return tx.pause(pause) if tx.audited(f"pause/{pause}", request) else None


def store_mode(tx: CommandTx, cluster: str, order: Order, before: Mode | None, mode: Mode) -> None:
    """Sets the mode of the rule that the order is about. `before`: the mode set at run time before, if
    any."""
    tx.save_rule_mode(order.about, mode, by=order.by, reason=order.reason, at=order.at)
    modes = {"mode": mode.value, "before": before.value if before else None}
    why, rule = {"reason": order.reason, "request": order.request}, f"rule/{order.about}"
    tx.audit(audit_record(cluster, order.at, order.by, "rule.mode_set", rule, **modes, **why))


# --- incidents: only the detector changes them, so an accepted command waits in its inbox


#: The audit verb of each command.
_VERBS = {
    CommandKind.acknowledge: "incident.acknowledged",
    CommandKind.assign: "incident.assigned",
    CommandKind.resolve: "incident.resolve_asked",
    CommandKind.reopen: "incident.reopen_asked",
    CommandKind.merge: "incident.merge_asked",
    CommandKind.split: "incident.split_asked",
    CommandKind.review: "incident.reviewed",
}
#: Returned in place of the row of a command that the detector has taken, which may be deleted by now.
TAKEN = -1
#: Checks a command against the present incident, and returns the data that the detector needs.
_Judge = Callable[[CommandTx, Incident], dict[str, Any]]


class IncidentCommands:
    """Raises NotFound, Conflict and Invalid, and Unavailable if the database does not answer; in that case
    nothing was done.

    Each command returns its row in the detector's inbox; `consumed` says whether the detector has taken it.
    """

    def __init__(self, ledger: CommandLedger, rules: Callable[[], Ruleset], clock: Clock) -> None:
        self._ledger, self._rules, self._clock = ledger, rules, clock

    def acknowledge(self, incident: str, *, by: str, reason: str, request: str) -> int:
        """The first to acknowledge keeps the incident; another person takes it over with `assign`."""

        def judge(tx: CommandTx, current: Incident) -> dict[str, Any]:
            if current.acknowledged_by not in (None, by):
                raise Conflict(say("engine.is_acknowledged", who=current.acknowledged_by))
            return {}

        return self._queue_command(CommandKind.acknowledge, self._order(incident, by, reason, request), judge)

    def assign(self, incident: str, *, to: str, by: str, reason: str, request: str) -> int:
        """Assigns the incident to another person."""
        if not is_person(to):
            raise Invalid("to", say("engine.assigned_to_account", name=to))

        def judge(tx: CommandTx, current: Incident) -> dict[str, Any]:
            return _is_open(tx, current) | {"to": to}

        return self._queue_command(CommandKind.assign, self._order(incident, by, reason, request), judge)

    def resolve(self, incident: str, *, by: str, reason: str, request: str) -> int:
        """Ends the incident. The detector cancels its active run."""
        return self._queue_command(CommandKind.resolve, self._order(incident, by, reason, request), _is_open)

    def reopen(self, incident: str, *, by: str, reason: str, request: str) -> int:
        return self._queue_command(
            CommandKind.reopen, self._order(incident, by, reason, request), _may_reopen
        )

    def merge(self, incident: str, *, into: str, by: str, reason: str, request: str) -> int:
        """Ends the incident as a part of the incident `into`."""

        def judge(tx: CommandTx, current: Incident) -> dict[str, Any]:
            return _may_merge(current, _incident(tx, into))

        return self._queue_command(CommandKind.merge, self._order(incident, by, reason, request), judge)

    def split(self, incident: str, *, parts: Sequence[str] | None, by: str, reason: str, request: str) -> int:
        """Splits off what was merged into the incident: all of it, or the given `parts` (ids or their
        beginnings)."""

        def judge(tx: CommandTx, current: Incident) -> dict[str, Any]:
            merged = [part.id for part in tx.merged_into(current.id)]
            if not merged:
                raise Conflict(say("engine.nothing_merged"))
            wanted = merged if parts is None else [_named(merged, name) for name in parts]
            return {"incidents": list(dict.fromkeys(wanted))}

        return self._queue_command(CommandKind.split, self._order(incident, by, reason, request), judge)

    def review(
        self, incident: str, *, review: Review, cause: str | None, by: str, reason: str, request: str
    ) -> int:
        """Stores whether the incident was a true fault. A rule in auto that is wrong too often falls back to
        approve, and people are paged. The detector has stored neither this review nor those that wait for it,
        so they are counted here."""

        order = self._order(incident, by, reason, request)
        data = {"review": review.value} | ({"cause": cause} if cause else {})

        def fall_back(tx: CommandTx, current: Incident) -> None:
            self._judge_mode(tx, current, review, request)

        return self._queue_command(CommandKind.review, order, lambda tx, incident: data, then=fall_back)

    def note(self, incident: str, text: str, *, by: str, request: str) -> None:
        """Adds a person's words to the incident."""
        order = self._order(incident, by, "", request)
        with self._ledger.command() as tx:
            current = _incident(tx, incident)
            if not tx.audited(f"incident/{incident}", request):
                tx.add_note(incident, text, by=by, at=order.at)
                _audit_incident(tx, current, order, "incident.noted", {"note": text})

    def consumed(self, row: int) -> bool:
        """Whether the detector has taken the command."""
        return row == TAKEN or self._ledger.consumed(row)

    def _order(self, incident: str, by: str, reason: str, request: str) -> Order:
        return Order(incident, by, reason, request, self._clock)

    def _queue_command(
        self,
        kind: CommandKind,
        order: Order,
        judge: _Judge = lambda tx, incident: {},
        then: Callable[[CommandTx, Incident], None] | None = None,
    ) -> int:
        with self._ledger.command() as tx:
            current = _incident(tx, order.about)
            repeated = tx.audited(f"incident/{order.about}", order.request)
            try:
                data = judge(tx, current)
            except (Conflict, Invalid):
                if not repeated:
                    raise
                return TAKEN  # an earlier try of this request had this effect
            if not repeated:
                _audit_incident(tx, current, order, _VERBS[kind], {"reason": order.reason, **data})
                if then is not None:
                    then(tx, current)
            command = Command(
                kind=kind,
                cluster=current.cluster,
                at=order.at,
                by=order.by,
                incident=current.id,
                reason=quoted(order.reason),
                data=data,
            )
            return tx.send_command(command, request=order.request)

    def _judge_mode(self, tx: CommandTx, incident: Incident, review: Review, request: str) -> None:
        rules = self._rules()
        rule = rules.by_name.get(incident.rule)
        if rule is None:
            return
        set_to = tx.rule_mode(rule.name)
        mode = set_to[0] if set_to else rules.mode_of(rule)
        if mode is not Mode.auto:
            return
        earn = rules.guards.earn
        tx.lock_gate()  # of two reviews at once, the later one counts the other too
        proof = tx.proof(rule.name, earn.incidents, digests=rules.digests, review=(incident.id, review))
        if (why := demotion_reason(mode, proof, earn)) is None:
            return
        cluster = self._ledger.cluster
        reason = say("engine.why_demoted", why=why, incident=incident.short_id)
        order = Order(rule.name, HEALER, reason, request, self._clock)
        store_mode(tx, cluster, order, set_to[0] if set_to else None, Mode.approve)
        tx.queue_message(demotion_message(cluster, rule.name, why, incident.id, request))


def _audit_incident(tx: CommandTx, incident: Incident, order: Order, verb: str, data: dict[str, Any]) -> None:
    subject, request = f"incident/{incident.id}", order.request
    tx.audit(audit_record(incident.cluster, order.at, order.by, verb, subject, **data, request=request))


def _incident(tx: CommandTx, name: str) -> Incident:
    found = tx.incident(name)
    if found is None:
        raise NotFound(say("engine.no_incident", incident=name))
    return found


def _is_open(tx: CommandTx, incident: Incident) -> dict[str, Any]:
    if not incident.is_open:
        raise Conflict(say("engine.is_resolved"))
    return {}


def _may_reopen(tx: CommandTx, incident: Incident) -> dict[str, Any]:
    if incident.is_open and incident.stopped_by is None:
        raise Conflict(say("engine.is_open"))
    if incident.merged_into:
        raise Conflict(say("engine.was_merged", incident=incident.merged_into))
    return {}


def _may_merge(incident: Incident, into: Incident) -> dict[str, Any]:
    if into.id == incident.id:
        raise Invalid("into", say("engine.into_itself"))
    if into.cluster != incident.cluster:
        raise Invalid("into", say("engine.of_other_cluster", cluster=into.cluster))
    if into.merged_into:
        raise Conflict(say("engine.itself_merged", incident=into.short_id, into=into.merged_into[:8]))
    if not incident.is_open:
        raise Conflict(say("engine.is_resolved"))
    return {"into": into.id}


def _named(merged: Sequence[str], name: str) -> str:
    found = [part for part in merged if part.startswith(name)]
    if len(found) != 1:
        raise Invalid("incidents", say("engine.not_merged", incident=name))
    return found[0]
