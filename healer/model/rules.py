"""What `rules/` says, as values. `healer.ruleset` loads and cross-checks them."""

from datetime import timedelta
from functools import cached_property

import msgspec

from healer.model.detection import AlertRule, DetectionRule, GpuModel
from healer.model.gate import Maintenance
from healer.model.scrape import ScrapeRules
from healer.model.signals import Catalogue
from healer.model.words import Cause, FaultClass, Mode, Remedy, Severity, Verb


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One Xid or SXid. `source` says where the row comes from; `note` where sources disagree.

    `unusable`: the GPU is surely gone (law 2). `teardown`: means nothing after a root in the same job.
    `always_fatal` (SXid): no milder word in the line makes it less.
    """

    code: int
    name: str
    text: str
    fault_class: FaultClass
    component: str
    scope: str
    remedy: Remedy
    cause: Cause
    source: str
    note: str = ""
    retry: str = ""
    unusable: bool = False
    teardown: bool = False
    always_fatal: bool = False


class NvlinkRow(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of an NVLink5 line (Xid 144-150), more exact than the Xid's own catalogue row.

    It takes a line that names one of `units`, whose first word fits a pattern of `info` (32 characters,
    bit 31 first, `-` is any) and whose second word is one of `status` (empty: any). Drivers before 575 and
    since lay out the first word differently; the patterns of both stand here. `note` is for people.
    """

    xid: int
    units: tuple[str, ...]
    info: tuple[str, ...]
    fault_class: FaultClass
    status: tuple[int, ...] = ()
    note: str = ""


class DriverAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A recovery action of Xid 154. `words` are the driver's; `asked` is what `Finding.asked` gets."""

    code: int
    words: str
    fault: str
    fault_class: FaultClass
    asked: str
    text: str


class Xid74Bits(msgspec.Struct, frozen=True, kw_only=True):
    """Bits of one of the seven registers (0-based) in an Xid 74 line, and what they mean.

    `fault_class` is what these bits alone make of the line.
    """

    register: int
    bits: tuple[int, ...]
    fault_class: FaultClass
    text: str


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A detection rule together with its policy: which faults it takes, and what is to be done.

    `faults` are names or globs (`xid-79`, `xid-*`), `classes` limits them; the first rule of the file that
    takes a fault has it. No `mode`: HEALER_MODE decides. No `playbook`: nothing is ever done.
    """

    name: str
    title: str
    faults: tuple[str, ...]
    severity: Severity
    cause: Cause
    classes: tuple[FaultClass, ...] = ()
    remedy: tuple[Remedy, ...] = ()
    playbook: str | None = None
    mode: Mode | None = None
    runbook: str = ""
    #: So many different senses must have told of it before anything is done.
    senses: int = 1
    #: Made from an entry of `rules/detection/`.
    detection: bool = False


class Agreed(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions and QOS whose jobs agree to be requeued and revived, as if each said `healer:requeue`."""

    partitions: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()


class Spares(msgspec.Struct, frozen=True, kw_only=True):
    """The reservation of Slurm in which the site keeps nodes for jobs that lose one."""

    reservation: str


class GuardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The caps. Shares are 0..1 of the GPU nodes that Slurm knows."""

    max_share: float = 0.05
    max_nodes: int = 10
    min_service_share: float = 0.90
    share_per_hour: float = 0.02
    rack_share: float = 0.25
    partition_share: float = 0.25
    repeat_h: float = 6
    breaker_share: float = 0.15
    requeues_per_job: int = 2
    reboots_per_node: int = 3
    stale_s: float = 30
    veto_h: float = 24
    protected: tuple[str, ...] = ()
    maintenance: tuple[Maintenance, ...] = ()
    consent: Agreed = Agreed()
    spares: Spares | None = None

    @property
    def repeat(self) -> timedelta:
        return timedelta(hours=self.repeat_h)


class WatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What Slurm has to show, and for how long, before a watch opens an incident (`rules/watches.yaml`).

    `not_responding_s`: a node that missed a ping is shown so for a moment after each resume. `not_waiting`
    are reasons (globs) of pending jobs that are somebody's own wish or limit. `threads` and `agent_queue` are
    sdiag's (slurmctld works on 256 requests at most). `clear_s`: gone for so long, it is over.
    """

    not_responding_s: float = 5
    queued_h: float = 1
    not_waiting: tuple[str, ...] = (
        "Dependency*", "BeginTime", "JobHeld*", "JobHold*", "Reservation", "JobArrayTaskLimit", "Licenses",
        "Assoc*", "QOS*", "Max*PerAccount",
    )  # fmt: skip
    completing_min: float = 5
    slow_s: float = 2
    threads: int = 200
    agent_queue: int = 500
    backlog_s: float = 60
    accounting_s: float = 120
    clear_s: float = 60


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a playbook. Exactly one of `do`, `check`, `wait` is set.

    `for_each`: `jobs_hit`, `jobs_crashed` or `jobs_all` runs the step once per job. `timeout_s` bounds one
    attempt, `retries` how many more there are, `wait_s` the longest wait before somebody is asked.
    """

    id: str
    title: str = ""
    do: Verb | None = None
    check: str | None = None
    wait: str | None = None
    for_each: str | None = None
    timeout_s: float = 60
    retries: int = 2
    wait_s: float | None = None
    input: dict[str, str | int | float | bool] = {}
    #: `<step>.passed` or `<step>.failed`: only when that earlier step ended so; else it is skipped.
    when: str | None = None


class Playbook(msgspec.Struct, frozen=True, kw_only=True):
    """`target` is `node` or `job`; `level` 1 may be started by a responder, 2 by an operator."""

    name: str
    title: str
    target: str
    steps: tuple[Step, ...]
    level: int = 2
    runbook: str = ""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    rack: str = ""
    switch: str = ""
    pod: str = ""


class Peer(msgspec.Struct, frozen=True):
    """What stands at the other end of a cable: a node or a switch, and the port there where it is known."""

    name: str
    port: str = ""


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """`guid` as `0x…`; `above` are the switches of the next level that it has cables to."""

    guid: str = ""
    above: tuple[str, ...] = ()


class Topology(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Where nodes stand, the PCI addresses of GPU 0, 1, … by GPU model, and cables by switch and its port,
    where the site gives them."""

    #: By node, or `cluster/node` where several clusters number their nodes alike.
    places: dict[str, Place] = {}
    gpu_pci: dict[str, tuple[str, ...]] = {}
    switches: dict[str, Switch] = {}
    links: dict[str, dict[str, Peer]] = {}

    def place(self, cluster: str, node: str) -> Place:
        """Nowhere, for a node that is not named."""
        return self.places.get(f"{cluster}/{node}") or self.places.get(node) or Place()

    def behind(self, device: str, part: str | None = None) -> tuple[str, ...]:
        """Nodes below a switch, or at the other end of its port; the nodes of a rack. Empty: nobody says.

        A device may go by its name, its name with a domain, or its GUID.
        """
        switch = next((one for one in (device, device.partition(".")[0]) if one in self.links), None)
        switch = switch or self._by_guid.get(device.lower(), device)
        cables = self.links.get(switch, {})
        if part is not None:
            peer = cables.get(part)
            return (peer.name,) if peer is not None and peer.name not in self.switches else ()
        ends = {peer.name for peer in cables.values() if peer.name not in self.switches}
        return tuple(sorted(ends | set(self._in_place.get(switch, ()))))

    @cached_property
    def _by_guid(self) -> dict[str, str]:
        return {switch.guid.lower(): name for name, switch in self.switches.items() if switch.guid}

    @cached_property
    def _in_place(self) -> dict[str, list[str]]:
        """By name of a rack or leaf switch: its nodes, without the cluster that may stand before them."""
        found: dict[str, list[str]] = {}
        for node, place in self.places.items():
            for name in {place.rack, place.switch} - {""}:
                found.setdefault(name, []).append(node.rpartition("/")[2])
        return found


class Ruleset(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All of `rules/` as one value. `version` is a hash of the files it was read from."""

    version: str
    xids: dict[int, CatalogueEntry]
    sxids: dict[int, CatalogueEntry]
    rules: tuple[Rule, ...]
    guards: GuardSettings
    playbooks: dict[str, Playbook]
    topology: Topology
    nvlink5: tuple[NvlinkRow, ...] = ()
    driver_asks: dict[int, DriverAsk] = {}
    xid74: tuple[Xid74Bits, ...] = ()
    default_mode: Mode = Mode.shadow
    settle_s: float = 2.0
    #: Guards that differ by cluster or partition name; unset fields fall back to `guards`.
    cluster_guards: dict[str, GuardSettings] = {}
    #: A partition of one of those clusters stands as `cluster/partition` too.
    partition_guards: dict[str, GuardSettings] = {}
    #: What may be measured, the rules over it, and what GPU models are made for.
    catalogue: Catalogue = Catalogue()
    detection: tuple[DetectionRule, ...] = ()
    gpu_models: tuple[GpuModel, ...] = ()
    #: What alerts of other systems mean.
    alerts: tuple[AlertRule, ...] = ()
    #: When Slurm's own picture opens incidents.
    watches: WatchSettings = WatchSettings()
    #: Tests that a batch job runs on a node, by the name of their file in `rules/validation`.
    scripts: dict[str, str] = {}
    #: What healer fetches itself.
    scrape: ScrapeRules = ScrapeRules()

    @cached_property
    def by_name(self) -> dict[str, Rule]:
        """Rules by their names, reckoned once for each set."""
        return {rule.name: rule for rule in self.rules}

    def guards_in(self, cluster: str, partition: str) -> GuardSettings:
        """Of a partition: its own, else its cluster's, else the general ones."""
        for name in (f"{cluster}/{partition}", partition):
            if name in self.partition_guards:
                return self.partition_guards[name]
        return self.cluster_guards.get(cluster, self.guards)

    def mode_of(self, rule: Rule) -> Mode:
        return rule.mode or self.default_mode
