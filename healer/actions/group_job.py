"""One group of nodes of a bisection: a job of ours on all of them, like that of a sweep.

The nodes are idle, stay in service and in no reservation. The job has the lowest priority; each second the
gate is asked whether it may stay. It is known by the number that Slurm gave, or by its name and comment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from healer.actions import test_job
from healer.actions.base import Again, Context, Failed, Result
from healer.actions.test_form import Ended, batch, told_in
from healer.decisions.sweeps import SWEEP_JOBS
from healer.model import FIGURE_SHARE, SlurmJob, SlurmSnapshot, Submission, rates_in
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable

#: Of fewer nodes no half has a partner for each.
LEAST = 4
#: What is held of a node against which something speaks already, as odds to one of which nothing is known.
NAMED_WEIGHS = 30.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a test of a group told: its figures by name, the higher the better; `failed`: what went wrong."""

    figures: dict[str, float] = {}
    failed: str = ""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The group that is to be tested next."""

    nodes: tuple[str, ...]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """`slow`: nodes, and why, in words. `between`: two groups that are well apart and not together.
    `open`: groups that are slow, of which nothing tells the nodes apart. All empty: nothing is slow."""

    slow: dict[str, str] = {}
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
    """`named`: those of `nodes` against which something speaks. `answers` by the group's names, sorted.
    `standard`: figures of a good node of the kind, where they are known."""
    if len(nodes) < LEAST:
        raise ValueError("too few nodes to be halved")
    look = _Search(answers, standard or {}, {one: NAMED_WEIGHS for one in named})
    try:
        look.top(sorted(nodes, key=lambda one: one not in named))
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
    #: Answers in the order in which they were looked at, with the size of their groups.
    seen: list[tuple[int, Answer]] = field(default_factory=list)
    well: list[str] = field(default_factory=list)
    slow: dict[str, str] = field(default_factory=dict)
    between: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)
    open: list[tuple[str, ...]] = field(default_factory=list)

    def top(self, nodes: list[str]) -> None:
        # Equally large: so far there is no node that could fill the smaller one up.
        half = len(nodes) // 2
        first, rest = nodes[:half], nodes[half:]
        told = self._both(first, rest)
        if any(told):
            self._go_on((first, rest), told)
        elif self._judged(self._answer(nodes), size=0):
            self.between.append((tuple(first), tuple(rest)))

    def _halve(self, doubt: list[str]) -> None:
        """Of nodes that are slow together."""
        first, rest = self._halves(doubt)
        size = max(2, len(first), len(rest))
        groups = self._filled(first, size), self._filled(rest, size)
        if min(len(one) for one in groups) < 2:
            self.open.append(tuple(doubt))
            return
        told = self._both(*groups)
        if any(told):
            self._go_on((first, rest), told)
        else:
            self.well += [*first, *rest]
            self.between.append((tuple(first), tuple(rest)))

    def _go_on(self, halves: tuple[list[str], list[str]], told: tuple[str, str]) -> None:
        for half, why in zip(halves, told, strict=True):
            if not why:
                self.well += half
        for half, why in zip(halves, told, strict=True):
            if why and len(half) == 1:
                self.slow[half[0]] = why
            elif why:
                self._halve(half)

    def _halves(self, doubt: list[str]) -> tuple[list[str], list[str]]:
        """The likeliest that together are as likely as all others, so that the answer halves the doubt; once
        there are nodes to fill up with, halves need not be equally large."""
        whole = sum(self._weight(one) for one in doubt)
        count = weighs = 0
        while count < len(doubt) // 2 and (weighs < whole / 2 or not self.well):
            weighs += self._weight(doubt[count])
            count += 1
        return doubt[:count], doubt[count:]

    def _weight(self, node: str) -> float:
        return self.weights.get(node, 1.0)

    def _filled(self, half: list[str], size: int) -> list[str]:
        return [*half, *[one for one in self.well if one not in half][: size - len(half)]]

    def _both(self, first: list[str], rest: list[str]) -> tuple[str, str]:
        """What speaks against each. Both are tested before either is judged: each is the other's measure."""
        one, other = self._answer(first), self._answer(rest)
        return self._judged(one, size=len(first)), self._judged(other, size=len(rest))

    def _answer(self, nodes: Sequence[str]) -> Answer:
        found = self.answers.get(tuple(sorted(nodes)))
        if found is None:
            raise _Missing(tuple(nodes))
        self.seen.append((len(nodes), found))
        return found

    def _judged(self, told: Answer, *, size: int) -> str:
        """Why it is slow; empty: it is not. A larger group is no worse a measure, a smaller one is."""
        if told.failed:
            return told.failed
        for name, figure in told.figures.items():
            others = [
                one.figures[name] for many, one in self.seen if many >= size - 1 and name in one.figures
            ]
            best = max([*others, self.standard.get(name, 0.0)])
            if figure < FIGURE_SHARE * best:
                return f"{name} {figure:g}, {100 * figure / best:.0f} % of {best:g}"
        return ""


LOOK_AGAIN_S = 1.0
#: Nodes of a group are not idle.
WAITS_AGAIN_S = 10.0
#: A controller that did not answer in time may still take what it was sent.
APPEARS_WITHIN = timedelta(minutes=1)
_NAMED = 8


class Round(msgspec.Struct, frozen=True, omit_defaults=True):
    """One group: the number of its job once it was submitted, and `answered` or `void` once that is over."""

    nodes: tuple[str, ...]
    job: str | None = None
    #: When it was submitted, and Slurm did not say whether it took it.
    asked_at: datetime | None = None
    outcome: str | None = None
    answer: Answer = Answer()
    says: str = ""


def look(ctx: Context, number: int, now: Round, picture: SlurmSnapshot, *, late: bool) -> Result | None:
    """The state of the group, the `number`th of its run; None: its job is to be submitted. `late`: the
    run's time is over."""
    job = find(ctx, number, now, picture)
    if job is None and now.job is not None:
        return _over(now, "void", "Slurm no longer knows its job")
    if job is None and now.asked_at is not None:
        return _unanswered(ctx, now, now.asked_at)
    if job is None:
        left = list(ctx.claim.may_borrow(now.nodes, False))
        if left and late:
            return _over(now, "void", f"{few(left)} did not come free")
        return Again(text=f"Waits for {few(left)}", after_s=WAITS_AGAIN_S) if left else None
    if job.active or job.state == "PENDING":
        return _under_way(ctx, now, job, late=late)
    return _ended(now, job)


def _unanswered(ctx: Context, now: Round, asked_at: datetime) -> Again:
    """Its name is looked for, so that it gives way like any other; it is not submitted a second time."""
    if ctx.tools.now() - asked_at > APPEARS_WITHIN:
        return _over(now, "void", "Slurm did not say whether it took its job, and shows none")
    return Again(text=f"The test job of {few(now.nodes)} is looked for", after_s=LOOK_AGAIN_S)


def find(ctx: Context, number: int, now: Round, picture: SlurmSnapshot) -> SlurmJob | None:
    if now.job is not None:
        found = picture.jobs.get(now.job)
        return found if found is not None and found.name == _name(ctx) else None
    users, comment = ctx.tools.users(), _comment(ctx, number)
    mine = (
        job
        for job in picture.jobs.values()
        if (job.name, job.comment) == (_name(ctx), comment) and job.user in users
    )
    return next(mine, None)


def _name(ctx: Context) -> str:
    """As a sweep's: whoever looks after those, after a run that was cancelled too, looks after this."""
    return f"{SWEEP_JOBS}{ctx.run.id[:8]}"


def _comment(ctx: Context, number: int) -> str:
    return f"{ctx.key}/{number}"


def _under_way(ctx: Context, now: Round, job: SlurmJob, *, late: bool) -> Result:
    """It gives way: to whoever wants one of its nodes, and to its own patience."""
    why = next(iter(ctx.claim.may_borrow(now.nodes, True).values()), None)
    why = why or test_job.not_started(ctx, job, job.submit_at) or ("its time is over" if late else None)
    noted = {"told": {"job": job.id}}
    if why is None:
        text = f"The test job {job.id} of {len(now.nodes)} nodes ({few(now.nodes)}) {test_job.does(job)}"
        return Again(text=text, after_s=LOOK_AGAIN_S, data=noted)
    if (failed := test_job.cancel(ctx, job)) is not None:
        return failed
    return Again(text=f"Job {job.id} gives way: {why}", after_s=LOOK_AGAIN_S, data=noted)


def _ended(now: Round, job: SlurmJob) -> Result:
    """What a test told is an answer; a job that was cancelled or killed has none."""
    told = told_in(job.admin_comment)
    tests = told.tests if told is not None else {}
    failed = next((name for name, one in tests.items() if one is Ended.failed), None)
    if told is not None and job.state == "FAILED" and failed is not None:
        return _over(now, "answered", "", Answer(failed=f"{failed}: {told.says.get(failed, 'failed')}"))
    rates = rates_in(told.results) if told is not None else {}
    if job.state != "COMPLETED" or not rates:
        says = "; ".join(told.says.values()) if told is not None else ""
        return _over(now, "void", f"job {job.id} was {job.state}" + (f" ({says})" if says else ""))
    return _over(now, "answered", "", Answer(figures=rates))


def _over(now: Round, outcome: str, says: str, answer: Answer = Answer()) -> Again:
    figures = ", ".join(f"{name} {one:g}" for name, one in answer.figures.items())
    text = f"{len(now.nodes)} nodes ({few(now.nodes)}): {says or answer.failed or figures}"
    told = {"outcome": outcome, "says": says, "answer": msgspec.to_builtins(answer)}
    return Again(text=text, after_s=0, data={"told": told})


def submit(ctx: Context, number: int, now: Round) -> Result | None:
    depth = ctx.tools.validation.depths.get(str(ctx.step.input.get("depth")))
    lacks = [one for one in depth.tests if one not in ctx.tools.scripts] if depth is not None else []
    if depth is None or lacks:
        text = f"There is no depth {ctx.step.input.get('depth')} of tests in rules, or a script is missing"
        return Failed(text=text, final=True)
    try:
        picture = ctx.tools.scheduler.snapshot()
    except SchedulerUnavailable:
        return None  # nothing was submitted
    node, settings = picture.nodes[now.nodes[0]], ctx.tools.guards.sweep
    job = Submission(
        name=_name(ctx),
        script=batch({one: ctx.tools.scripts[one] for one in depth.tests}, "together"),
        nodes=now.nodes,
        time_limit_s=depth.limit_s,
        partition=settings.partition or test_job.shared_partition([picture.nodes[one] for one in now.nodes]),
        qos=settings.qos,
        comment=_comment(ctx, number),
        gpus_per_node=0 if node.gpus_shared else node.gpus,
        nice=test_job.NICE,
    )
    ctx.fence()
    try:
        taken = ctx.tools.scheduler.submit(job)
    except SchedulerRefused as error:
        return _over(now, "void", str(error))
    except SchedulerUnavailable as error:
        if not error.sent:
            return None
        text = f"Slurm did not say whether it took the test job of {few(now.nodes)}: {error}"
        return Again(
            text=text, after_s=LOOK_AGAIN_S, data={"told": {"asked_at": ctx.tools.now().isoformat()}}
        )
    text = f"The test job {taken} of {len(now.nodes)} nodes was submitted"
    return Again(text=text, after_s=LOOK_AGAIN_S, data={"told": {"job": taken}})


def few(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(nodes[:_NAMED]) + more
