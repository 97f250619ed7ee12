"""What an action is given, what it may answer, and how it reads Slurm."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from healer.model import (
    Command,
    CommandKind,
    GuardSettings,
    Incident,
    LogEntry,
    Message,
    NodeHistory,
    Permit,
    Reference,
    Run,
    SiteCommand,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Step,
    StepEvent,
    Ticket,
    Validation,
    Verb,
)
from healer.model.slurm import MAX_LENGTH, OUR_PREFIX, original_reason, plain, slurm_kind
from healer.model.slurm import is_ours as is_healers
from healer.ports.measurements import Readings
from healer.ports.node_exec import Bmc, EvidenceBook, NodeExec, SiteCommands
from healer.ports.scheduling import Scheduler, SchedulerRefused, SchedulerUnavailable, UnknownNode
from healer.ports.transactions import Checkpoints


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """Read back: it is so. `data` is kept in the log and shown as the step's evidence.

    Three of its names mean something to the run: `passed` False is a verdict of "no", which a later step's
    `when` may ask for; `ends_run` ends it here; `moment_s` says how long a moment that was waited for lasts.
    """

    text: str
    data: dict[str, Any] = {}


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """There was nothing to do, or it may not be done; the run goes on."""

    text: str
    data: dict[str, Any] = {}


class Again(msgspec.Struct, frozen=True, kw_only=True):
    """Not yet: look again after `after_s`; None: only when a person or an event wakes the run.

    `since`: what was asked for can come from then on only (a job was given time to save its work), so the
    step's time-out counts from there. `data` is kept in the log.
    """

    text: str
    after_s: float | None
    since: datetime | None = None
    data: dict[str, Any] = {}


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """It did not work. `final`: another attempt would be pointless, ask a person."""

    text: str
    final: bool = False


Result = Done | Skipped | Again | Failed


class Toolbox(msgspec.Struct, frozen=True, kw_only=True):
    """What this process has to work with, and what the rules give. None: nothing of that kind is set up."""

    now: Callable[[], datetime]
    scheduler: Scheduler
    #: The newest picture of Slurm that is stored, and as whom healer comes to it: reservations let those in.
    picture: Callable[[], SlurmSnapshot | None] = lambda: None
    users: Callable[[], Sequence[str]] = lambda: ("root",)
    nodes: NodeExec | None = None
    bmc: Bmc | None = None
    checkpoints: Checkpoints | None = None
    evidence: EvidenceBook | None = None
    #: What was measured of late.
    readings: Readings | None = None
    #: What starts commands of the site here, and the list of those that there are.
    commands: SiteCommands | None = None
    known_commands: Mapping[str, SiteCommand] = {}
    guards: GuardSettings = GuardSettings()
    #: The tests of `rules/validation` by name, and which of them make a test of which depth.
    scripts: Mapping[str, str] = {}
    validation: Validation = Validation()


class StepClaim(msgspec.Struct, frozen=True, kw_only=True):
    """What a step may tell and ask healer itself by its run's claim."""

    queue: Callable[[Message | Ticket], None]
    tell_detector: Callable[[Command], None]
    release_slot: Callable[[str], None]
    #: Nodes that are known bad and must stay in service.
    known_bad: Callable[[], Collection[str]] = frozenset
    #: Hooks that were permitted to fail of late.
    permits: Callable[[], Collection[Permit]] = tuple
    #: Asks the gate whether what this step began may stay; the sentence of what speaks against it.
    stays: Callable[[], str | None] = lambda: None
    #: Asks the gate which of these idle nodes may not be tested with others, and why; True: they are already.
    may_borrow: Callable[[Sequence[str], bool], Mapping[str, str]] = lambda _nodes, _begun: {}
    #: What nodes of each kind should be.
    references: Callable[[], Sequence[Reference]] = tuple
    #: What healer keeps of the run's node since a moment.
    history: Callable[[datetime], NodeHistory] = lambda _: NodeHistory()


def since_retry(log: Sequence[LogEntry], key: str) -> list[LogEntry]:
    """A step's lines since a person let it go on, theirs first; all of them where none did."""
    own = [one for one in log if one.step == key]
    retries = [index for index, one in enumerate(own) if one.event is StepEvent.retry]
    return own[retries[-1] :] if retries else own


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """A step as far as it is, and all that its action may touch. `fence()` must be called right before each
    effect.

    `item` is the job of a `for_each` step; `restarts` its restart count when the list was taken; `began_at`
    when this step was first started or waited. `key` names this effect: the same after a death, another one
    after a person's retry. `asked`: this attempt has been made, only its outcome is awaited. `tested_at`:
    when this run began to test its node, or a person's later word to go on. `log` is the run's so far.
    `reserved`: this run has begun to reserve its node for tests.
    """

    run: Run
    step: Step
    item: str | None
    restarts: int | None
    incident: Incident | None
    began_at: datetime
    fence: Callable[[], object]
    tools: Toolbox
    claim: StepClaim
    key: str = ""
    asked: bool = False
    tested_at: datetime | None = None
    log: tuple[LogEntry, ...] = ()
    reserved: bool = False

    @property
    def lines(self) -> list[LogEntry]:
        """This step's own lines since a person last let it go on."""
        return since_retry(self.log, self.part)

    @property
    def node(self) -> str:
        if self.run.node is None:
            raise ValueError(f"run {self.run.id} of {self.run.playbook} names no node")
        return self.run.node

    @property
    def job(self) -> str:
        job = self.item or self.run.job
        if job is None:
            raise ValueError(f"run {self.run.id} of {self.run.playbook} names no job")
        return job

    @property
    def part(self) -> str:
        """The step's key in the run's log: its id, and the job of a `for_each`."""
        return f"{self.step.id}:{self.item}" if self.item is not None else self.step.id

    def command(self, kind: CommandKind, **data: Any) -> Command:
        return Command(
            kind=kind,
            cluster=self.run.cluster,
            at=self.tools.now(),
            by=self.run.by,
            incident=self.run.incident,
            reason=self.run.reason,
            data={"run": self.run.id, "playbook": self.run.playbook, **data},
        )


def _nothing(_: Context) -> None:
    return None


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """`probe` looks whether it is so already (None: it is not); `do` causes it; `verify` reads back.

    `do` may answer at once where there is nothing to wait for; a step that only looks, waits or tells has
    `verify` alone. `undo` is None where nothing can be undone.
    `effect` is False for steps that only look. `only_keeps` tells that all which is left to do of a step that
    was let go keeps its node out of service: no guard is asked about that again.
    """

    verify: Callable[[Context], Result]
    probe: Callable[[Context], Result | None] = _nothing
    do: Callable[[Context], Result | None] = _nothing
    undo: Callable[[Context], Result] | None = None
    effect: bool = True
    only_keeps: Callable[[Context], bool] = lambda _: False


# --- what Slurm shows now, or what a step answers where it cannot be read


def drain_reason(rule: str, incident: str | None, text: str) -> str:
    """`healer:<rule> inc:<8 characters> <text>`, the text as `plain` leaves it."""
    whole = f"{OUR_PREFIX}{rule} inc:{(incident or 'none')[:8]} {plain(text)}"
    return whole[:MAX_LENGTH].rstrip(" :")


def reason_of(ctx: Context) -> str:
    """The reason of this run's drain."""
    given = ctx.run.input.get("reason_text")
    incident = ctx.incident
    text = str(given) if given else (incident.title if incident else ctx.run.reason)
    return drain_reason(ctx.run.rule or ctx.run.playbook, ctx.run.incident or ctx.run.id, text)


def is_ours(reason: str, incident: str | None = None) -> bool:
    """Whether the drain is ours; with an incident: whether it is that incident's."""
    return is_healers(reason) and (incident is None or f" inc:{incident[:8]}" in reason)


def own_words(log: Sequence[LogEntry]) -> str:
    """The reason by which this run knows its node to be out: as its last drain was read back."""
    read = (one.data.get("reason") for one in reversed(log) if one.data.get("verb") == Verb.drain)
    return next((str(reason) for reason in read if reason), "")


def holder_of(node: SlurmNode, words: str = "") -> str | None:
    """`ann holds`, where somebody else's word keeps the node out; None where only ours or Slurm's own does.

    A drain without a reason is somebody's too. Slurm's own DOWN ends by itself when the node registers.
    `words`: what this run has read back of its drain; whoever has added to them since holds the node.
    """
    if not node.held:
        return None
    if is_healers(node.reason):
        added = is_healers(words) and original_reason(node.reason).startswith(f"{original_reason(words)} ")
        return f"{node.reason_user or 'Somebody'} holds" if added else None
    if not node.drain and (not node.reason or slurm_kind(node.reason) is not None):
        return None
    return f"{node.reason_user or 'Somebody'} holds"


LOOK_AGAIN_S = 2.0

T = TypeVar("T")


def read_slurm(read: Callable[[], T], after_s: float = LOOK_AGAIN_S) -> T | Failed | Again:
    """What `read` gives. A node that Slurm does not know fails for good; no answer is asked for again."""
    try:
        return read()
    except UnknownNode as error:
        return Failed(text=str(error), final=True)
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=after_s)


def cause(ctx: Context, effect: Callable[[], object], *, needs_right: bool = False) -> Failed | None:
    """One effect on Slurm, right behind the fence. None: it was asked for, or it is not known whether it
    happened, and reading it back tells. `needs_right`: without the right to it no further attempt is made."""
    ctx.fence()
    try:
        effect()
    except SchedulerRefused as error:
        return Failed(text=str(error), final=needs_right and error.no_right)
    except SchedulerUnavailable:
        pass
    return None


def whole_job(scheduler: Scheduler, name: str) -> SlurmJob | None:
    """The job; the leader where it is a component of a heterogeneous one, which Slurm restarts as a whole."""
    job = scheduler.job(name)
    return scheduler.job(job.leader) if job is not None and job.leader != job.id else job


def whole_jobs(scheduler: Scheduler, jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
    """Each heterogeneous job once, as its leader; by id."""
    leaders = (scheduler.job(one.leader) or one if one.leader != one.id else one for one in jobs)
    return sorted({one.id: one for one in leaders}.values(), key=lambda one: one.id)


def read_node(ctx: Context, after_s: float = LOOK_AGAIN_S) -> SlurmNode | Failed | Again:
    return read_slurm(lambda: ctx.tools.scheduler.node(ctx.node), after_s)


def read_free_node(ctx: Context, after_s: float = LOOK_AGAIN_S) -> SlurmNode | Failed | Again:
    """The node, where nobody else holds it: what somebody holds is theirs."""
    node = read_node(ctx, after_s)
    if isinstance(node, SlurmNode) and (holder := holder_of(node, own_words(ctx.log))):
        return Failed(text=f"{holder} {node.name}: {node.reason or 'no reason given'}", final=True)
    return node


def read_node_and_jobs(
    ctx: Context, after_s: float = LOOK_AGAIN_S
) -> tuple[SlurmNode, list[SlurmJob]] | Failed | Again:
    return read_slurm(
        lambda: (ctx.tools.scheduler.node(ctx.node), ctx.tools.scheduler.jobs_on(ctx.node)), after_s
    )


def read_job(ctx: Context) -> SlurmJob | Skipped | Failed | Again:
    """The job of this step; one that Slurm has forgotten is nothing to do."""
    job = read_slurm(lambda: ctx.tools.scheduler.job(ctx.job))
    return job if job is not None else Skipped(text=f"Slurm no longer knows job {ctx.job}")


def read_job_of_run(ctx: Context) -> SlurmJob | Done | Failed | Again:
    """The job that the run is about; forgotten, the run is over. It has to be known which life is meant."""
    job = read_job(ctx)
    if isinstance(job, Skipped):
        return Done(text=job.text, data={"ends_run": True})
    if isinstance(job, SlurmJob) and ctx.restarts is None:
        return Failed(text=f"the restart count of job {ctx.job} is not known", final=True)
    return job
