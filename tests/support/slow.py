"""A site whose nodes are slow, or lose their fabric: the test says what ticks over the fleet find."""

from datetime import datetime
from typing import Any

import msgspec

from healer.model import (
    Cause,
    Component,
    Detections,
    Evidence,
    FaultClass,
    Finding,
    JobCheckpoint,
    Mode,
    Remedy,
    Rule,
    Ruleset,
    Run,
    RunState,
    Sense,
    Severity,
)
from healer.signals.identity import digest_of
from tests.support.loop import CLUSTER, Site, name, rules_in

OPT_IN = "healer:requeue"


def _rule(rule: str, *, playbook: str | None = None, mode: Mode | None = None, **fields: Any) -> Rule:
    given: dict[str, Any] = {
        "name": rule,
        "title": rule,
        "faults": (rule,),
        "severity": Severity.P2,
        "cause": Cause.unclear,
        "playbook": playbook,
        "mode": mode,
    }
    return Rule(**(given | fields))


#: As they ship, or as a site writes them; here so that these tests know what they rest on.
RULES = (
    _rule("straggler", playbook="slow-node", senses=2, remedy=(Remedy.diagnose, Remedy.ticket)),
    _rule("job-slow", severity=Severity.P3),
    _rule("unusual-node", severity=Severity.P3, mode=Mode.shadow),
    _rule("gpu-clock-low", severity=Severity.P3, mode=Mode.shadow, detection=True),
    _rule("gpu-hot", severity=Severity.P3, detection=True),
    _rule(
        "fabric-manager-down",
        playbook="restart-fabric-manager",
        remedy=(Remedy.restart_service, Remedy.ticket),
        detection=True,
    ),
)


def slow_rules(mode: Mode = Mode.auto, **changes: Any) -> Ruleset:
    """The shipped rules with these in their places; `changes` by rule name (dashes as `_`): its mode."""
    own = {rule.name for rule in RULES}
    rest = tuple(rule for rule in rules_in(mode).rules if rule.name not in own)
    mine = tuple(
        _with_mode(rule, changes[rule.name.replace("-", "_")])
        if rule.name.replace("-", "_") in changes
        else rule
        for rule in RULES
    )
    return rules_in(mode, rules=(*mine, *rest))


def _with_mode(rule: Rule, mode: Mode) -> Rule:
    return msgspec.structs.replace(rule, mode=mode)


_SENSES = {
    "straggler": Sense.step_times,
    "job-slow": Sense.step_times,
    "hang": Sense.step_times,
    "unusual-node": Sense.forest,
}


def found(
    fault: str, at: datetime, *, node: int | None = 1, gpu: int | None = None, job: str | None = None
) -> Finding:
    """What a tick finds: metrics say so, unless the fault is one of step times or of the forest."""
    jobs = (job,) if job is not None else ()
    where = Component(
        cluster=CLUSTER, node=name(node) if node else None, gpu=gpu, job=job if node is None else None
    )
    sense = _SENSES.get(fault, Sense.metrics)
    evidence = Evidence(
        digest=digest_of(fault, str(where), at.isoformat()),
        at=at,
        arrived_at=at,
        component=where,
        text=f"{where}: {fault}",
        sense=sense,
    )
    informational = fault in {"job-slow", "hang", "unusual-node"}
    return Finding(
        rule=fault,
        fault=fault,
        fault_class=FaultClass.informational if informational else FaultClass.degraded,
        component=where,
        at=at,
        arrived_at=at,
        text=f"{where}: {fault}",
        confidence=0.9,
        evidence=(evidence,),
        jobs=jobs,
    )


class SlowSite(Site):
    """`find` is a tick that found something; `clear` one that knows a cause to be gone since then."""

    def __init__(self, nodes: int = 32, *, rules: Ruleset | None = None, **fields: Any) -> None:
        super().__init__(nodes, rules=rules or slow_rules(), **fields)
        self.clears: dict[tuple[str, Component], datetime] = {}

    def find(self, *faults: str, **where: Any) -> None:
        findings = tuple(found(fault, self.now, **where) for fault in faults)
        self.tick(findings)

    def tick(self, findings: tuple[Finding, ...] = ()) -> None:
        self.walk(sensed=Detections(at=self.now, findings=findings, clear_since=self.clears))

    def clear(self, fault: str, since: datetime | None = None, **where: Any) -> None:
        component = found(fault, self.now, **where).component
        self.clears[fault, component] = since or self.now
        self.tick()

    def back(self) -> None:
        self.clears = {}
        self.tick()

    def checkpoint(self, job: str, step: int, *, at: datetime | None = None, restart: int = 0) -> None:
        """The job saves its work durably."""
        checkpoint = JobCheckpoint(
            job=job, restart=restart, step=step, path="/ckpt", at=at or self.now, arrived_at=self.now
        )
        self.saved.take([checkpoint])

    def agreed(self, *, nodes: int = 1, **job: Any) -> str:
        """A running job whose owner agreed to be requeued."""
        started = self.slurm.add_job(**({"nodes": nodes, "comment": OPT_IN} | job))
        self.look()
        return started

    def pass_time(self, seconds: float, step_s: float = 1.0) -> None:
        """Walks and drives, with a tick over the fleet at each step."""
        self.tick()
        end = self.now.timestamp() + seconds
        while True:
            self.tick()
            self.drive()
            self.tick()
            if self.now.timestamp() >= end:
                return
            self.clock.advance(min(step_s, end - self.now.timestamp()))

    # --- looking at it ---

    def run_of(self, playbook: str) -> Run:
        """The last one of this playbook."""
        return [one for one in self.runs if one.playbook == playbook][-1]

    def ended(self, run: Run) -> bool:
        return run.state in {RunState.done, RunState.cancelled, RunState.rejected}
