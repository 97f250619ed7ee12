"""What follows from a decision: the run's state, whether it says something new, how the node stands."""

from hashlib import sha256

from healer.model import Decision, GateFacts, Guard, Incident, Mode, Outcome, RunState


def run_state_of(decision: Decision, mode: Mode) -> tuple[RunState, bool]:
    """State of the run, and whether it is a shadow run: what the guard that kept it back asks for."""
    if decision.outcome is Outcome.act:
        return RunState.running, False
    if decision.guard is Guard.mode and mode is Mode.shadow:
        return RunState.running, True
    if decision.guard is Guard.mode and mode is Mode.suggest:
        return RunState.proposed, False
    if decision.guard is Guard.approval:
        return RunState.waiting_approval, False
    return RunState.held, False


def decision_key(decision: Decision) -> str:
    """The same for decisions that say the same; figures that move with the clock make no new decision."""
    said: list[str] = [decision.outcome, str(decision.guard), str(decision.run)]
    said += [f"{answer.guard}={answer.kind}" for answer in decision.answers]
    if decision.outcome is Outcome.nothing:
        said.append(decision.why)
    return sha256("|".join(said).encode()).hexdigest()[:16]


def known_bad_in_service(incident: Incident, decision: Decision, facts: GateFacts) -> bool:
    """Law 2: surely unusable, and it must still stay in service."""
    node = facts.snapshot.nodes.get(incident.root.node or "") if facts.snapshot else None
    kept = decision.outcome in {Outcome.held, Outcome.refused}
    return incident.unusable and kept and node is not None and node.in_service
