"""Closed lists of words, as in answers, files and the database; `docs/concepts.md` explains them."""

import difflib
from collections.abc import Iterable
from enum import StrEnum

from healer.text import say


class UserError(Exception):
    """What was asked for cannot be done, by no fault of the program: the text is for people."""


class Severity(StrEnum):
    """How urgent an incident is for a person. P0: service is hit and healer cannot or may not act."""

    P0 = "P0"
    P1 = "P1"
    P2 = "P2"
    P3 = "P3"


#: Letters of a person's reason, note or question, by whatever way it comes.
WORDS_MAX = 2000


class IncidentState(StrEnum):
    open = "open"
    mitigating = "mitigating"
    verifying = "verifying"
    resolved = "resolved"


class RunState(StrEnum):
    proposed = "proposed"
    waiting_approval = "waiting_approval"
    held = "held"
    running = "running"
    waiting = "waiting"
    done = "done"
    undone = "undone"
    stuck = "stuck"
    rejected = "rejected"
    cancelled = "cancelled"


#: A run in one of these states never moves again.
ENDED_RUN_STATES = frozenset({RunState.done, RunState.undone, RunState.rejected, RunState.cancelled})


class Verdict(StrEnum):
    """What healer thinks of a node, mildest first."""

    healthy = "healthy"
    watch = "watch"
    suspect = "suspect"
    isolate = "isolate"


class Cause(StrEnum):
    """The verdict on an incident's cause."""

    transient = "transient"
    permanent = "permanent"
    application = "application"
    fabric = "fabric"
    storage = "storage"
    maintenance = "maintenance"
    unclear = "unclear"


class FaultClass(StrEnum):
    """What a catalogue says of a code. `unknown` is never treated as bad."""

    fatal = "fatal"
    degraded = "degraded"
    application = "application"
    informational = "informational"
    unknown = "unknown"


#: What blames a part of the cluster, and no program or plan.
HARDWARE = frozenset({FaultClass.fatal, FaultClass.degraded})


class Sense(StrEnum):
    """Ways of hearing that fail apart from each other: a rule may ask for two before it acts."""

    kernel = "kernel"
    metrics = "metrics"
    step_times = "step_times"
    forest = "forest"
    silence = "silence"
    slurm = "slurm"
    hook = "hook"
    alert = "alert"  # another system's conclusion: not counted as a second sense (`healer.incidents.growth`)
    history = "history"  # healer's own, from what it remembers of the part: so is this


#: Senses that are derived from figures sent by others.
OF_FIGURES = frozenset({Sense.metrics, Sense.forest})


class Remedy(StrEnum):
    """The ladder of remedies, mildest first, then those that are not on it."""

    none = "none"
    requeue_job = "requeue_job"
    restart_service = "restart_service"
    reset_gpu_when_idle = "reset_gpu_when_idle"
    drain_then_reset = "drain_then_reset"
    reboot_node = "reboot_node"
    power_cycle = "power_cycle"
    replace = "replace"  # pyright: ignore[reportAssignmentType] - a word of the contract
    diagnose = "diagnose"
    reroute = "reroute"
    ticket = "ticket"
    notify = "notify"


#: Position on the ladder; the other remedies have none.
REMEDY_LADDER = (
    Remedy.none,
    Remedy.requeue_job,
    Remedy.restart_service,
    Remedy.reset_gpu_when_idle,
    Remedy.drain_then_reset,
    Remedy.reboot_node,
    Remedy.power_cycle,
    Remedy.replace,
)


class Verb(StrEnum):
    """What a step may do to the world."""

    drain = "drain"
    undrain = "undrain"
    resume = "resume"
    down = "down"
    shrink = "shrink"
    requeue = "requeue"
    revive = "revive"
    cancel = "cancel"
    release = "release"
    tidy = "tidy"
    exclude = "exclude"
    reserve = "reserve"
    reset_gpu = "reset_gpu"
    restart_service = "restart_service"
    reboot = "reboot"
    power_cycle = "power_cycle"
    diagnose = "diagnose"
    reroute = "reroute"
    collect = "collect"
    sweep = "sweep"
    bisect = "bisect"
    site_command = "site_command"
    ticket = "ticket"
    notify = "notify"


#: Verbs that take capacity away (or work from a job): each passes the gate.
REMOVING_VERBS = frozenset(
    {
        Verb.drain, Verb.down, Verb.shrink, Verb.requeue, Verb.cancel, Verb.reserve,
        Verb.reset_gpu, Verb.reboot, Verb.power_cycle,
    }
)  # fmt: skip

#: Those of them that take a node: what the breaker counts as failing actions. A job that cannot be requeued
#: says nothing of the cluster.
NODE_REMOVING = REMOVING_VERBS - {Verb.shrink, Verb.requeue, Verb.cancel}

#: Verbs on a job: a step says which one, the run's node is only where it is hit.
JOB_VERBS = frozenset(
    {Verb.shrink, Verb.requeue, Verb.revive, Verb.cancel, Verb.release, Verb.exclude, Verb.bisect}
)

#: Verbs that start a job again; a job's life is restarted once, no matter who asks.
RESTARTING_VERBS = frozenset({Verb.requeue, Verb.revive})

#: Verbs that give a node back.
RETURNING_VERBS = frozenset({Verb.resume, Verb.undrain})

#: Verbs that lift our drain: a node without it is no person's doing once one of them was granted.
LIFTING_VERBS = RETURNING_VERBS | {Verb.reserve}

#: Verbs that cannot be undone: they always need a person.
IRREVERSIBLE_VERBS = frozenset({Verb.power_cycle, Verb.cancel, Verb.down})


class Guard(StrEnum):
    pause = "pause"
    mode = "mode"
    approval = "approval"
    breaker = "breaker"
    slots = "slots"
    rack = "rack"
    switch = "switch"
    partition = "partition"  # pyright: ignore[reportAssignmentType] - a word of the contract
    hourly = "hourly"
    floor = "floor"
    requeue_cap = "requeue_cap"
    reboot_cap = "reboot_cap"
    repeat = "repeat"
    cooldown = "cooldown"
    protected = "protected"
    maintenance = "maintenance"
    ownership = "ownership"
    consent = "consent"
    reserved = "reserved"
    stale = "stale"
    sweep = "sweep"


#: Law 2: a surely unusable node passes these and these alone.
SLOT_GUARDS = frozenset({Guard.slots, Guard.hourly, Guard.rack, Guard.switch, Guard.partition})


class Mode(StrEnum):
    """How far a rule may go by itself."""

    off = "off"
    shadow = "shadow"
    suggest = "suggest"
    approve = "approve"
    auto = "auto"


class BreakerState(StrEnum):
    closed = "closed"
    open = "open"
    half_open = "half_open"


class Role(StrEnum):
    viewer = "viewer"
    responder = "responder"
    operator = "operator"
    admin = "admin"
    auditor = "auditor"
    signals = "signals"


class HitBasis(StrEnum):
    """What the GPU-hours that a job lost are reckoned from: known, at most so many, none, or unknown."""

    checkpoint = "checkpoint"  # known: since the last durable checkpoint
    start = "start"  # at most: since the job's life began, no durable checkpoint was reported
    runs_on = "runs_on"  # none so far: its work goes on
    ended = "ended"  # none: that life ended otherwise
    unknown = "unknown"  # Slurm gives no GPUs or no start time


class Review(StrEnum):
    true_fault = "true_fault"
    false_alarm = "false_alarm"
    unclear = "unclear"


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """`did you mean NAME?` with the closest of `words`; empty if none is close."""
    close = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return say("words.did_you_mean", word=close[0]) if close else ""


#: Prefix of a block of topology/block, in fields that name a switch under topology/tree.
BLOCK = "block:"


class PlaceKind(StrEnum):
    """What nodes may share: fields of `SlurmNode` and, but for `unplaced`, of `Place`."""

    pdu = "pdu"
    rack = "rack"
    switch = "switch"
    domain = "domain"
    row = "row"
    #: Of nodes that share no known place with another: each may share one with any of them (law 4).
    unplaced = "unplaced"


#: What two nodes share whose silences are one outage (law 2). A row is too large: two of its nodes may die
#: apart.
OUTAGE_PLACES = (PlaceKind.switch, PlaceKind.rack, PlaceKind.pdu, PlaceKind.domain)
UNPLACED = (PlaceKind.unplaced, "unplaced")
