"""What Slurm shows: nodes and jobs at one moment, in one shape for every version and adapter."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Generic, TypeVar

import msgspec

from healer.model.vocabulary import OUTAGE_PLACES, UNPLACED, PlaceKind
from healer.text import Said

#: What every reason of ours starts with: `healer:<rule> inc:<short id> <text>`.
OUR_PREFIX = "healer:"
#: `sinfo -R` cuts at 20 columns by default; operators print up to about this many.
MAX_LENGTH = 120
_BREAKS = re.compile(r"""["'`,=\\;|]""")
#: What Slurm puts between an old reason and what it appends.
_APPENDED = " : "
#: Reasons that mean no reason at all.
_NONE = frozenset({"", "(null)", "none"})

_COUNT = r"count (?:reported lower than configured|too low|changed and jobs are using them)(?: \([^)]*\))?"
_TYPE = r"type (?:changed and jobs are using them|\([^)]*\) reported but not configured)"
_GRES = rf"gres/\S+ (?:{_COUNT}|{_TYPE})"
_LESS = r"Low (?:RealMemory|socket\*core\*thread count|CPUs|TmpDisk)(?: \([^)]*\))?"
_CORES = (
    r"gres/\S+ GRES (?:core specification|autodetected core affinity) \S+(?: (?:for|on) node \S+)?"
    r" doesn't match socket boundaries\.(?: \(Socket \d+ is cores \d+-\d+\)\.?)?"
    r"(?: See Socket Affinity section of gres\.html for more information\.?)?"
    r"(?: Consider setting \w+=\w+ as part of the Node configuration\.?)?"
)
_LOW = rf"(?:{_LESS}|CoreSpec differ|{_GRES}|{_CORES})"

#: Slurm's own reasons (slurmctld and slurmd, 22.05 to 26.05), whole: a person's may begin like one of them.
_SLURM_REASONS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        # The second one for a step that could not be ended before it ran.
        ("kill-task-failed", r"(?:Kill task failed|Job step not running)(?: \(.*\))?"),
        ("not-responding", r"Not responding"),
        ("rebooted", r"Node unexpectedly rebooted"),
        ("prolog-error", r"Prolog error|Prolog/Epilog failure"),
        ("epilog-error", r"Epilog error"),
        ("job-environment", r"Job env setup error"),
        ("batch-failure", r"batch job complete failure"),
        ("gres-count", rf"{_GRES}(?:, {_LOW})*"),
        ("low-resources", rf"{_LOW}(?:, {_LOW})*|Bad core count"),
        ("spool-full", r"SlurmdSpoolDir is full"),
        ("duplicate-job", r"Duplicate jobid"),
        ("reboot", r"Reboot ASAP|reboot (?:requested|issued|complete|timed out)"),
        ("power", r"ResumeTimeout reached|Powered down after resume|POWER_DOWN_ASAP"),
    )
)

#: How other programs' reasons begin.
_PROGRAMS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("NHC", r"NHC:"),
        ("soperator", r"\[(?:node_problem|user_problem|hardware_problem|compute_maintenance)\]"),
        ("slurm-operator", r"slurm-operator:"),
        ("Slinky", r"\[HC\]"),
        ("HyperPod", r"Action:(?:Replace|Reboot)\b"),
        ("SUNK", r"k8s:|.*sunk:verify-undrain"),
        ("CycleCloud", r"cyclecloud_"),
    )
)


class OwnerKind(StrEnum):
    """What kind of actor keeps a node out."""

    healer = "healer"
    slurm = "slurm"
    program = "program"
    person = "person"


class ReasonOwner(msgspec.Struct, frozen=True):
    """`name`: `healer`, `Slurm`, the program's, or the person's; empty if the person is unknown."""

    kind: OwnerKind
    name: str

    def __str__(self) -> str:
        return self.name or "somebody"


HEALER = ReasonOwner(OwnerKind.healer, "healer")
SLURM = ReasonOwner(OwnerKind.slurm, "Slurm")


def plain(text: str) -> str:
    """A text reduced to what a reason of ours may hold: one line of ASCII, without quotes, commas, `=` and
    the like (parsers), and with nothing that looks appended by Slurm."""
    kept = "".join(letter if letter.isprintable() else " " for letter in text)
    kept = _BREAKS.sub(" ", kept.encode("ascii", "ignore").decode())
    return re.sub(r"( :)+(?= )", ":", re.sub(r"\s+", " ", kept)).strip(" :")


def original_reason(reason: str) -> str:
    """What was written, without what Slurm appended."""
    return reason.partition(_APPENDED)[0]


@lru_cache(maxsize=4096)
def is_ours(reason: str, incident: str | None = None) -> bool:
    """Exactly as healer writes it, with nothing but Slurm's own words behind it; `incident`: for this one.

    A person who adds to our text has taken the node over, though the front of it is ours.
    """
    original, *appended = reason.split(_APPENDED)
    if not original.startswith(OUR_PREFIX) or len(original) > MAX_LENGTH or plain(original) != original:
        return False
    if not all(slurm_kind(part) is not None for part in appended):
        return False
    return incident is None or names_incident(reason, incident)


def is_empty_reason(reason: str) -> bool:
    """No reason was given: empty, or one of the words that Slurm's tools print then."""
    return reason.strip().lower() in _NONE


def owner_of(reason: str, user: str = "") -> ReasonOwner:
    """Who wrote the reason; `user` is whom Slurm recorded. A reason that is none is some person's."""
    if is_ours(reason):
        return HEALER
    if slurm_kind(reason) is not None:
        return SLURM
    program = _program(reason)
    if program is not None:
        return ReasonOwner(OwnerKind.program, program)
    return ReasonOwner(OwnerKind.person, _author(reason, user))


def _author(reason: str, user: str) -> str:
    """`user`, or empty where Slurm appended words of its own: its user and time have replaced those of the
    person then (d.9)."""
    return "" if any(slurm_kind(part) is not None for part in reason.split(_APPENDED)[1:]) else user


@lru_cache(maxsize=4096)
def slurm_kind(reason: str) -> str | None:
    """Which of Slurm's own reasons this is; None for a person's text, for ours and for an empty one. A person
    who adds to Slurm's reason holds the node."""
    original, *appended = (part.strip() for part in reason.split(_APPENDED))
    if any(slurm_kind(part) is None for part in appended):
        return None
    return next((kind for kind, pattern in _SLURM_REASONS if pattern.fullmatch(original)), None)


@lru_cache(maxsize=4096)
def _program(reason: str) -> str | None:
    return next((name for name, pattern in _PROGRAMS if pattern.match(reason)), None)


#: Smallest change of a node's boot time that is a boot: it moves by a second when slurmd registers again.
BOOT_MOVES = timedelta(seconds=5)
#: Every state and flag of a node that a release up to 26.05 is known to print (d.2 of the facts). A node
#: with another one is shown as it is, and is never resumed by healer itself.
KNOWN_NODE_WORDS = frozenset(
    {
        "UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE", "INVALID",
        "DRAIN", "COMPLETING", "NOT_RESPONDING", "FAIL", "MAINTENANCE", "RESERVED", "PLANNED",
        "REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT_CANCELED", "INVALID_REG", "UNDRAIN", "RESUME", "CLOUD",
        "DYNAMIC_FUTURE", "DYNAMIC_NORM", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN",
        "POWER_UP", "POWER_DRAIN", "POWER_DOWN_ASAP", "POWER_DOWN_FORCE", "PERFCTRS", "BLOCKED", "EXTERNAL",
    }
)  # fmt: skip

_OUT_BASE = frozenset({"DOWN", "ERROR", "FUTURE", "UNKNOWN"})
_OUT_FLAGS = frozenset({"DRAIN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "INVALID_REG"})
SWITCHED_OFF = frozenset({"POWERED_DOWN", "POWERING_DOWN"})
#: Kept free by the scheduler's own plans: no trouble (d.8, 19).
_OUT_BY_PLAN = SWITCHED_OFF | {"MAINTENANCE"}
_PLANNED_FLAGS = frozenset({"PLANNED", "BLOCKED"})
_POWER_SAVING = SWITCHED_OFF | {"POWERING_UP"}
#: Slurm restarts the node, and says itself when that takes too long (ResumeTimeout).
STARTING = frozenset({"REBOOT_ISSUED", "POWERING_UP"})


class NodeStatus(StrEnum):
    """One word for a node's state in Slurm, for people; the details are in its state and flags."""

    invalid = "invalid"
    maintenance = "maintenance"
    power_saving = "power_saving"
    powering_up = "powering_up"
    rebooting = "rebooting"
    down = "down"
    draining = "draining"
    drained = "drained"
    failing = "failing"
    silent = "silent"
    reboot_pending = "reboot_pending"
    unknown = "unknown"
    busy = "busy"
    planned = "planned"
    idle = "idle"


#: What decides whatever the base state is, the strongest first.
_STATUS_BY_FLAG = (
    (frozenset({"INVALID_REG"}), NodeStatus.invalid),
    (frozenset({"MAINTENANCE"}), NodeStatus.maintenance),
    (frozenset({"POWERED_DOWN", "POWERING_DOWN"}), NodeStatus.power_saving),
    (frozenset({"POWERING_UP"}), NodeStatus.powering_up),
    (frozenset({"REBOOT_ISSUED"}), NodeStatus.rebooting),
)


# Wide: one row of what Slurm shows of a node, in one shape for all adapters and recordings.
class SlurmNode(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One node. `state` is Slurm's JSON list: base state first, then flags, upper case.

    `reason_user` and `reason_at` say who set the reason and when. `rack`, `switch` (the leaf), `pod`,
    `domain` (of NVLink), `pdu` and `row` come from the site's topology file or, in recordings, from the
    recording. `gpus_shared`: Slurm hands out slices or shares of GPUs here, so `gpus` is no count of cards.
    """

    name: str
    state: tuple[str, ...] = ()
    reason: str = ""
    reason_user: str = ""
    reason_at: datetime | None = None
    gpus: int = 0
    gpu_model: str = ""
    #: The model as the node reports it, where the gres names none (`gpu:8`).
    gpu_name: str = ""
    gpus_shared: bool = False
    #: CPUTot; 0 if Slurm does not report it.
    cpus: int = 0
    driver: str = ""
    rack: str = ""
    switch: str = ""
    pod: str = ""
    domain: str = ""
    pdu: str = ""
    row: str = ""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    boot_id: str = ""
    boot_at: datetime | None = None
    #: The site's free texts; `extra` holds our JSON while an incident of ours is open (see docs/slurm.md).
    comment: str = ""
    extra: str = ""
    #: Switches from leaf to root, where Slurm or the topology file knows them; `switch` is the first.
    switches: tuple[str, ...] = ()
    #: What the node becomes after its reboot, as `state`; empty where none is asked for.
    after_reboot: tuple[str, ...] = ()
    #: NodeAddr and NodeHostname, where they differ from the name: an enrolling node is known by them.
    address: str = ""
    hostname: str = ""

    @property
    def base(self) -> str:
        return self.state[0] if self.state else "UNKNOWN"

    @property
    def drain(self) -> bool:
        """The DRAIN flag is set: no new job starts here (it may still be draining)."""
        return "DRAIN" in self.state

    @property
    def held(self) -> bool:
        """Someone, Slurm or healer keeps it out of service (planned work excluded)."""
        return self.drain or self.base == "DOWN" or "FAIL" in self.state

    @property
    def busy(self) -> bool:
        return self.base in {"ALLOCATED", "MIXED"} or "COMPLETING" in self.state

    @property
    def responding(self) -> bool:
        return self.base != "DOWN" and "NOT_RESPONDING" not in self.state

    @property
    def in_service(self) -> bool:
        """New jobs may start here."""
        return self.base not in _OUT_BASE and not _OUT_FLAGS.intersection(self.state)

    @property
    def may_get_jobs(self) -> bool:
        """Jobs may start here, or Slurm wakes it for the next one, as power saving has switched it off."""
        asleep = self.base not in _OUT_BASE and not _POWER_SAVING.isdisjoint(self.state)
        return self.in_service or (asleep and not self.held and "INVALID_REG" not in self.state)

    @property
    def planned(self) -> bool:
        """Out by plan: in a maintenance reservation or powered down on purpose."""
        return not _OUT_BY_PLAN.isdisjoint(self.state)

    @property
    def is_out_by_plan_alone(self) -> bool:
        """As `planned`, and power saving hides no hold of Slurm itself."""
        return self.planned and not self.is_left_off

    @property
    def is_left_off(self) -> bool:
        """Slurm itself holds it, and power saving switched it off too: no job wakes it, which is no plan."""
        is_off = "MAINTENANCE" not in self.state and not SWITCHED_OFF.isdisjoint(self.state)
        return is_off and self.held and slurm_kind(self.reason) is not None

    @property
    def starting(self) -> bool:
        """Slurm is restarting it on request: by a reboot or from power saving."""
        return not STARTING.isdisjoint(self.state)

    @property
    def is_expected_away(self) -> bool:
        """Not expected to send: it is out by plan, or Slurm is starting it."""
        return self.planned or self.starting

    @property
    def outage_places(self) -> list[tuple[PlaceKind, str]]:
        """The places that it shares with nodes whose silence would be the same outage as its own."""
        return [(kind, place) for kind in OUTAGE_PLACES if (place := getattr(self, kind))]

    @property
    def status(self) -> NodeStatus:
        """By Slurm's own order (d.2 of the facts), with one exception: a node that is DOWN and DRAIN is down.

        Slurm's JSON has no DRAINED: a draining node is drained once it holds no job any more.
        """
        state = self.state
        for flags, status in _STATUS_BY_FLAG:
            if not flags.isdisjoint(state):
                return status
        if self.base in {"DOWN", "ERROR"}:
            return NodeStatus.down
        if self.drain:
            return NodeStatus.draining if self.busy else NodeStatus.drained
        if "FAIL" in state:
            return NodeStatus.failing
        if "NOT_RESPONDING" in state:
            return NodeStatus.silent
        if "REBOOT_REQUESTED" in state:
            return NodeStatus.reboot_pending
        if self.base not in {"IDLE", "ALLOCATED", "MIXED"}:
            return NodeStatus.unknown
        if self.busy:
            return NodeStatus.busy
        return NodeStatus.idle if _PLANNED_FLAGS.isdisjoint(state) else NodeStatus.planned

    @property
    def owner(self) -> ReasonOwner | None:
        """Who keeps it out; None for a node in service. Without a reason, a drain counts as a person's, and
        anything else as Slurm's."""
        if self.in_service or (self.planned and is_empty_reason(self.reason)):
            return None
        if is_empty_reason(self.reason) and not self.drain:
            return SLURM
        return owner_of(self.reason, self.reason_user)

    @property
    def reason_by(self) -> str:
        """The user who wrote its reason; empty if Slurm does not know, or no longer."""
        return _author(self.reason, self.reason_user)

    @property
    def unknown_flags(self) -> tuple[str, ...]:
        """Words in its state that no release up to 26.05 is known to print."""
        return tuple(word for word in self.state if word not in KNOWN_NODE_WORDS)

    @property
    def resumable(self) -> bool:
        """healer may resume it by itself: not with a flag of unknown meaning."""
        return not self.unknown_flags


T = TypeVar("T")


# Wide: one row of what Slurm shows of a job, in one shape for all adapters and recordings.
class SlurmJob(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One job. `state` is the base state (`RUNNING`); `flags` the rest (`COMPLETING`).

    `gpus` maps node -> GPU indices where Slurm reports them: an empty tuple is a job without a GPU there, a
    missing node is unknown. `requeue`: Slurm may requeue it; `batch`: it was submitted by sbatch (others
    cannot be requeued). `reason` is why it is pending.
    """

    id: str
    state: str
    nodes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    gpus: dict[str, tuple[int, ...]] = {}
    restarts: int = 0
    requeue: bool = True
    batch: bool = True
    name: str = ""
    user: str = ""
    #: The uid of `user`; None if Slurm does not report it.
    uid: int | None = None
    partition: str = ""
    qos: str = ""
    comment: str = ""
    reason: str = ""
    start_at: datetime | None = None
    #: Nodes that it must have (ReqNodeList), and that a pending job must not use (ExcNodeList).
    required: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    submit_at: datetime | None = None
    eligible_at: datetime | None = None
    #: When it ended, or began to complete; None before that.
    end_at: datetime | None = None
    #: `3`, `0:9` (signal 9) as Slurm's ExitCode; None before it ended, or if Slurm does not report it.
    exit_code: str | None = None
    account: str = ""
    #: The owner's text from `--extra` (23.11 and later), possibly with keywords for healer.
    extra: str = ""
    admin_comment: str = ""
    reservation: str = ""
    dependency: str = ""
    submit_line: str = ""
    priority: int | None = None
    #: Who holds it, while it is held: `user` or `admin` (also Slurm itself after failed launches).
    held_by: str = ""
    #: The array and the task in it; the leader and the place in a heterogeneous job.
    array_job: str = ""
    array_task: int | None = None
    het_job: str = ""
    het_offset: int | None = None
    #: Federation: where it was submitted and which clusters have a copy of it.
    origin: str = ""
    siblings: tuple[str, ...] = ()
    #: A node that fails leaves the rest of the job running (`--no-kill`); None if Slurm does not report it.
    no_kill: bool | None = None
    #: Node whose failure ended its last life, and the description that goes with `reason`.
    failed_node: str = ""
    why: str = ""

    @property
    def active(self) -> bool:
        """Holds nodes: running, suspended or completing."""
        return self.state in {"RUNNING", "SUSPENDED"} or "COMPLETING" in self.flags

    @property
    def crashed(self) -> bool:
        """Its work ended, and neither by its owner nor by a limit; it may be revived."""
        return self.state in {"FAILED", "NODE_FAIL"} and "COMPLETING" not in self.flags

    @property
    def unfinished(self) -> bool:
        """Holds nodes, or waits for some."""
        return self.active or self.state == "PENDING"

    @property
    def leader(self) -> str:
        """The id for commands: for a component of a heterogeneous job its leader's (2107)."""
        return self.het_job or self.id

    @property
    def title(self) -> str:
        """`4711`, `4700_3` (a task of an array), `4711+1` (a component), as its owner knows it."""
        if self.array_job and self.array_task is not None:
            return f"{self.array_job}_{self.array_task}"
        return f"{self.het_job}+{self.het_offset}" if self.het_job and self.het_offset else self.id


def job_named(name: str, jobs: Mapping[str, SlurmJob]) -> SlurmJob | None:
    """The job by raw id, as an array task (`5_1`) or as a component of a heterogeneous job (`5+1`)."""
    if name in jobs:
        return jobs[name]

    def is_named(job: SlurmJob) -> bool:
        return name == job.title or (job.het_job != "" and name == f"{job.het_job}+{job.het_offset}")

    return next(filter(is_named, jobs.values()), None)


#: A reservation that begins later than this leaves time to repair faulty nodes and bring them back.
BEGINS_WITHIN = timedelta(hours=1)


class Reservation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Nodes reserved for someone. `maintenance`: Slurm's MAINT with IGNORE_JOBS, planned work.

    `until` None: without an end. `users` (or accounts) may run jobs in it.
    """

    name: str
    nodes: tuple[str, ...]
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    maintenance: bool = False
    since: datetime | None = None
    until: datetime | None = None
    flags: tuple[str, ...] = ()

    @property
    def replaces(self) -> bool:
        """Slurm itself replaces a node that is taken out, and refuses a list of nodes from anyone else."""
        return not {"REPLACE", "REPLACE_DOWN"}.isdisjoint(self.flags)

    def is_on(self, at: datetime) -> bool:
        """It is in effect. Sites announce the maintenance of all nodes weeks ahead."""
        return (self.since is None or self.since <= at) and (self.until is None or self.until > at)

    def is_soon(self, now: datetime) -> bool:
        """It is in effect, or begins too soon for a repair to end before it."""
        has_begun = self.since is None or self.since <= now + BEGINS_WITHIN
        return has_begun and (self.until is None or self.until > now)


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A batch job that healer submits itself. `script` is a whole script with its `#!` line."""

    name: str
    script: str
    nodes: tuple[str, ...]
    time_limit_s: int
    reservation: str = ""
    comment: str = ""
    gpus_per_node: int = 0
    exclusive: bool = True
    #: Empty: Slurm's default. `nice`: how far below its normal priority.
    partition: str = ""
    qos: str = ""
    nice: int = 0


class Trouble(StrEnum):
    """A problem of slurmctld, or of the connection to it. A state to show, never a reason to act."""

    away = "away"
    other_cluster = "other_cluster"
    backup = "backup"
    slow = "slow"
    backlog = "backlog"
    accounting = "accounting"
    passed_over = "passed_over"


class Controller(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """slurmctld at `at`, as one poll found it. A figure is None if this adapter cannot report it.

    `problem` is a sentence where it answers badly or not at all; the figures are then the last ones received.
    `adapter` names the adapter that answered; `fallbacks` why those before it in the site's order did not.
    """

    cluster: str
    at: datetime
    adapter: str = ""
    host: str = ""
    #: `primary`, or `backup` after a take-over.
    role: str = ""
    version: str = ""
    answer_s: float | None = None
    problem: Said | None = None
    #: Requests in progress, messages waiting to be sent, records waiting for slurmdbd (sdiag).
    threads: int | None = None
    agent_queue: int | None = None
    dbd_queue: int | None = None
    fallbacks: tuple[Said, ...] = ()
    #: Problems, and since when; filled in by the poller (healer.observations.slurm_poll).
    since: dict[Trouble, datetime] = {}


class SlurmCall(StrEnum):
    """Calls that an adapter may not support: the methods of `ports.scheduling.Scheduler` that change or query
    something."""

    snapshot = "snapshot"
    reserved = "reserved"
    node = "node"
    job = "job"
    jobs_on = "jobs_on"
    controller = "controller"
    topology = "topology"
    drain = "drain"
    undrain = "undrain"
    resume = "resume"
    down = "down"
    reboot = "reboot"
    cancel_reboot = "cancel_reboot"
    annotate = "annotate"
    reserve = "reserve"
    change_reservation = "change_reservation"
    unreserve = "unreserve"
    shrink = "shrink"
    requeue = "requeue"
    revive = "revive"
    start_now = "start_now"
    hold = "hold"
    release = "release"
    exclude = "exclude"
    signal = "signal"
    notify = "notify"
    remark = "remark"
    submit = "submit"
    cancel = "cancel"


#: States of nodes that are idle or busy, without a flag.
_PLAIN = frozenset({("IDLE",), ("ALLOCATED",), ("MIXED",)})


class SlurmSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cluster at `taken_at`. `nodes`, `jobs` and `reservations` by name and id."""

    cluster: str
    taken_at: datetime
    nodes: Mapping[str, SlurmNode] = {}
    jobs: Mapping[str, SlurmJob] = {}
    reservations: Mapping[str, Reservation] = {}

    @property
    def gpu_nodes(self) -> Sequence[SlurmNode]:
        """The nodes that caps and the floor count; every node if Slurm names no GPUs at all."""
        return counted_gpu_nodes(ByIdentity(self.nodes))

    @property
    def held_nodes(self) -> Sequence[SlurmNode]:
        """Nodes that someone keeps out with a reason, in the order of `nodes`."""
        return _held(ByIdentity(self.nodes))

    @property
    def odd_nodes(self) -> Sequence[SlurmNode]:
        """Nodes in any other state than just idle or busy: usually a few of thousands."""
        return _odd(ByIdentity(self.nodes))

    def whole(self, job: str) -> SlurmJob | None:
        """The job; for a heterogeneous one the leader with all its nodes, because each rank runs under the
        leader's id."""
        return _whole(ByIdentity(self.jobs)).get(job) or self.jobs.get(job)

    def id_of(self, job: str) -> str:
        """The id of the job that Slurm's commands call `5_1` or `5+1`; any other name as it is."""
        found = job_named(job, self.jobs)
        return found.id if found is not None else job

    def jobs_on(self, node: str) -> list[SlurmJob]:
        """Jobs that hold the node, in the order of `jobs`."""
        return list(_by_node(ByIdentity(self.jobs)).get(node, ()))

    def neighbours_of(self, node: str) -> list[SlurmNode]:
        """The other nodes of its switch, rack, PDU and NVLink domain, in the order of `nodes`; none for a
        node that Slurm does not show."""
        shown = self.nodes.get(node)
        places = set(shown.outage_places) if shown is not None else set()
        return [
            other
            for other in self.nodes.values()
            if other.name != node and not places.isdisjoint(other.outage_places)
        ]

    def failed_on(self, node: str) -> list[SlurmJob]:
        """Jobs that ended FAILED or NODE_FAIL there, as long as slurmctld knows them (MinJobAge)."""
        return list(_failed_by_node(ByIdentity(self.jobs)).get(node, ()))

    def waiting_in(self, partition: str) -> list[SlurmJob]:
        """Jobs that wait in the partition, in the order of `jobs`."""
        return list(_waiting_by_partition(ByIdentity(self.jobs)).get(partition, ()))


class ByIdentity(Generic[T]):
    """A value as a cache key: equal only to itself, whatever it contains."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.value is other.value


# Each walk asks, and a walk without news must not scan a thousand nodes.
@lru_cache(maxsize=4)
def counted_gpu_nodes(same: ByIdentity[Mapping[str, SlurmNode]]) -> Sequence[SlurmNode]:
    with_gpus = tuple(node for node in same.value.values() if node.gpus > 0)
    return with_gpus or tuple(same.value.values())


@lru_cache(maxsize=4)
def shared_places(same: ByIdentity[Mapping[str, SlurmNode]]) -> dict[str, list[tuple[PlaceKind, str]]]:
    """The outage places that each node shares with another; else `UNPLACED`: its shared places are
    unknown."""
    sizes = Counter(place for node in same.value.values() for place in node.outage_places)
    return {
        name: [place for place in node.outage_places if sizes[place] > 1] or [UNPLACED]
        for name, node in same.value.items()
    }


@lru_cache(maxsize=4)
def _odd(same: ByIdentity[Mapping[str, SlurmNode]]) -> Sequence[SlurmNode]:
    return tuple(node for node in same.value.values() if node.state not in _PLAIN)


@lru_cache(maxsize=4)
def _held(same: ByIdentity[Mapping[str, SlurmNode]]) -> Sequence[SlurmNode]:
    return tuple(node for node in _odd(same) if node.reason and node.held)


# A storm asks for the jobs of a thousand nodes: scanning all jobs for each took minutes. Keyed by the mapping
# and not by the snapshot, because an unchanged picture is a new snapshot every two seconds with the same
# jobs.
@lru_cache(maxsize=4)
def _by_node(same: ByIdentity[Mapping[str, SlurmJob]]) -> dict[str, list[SlurmJob]]:
    return _placed(job for job in same.value.values() if job.active)


@lru_cache(maxsize=4)
def _whole(same: ByIdentity[Mapping[str, SlurmJob]]) -> dict[str, SlurmJob]:
    """The leaders of heterogeneous jobs, with the nodes and GPUs of their components, and the nodes that any
    of these requires."""
    found = {job.id: job for job in same.value.values() if job.het_job == job.id}
    for part in same.value.values():
        leader = found.get(part.het_job)
        if leader is None or part.id == leader.id:
            continue
        required = tuple(dict.fromkeys((*leader.required, *part.required)))
        leader = found[leader.id] = msgspec.structs.replace(leader, required=required)
        if part.active is not leader.active:
            continue
        nodes = tuple(dict.fromkeys((*leader.nodes, *part.nodes)))
        gpus = {node: (*leader.gpus.get(node, ()), *more) for node, more in part.gpus.items()}
        found[leader.id] = msgspec.structs.replace(leader, nodes=nodes, gpus={**leader.gpus, **gpus})
    return found


@lru_cache(maxsize=4)
def _failed_by_node(same: ByIdentity[Mapping[str, SlurmJob]]) -> dict[str, list[SlurmJob]]:
    return _placed(job for job in same.value.values() if job.crashed)


@lru_cache(maxsize=4)
def _waiting_by_partition(same: ByIdentity[Mapping[str, SlurmJob]]) -> dict[str, list[SlurmJob]]:
    found: dict[str, list[SlurmJob]] = {}
    for job in same.value.values():
        if job.state == "PENDING" and not job.active:
            for partition in job.partition.split(","):
                found.setdefault(partition, []).append(job)
    return found


def _placed(jobs: Iterable[SlurmJob]) -> dict[str, list[SlurmJob]]:
    found: dict[str, list[SlurmJob]] = {}
    for job in jobs:
        for node in dict.fromkeys(job.nodes):
            found.setdefault(node, []).append(job)
    return found


#: Prefix of the names of healer's reservations: `healer_<short id of the incident or run>`.
OUR_RESERVATIONS = "healer_"


def is_fresh(taken_at: datetime, now: datetime, stale_s: float) -> bool:
    """Whether a snapshot may be acted on: neither too old, nor from a clock that is as far ahead."""
    return abs((now - taken_at).total_seconds()) <= stale_s


def reservation_name(incident: str) -> str:
    """The name for the tests of this incident (or run, if there is none); always the same."""
    return f"{OUR_RESERVATIONS}{incident[:8]}"


def is_our_reservation(reservation: Reservation) -> bool:
    return reservation.name.startswith(OUR_RESERVATIONS)


def our_reservation(snapshot: SlurmSnapshot | None, node: str) -> Reservation | None:
    """healer's reservation that keeps this node out of service."""
    return our_reservation_in(snapshot.reservations, node) if snapshot is not None else None


def our_reservation_in(reservations: Mapping[str, Reservation], node: str) -> Reservation | None:
    """The same, from a separately read list."""
    found = reservations.values()
    return next((held for held in found if is_our_reservation(held) and node in held.nodes), None)


def names_incident(reason: str, incident: str) -> bool:
    """healer's drain reason is about this incident."""
    return f" inc:{incident[:8]}" in reason


def is_out_for(snapshot: SlurmSnapshot | None, node: SlurmNode, incident: str) -> bool:
    """healer's drain of the node, or its reservation for tests, is for this incident."""
    kept = our_reservation(snapshot, node.name)
    return names_incident(node.reason, incident) or (
        kept is not None and kept.name == reservation_name(incident)
    )


def is_only_ours(snapshot: SlurmSnapshot | None, node: SlurmNode) -> bool:
    """The node is shown under planned work only because of healer's own reservation."""
    return _is_reserved_by_us_alone(snapshot, node) and not SWITCHED_OFF.intersection(node.state)


def _is_reserved_by_us_alone(snapshot: SlurmSnapshot | None, node: SlurmNode) -> bool:
    if snapshot is None or our_reservation(snapshot, node.name) is None:
        return False
    others = (found for found in snapshot.reservations.values() if not is_our_reservation(found))
    at = snapshot.taken_at
    return not any(other.maintenance and node.name in other.nodes and other.is_on(at) for other in others)


def is_planned_work(snapshot: SlurmSnapshot | None, node: SlurmNode) -> bool:
    """Slurm keeps the node for other work than healer's tests, or asleep until the next job.

    Power saving also switches off nodes that are out of service: no job wakes such a node, and healer's own
    test wakes one that is reserved for it."""
    if not node.planned or _is_reserved_by_us_alone(snapshot, node):
        return False
    return "MAINTENANCE" in node.state or node.may_get_jobs


def with_unchanged(before: Mapping[str, SlurmNode], now: Mapping[str, SlurmNode]) -> dict[str, SlurmNode]:
    """The nodes of `now`, with the objects of `before` for those that did not change."""
    return {name: old if (old := before.get(name, node)) == node else node for name, node in now.items()}


def is_in_maintenance(snapshot: SlurmSnapshot | None, node: SlurmNode) -> bool:
    """In a maintenance reservation that is not for healer's own tests."""
    return "MAINTENANCE" in node.state and not is_only_ours(snapshot, node)
