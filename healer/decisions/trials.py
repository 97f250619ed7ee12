"""The first runs of a new or changed rule or playbook wait for a person. Pure."""

from collections.abc import Sequence

from healer.decisions.answers import at
from healer.model import GateFacts, Proposal, Ruleset, RunState, Trial

#: A run that a person let go counts as one of the first ones while it is in one of these: not when it is
#: stuck, and not when it was cancelled or taken back.
COUNTED = frozenset({RunState.running, RunState.waiting, RunState.done})


def trial_of(proposal: Proposal, facts: GateFacts, rules: Ruleset) -> Trial | None:
    """What the proposal comes from and has not yet been seen at work. A run that began before the change goes
    on as it began."""
    begun = proposal.begun_at
    known = [one for one in facts.trials if begun is None or one.since <= begun]
    return standing(proposal.rule, proposal.playbook, known, rules)


def standing(rule: str, playbook: str | None, trials: Sequence[Trial], rules: Ruleset) -> Trial | None:
    """The one with the most runs left, of a rule and the playbook that it names."""
    names = {f"rule/{rule}", f"playbook/{playbook}"}
    mine = (one for one in trials if one.left > 0 and one.name in names)
    return max(
        (one for one in mine if rules.texts.get(one.name) == one.digest),
        key=lambda one: one.left,
        default=None,
    )


def waits(trial: Trial) -> str:
    """The sentence of the guard: `Rule gpu-lost is new or changed since …: a person approves 3 more runs.`"""
    kind, _, name = trial.name.partition("/")
    runs = f"{trial.left} more runs" if trial.left > 1 else "one more run"
    return f"{kind.capitalize()} {name} is new or changed since {at(trial.since)}: a person approves {runs}."
