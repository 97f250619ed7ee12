"""What the parts of one walk share."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from healer.incidents import Book
from healer.model import ENDED_RUN_STATES, GateFacts, Incident, Ruleset, Run, RunState, audit_record
from healer.observations import Picture
from healer.ports.transactions import WalkTx

_WAITS_FOR_PERMISSION = frozenset({RunState.proposed, RunState.waiting_approval, RunState.held})


class Walk:
    """One walk's transaction, what it works on, and the runs it set going."""

    def __init__(self, tx: WalkTx, rules: Ruleset, picture: Picture, now: datetime) -> None:
        self.tx, self.rules, self.picture, self.now = tx, rules, picture, now
        self.work = Book(rules, tx.open_incidents(), picture, now, tx.incident)
        self.known = dict(self.work.by_id)
        self.started: list[str] = []
        #: What the gate knows; None while this walk has no need to ask it.
        self.facts: GateFacts | None = None
        #: Runs that have not ended, while the gate's lock is held; what the walk ends is taken out.
        self.runs: dict[str, Run] = {}

    @property
    def gate(self) -> GateFacts:
        """What the gate knows, with what this walk has granted and freed. Its lock is held."""
        assert self.facts is not None
        return self.facts

    def withdraw(self, incident: Incident, why: str) -> bool:
        """Nothing works on the incident any more: a run that waits for permission goes with its cause."""
        run = self.tx.run(incident.run) if incident.run else None
        if run is None or run.shadow or run.state in ENDED_RUN_STATES:
            return True
        if run.state not in _WAITS_FOR_PERMISSION:
            return False
        self.tx.set_run_state(run.id, RunState.rejected, why=why, at=self.now)
        return True

    def open_incidents(self) -> list[Incident]:
        return [one for one in self.work.by_id.values() if one.is_open]

    def audit(self, verb: str, subject: str, **data: Any) -> None:
        self.tx.audit(audit_record(self.picture.cluster, self.now, "healer", verb, subject, **data))

    def pass_over(self, passed: Sequence[tuple[str, str, str]]) -> None:
        """What is not told now is kept where people can look for it."""
        for node, fault, why in passed:
            self.audit("finding.passed_over", f"node/{node}", fault=fault, why=why)
