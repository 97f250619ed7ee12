"""What an action is given and what it may answer."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

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
    SlurmSnapshot,
    Step,
    StepEvent,
    Ticket,
    Validation,
)
from healer.ports.bmc import Bmc
from healer.ports.evidence_book import EvidenceBook
from healer.ports.measurements import Readings
from healer.ports.node_exec import NodeExec
from healer.ports.site_commands import SiteCommands
from healer.ports.slurm import Scheduler
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
    """Not yet: look again after `after_s`; None: only when somebody wakes the run.

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


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """All that an action may touch. `fence()` must be called right before each effect.

    `item` is the job of a `for_each` step; `restarts` its restart count when the list was taken;
    `began_at` when this step was first started or waited; `queue` hands a message or ticket to delivery.
    `key` names this effect: the same after a death, another one after a person's retry. `asked`: this attempt
    has been made, only its outcome is awaited. `tested_at`: when this run began to test its node, or a
    person's later word to go on. `nodes` is None where nothing can be done on nodes, `bmc` where none is.
    `log` is the run's so far; `known_bad` asks for the nodes that are known bad and must stay in service.
    `reserved`: this run has begun to reserve its node for tests. `picture` is the newest that is stored of
    Slurm, `users` asks as whom healer comes to Slurm, `scripts` are the tests of `rules/validation` by name.
    """

    run: Run
    step: Step
    item: str | None
    restarts: int | None
    incident: Incident | None
    began_at: datetime
    now: Callable[[], datetime]
    scheduler: Scheduler
    fence: Callable[[], object]
    queue: Callable[[Message | Ticket], None]
    tell_detector: Callable[[Command], None]
    release_slot: Callable[[str], None]
    nodes: NodeExec | None = None
    bmc: Bmc | None = None
    checkpoints: Checkpoints | None = None
    evidence: EvidenceBook | None = None
    #: What starts commands of the site here, and the list of those that there are.
    commands: SiteCommands | None = None
    known_commands: Mapping[str, SiteCommand] = {}
    #: What was measured of late.
    readings: Readings | None = None
    key: str = ""
    asked: bool = False
    tested_at: datetime | None = None
    log: tuple[LogEntry, ...] = ()
    guards: GuardSettings = GuardSettings()
    known_bad: Callable[[], Collection[str]] = frozenset
    #: Asks for the hooks that were permitted to fail of late.
    permits: Callable[[], Collection[Permit]] = tuple
    reserved: bool = False
    #: Asks the gate whether what this step began may stay; the sentence of what speaks against it.
    stays: Callable[[], str | None] = lambda: None
    #: Asks the gate which of these idle nodes may not be tested with others, and why; True: they are already.
    may_borrow: Callable[[Sequence[str], bool], Mapping[str, str]] = lambda _nodes, _begun: {}
    picture: Callable[[], SlurmSnapshot | None] = lambda: None
    users: Callable[[], Sequence[str]] = tuple
    scripts: Mapping[str, str] = {}
    #: Which of them make a test of which depth.
    validation: Validation = Validation()
    #: Asks for what nodes of each kind should be.
    references: Callable[[], Sequence[Reference]] = tuple
    #: Asks what healer keeps of the run's node since a moment.
    history: Callable[[datetime], NodeHistory] = lambda _: NodeHistory()

    @property
    def lines(self) -> list[LogEntry]:
        """This step's own lines since a person last let it go on."""
        own = [one for one in self.log if one.step == self.part]
        retries = [index for index, one in enumerate(own) if one.event is StepEvent.retry]
        return own[retries[-1] :] if retries else own

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
            at=self.now(),
            by=self.run.by,
            incident=self.run.incident,
            reason=self.run.reason,
            data={"run": self.run.id, "playbook": self.run.playbook, **data},
        )


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """`probe` looks whether it is so already (None: it is not); `do` causes it; `verify` reads back.

    `do` may answer at once where there is nothing to wait for. `undo` is None where nothing can be undone.
    `effect` is False for steps that only look. `only_keeps` tells that all which is left to do of a step that
    was let go keeps its node out of service: no guard is asked about that again.
    """

    probe: Callable[[Context], Result | None]
    do: Callable[[Context], Result | None]
    verify: Callable[[Context], Result]
    undo: Callable[[Context], Result] | None = None
    effect: bool = True
    only_keeps: Callable[[Context], bool] = lambda _: False
