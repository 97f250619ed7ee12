"""What people order beside runs: pauses, modes of rules, what nodes should be, and words on incidents.

Each is one transaction with its audit record. The record carries the id of the request, by which a repeat of
the same request is found: it changes nothing.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from healer.decisions.earned import falls_back, lacks
from healer.model import (
    AuditRecord,
    Command,
    CommandKind,
    Mode,
    Pause,
    Reference,
    Review,
    Rule,
    Ruleset,
)
from healer.ports.clock import Clock
from healer.ports.commanding import CommandLedger, CommandTx
from healer.ports.request_errors import Conflict, NotFound
from healer.telling.messages import fell_back

#: Who sets a mode that falls back by itself.
HEALER = "healer"
#: The audit's verb of each command that people give to an incident.
_VERBS = {
    CommandKind.acknowledge: "incident.acknowledged",
    CommandKind.resolve: "incident.resolve_asked",
    CommandKind.reopen: "incident.reopen_asked",
    CommandKind.merge: "incident.merge_asked",
    CommandKind.split: "incident.split_asked",
    CommandKind.review: "incident.reviewed",
}


class Controls:
    """Raises NotFound, Conflict, and Unavailable where the database does not answer: then nothing was done.

    Of several clusters the ledger is that of the first: it takes the records of what belongs to no cluster.
    """

    def __init__(self, ledger: CommandLedger, rules: Callable[[], Ruleset], clock: Clock) -> None:
        self._ledger, self._rules, self._clock = ledger, rules, clock

    def tell(self, command: Command, *, request: str) -> int:
        """Puts the command to an incident into the detector's inbox, committed; the row's id."""
        subject = f"incident/{command.incident}"
        with self._ledger.command() as tx:
            if not tx.audited(subject, request):
                data = {"reason": command.reason, **command.data, "request": request}
                verb = _VERBS.get(command.kind, f"incident.{command.kind.value}")
                _record(tx, command.cluster, command.at, command.by, verb, subject, data)
            return tx.tell(command, request=request)

    def consumed(self, row: int) -> bool:
        """Whether the detector has taken what `tell` put there."""
        return self._ledger.consumed(row)

    def note(self, incident: str, text: str, *, by: str, request: str) -> None:
        now, subject = self._clock.now(), f"incident/{incident}"
        with self._ledger.command() as tx:
            if tx.audited(subject, request):
                return
            known = tx.incident(incident)
            if known is None:
                raise NotFound(f"there is no incident {incident}")
            tx.add_note(incident, text, by=by, at=now)
            data = {"note": text, "request": request}
            _record(tx, known.cluster, now, by, "incident.noted", subject, data)

    def pause(self, pause: Pause, *, request: str) -> Pause:
        """The same request again answers with the pause that it made."""
        with self._ledger.command() as tx:
            if not tx.add_pause(pause):
                return tx.pause(pause.id) or pause
            data = {name: value for name, value in msgspec.to_builtins(pause).items() if value}
            data["request"] = request
            cluster = pause.cluster or self._ledger.cluster
            _record(tx, cluster, pause.since, pause.by, "pause.set", f"pause/{pause.id}", data)
            return pause

    def end_pause(self, pause: str, *, by: str, reason: str, request: str) -> Pause:
        now, subject = self._clock.now(), f"pause/{pause}"
        with self._ledger.command() as tx:
            ended = tx.end_pause(pause, by=by, at=now)
            if ended is not None:
                data = {"reason": reason, "request": request}
                cluster = ended.cluster or self._ledger.cluster
                _record(tx, cluster, now, by, "pause.ended", subject, data)
                return ended
            known = tx.pause(pause)
            if known is None or not tx.audited(subject, request):
                raise NotFound(f"no pause {pause} is in force")
            return known

    def learn(self, reference: Reference, *, reason: str, request: str) -> None:
        """Takes it in place of the one of its kind."""
        subject = f"reference/{reference.kind}"
        data = {"reason": reason, "node": reference.node, "facts": reference.facts, "request": request}
        with self._ledger.command() as tx:
            if tx.audited(subject, request):
                return
            tx.save_reference(reference)
            verb = "reference.learnt"
            _record(tx, reference.cluster, reference.at, reference.by, verb, subject, data)

    def forget_reference(self, reference: Reference, *, by: str, reason: str, request: str) -> None:
        subject = f"reference/{reference.kind}"
        data = {"reason": reason, "node": reference.node, "request": request}
        with self._ledger.command() as tx:
            if tx.drop_reference(reference):
                _record(tx, reference.cluster, self._clock.now(), by, "reference.forgotten", subject, data)

    def set_mode(self, rule: Rule, mode: Mode, *, by: str, reason: str, request: str) -> None:
        """Sets how far the rule may go while healer runs. Conflict where auto is not earned; the way back to
        what the files say is free, unless healer itself took auto away."""
        rules = self._rules()
        earn = rules.guards.earn
        with self._ledger.command() as tx:
            if tx.audited(f"rule/{rule.name}", request):
                return
            before = tx.rule_mode(rule.name)
            back = rules.mode_of(rule) is Mode.auto and (before is None or before[1] != HEALER)
            if mode is Mode.auto and not back:
                proof = tx.proof(rule.name, earn.incidents, texts=rules.texts)
                if (why := lacks(proof, earn)) is not None:
                    raise Conflict(f"{rule.name} cannot be set to auto: {why}")
            self._set_mode(tx, rule.name, (before[0] if before else None, mode), by, reason, request)

    def judge_mode(self, rule: Rule, *, incident: str, review: Review, request: str) -> None:
        """After a review that the detector has not stored yet. A rule in auto that is wrong too often falls
        back to approve, and people are paged."""
        rules = self._rules()
        earn = rules.guards.earn
        with self._ledger.command() as tx:
            set_to = tx.rule_mode(rule.name)
            mode = set_to[0] if set_to else rules.mode_of(rule)
            if mode is not Mode.auto or tx.audited(f"rule/{rule.name}", request):
                return
            proof = tx.proof(rule.name, earn.incidents, texts=rules.texts, review=(incident, review))
            why = falls_back(mode, proof, earn)
            if why is not None:
                change = set_to[0] if set_to else None, Mode.approve
                self._set_mode(tx, rule.name, change, HEALER, f"{why} ({incident[:8]})", request)
                tx.queue_message(fell_back(self._ledger.cluster, rule.name, why, incident, request))

    def _set_mode(
        self, tx: CommandTx, rule: str, change: tuple[Mode | None, Mode], by: str, reason: str, request: str
    ) -> None:
        """`change`: from the mode that was set while healer ran, if any, to the new one."""
        now, (before, mode) = self._clock.now(), change
        tx.save_rule_mode(rule, mode, by=by, reason=reason, at=now)
        data = {
            "mode": mode.value,
            "before": before.value if before else None,
            "reason": reason,
            "request": request,
        }
        _record(tx, self._ledger.cluster, now, by, "rule.mode_set", f"rule/{rule}", data)

    def audit(self, record: AuditRecord) -> None:
        """A record of what the API itself decides: refusals, downloads of evidence."""
        with self._ledger.command() as tx:
            tx.audit(record)


def _record(tx: CommandTx, cluster: str, *about: Any) -> None:
    """`about`: at, actor, verb, subject, data."""
    at, actor, verb, subject, data = about
    tx.audit(AuditRecord(cluster=cluster, at=at, actor=actor, verb=verb, subject=subject, data=data))
