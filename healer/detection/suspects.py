"""Which node makes its job slow, if the job reports only whole step times: group testing over jobs.

A node that is common to slow jobs and in no fast one is more likely; so is a node with open faults, from the
start. The result is a list of suspects with reasons, for a person: no node is blamed, and no action is taken.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.detection.protocol import new_evidence, percent
from healer.detection.streams import Pace
from healer.model import Component, Finding, Sense, SlurmSnapshot
from healer.observations.steps import JobSteps, LifeKey, active_job
from healer.text import Said, joined, name_some, quoted, say

#: Priors: the probability that a node slows its jobs, and the odds of a node with an open fault.
PRIOR, FAULT_ODDS = 0.01, 30.0
#: How often a bad node slows a job, and how often a job is slow without a bad node. Our own figures.
SLOWS, BY_ITSELF = 0.9, 0.05
#: A job that was slow within this time still counts; a fast one counts only if it ran since then.
LOOKED_BACK = timedelta(hours=24)
#: The most outcomes of lives of jobs that are kept.
KEPT = 2000
#: Rounds of belief propagation, and the share of the last round's message (damping).
_ROUNDS, _DAMPING = 20, 0.5
_NAMED, _HALF_NAMED = 5, 8


class Outcome(NamedTuple):
    """The course of a life of a job: its nodes, since when it was slow (None: never), and until when it was
    seen."""

    job: str
    nodes: frozenset[str]
    slow_since: datetime | None
    until: datetime


class Suspect(NamedTuple):
    node: str
    #: 0..1, and why, in words.
    share: float
    why: tuple[Said, ...]


class Suspects:
    """Remembers how jobs ran on which nodes; bounded."""

    def __init__(self) -> None:
        self._outcomes: dict[LifeKey, Outcome] = {}

    def follow(
        self, paces: Iterable[tuple[JobSteps, Pace]], slurm: SlurmSnapshot | None, now: datetime
    ) -> None:
        """Updates the course of the present jobs; jobs that Slurm does not show are left unchanged."""
        for job, pace in paces:
            shown = active_job(slurm, job.job)
            if shown is None or not pace.is_ready or not shown.nodes:
                continue
            before = self._outcomes.pop(job.key, None)
            since = (before.slow_since if before else None) or now if pace.slow else None
            self._outcomes[job.key] = Outcome(job.job, frozenset(shown.nodes), since, now)
        while len(self._outcomes) > KEPT:
            del self._outcomes[next(iter(self._outcomes))]

    def forget(self, node: str) -> None:
        """The node was repaired, returned or booted: earlier jobs no longer count against it."""
        for key, outcome in list(self._outcomes.items()):
            if node in outcome.nodes:
                self._outcomes[key] = outcome._replace(nodes=outcome.nodes - {node})

    def named(self, finding: Finding, faults: Mapping[str, Sequence[str]], now: datetime) -> Finding:
        """The finding of a slow job with its suspects as evidence. `faults`: titles of each node's open
        incidents."""
        job, where = finding.component.job or "", finding.component
        outcomes = [outcome for outcome in self._outcomes.values() if outcome.job == job]
        latest = max(outcomes, key=attrgetter("until"), default=None)
        if latest is None or latest.slow_since is None or len(latest.nodes) < 2:
            return finding
        found = suspects(latest, list(self._outcomes.values()), faults)
        first = [suspect for suspect in found if suspect.why][:_NAMED]
        head = ",".join(f"{suspect.node}:{'/'.join(suspect.why)}" for suspect in first)
        identity = f"suspects|{finding.evidence[0].digest}|{head}"
        more = new_evidence(identity, where, now, _in_words(job, found, first), now, Sense.step_times)
        nodes = tuple(Component(cluster=where.cluster, node=suspect.node) for suspect in first)
        return msgspec.structs.replace(finding, evidence=(*finding.evidence, more), affected=nodes)


def suspects(
    slow_job: Outcome, outcomes: Sequence[Outcome], faults: Mapping[str, Sequence[str]]
) -> list[Suspect]:
    """The nodes of the slow job, most likely first."""
    begun = slow_job.slow_since or slow_job.until
    related = [slow_job]
    for outcome in outcomes:
        slow = outcome.slow_since is not None and outcome.slow_since >= begun - LOOKED_BACK
        fast = outcome.slow_since is None and outcome.until >= begun
        if outcome is not slow_job and outcome.nodes & slow_job.nodes and (slow or fast):
            related.append(outcome)
    share = posterior([(outcome.nodes, outcome.slow_since is not None) for outcome in related], faults)
    found = []
    for node in slow_job.nodes:
        why = [say("detection.open_there", title=quoted(title)) for title in list(faults.get(node, ()))[:2]]
        slow = sorted(
            outcome.job for outcome in related[1:] if outcome.slow_since is not None and node in outcome.nodes
        )
        why += [say("detection.slow_there_too", jobs=joined(slow[:3], "comma"))] if slow else []
        found.append(Suspect(node, share[node], tuple(why)))
    return sorted(found, key=lambda suspect: (-suspect.share, suspect.node))


def posterior(
    jobs: Sequence[tuple[frozenset[str], bool]], faults: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Node -> the probability that it slows its jobs, by the jobs (nodes, whether slow) that it was in.

    Noisy-or of independent nodes: a job is slow by itself with `BY_ITSELF`, and by each bad node with
    `SLOWS`. Loopy belief propagation (J. Pearl, *Probabilistic Reasoning in Intelligent Systems*, 1988),
    damped.
    """
    names = sorted({node for nodes, _ in jobs for node in nodes})
    place = {name: index for index, name in enumerate(names)}
    odds = np.array([PRIOR / (1 - PRIOR) * (FAULT_ODDS if faults.get(name) else 1.0) for name in names])
    prior = np.log(odds)
    members = [np.array(sorted(place[node] for node in nodes)) for nodes, _ in jobs]
    messages = [np.zeros(len(nodes)) for nodes in members]

    def total() -> NDArray[np.float64]:
        logit = prior.copy()
        for nodes, message in zip(members, messages, strict=True):
            logit[nodes] += message
        return logit

    for _ in range(_ROUNDS):
        logit = total()
        for index, (nodes, (_, slow)) in enumerate(zip(members, jobs, strict=True)):
            without = np.clip(logit[nodes] - messages[index], -30, 30)
            fine = np.log1p(-SLOWS / (1 + np.exp(-without)))
            others = (1 - BY_ITSELF) * np.exp(fine.sum() - fine)  # no other node slows it
            if slow:
                message = np.log1p(-(1 - SLOWS) * others) - np.log1p(-others)
            else:
                message = np.full(len(nodes), np.log(1 - SLOWS))
            messages[index] = _DAMPING * messages[index] + (1 - _DAMPING) * message
    return dict(zip(names, (1 / (1 + np.exp(-np.clip(total(), -30, 30)))).tolist(), strict=True))


def _in_words(job: str, found: Sequence[Suspect], first: Sequence[Suspect]) -> Said:
    how = say("detection.find_it", job=job, nodes=name_some(first_half(found), _HALF_NAMED))
    if not first:
        return say("detection.no_suspects", job=job, n=len(found), how=how)
    named = (
        say("detection.suspect", node=node, share=percent(share), why=joined(why, "comma"))
        for node, share, why in first
    )
    return say("detection.suspects", job=job, suspects=joined(named, "semicolon"), how=how)


def first_half(found: Sequence[Suspect]) -> list[str]:
    """The nodes to test first: the most likely ones, together as likely as all others, so that the answer
    halves the uncertainty. At most half of the nodes."""
    whole = sum(suspect.share for suspect in found)
    half: list[str] = []
    share = 0.0
    for suspect in found[: max(1, len(found) // 2)]:
        if half and share >= whole / 2:
            break
        half.append(suspect.node)
        share += suspect.share
    return half
