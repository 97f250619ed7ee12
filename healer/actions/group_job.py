"""Groups of nodes in a bisection: the search for the slow node, and healer's job on one group.

The nodes are idle and stay in service, without a reservation. The job has the lowest priority, and every
second the gate is asked whether it may stay. It is found by Slurm's number, or by its name and comment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from healer.actions import test_job
from healer.actions.base import Again, Context, Failed, Result
from healer.actions.test_form import TestOutcome, parse_report
from healer.decisions.sweeps import sweep_job
from healer.model import FIGURE_SHARE, SlurmJob, SlurmSnapshot, rates_in
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable
from healer.text import NO_WORDS, Said, name_some, quoted, said_by, say, to_stored

#: With fewer nodes, a half has no two nodes that could be tested together.
LEAST = 4
#: Prior odds of a suspect against a node without known faults.
NAMED_WEIGHS = 30.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a group's test: figures by name, higher is better; `failed`: what went wrong."""

    figures: dict[str, float] = {}
    failed: Said = NO_WORDS


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The next group to test."""

    nodes: tuple[str, ...]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """`slow`: node -> why. `between`: pairs of groups that are fine separately and slow together. `open`:
    slow groups whose nodes cannot be distinguished. All empty: nothing is slow."""

    slow: dict[str, Said] = {}
    between: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    open: tuple[tuple[str, ...], ...] = ()
    tested: int = 0

    @property
    def clean(self) -> bool:
        return not (self.slow or self.between or self.open)


def search(
    nodes: Sequence[str],
    named: Sequence[str],
    answers: Mapping[tuple[str, ...], Answer],
    standard: Mapping[str, float] | None = None,
) -> Wanted | Found:
    """The next group to test, or the result. `named`: the suspects among `nodes`. `answers`: sorted names of
    a group -> its result. `standard`: figures of the reference node of the kind, if known."""
    if len(nodes) < LEAST:
        raise ValueError("too few nodes to be halved")
    look = _Search(answers, standard or {}, {node: NAMED_WEIGHS for node in named})
    try:
        look.top(sorted(nodes, key=lambda node: node not in named))
    except _Missing as missing:
        return Wanted(nodes=missing.nodes)
    return Found(slow=look.slow, between=tuple(look.between), open=tuple(look.open), tested=len(look.seen))


class _Missing(Exception):
    def __init__(self, nodes: tuple[str, ...]) -> None:
        self.nodes = nodes


@dataclass
class _Search:
    answers: Mapping[tuple[str, ...], Answer]
    standard: Mapping[str, float]
    weights: Mapping[str, float]
    #: (size of the group, its result), in the order of evaluation.
    seen: list[tuple[int, Answer]] = field(default_factory=list)
    well: list[str] = field(default_factory=list)
    slow: dict[str, Said] = field(default_factory=dict)
    between: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)
    open: list[tuple[str, ...]] = field(default_factory=list)

    def top(self, nodes: list[str]) -> None:
        # Equal halves: no node is known to be healthy yet that could fill up the smaller one.
        half = len(nodes) // 2
        first, rest = nodes[:half], nodes[half:]
        reasons = self._both(first, rest)
        if any(reasons):
            self._go_on((first, rest), reasons)
        elif self._judged(self._answer(nodes), size=0):
            self.between.append((tuple(first), tuple(rest)))

    def _halve(self, doubt: list[str]) -> None:
        """Continues with halves of nodes that are slow together."""
        first, rest = self._halves(doubt)
        size = max(2, len(first), len(rest))
        groups = self._filled(first, size), self._filled(rest, size)
        if min(len(group) for group in groups) < 2:
            self.open.append(tuple(doubt))
            return
        reasons = self._both(*groups)
        if any(reasons):
            self._go_on((first, rest), reasons)
        else:
            self.well += [*first, *rest]
            self.between.append((tuple(first), tuple(rest)))

    def _go_on(self, halves: tuple[list[str], list[str]], reasons: tuple[Said, Said]) -> None:
        for half, why in zip(halves, reasons, strict=True):
            if not why:
                self.well += half
        for half, why in zip(halves, reasons, strict=True):
            if why and len(half) == 1:
                self.slow[half[0]] = why
            elif why:
                self._halve(half)

    def _halves(self, doubt: list[str]) -> tuple[list[str], list[str]]:
        """Two parts of about equal weight, most likely nodes first. Their sizes differ only once there are
        healthy nodes to fill up the smaller one."""
        whole = sum(self._weight(node) for node in doubt)
        count = weighs = 0
        while count < len(doubt) // 2 and (weighs < whole / 2 or not self.well):
            weighs += self._weight(doubt[count])
            count += 1
        return doubt[:count], doubt[count:]

    def _weight(self, node: str) -> float:
        return self.weights.get(node, 1.0)

    def _filled(self, half: list[str], size: int) -> list[str]:
        return [*half, *[node for node in self.well if node not in half][: size - len(half)]]

    def _both(self, first: list[str], rest: list[str]) -> tuple[Said, Said]:
        """Why each is slow, or empty. Both are tested before either is judged, because they are compared."""
        this, other = self._answer(first), self._answer(rest)
        return self._judged(this, size=len(first)), self._judged(other, size=len(rest))

    def _answer(self, nodes: Sequence[str]) -> Answer:
        found = self.answers.get(tuple(sorted(nodes)))
        if found is None:
            raise _Missing(tuple(nodes))
        self.seen.append((len(nodes), found))
        return found

    def _judged(self, answer: Answer, *, size: int) -> Said:
        """Why it is slow; empty: it is not. Compared with groups of about its size or more."""
        if answer.failed:
            return answer.failed
        for name, figure in answer.figures.items():
            others = [
                other.figures[name] for many, other in self.seen if many >= size - 1 and name in other.figures
            ]
            best = max([*others, self.standard.get(name, 0.0)])
            if figure < FIGURE_SHARE * best:
                share = 100 * figure / best
                return say("actions.group_slow", name=name, figure=figure, share=share, best=best)
        return NO_WORDS


LOOK_AGAIN_S = 1.0
#: How long nodes of a group may not be idle.
WAITS_AGAIN_S = 10.0
#: A controller that did not answer in time may still take a job for this long.
APPEARS_WITHIN = timedelta(minutes=1)
_NAMED = 8


class Round(msgspec.Struct, frozen=True, omit_defaults=True):
    """A group: the number of its job once submitted, and its outcome, `answered` or `void`, once over."""

    nodes: tuple[str, ...]
    job: str | None = None
    #: When it was submitted without an answer from Slurm.
    asked_at: datetime | None = None
    outcome: str | None = None
    answer: Answer = Answer()
    says: Said = NO_WORDS


def look(ctx: Context, number: int, now: Round, picture: SlurmSnapshot, *, late: bool) -> Result | None:
    """The state of the group, the `number`th of its run; None: submit its job. `late`: the run's time is
    over."""
    job = find(ctx, number, now, picture)
    if job is None and now.job is not None:
        return _over(now, "void", say("actions.test_job_gone"))
    if job is None and now.asked_at is not None:
        if ctx.tools.now() - now.asked_at > APPEARS_WITHIN:
            return _over(now, "void", say("actions.group_unanswered"))
        return Again(say("actions.group_looked_for", nodes=few(now.nodes)), LOOK_AGAIN_S)
    if job is None:
        left = list(ctx.claim.may_borrow(now.nodes, False))
        if left and late:
            return _over(now, "void", say("actions.group_not_free", nodes=few(left)))
        if not left:
            return None
        return Again(say("actions.group_waits", nodes=few(left)), WAITS_AGAIN_S)
    if job.unfinished:
        return _under_way(ctx, now, job, late=late)
    return _ended(now, job)


def find(ctx: Context, number: int, now: Round, picture: SlurmSnapshot) -> SlurmJob | None:
    if now.job is not None:
        found = picture.jobs.get(now.job)
        return found if found is not None and found.name == sweep_job(ctx.run.id) else None
    users, comment = ctx.tools.users(), _comment(ctx, number)
    ours = (
        job
        for job in picture.jobs.values()
        if (job.name, job.comment) == (sweep_job(ctx.run.id), comment) and job.user in users
    )
    return next(ours, None)


def _comment(ctx: Context, number: int) -> str:
    return f"{ctx.key}/{number}"


def _under_way(ctx: Context, now: Round, job: SlurmJob, *, late: bool) -> Result:
    """The job yields to any job that needs one of its nodes, and ends if it does not start in time."""
    why = next(iter(ctx.claim.may_borrow(now.nodes, True).values()), None)
    why = (
        why or test_job.not_started(ctx, job, job.submit_at) or (say("actions.group_late") if late else None)
    )
    noted = {"told": {"job": job.id}}
    if why is None:
        text = say(
            "actions.group_under_way",
            job=job.id,
            n=len(now.nodes),
            nodes=few(now.nodes),
            state=test_job.state_text(job),
        )
        return Again(text, LOOK_AGAIN_S, data=noted)
    if (failed := test_job.cancel(ctx, job)) is not None:
        return failed
    return Again(say("actions.test_job_gives_way", job=job.id, why=quoted(why)), LOOK_AGAIN_S, data=noted)


def _ended(now: Round, job: SlurmJob) -> Result:
    """The result of an ended job; void for one that was cancelled or killed."""
    report = parse_report(job.admin_comment)
    tests = report.tests if report is not None else {}
    failed = next((name for name, ended in tests.items() if ended is TestOutcome.failed), None)
    if report is not None and job.state == "FAILED" and failed is not None:
        says = report.says.get(failed) or say("actions.group_no_words")
        return _over(
            now, "answered", answer=Answer(failed=say("actions.group_test_failed", test=failed, says=says))
        )
    rates = rates_in(report.results) if report is not None else {}
    if job.state != "COMPLETED" or not rates:
        text = say("actions.test_job_was", job=job.id, state=job.state)
        says = "; ".join(report.says.values()) if report is not None else ""
        return _over(now, "void", say("actions.group_void", text=text, says=says) if says else text)
    return _over(now, "answered", answer=Answer(figures=rates))


def _over(now: Round, outcome: str, says: Said = NO_WORDS, answer: Answer = Answer()) -> Again:
    figures = ", ".join(f"{name} {figure:g}" for name, figure in answer.figures.items())
    found = says or answer.failed or figures
    text = say("actions.group_over", n=len(now.nodes), nodes=few(now.nodes), found=found)
    update = {"outcome": outcome, "says": to_stored(says), "answer": to_stored(answer)}
    return Again(text, 0, data={"told": update})


def submit(ctx: Context, number: int, now: Round) -> Result | None:
    depth = ctx.tools.validation.depths.get(str(ctx.step.input.get("depth")))
    lacks = [name for name in depth.tests if name not in ctx.tools.scripts] if depth is not None else []
    if depth is None or lacks:
        return Failed(say("actions.group_no_depth", depth=str(ctx.step.input.get("depth"))), final=True)
    try:
        picture = ctx.tools.scheduler.snapshot()
    except SchedulerUnavailable:
        return None  # nothing was submitted
    nodes, settings = [picture.nodes[name] for name in now.nodes], ctx.tools.guards.sweep
    job = test_job.submission(
        nodes,
        test_job.script_of(ctx, depth.tests, "together"),
        name=sweep_job(ctx.run.id),
        time_limit_s=depth.limit_s,
        partition=settings.partition or test_job.shared_partition(nodes),
        qos=settings.qos,
        comment=_comment(ctx, number),
        nice=test_job.NICE,
    )
    ctx.fence()
    try:
        taken = ctx.tools.scheduler.submit(job)
    except SchedulerRefused as error:
        return _over(now, "void", said_by(error))
    except SchedulerUnavailable as error:
        if not error.sent:
            return None
        text = say("actions.test_job_unanswered", nodes=few(now.nodes), error=said_by(error))
        return Again(text, LOOK_AGAIN_S, data={"told": {"asked_at": ctx.tools.now().isoformat()}})
    text = say("actions.group_submitted", job=taken, n=len(now.nodes))
    return Again(text, LOOK_AGAIN_S, data={"told": {"job": taken}})


def few(nodes: Sequence[str]) -> Said:
    return name_some(nodes, _NAMED)
