"""A detector's claim: this component has this fault, with its evidence."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from healer.model.component import Component
from healer.model.detection import Chart, Contribution, Foreseen
from healer.model.faults import Trait, fault_is
from healer.model.vocabulary import Cause, FaultClass, Remedy, Sense


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """A collected file as it lies on its node. `sha256` is hex; `parts` says in words what is in it."""

    size_bytes: int
    sha256: str
    parts: tuple[str, ...] = ()


class EvidenceFile(msgspec.Struct, frozen=True, kw_only=True):
    """The same file, kept by healer: gzip of text. `id` follows from the run and its step."""

    id: str
    cluster: str
    node: str
    run: str
    name: str
    at: datetime
    bundle: Bundle
    incident: str | None = None


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a finding rests on, as people read it. `job` is the job that the signal itself names."""

    digest: str
    at: datetime
    component: Component
    text: str
    #: Which sense told it: two that agree are worth more than one told twice. Each source names its own.
    sense: Sense
    line: str = ""
    arrived_at: datetime | None = None
    job: str | None = None
    #: A fatal fault that was told, not measured: it has ended the work on its GPU.
    fatal: bool = False


# Wide: all that any detector may say; each says a few of the fields that have a default.
class Finding(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`rule` names the detection rule, `fault` the narrower kind of fault (for example `xid-79`).

    `unusable`: the component surely cannot work (law 2). `teardown`: means nothing after a root fault in
    the same job (Xid 45 and its kin). `confidence` is 0..1. `jobs` are the jobs the signal itself names.
    """

    rule: str
    fault: str
    fault_class: FaultClass
    component: Component
    at: datetime
    arrived_at: datetime
    text: str
    confidence: float
    evidence: tuple[Evidence, ...]
    unusable: bool = False
    teardown: bool = False
    jobs: tuple[str, ...] = ()
    #: What else the cause covers, where the root is shared (a switch and its nodes).
    affected: tuple[Component, ...] = ()
    #: What the driver itself asks for (Xid 154, RST / D-RST); wins over the catalogue.
    asked: str | None = None
    #: The signal that mattered, against its peers.
    charts: tuple[Chart, ...] = ()
    #: What made the score of its class's model, largest first.
    contributions: tuple[Contribution, ...] = ()
    #: Only evidence beside an incident that is open at its place: it opens none, and makes none worse.
    beside: bool = False
    #: It follows from a fault elsewhere: beside a root in the same job it is only counted.
    follows: bool = False
    #: What its catalogue row says is to be done, and where the cause lies; the rule's own word wins.
    remedy: Remedy | None = None
    cause: Cause | None = None
    #: A short name for pages and Slurm's reason, where the whole `text` is too long for that.
    title: str = ""
    #: Of a forecast: where the trend leads.
    foreseen: Foreseen | None = None

    @property
    def of_one_gpu(self) -> bool:
        """A line of the kernel about one GPU, also where its address is lost; else the place is the node."""
        about_gpu = fault_is(self.fault, Trait.gpu_line) and self.component.switch is None
        return about_gpu and bool(self.evidence[0].line)

    @property
    def headline(self) -> str:
        return self.title or self.text


class LinkDown(msgspec.Struct, frozen=True, kw_only=True):
    """A link of a node went down: when healer heard of it, and what said so."""

    at: datetime
    text: str


class Sensed(msgspec.Struct, frozen=True, kw_only=True):
    """`findings` are new ones. `clear_since`: (fault, component) -> since when its cause is known to be gone.

    What is not known is in neither: missing data opens nothing and closes nothing.
    """

    at: datetime
    findings: tuple[Finding, ...] = ()
    clear_since: Mapping[tuple[str, Component], datetime] = {}


class ObservationKind(StrEnum):
    xid = "xid"
    sxid = "sxid"
    gpu_lost = "gpu_lost"  # fallen off the bus, told without an Xid number
    kernel_line = "kernel_line"  # a line without a code, see `rules/kernel_lines.yaml`; `data["name"]`
    gpu_identity = "gpu_identity"  # the line that gives PCI address and UUID
    heartbeat = "heartbeat"
    gpu_inventory = "gpu_inventory"  # which GPU has which index, as telemetry's labels tell it
    inventory = "inventory"  # what the node is made of and set to (`healer.model.FACTS`)
    hook = "hook"  # one run of a Slurm hook on its node, with its checks (see `healer.signals.hook_reports`)
    checkpoint = "checkpoint"  # what a requeue of a job can go back to
    alert = "alert"  # what another system's alerting says (see `healer.signals.alert_bodies`)
    command = "command"  # what people and runs tell the detector (see `healer.model.node`)


class Observation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One parsed signal.

    `digest` is its identity (hex): the same signal told twice has the same digest. `event_at` is the
    sender's clock, `arrived_at` ours; both are UTC. `data` holds what only this kind has, e.g. for an Xid:
    `pid`, `process`, `gpu_instance`, `compute_instance`, `caused_by`, `recovery_action`, `unit`,
    `fatal_word`, `registers`.
    """

    digest: str
    kind: ObservationKind
    component: Component
    event_at: datetime
    arrived_at: datetime
    boot_id: str | None = None
    code: int | None = None
    text: str = ""
    line: str = ""
    data: dict[str, Any] = {}
    #: Row in the inbox; None where there is no inbox (replay, simulation).
    inbox_id: int | None = None
