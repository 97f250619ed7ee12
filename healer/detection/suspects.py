"""Which node of a job makes it slow, where the job tells whole step times alone: group testing over jobs.

A node that is common to slow jobs and in no fast one is the likelier; faults that are open on it make it
likelier from the start. It is a list of suspects with its reasons, for the person who looks: nobody is
blamed, and nothing is done.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import NamedTuple

import msgspec
import numpy as np

from healer.detection.streams import Pace
from healer.model import Component, Evidence, Finding, Sense, SlurmSnapshot
from healer.observations.steps import JobSteps

#: What is held of any node before a job speaks: that it slows its jobs; with a fault open on it, as odds.
PRIOR, FAULT_ODDS = 0.01, 30.0
#: A bad node slows a job that often, and a job is slow without any that often. Our own figures.
SLOWS, BY_ITSELF = 0.9, 0.05
#: What was slow so long before still speaks of its nodes; what was fast only if it ran since then.
LOOKED_BACK = timedelta(hours=24)
#: Outcomes of lives of jobs that are kept.
KEPT = 2000
#: Rounds of belief propagation, and how much of a message is the last round's.
_ROUNDS, _DAMPING = 20, 0.5
_NAMED, _HALF_NAMED = 5, 8


class Outcome(NamedTuple):
    """How a life of a job went: on which nodes, slow since when (None: never), and until when it was seen."""

    job: str
    nodes: frozenset[str]
    slow_since: datetime | None
    until: datetime


class Suspect(NamedTuple):
    node: str
    #: 0..1, and why, in words.
    share: float
    why: tuple[str, ...]


class Suspects:
    """Remembers how jobs went on which nodes. One thread; bounded."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[str, int], Outcome] = {}

    def follow(
        self, paces: Iterable[tuple[JobSteps, Pace]], slurm: SlurmSnapshot | None, now: datetime
    ) -> None:
        """Takes in how the jobs go now; of those that Slurm does not show nothing is changed."""
        for job, pace in paces:
            shown = slurm.jobs.get(job.job) if slurm is not None else None
            if shown is None or not shown.active or not pace.known or not shown.nodes:
                continue
            key = job.job, job.restart
            before = self._outcomes.pop(key, None)
            since = (before.slow_since if before else None) or now if pace.slow else None
            self._outcomes[key] = Outcome(job.job, frozenset(shown.nodes), since, now)
        while len(self._outcomes) > KEPT:
            del self._outcomes[next(iter(self._outcomes))]

    def forget(self, node: str) -> None:
        """It was repaired, returned or booted: what jobs were on it speaks of it no more."""
        for key, one in list(self._outcomes.items()):
            if node in one.nodes:
                self._outcomes[key] = one._replace(nodes=one.nodes - {node})

    def named(self, finding: Finding, faults: Mapping[str, Sequence[str]], now: datetime) -> Finding:
        """The finding of a slow job with its suspects as evidence. `faults`: titles of what is open on each
        node."""
        job = finding.component.job or ""
        own = max((one for one in self._outcomes.values() if one.job == job), key=_seen, default=None)
        if own is None or own.slow_since is None or len(own.nodes) < 2:
            return finding
        found = suspects(own, list(self._outcomes.values()), faults)
        first = [one for one in found if one.why][:_NAMED]
        text = _in_words(job, found, first)
        head = ",".join(f"{one.node}:{'/'.join(one.why)}" for one in first)
        digest = sha256(f"suspects|{finding.evidence[0].digest}|{head}".encode()).hexdigest()
        more = Evidence(
            digest=digest,
            at=now,
            arrived_at=now,
            component=finding.component,
            text=text,
            job=job,
            sense=Sense.step_times,
        )
        where = tuple(Component(cluster=finding.component.cluster, node=one.node) for one in first)
        return msgspec.structs.replace(finding, evidence=(*finding.evidence, more), affected=where)


def _seen(one: Outcome) -> datetime:
    return one.until


def suspects(own: Outcome, outcomes: Sequence[Outcome], faults: Mapping[str, Sequence[str]]) -> list[Suspect]:
    """The nodes of the slow job `own`, the likeliest first."""
    begun = own.slow_since or own.until
    told = [own]
    for one in outcomes:
        slow = one.slow_since is not None and one.slow_since >= begun - LOOKED_BACK
        fast = one.slow_since is None and one.until >= begun
        if one is not own and one.nodes & own.nodes and (slow or fast):
            told.append(one)
    share = posterior([(one.nodes, one.slow_since is not None) for one in told], faults)
    found = []
    for node in own.nodes:
        why = [f"open there: {title}" for title in list(faults.get(node, ()))[:2]]
        slow = sorted(one.job for one in told[1:] if one.slow_since is not None and node in one.nodes)
        why += [f"slow in job {', '.join(slow[:3])} too"] if slow else []
        found.append(Suspect(node, share[node], tuple(why)))
    return sorted(found, key=lambda one: (-one.share, one.node))


def posterior(
    jobs: Sequence[tuple[frozenset[str], bool]], faults: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Node -> how likely it slows its jobs, by which jobs (nodes, whether slow) it was in.

    Noisy-or of independent nodes: a job is slow by itself with `BY_ITSELF`, by each bad node with `SLOWS`.
    Loopy belief propagation (J. Pearl, *Probabilistic Reasoning in Intelligent Systems*, 1988), damped.
    """
    names = sorted({node for nodes, _ in jobs for node in nodes})
    place = {name: index for index, name in enumerate(names)}
    odds = np.array([PRIOR / (1 - PRIOR) * (FAULT_ODDS if faults.get(name) else 1.0) for name in names])
    prior = np.log(odds)
    members = [np.array(sorted(place[node] for node in nodes)) for nodes, _ in jobs]
    words = [np.zeros(len(one)) for one in members]
    for _ in range(_ROUNDS):
        total = prior.copy()
        for own, word in zip(members, words, strict=True):
            total[own] += word
        for index, (own, (_, slow)) in enumerate(zip(members, jobs, strict=True)):
            without = np.clip(total[own] - words[index], -30, 30)
            fine = np.log1p(-SLOWS / (1 + np.exp(-without)))
            others = (1 - BY_ITSELF) * np.exp(fine.sum() - fine)  # all others leave it fast
            if slow:
                word = np.log1p(-(1 - SLOWS) * others) - np.log1p(-others)
            else:
                word = np.full(len(own), np.log(1 - SLOWS))
            words[index] = _DAMPING * words[index] + (1 - _DAMPING) * word
    total = prior.copy()
    for own, word in zip(members, words, strict=True):
        total[own] += word
    return dict(zip(names, (1 / (1 + np.exp(-np.clip(total, -30, 30)))).tolist(), strict=True))


def _in_words(job: str, found: Sequence[Suspect], first: Sequence[Suspect]) -> str:
    probe = first_half(found)
    more = f" and {len(probe) - _HALF_NAMED} more" if len(probe) > _HALF_NAMED else ""
    how = (
        f"To find it: `healer run bisect --job {job}` tests halves of its nodes once it has ended; "
        f"the likeliest are {', '.join(probe[:_HALF_NAMED])}{more}"
    )
    if not first:
        return f"Suspects of job {job}: nothing tells its {len(found)} nodes apart. {how}"
    named = "; ".join(f"{one.node} ({one.share:.0%}: {', '.join(one.why)})" for one in first)
    return f"Suspects of job {job}, none of them blamed: {named}. {how}".replace("%", " %")


def first_half(found: Sequence[Suspect]) -> list[str]:
    """The nodes to test first: the likeliest that together are as likely as all others, so that the answer
    halves what is not known. At most half of the nodes."""
    whole = sum(one.share for one in found)
    half: list[str] = []
    share = 0.0
    for one in found[: max(1, len(found) // 2)]:
        if half and share >= whole / 2:
            break
        half.append(one.node)
        share += one.share
    return half
