"""The input of an action, its possible results, and its access to Slurm."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, TypeVar

import msgspec

from healer.incidents.impact import PICTURE_AGE
from healer.model import (
    Command,
    CommandKind,
    Component,
    GuardSettings,
    Incident,
    LogEntry,
    Message,
    NodeHistory,
    Permit,
    Reference,
    Ruleset,
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
from healer.model.slurm import MAX_LENGTH, OUR_PREFIX, is_ours, original_reason, plain, slurm_kind
from healer.ports.measurements import Readings
from healer.ports.node_exec import Bmc, EvidenceBook, NodeExec, SiteCommands
from healer.ports.scheduling import Scheduler, SchedulerRefused, SchedulerUnavailable, SlurmReads, UnknownNode
from healer.ports.transactions import Checkpoints
from healer.text import Said, said_by, say


class Done(msgspec.Struct, frozen=True):
    """Done and read back. `data` is stored in the log and shown as the step's evidence.

    Three of its keys control the run: `passed` False is a negative result, which a later step's `when` may
    ask for; `ends_run` ends the run here; `moment_s` is how long the awaited moment lasts, in seconds.
    """

    text: Said
    data: dict[str, Any] = {}


class Skipped(msgspec.Struct, frozen=True):
    """There was nothing to do, or it may not be done; the run continues."""

    text: Said
    data: dict[str, Any] = {}


class Again(msgspec.Struct, frozen=True):
    """Not yet: check again after `after_s` seconds; None: when a person or an event wakes the run.

    `since`: the step's time-out counts from here, for example when a job was given time to save its work.
    `data` is stored in the log.
    """

    text: Said
    after_s: float | None
    since: datetime | None = None
    data: dict[str, Any] = {}


class Unread(Again, frozen=True):
    """Slurm did not answer a look, or does not know the node's state yet: nothing was requested on it."""


class Silent(Unread, frozen=True):
    """Slurm did not answer this worker."""


class Failed(msgspec.Struct, frozen=True):
    """It did not work. `final`: another attempt would be pointless, so a person is asked."""

    text: Said
    final: bool = False


Result = Done | Skipped | Again | Failed


T = TypeVar("T")


class Toolbox(msgspec.Struct, frozen=True, kw_only=True):
    """The ports of this process and the settings of the rules. None: not configured here."""

    now: Callable[[], datetime]
    scheduler: Scheduler
    #: The newest stored Slurm snapshot, and the users that healer runs as in Slurm, whom its reservations
    #: admit.
    picture: Callable[[], SlurmSnapshot | None] = lambda: None
    users: Callable[[], Sequence[str]] = lambda: ("root",)
    nodes: NodeExec | None = None
    #: The rules by which the worker interprets other parts' reports of a fault. If set, a node is exempt from
    #: the caps, and a job is restarted, only after the worker has checked for itself.
    claim_rules: Callable[[], Ruleset] | None = None
    bmc: Bmc | None = None
    checkpoints: Checkpoints | None = None
    evidence: EvidenceBook | None = None
    #: Recent measurements.
    readings: Readings | None = None
    #: Runs site commands on this machine; and the site's commands by name.
    commands: SiteCommands | None = None
    known_commands: Mapping[str, SiteCommand] = {}
    guards: GuardSettings = GuardSettings()
    #: The tests of `rules/validation` by name, and the tests of each depth.
    scripts: Mapping[str, str] = {}
    validation: Validation = Validation()

    @property
    def checks_claims(self) -> bool:
        return self.claim_rules is not None


class StepClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that a step may make to healer, through its run's claim."""

    queue: Callable[[Message | Ticket], None]
    tell_detector: Callable[[Command], None]
    release_slot: Callable[[str], None]
    #: The time by this host's clock, or by the ledger's if that is earlier.
    earlier_now: Callable[[], datetime]
    #: Frees the node's slot if the gate sees that nothing holds the node.
    free_left_slot: Callable[[], None] = lambda: None
    #: Nodes that are known bad but stay in service.
    known_bad: Callable[[], Collection[str]] = frozenset
    #: Nodes that came back recently, and until when they are on probation.
    on_probation: Callable[[], Mapping[str, datetime]] = dict
    #: Recent permits for hooks to fail.
    permits: Callable[[], Collection[Permit]] = tuple
    #: Locks a name for this run, as a context; False: another run has it.
    alone: Callable[[str], AbstractContextManager[bool]] = lambda _: nullcontext(True)
    #: Asks the gate whether what this step began may stay; returns why not, or None.
    stays: Callable[[], Said | None] = lambda: None
    #: Asks the gate which of these idle nodes may not join a test: node -> why. True: the test is running.
    may_borrow: Callable[[Sequence[str], bool], Mapping[str, Said]] = lambda _nodes, _begun: {}
    #: The reference node of each kind.
    references: Callable[[], Sequence[Reference]] = tuple
    #: What its node last reported of a GPU: `pci`, `uuid`, `serial`.
    reported_gpu: Callable[[Component], Mapping[str, Any]] = lambda _: {}
    #: History of the run's node since a moment.
    history: Callable[[datetime], NodeHistory] = lambda _: NodeHistory()


def since_retry(log: Sequence[LogEntry], key: str) -> list[LogEntry]:
    """A step's log entries from a person's last retry on, including it; all of them if there was no retry."""
    entries = [entry for entry in log if entry.step == key]
    retries = [index for index, entry in enumerate(entries) if entry.event is StepEvent.retry]
    return entries[retries[-1] :] if retries else entries


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a step, and everything that its action may use. Call `fence()` immediately before each
    effect.

    `item`: the job of a `for_each` step; `restarts`: its restart count when the list was made; `began_at`:
    when this step first started or waited. `key` identifies this effect: it survives a worker's death, and
    changes with a person's retry. `asked`: this attempt was made, and its outcome is pending. `tested_at`:
    when this run began to test its node, or a person's later retry. `log`: the run's log so far. `reserved`:
    this run has begun to reserve its node for tests.
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
        """This step's log entries since a person's last retry."""
        return since_retry(self.log, self.part)

    @property
    def node(self) -> str:
        if self.run.node is None:
            raise ValueError(say("actions.run_names_no_node", run=self.run.id, playbook=self.run.playbook))
        return self.run.node

    @property
    def job(self) -> str:
        job = self.item or self.run.job
        if job is None:
            raise ValueError(say("actions.run_names_no_job", run=self.run.id, playbook=self.run.playbook))
        return job

    @property
    def part(self) -> str:
        """The step's key in the run's log: its id, and the job of a `for_each`."""
        return f"{self.step.id}:{self.item}" if self.item is not None else self.step.id

    def waited(self, now: datetime) -> timedelta:
        """How long this step has lasted. It began after what its run did before, also where a host whose
        clock was behind dated it earlier."""
        before = takewhile(lambda entry: entry.step != self.part, self.log)
        return now - max([self.began_at, *(entry.at for entry in before if entry.at <= now)])

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


class Answered(Exception):
    """Ends the action early, with its result."""

    def __init__(self, result: Result) -> None:
        super().__init__(result)
        self.result = result


def answering(work: Callable[[Context], T]) -> Callable[[Context], T | Result]:
    def answer(ctx: Context) -> T | Result:
        try:
            return work(ctx)
        except Answered as answered:
            return answered.result

    return answer


def tried(read: Callable[[], T]) -> T | None:
    """The value of `read`; None if the step could not continue without it."""
    try:
        return read()
    except Answered:
        return None


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """`probe` checks whether it is already done (None: it is not); `do` performs it; `verify` reads it back.
    Each may raise Answered.

    `do` may return a result if there is nothing to wait for; a step that only checks, waits or sends has only
    `verify`. `undo` is None if nothing can be undone. `effect` is False for read-only steps. `only_keeps`:
    the rest of a granted step only keeps its node out of service, so no guard is asked again.
    """

    verify: Callable[[Context], Result]
    probe: Callable[[Context], Result | None] = _nothing
    do: Callable[[Context], Result | None] = _nothing
    undo: Callable[[Context], Result] | None = None
    effect: bool = True
    only_keeps: Callable[[Context], bool] = lambda _: False

    def __post_init__(self) -> None:
        for name in ("verify", "probe", "do", "undo"):
            if (work := getattr(self, name)) is not None:
                msgspec.structs.force_setattr(self, name, answering(work))


def read_back(
    probe: Callable[[Context], Result | None], not_yet: Callable[[Context], Said], after_s: float
) -> Callable[[Context], Result]:
    """A `verify` that reads what the probe reads; the step waits while that shows nothing."""
    return lambda ctx: probe(ctx) or Again(not_yet(ctx), after_s)


# --- reading Slurm


def drain_reason(rule: str, incident: str | None, text: str) -> str:
    """`healer:<rule> inc:<8 characters> <text>`, the text as returned by `plain`."""
    whole = f"{OUR_PREFIX}{rule} inc:{(incident or 'none')[:8]} {plain(text)}"
    return whole[:MAX_LENGTH].rstrip(" :")


def reason_of(ctx: Context) -> str:
    """The reason of this run's drain."""
    given = ctx.run.input.get("reason_text")
    incident = ctx.incident
    text = str(given) if given else (incident.title if incident else ctx.run.reason)
    return drain_reason(ctx.run.rule or ctx.run.playbook, ctx.run.incident or ctx.run.id, text)


def last_drain_reason(log: Sequence[LogEntry]) -> str:
    """The reason of this run's last drain as read back; empty if there was none."""
    read = (entry.data.get("reason") for entry in reversed(log) if entry.data.get("verb") == Verb.drain)
    return next((str(reason) for reason in read if reason), "")


def holds(node: SlurmNode) -> Said:
    """`ann holds`: the owner of the node's reason."""
    return say("actions.holds", who=node.reason_by or say("actions.somebody"))


def reason_given(node: SlurmNode) -> str:
    return node.reason or say("actions.no_reason_given")


def holder_of(node: SlurmNode, words: str = "") -> Said | None:
    """`ann holds`, if another person or program keeps the node out; None if only healer or Slurm does.

    A drain without a reason also counts as a person's. Slurm's own DOWN ends by itself when the node
    registers. `words`: the reason of this run's drain; a person who has appended to it holds the node.
    """
    if not node.held:
        return None
    if is_ours(node.reason):
        added = is_ours(words) and original_reason(node.reason).startswith(f"{original_reason(words)} ")
        return holds(node) if added else None
    if not node.drain and (not node.reason or slurm_kind(node.reason) is not None):
        return None
    return holds(node)


LOOK_AGAIN_S = 2.0
#: Slurm refuses to return a node that has not registered as configured, and a reboot would undo the return
#: (d.8, 4 and 5).
NOT_YET = frozenset({"REBOOT_ISSUED", "REBOOT_REQUESTED", "INVALID_REG"})


def read_slurm(read: Callable[[], T], after_s: float = LOOK_AGAIN_S) -> T:
    """The value of `read()`. Raises Answered: Failed for a node that Slurm does not know, Again if Slurm does
    not answer."""
    try:
        return read()
    except UnknownNode as error:
        raise Answered(Failed(said_by(error), final=True)) from None
    except SchedulerUnavailable as error:
        raise Answered(slurm_silent(error, after_s)) from None


def slurm_silent(error: SchedulerUnavailable, after_s: float) -> Again:
    return Silent(say("actions.slurm_silent", error=said_by(error)), after_s)


def cause(ctx: Context, effect: Callable[[], object], *, needs_right: bool = False) -> Failed | None:
    """Requests one effect from Slurm, immediately after the fence. None: it was requested, or it is unknown
    whether it happened: read it back. `needs_right`: a missing permission in Slurm is final, without another
    attempt."""
    ctx.fence()
    try:
        effect()
    except SchedulerRefused as error:
        return Failed(said_by(error), final=needs_right and error.no_right)
    except SchedulerUnavailable:
        pass
    return None


def whole_job(scheduler: SlurmReads, name: str) -> SlurmJob | None:
    """The job; for a component of a heterogeneous job its leader, because Slurm restarts those as a whole."""
    job = scheduler.job(name)
    return scheduler.job(job.leader) if job is not None and job.leader != job.id else job


def whole_jobs(scheduler: SlurmReads, jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
    """The jobs by id, each heterogeneous job once, as its leader."""
    leaders = (scheduler.job(job.leader) or job if job.leader != job.id else job for job in jobs)
    return sorted({job.id: job for job in leaders}.values(), key=lambda job: job.id)


def first_logged(entries: Iterable[LogEntry], name: str) -> Any:
    """The first value under `name` in the data of these entries; None if there is none."""
    return next((entry.data[name] for entry in entries if entry.data.get(name)), None)


def read_node(ctx: Context, after_s: float = LOOK_AGAIN_S) -> SlurmNode:
    return read_slurm(lambda: ctx.tools.scheduler.node(ctx.node), after_s)


def read_free_node(ctx: Context) -> SlurmNode:
    """The node; Failed if another person or program holds it."""
    node = read_node(ctx)
    if holder := holder_of(node, last_drain_reason(ctx.log)):
        raise Answered(held_by(holder, node))
    return node


def held_by(holder: Said, node: SlurmNode) -> Failed:
    """`holder`: as returned by `holder_of`."""
    text = say("actions.holds_node", holder=holder, node=node.name, reason=reason_given(node))
    return Failed(text, final=True)


def read_node_and_jobs(ctx: Context, after_s: float = LOOK_AGAIN_S) -> tuple[SlurmNode, list[SlurmJob]]:
    slurm = ctx.tools.scheduler
    return read_slurm(lambda: (slurm.node(ctx.node), slurm.jobs_on(ctx.node)), after_s)


def recent_picture(ctx: Context, since: datetime) -> SlurmSnapshot | None:
    """The stored Slurm snapshot, if it was taken after `since` and is fresh.

    A wait need not query Slurm while the snapshot shows that it continues: waits last for hours or days, and
    each query would cost slurmctld as much as a poll of the whole cluster.
    """
    picture = ctx.tools.picture()
    if picture is None or picture.taken_at <= since or not is_fresh(ctx, picture):
        return None
    return picture


def is_fresh(ctx: Context, picture: SlurmSnapshot) -> bool:
    """By this host's clock; the snapshot is dated by the poller's."""
    return ctx.tools.now() - picture.taken_at <= PICTURE_AGE


def jobs_pictured(ctx: Context) -> list[SlurmJob]:
    """The jobs on the node by a snapshot from after the start of this step. An empty list proves nothing."""
    picture = recent_picture(ctx, ctx.began_at)
    return picture.jobs_on(ctx.node) if picture is not None else []


def read_job(ctx: Context, *, leader: bool = False) -> SlurmJob:
    """The job of this step, or its `leader` if it is a component of a heterogeneous job; Skipped for a job
    that Slurm has forgotten."""
    slurm = ctx.tools.scheduler
    job = read_slurm(lambda: whole_job(slurm, ctx.job) if leader else slurm.job(ctx.job))
    if job is None:
        raise Answered(Skipped(say("actions.job_forgotten", job=ctx.job)))
    return job


def restarts_known(ctx: Context) -> int:
    """The restart count that the run is about; Failed if it has none."""
    if ctx.restarts is None:
        raise Answered(Failed(say("actions.restarts_unknown", job=ctx.job), final=True))
    return ctx.restarts


def read_job_of_run(ctx: Context) -> tuple[SlurmJob, int]:
    """The job of this run, and the restart count that the run is about; a forgotten job ends the run."""
    job = read_slurm(lambda: ctx.tools.scheduler.job(ctx.job))
    if job is None:
        raise Answered(Done(say("actions.job_forgotten", job=ctx.job), {"ends_run": True}))
    return job, restarts_known(ctx)
