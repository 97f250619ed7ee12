"""What an action gets, what it may answer, and how it reads Slurm."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
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
from healer.model.slurm import MAX_LENGTH, OUR_PREFIX, names_incident, original_reason, plain, slurm_kind
from healer.model.slurm import is_ours as is_healers
from healer.ports.measurements import Readings
from healer.ports.node_exec import Bmc, EvidenceBook, NodeExec, SiteCommands
from healer.ports.scheduling import Scheduler, SchedulerRefused, SchedulerUnavailable, SlurmReads, UnknownNode
from healer.ports.transactions import Checkpoints
from healer.text import Said, said_by, say


class Done(msgspec.Struct, frozen=True):
    """Done and read back. `data` is kept in the log and shown as the step's evidence.

    Three of its keys steer the run: `passed` False is a negative result, which a later step's `when` may ask
    for; `ends_run` ends the run here; `moment_s` is how long the moment that was waited for lasts, in
    seconds.
    """

    text: Said
    data: dict[str, Any] = {}


class Skipped(msgspec.Struct, frozen=True):
    """There was nothing to do, or it may not be done; the run goes on."""

    text: Said
    data: dict[str, Any] = {}


class Again(msgspec.Struct, frozen=True):
    """Not yet: look again after `after_s` seconds; None: when a person or an event wakes the run.

    `since`: the step's time-out counts from here, as when a job was given time to save its work. `data` is
    kept in the log.
    """

    text: Said
    after_s: float | None
    since: datetime | None = None
    data: dict[str, Any] = {}


class Unread(Again, frozen=True):
    """Slurm did not answer a look, so that nothing is known."""


class Failed(msgspec.Struct, frozen=True):
    """It did not work. `final`: another attempt would be pointless, ask a person."""

    text: Said
    final: bool = False


Result = Done | Skipped | Again | Failed


T = TypeVar("T")


class Toolbox(msgspec.Struct, frozen=True, kw_only=True):
    """The ports of this process and the settings of the rules. None: not set up here."""

    now: Callable[[], datetime]
    scheduler: Scheduler
    #: The newest stored picture of Slurm, and the users as whom healer calls Slurm: reservations admit those.
    picture: Callable[[], SlurmSnapshot | None] = lambda: None
    users: Callable[[], Sequence[str]] = lambda: ("root",)
    nodes: NodeExec | None = None
    #: The rules by which the worker reads what other parts write of a fault. With them that passes no cap and
    #: restarts no job until the worker has seen it for itself.
    claim_rules: Callable[[], Ruleset] | None = None
    bmc: Bmc | None = None
    checkpoints: Checkpoints | None = None
    evidence: EvidenceBook | None = None
    #: Recent measurements.
    readings: Readings | None = None
    #: Starts site commands on this machine; and the site's commands by name.
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
    """What a step may send to healer and ask of it, by its run's claim."""

    queue: Callable[[Message | Ticket], None]
    tell_detector: Callable[[Command], None]
    release_slot: Callable[[str], None]
    #: Frees the node's slot where the gate sees that nothing holds the node.
    free_left_slot: Callable[[], None] = lambda: None
    #: Nodes that are known bad but stay in service.
    known_bad: Callable[[], Collection[str]] = frozenset
    #: Nodes that came back lately, and until when they are on probation.
    on_probation: Callable[[], Mapping[str, datetime]] = dict
    #: Recent permits for hooks to fail.
    permits: Callable[[], Collection[Permit]] = tuple
    #: Holds the named thing for this run while it lasts; False: another run has it.
    alone: Callable[[str], AbstractContextManager[bool]] = lambda _: nullcontext(True)
    #: Asks the gate whether what this step began may stay; why not, or None.
    stays: Callable[[], Said | None] = lambda: None
    #: Asks the gate which of these idle nodes may not be tested with others: node -> why. True: they are
    #: already.
    may_borrow: Callable[[Sequence[str], bool], Mapping[str, Said]] = lambda _nodes, _begun: {}
    #: The good node of each kind.
    references: Callable[[], Sequence[Reference]] = tuple
    #: What its node last reported of a GPU: `pci`, `uuid`, `serial`.
    reported_gpu: Callable[[Component], Mapping[str, Any]] = lambda _: {}
    #: History of the run's node since a moment.
    history: Callable[[datetime], NodeHistory] = lambda _: NodeHistory()


def since_retry(log: Sequence[LogEntry], key: str) -> list[LogEntry]:
    """A step's log entries since a person's last retry, that first; all of them without a retry."""
    entries = [entry for entry in log if entry.step == key]
    retries = [index for index, entry in enumerate(entries) if entry.event is StepEvent.retry]
    return entries[retries[-1] :] if retries else entries


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a step, and all that its action may touch. Call `fence()` right before each effect.

    `item`: the job of a `for_each` step; `restarts`: its restart count when the list was made; `began_at`:
    when this step was first started or waited. `key` identifies this effect: it survives a worker's death,
    and changes with a person's retry. `asked`: this attempt was made, and its outcome is awaited.
    `tested_at`: when this run began to test its node, or a person's later retry. `log`: the run's log so far.
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
    """The step cannot go on: this is what its action answers."""

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
    """What it reads; None where the step could not go on without it."""
    try:
        return read()
    except Answered:
        return None


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """`probe` checks whether it is done already (None: it is not); `do` causes it; `verify` reads it back.
    Each may raise Answered.

    `do` may answer at once where there is nothing to wait for; a step that only checks, waits or sends has
    `verify` alone. `undo` is None where nothing can be undone. `effect` is False for steps that only look.
    `only_keeps`: the rest of a granted step only keeps its node out of service, so no guard is asked again.
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
    """A `verify` that reads what the probe reads; the step waits while that shows nothing yet."""
    return lambda ctx: probe(ctx) or Again(not_yet(ctx), after_s)


# --- reading Slurm


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
    """Whether the drain is healer's; with `incident`: whether it is that incident's."""
    return is_healers(reason) and (incident is None or names_incident(reason, incident))


def last_drain_reason(log: Sequence[LogEntry]) -> str:
    """The reason of this run's last drain, as it was read back; empty if there was none."""
    read = (entry.data.get("reason") for entry in reversed(log) if entry.data.get("verb") == Verb.drain)
    return next((str(reason) for reason in read if reason), "")


def holds(node: SlurmNode) -> Said:
    """`ann holds`: whose the node's reason is."""
    return say("actions.holds", who=node.reason_user or say("actions.somebody"))


def reason_given(node: SlurmNode) -> str:
    return node.reason or say("actions.no_reason_given")


def holder_of(node: SlurmNode, words: str = "") -> Said | None:
    """`ann holds`, where another person or program keeps the node out; None where only healer or Slurm does.

    A drain without a reason is a person's too. Slurm's own DOWN ends by itself when the node registers.
    `words`: the reason of this run's drain; a person who appended to it since then holds the node.
    """
    if not node.held:
        return None
    if is_healers(node.reason):
        added = is_healers(words) and original_reason(node.reason).startswith(f"{original_reason(words)} ")
        return holds(node) if added else None
    if not node.drain and (not node.reason or slurm_kind(node.reason) is not None):
        return None
    return holds(node)


LOOK_AGAIN_S = 2.0
#: Slurm refuses to return a node that has not registered as configured, and a reboot would undo the return
#: (d.8, 4 and 5).
NOT_YET = frozenset({"REBOOT_ISSUED", "REBOOT_REQUESTED", "INVALID_REG"})


def read_slurm(read: Callable[[], T], after_s: float = LOOK_AGAIN_S) -> T:
    """The value of `read()`. Raises Answered: Failed for a node that Slurm does not know, Again without an
    answer of Slurm."""
    try:
        return read()
    except UnknownNode as error:
        raise Answered(Failed(said_by(error), final=True)) from None
    except SchedulerUnavailable as error:
        raise Answered(slurm_silent(error, after_s)) from None


def slurm_silent(error: SchedulerUnavailable, after_s: float) -> Again:
    return Unread(say("actions.slurm_silent", error=said_by(error)), after_s)


def cause(ctx: Context, effect: Callable[[], object], *, needs_right: bool = False) -> Failed | None:
    """One effect on Slurm, right after the fence. None: it was requested, or it is unknown whether it
    happened: read it back. `needs_right`: a missing right in Slurm is final, without another attempt."""
    ctx.fence()
    try:
        effect()
    except SchedulerRefused as error:
        return Failed(said_by(error), final=needs_right and error.no_right)
    except SchedulerUnavailable:
        pass
    return None


def whole_job(scheduler: SlurmReads, name: str) -> SlurmJob | None:
    """The job; for a component of a heterogeneous job its leader, as Slurm restarts those as a whole."""
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


def read_free_node(ctx: Context, after_s: float = LOOK_AGAIN_S) -> SlurmNode:
    """The node; Failed where another person or program holds it."""
    node = read_node(ctx, after_s)
    if holder := holder_of(node, last_drain_reason(ctx.log)):
        raise Answered(held_by(holder, node))
    return node


def held_by(holder: Said, node: SlurmNode) -> Failed:
    """`holder`: as `holder_of` names it."""
    text = say("actions.holds_node", holder=holder, node=node.name, reason=reason_given(node))
    return Failed(text, final=True)


def read_node_and_jobs(ctx: Context, after_s: float = LOOK_AGAIN_S) -> tuple[SlurmNode, list[SlurmJob]]:
    slurm = ctx.tools.scheduler
    return read_slurm(lambda: (slurm.node(ctx.node), slurm.jobs_on(ctx.node)), after_s)


def recent_picture(ctx: Context, since: datetime) -> SlurmSnapshot | None:
    """The stored picture, if it was taken after `since` and is not old.

    A wait need not query Slurm while the picture shows that it goes on: waits last for hours or days, and
    each look would cost slurmctld as much as a poll of the whole cluster.
    """
    picture = ctx.tools.picture()
    if picture is None or picture.taken_at <= since or ctx.tools.now() - picture.taken_at > PICTURE_AGE:
        return None
    return picture


def jobs_pictured(ctx: Context) -> list[SlurmJob]:
    """The jobs on the node by the picture of the time since this step began. An empty list says nothing."""
    picture = recent_picture(ctx, ctx.began_at)
    return picture.jobs_on(ctx.node) if picture is not None else []


def read_job(ctx: Context, *, leader: bool = False) -> SlurmJob:
    """The job of this step, or its `leader` where it is a component of a heterogeneous job; Skipped for one
    that Slurm has forgotten."""
    slurm = ctx.tools.scheduler
    job = read_slurm(lambda: whole_job(slurm, ctx.job) if leader else slurm.job(ctx.job))
    if job is None:
        raise Answered(Skipped(say("actions.job_forgotten", job=ctx.job)))
    return job


def restarts_known(ctx: Context) -> int:
    """The restart count that the run is about; Failed without one."""
    if ctx.restarts is None:
        raise Answered(Failed(say("actions.restarts_unknown", job=ctx.job), final=True))
    return ctx.restarts


def read_job_of_run(ctx: Context) -> tuple[SlurmJob, int]:
    """The job of this run, and the restart count that the run is about; a forgotten job ends the run."""
    job = read_slurm(lambda: ctx.tools.scheduler.job(ctx.job))
    if job is None:
        raise Answered(Done(say("actions.job_forgotten", job=ctx.job), {"ends_run": True}))
    return job, restarts_known(ctx)
