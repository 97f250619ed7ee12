"""A detector's claim: this component has this fault, with its evidence."""

from datetime import datetime

import msgspec

from healer.model.component import Component
from healer.model.detection import Chart, Contribution
from healer.model.forecast import Foreseen
from healer.model.words import Cause, FaultClass, Remedy, Sense


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
        about_gpu = self.fault.startswith(("xid-", "driver-asks", "gpu-")) and self.component.switch is None
        return about_gpu and bool(self.evidence[0].line)

    @property
    def headline(self) -> str:
        return self.title or self.text
