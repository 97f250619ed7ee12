"""The contents of `rules/`, as values. `healer.rulebook.ruleset` loads and cross-checks them."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar

import msgspec

from healer.model.detection import AlertRule, Component, DetectionRule, ForecastRule, GpuModel
from healer.model.faults import Escalations, Ladder, Sharing, fits
from healer.model.gate import Maintenance, digest
from healer.model.goodput import Prices
from healer.model.grants import AccessRules
from healer.model.kernel_lines import NO_LINES, LineBook
from healer.model.node import SiteCommand
from healer.model.routes import Notifications
from healer.model.telemetry import Catalogue, ScrapeRules, Validation
from healer.model.vocabulary import Cause, FaultClass, Mode, Remedy, Severity, Verb

T = TypeVar("T")

#: What begins with a moment explains nothing for longer than this.
CONTEXT_LONGEST = timedelta(hours=1)


class ContextKind(StrEnum):
    maintenance = "maintenance"  # Slurm's reservation or state, or a window of guards.yaml
    worked_on = "worked_on"  # its first minutes after planned work
    rebooting = "rebooting"  # a reboot was issued, or the node is starting
    power_saving = "power_saving"
    booted = "booted"  # its first minutes after a boot
    new_driver = "new_driver"  # a new driver version
    drained = "drained"  # a person has taken it out of service
    job_start = "job_start"  # all its jobs have only just begun


#: Kinds of work on a node: faults reported during it belong to it until they are seen afterwards.
HUMAN_WORK = frozenset({ContextKind.maintenance, ContextKind.drained})


class NodeContext(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What goes on at a node now, and what its faults are judged by meanwhile. `text` is for people; `since`
    where it begins with a moment, `until` where its end is known."""

    kind: ContextKind
    text: str
    since: datetime | None = None
    until: datetime | None = None


class ContextRule(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `rules/context.yaml`.

    `faults` and `but` are globs. While `when` holds, such a finding is not reported (but again afterwards, if
    it persists); with `severity` it is reported, no more urgent than that, and with `cause`. `for_min` bounds
    the contexts that begin with a moment: the end of planned work, a boot, a new driver, the start of a job.
    """

    name: str
    when: ContextKind
    faults: tuple[str, ...]
    source: str
    but: tuple[str, ...] = ()
    for_min: float = 0.0
    severity: Severity | None = None
    cause: Cause | None = None

    @property
    def lasts(self) -> timedelta:
        return timedelta(minutes=self.for_min)

    @property
    def is_reported(self) -> bool:
        return self.severity is not None


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is different of a catalogue's row on these GPU models (globs over names in `gpu_models.yaml`).

    A field that is None is as in the row.
    """

    models: tuple[str, ...]
    source: str
    text: str | None = None
    fault_class: FaultClass | None = None
    remedy: Remedy | None = None
    cause: Cause | None = None
    unusable: bool | None = None


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
    #: The first that matches the node's GPUs; none if their model is unknown.
    by_model: tuple[ModelRow, ...] = ()


class NvlinkRow(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of an NVLink5 line (Xid 144-150), more exact than the Xid's own catalogue row.

    It takes a line that names one of `units`, whose first word fits `info` (32 characters, bit 31 first,
    `-` is any) and whose second word is one of `status` (empty: any). Drivers before 575 and since lay out
    the first word differently: the first pattern is of the former, the second of the latter. `reason` is
    bits 25:20 of the first word, where the row is about one reason of a link that went down.
    `remedy` and `cause` override those of the Xid; `follows`: a consequence of a fault elsewhere.
    """

    xid: int
    units: tuple[str, ...]
    info: tuple[str, str]
    fault_class: FaultClass
    status: tuple[int, ...] = ()
    reason: int | None = None
    remedy: Remedy | None = None
    cause: Cause | None = None
    follows: bool = False
    note: str = ""


class RecoveryAction(msgspec.Struct, frozen=True, kw_only=True):
    """A recovery action of Xid 154. `words` are the driver's; `asked` is what `Finding.asked` gets, `remedy`
    and `cause` what an ask leads to that is no reset and no reboot."""

    code: int
    words: str
    fault: str
    fault_class: FaultClass
    asked: str
    text: str
    remedy: Remedy | None = None
    cause: Cause | None = None


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
    #: The number of different senses that must report it before anything is done.
    senses: int = 1
    #: Made from an entry of `rules/detection/` or `rules/forecasts.yaml`: the next ticks show when it is
    #: over.
    detection: bool = False
    #: Made from an entry of `rules/forecasts.yaml`: nothing has failed yet.
    forecast: bool = False
    #: Opens nothing: it is recorded, and its rate over hours and days may be a fault.
    sign: bool = False


class RestartConsent(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions and QOS whose jobs agree to be requeued and revived, as if each said `healer:requeue`."""

    partitions: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()


class Spares(msgspec.Struct, frozen=True, kw_only=True):
    """The reservation of Slurm in which the site keeps nodes for jobs that lose one."""

    reservation: str


class PromotionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What mode auto takes while healer runs: so many of a rule's newest incidents are judged, and this share
    of them were true faults."""

    incidents: int = 30
    precision: float = 0.95


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """How the newest judged incidents of a rule turned out. `right`: a person's review, a test of the node
    that failed, or a part that was replaced for it. `wrong`: a person's review alone."""

    right: int = 0
    wrong: int = 0

    @property
    def judged(self) -> int:
        return self.right + self.wrong

    @property
    def precision(self) -> float | None:
        return self.right / self.judged if self.judged else None


class SweepSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Tests of idle nodes in turn. `scheduled`: healer starts them by itself; by hand they go always.

    `max_share` (0..1) and `max_nodes`: nodes in sweep at once, the lower binds, one is always allowed.
    `every_days`: a node's turn comes so long after it was last tested. `partition` and `qos` are those of its
    job; empty: the first partition of the node, Slurm's default.
    """

    scheduled: bool = False
    max_share: float = 0.01
    max_nodes: int = 4
    every_days: float = 7
    partition: str = ""
    qos: str = ""

    @property
    def every(self) -> timedelta:
        return timedelta(days=self.every_days)


# Wide: the keys of rules/guards.yaml, each of which a cluster or partition may override.
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
    protected_qos: tuple[str, ...] = ()
    maintenance: tuple[Maintenance, ...] = ()
    consent: RestartConsent = RestartConsent()
    earn: PromotionPolicy = PromotionPolicy()
    spares: Spares | None = None
    #: This many runs of a new or changed rule or playbook wait for a person first; 0: none.
    trial_runs: int = 3
    sweep: SweepSettings = SweepSettings()

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


class InputType(StrEnum):
    """What an input of a playbook may be. A duration is given as `90s`, `10m`, `2h`, and is whole seconds."""

    str = "str"
    int = "int"
    bool = "bool"
    choice = "choice"
    duration = "duration"


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """What a playbook may be given at its start. `choices` are those of a `choice`."""

    type: InputType
    default: str | int | bool | None = None
    required: bool = False
    choices: tuple[str, ...] = ()
    help: str = ""


# Wide: an entry of a playbook file, as sites write it.
class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a playbook. Exactly one of `do`, `check`, `wait`, `use` is set; a `use` is replaced by the
    steps that it names when the files are read.

    `for_each`: `jobs_hit`, `jobs_crashed`, `jobs_all` or `jobs_agreed` runs the step once per job.
    `timeout_s` bounds one attempt, `retries` how many more there are, `wait_s` the longest wait before a
    person is asked. `may_fail`: where the step fails for good the run goes on, and later steps may ask for
    that failure; otherwise a person is asked.
    """

    id: str
    title: str = ""
    do: Verb | None = None
    check: str | None = None
    wait: str | None = None
    use: str | None = None
    for_each: str | None = None
    timeout_s: float = 60
    retries: int = 2
    #: The pause before the second attempt; each further one is twice as long, at most `back_off_max_s`.
    back_off_s: float = 1
    back_off_max_s: float = 60
    wait_s: float | None = None
    input: dict[str, str | int | float | bool] = {}
    #: A condition (`healer.playbooks.conditions`): the step is skipped unless it is certainly true.
    when: str | None = None
    #: Checks of this playbook in addition to the verb's own: the step is already done if `probe` passes, and
    #: only done if `verify` passes too. `undo`: `keep` leaves it as it is when its run is undone.
    probe: str | None = None
    verify: str | None = None
    undo: str | None = None
    may_fail: bool = False


class Playbook(msgspec.Struct, frozen=True, kw_only=True):
    """`target` is `node` or `job`; `level` 1 may be started by a responder, 2 by an operator."""

    name: str
    title: str
    target: str
    steps: tuple[Step, ...]
    level: int = 2
    runbook: str = ""
    inputs: dict[str, Input] = {}

    @property
    def repairs(self) -> bool:
        """It carries out the incident's remedy."""
        return any("verdict.remedy" in (step.when or "") for step in self.steps)

    @property
    def is_plan(self) -> bool:
        """It waits for a good moment, and then repairs."""
        return self.repairs and any(step.wait == "job_end_or_checkpoint" for step in self.steps)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """`switch` is the leaf switch, `domain` that of NVLink (such as an NVL72), `pdu` what feeds it."""

    rack: str = ""
    switch: str = ""
    pod: str = ""
    domain: str = ""
    pdu: str = ""
    row: str = ""


class Peer(msgspec.Struct, frozen=True):
    """The other end of a cable: a node or a switch, and its port where known."""

    name: str
    port: str = ""


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """`guid` as `0x…`; `above` are the switches of the next level that it has cables to."""

    guid: str = ""
    above: tuple[str, ...] = ()


class Topology(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Racks and switches of nodes, the PCI addresses of GPU 0, 1, … by GPU model, and cables by switch and
    port, where the site gives them."""

    #: By node, or `cluster/node` where several clusters number their nodes alike; switches likewise, whose
    #: cables then lead to nodes of that cluster.
    places: dict[str, Place] = {}
    gpu_pci: dict[str, tuple[str, ...]] = {}
    switches: dict[str, Switch] = {}
    links: dict[str, dict[str, Peer]] = {}

    def of(self, cluster: str) -> "Topology":
        """As this cluster sees it: all by its plain name, and nothing that is named after another cluster.
        Always the same object, so that it can be compared by identity."""
        seen = self._seen_by.get(cluster)
        if seen is None:
            seen = self._seen_by[cluster] = self._seen(cluster)
        return seen

    @cached_property
    def _seen_by(self) -> dict[str, "Topology"]:
        return {}

    def _seen(self, cluster: str) -> "Topology":
        if not any("/" in name for name in (*self.places, *self.switches, *self.links)):
            return self
        ours, all_ = _named_after(cluster, self.links), _plain(cluster, self.links)
        # What our own rows say of a port, no row for any cluster may say otherwise.
        cabled = {peer for ports in ours.values() for peer in ports.values() if peer.port}
        links = {
            switch: ports
            if switch in ours
            else {at: peer for at, peer in ports.items() if peer not in cabled}
            for switch, ports in all_.items()
        }
        places, switches = _plain(cluster, self.places), _plain(cluster, self.switches)
        return msgspec.structs.replace(self, places=places, switches=switches, links=links)

    def place(self, cluster: str, node: str) -> Place:
        """An empty place for a node that is not listed."""
        return self.places.get(f"{cluster}/{node}") or self.places.get(node) or Place()

    def link_of(self, where: Component) -> tuple[str, str] | None:
        """The cable that a node's port or a switch's port is an end of, by the first of its two ends; None if
        no cable is known."""
        if where.gpu is not None or where.link is not None:
            return None
        if where.node is not None:
            return self._cable_at.get((where.node, _port(where.nic))) if where.nic else None
        if where.device is None or where.part is None:
            return None
        for switch in (where.device, where.device.partition(".")[0]):
            if cable := self._cable_at.get((switch, _port(where.part))):
                return cable
        return None

    def leaf_of(self, node: str, nic: str) -> str:
        """The leaf switch that a port of the node is cabled to, as each rail has its own. Empty if
        unknown."""
        return self._leaf_at.get((node, _port(nic)), "")

    @cached_property
    def _leaf_at(self) -> dict[tuple[str, str], str]:
        return {
            (peer.name, _port(peer.port)): switch
            for switch, ports in self.links.items()
            for peer in ports.values()
            if peer.port and peer.name not in self.switches
        }

    @cached_property
    def _cable_at(self) -> dict[tuple[str, str], tuple[str, str]]:
        """By either end: the name of the device there and its port."""
        found: dict[tuple[str, str], tuple[str, str]] = {}
        for switch, ports in self.links.items():
            for port, peer in ports.items():
                ends = [(switch, _port(port)), *([(peer.name, _port(peer.port))] if peer.port else [])]
                for end in ends:
                    found.setdefault(end, min(ends))
        return found

    def behind(self, device: str, part: str | None = None) -> tuple[str, ...]:
        """Nodes below a switch, or at the other end of its port; the nodes of a rack. Empty if unknown.

        A device may go by its name, its name with a domain, or its GUID.
        """
        switch = next((name for name in (device, device.partition(".")[0]) if name in self.links), None)
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
        """By name of a rack or leaf switch: its nodes."""
        found: dict[str, list[str]] = {}
        for node, place in self.places.items():
            for name in {place.rack, place.switch, place.domain, place.pdu, place.row} - {""}:
                found.setdefault(name, []).append(node)
        return found


def _named_after(cluster: str, named: Mapping[str, T]) -> dict[str, T]:
    """Of these only what is named after the cluster, without its name."""
    start = f"{cluster}/"
    return {name.removeprefix(start): value for name, value in named.items() if name.startswith(start)}


def _plain(cluster: str, named: Mapping[str, T]) -> dict[str, T]:
    """What is named after the cluster, and what is named after none and is nothing else there."""
    return {name: value for name, value in named.items() if "/" not in name} | _named_after(cluster, named)


def _port(name: str | None) -> str:
    """`mlx5_0`, where a card with one port is also called `mlx5_0/1` or `mlx5_0:1`."""
    return re.sub(r"(?<=\D\d)[/:]1$|(?<=\D\d\d)[/:]1$", "", name or "") if name else ""


# Wide: rules/ as one value that is replaced as a whole or not at all: one field per file.
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
    recovery_actions: dict[int, RecoveryAction] = {}
    xid74: tuple[Xid74Bits, ...] = ()
    #: Lines of the kernel without a code.
    kernel_lines: LineBook = NO_LINES
    default_mode: Mode = Mode.shadow
    settle_s: float = 2.0
    #: Guards that differ by cluster or partition name; unset fields fall back to `guards`.
    cluster_guards: dict[str, GuardSettings] = {}
    #: A partition of one of those clusters may be named `cluster/partition`.
    partition_guards: dict[str, GuardSettings] = {}
    #: The signals, the rules over them, and the specifications of GPU models.
    catalogue: Catalogue = Catalogue()
    detection: tuple[DetectionRule, ...] = ()
    gpu_models: tuple[GpuModel, ...] = ()
    #: The meaning of alerts of other systems.
    alerts: tuple[AlertRule, ...] = ()
    #: When conditions in the Slurm snapshot open incidents.
    watches: WatchSettings = WatchSettings()
    #: Tests that a batch job runs on a node, by the name of their file in `rules/validation`.
    scripts: dict[str, str] = {}
    #: Commands of the site that playbooks may start, by name.
    commands: dict[str, SiteCommand] = {}
    #: The tests of each depth.
    validation: Validation = Validation()
    #: What is no fault during another activity at its node.
    context: tuple[ContextRule, ...] = ()
    #: What healer scrapes itself.
    scrape: ScrapeRules = ScrapeRules()
    #: What repeats, combines or cancels, and how a fault is found to be transient or permanent.
    escalations: Escalations = Escalations()
    ladders: tuple[Ladder, ...] = ()

    #: What nodes share, and which faults of several mean it.
    sharings: tuple[Sharing, ...] = ()
    #: Trends by which a part is likely to fail.
    forecasts: tuple[ForecastRule, ...] = ()
    #: Who is notified of what, and how.
    notifications: Notifications = Notifications()
    #: Permissions by the groups of the identity provider.
    access: AccessRules = AccessRules()
    #: What a GPU-hour costs.
    prices: Prices = Prices()

    @cached_property
    def by_name(self) -> dict[str, Rule]:
        """Rules by name, computed once per set."""
        return {rule.name: rule for rule in self.rules}

    @cached_property
    def sweeping(self) -> tuple[str, ...]:
        """Playbooks with a sweep in them."""
        books = self.playbooks.values()
        return tuple(book.name for book in books if any(step.do is Verb.sweep for step in book.steps))

    @cached_property
    def texts(self) -> dict[str, str]:
        """`rule/NAME` and `playbook/NAME` -> a digest of their meaning. A script is part of its playbook."""
        return {name: digest(parts) for name, parts in self._parts_by_name.items()}

    @cached_property
    def digests(self) -> dict[str, tuple[str, str]]:
        """By name as in `texts`: that digest, and the one that versions up to revision 0046 stored, in which
        titles, runbooks and sources counted too."""
        former = {name: digest(parts, without={"mode"}) for name, parts in self._parts_by_name.items()}
        return {name: (now, former[name]) for name, now in self.texts.items()}

    @cached_property
    def _parts_by_name(self) -> dict[str, list[msgspec.Struct | str]]:
        parts_by_name: dict[str, list[msgspec.Struct | str]] = {}
        for policy in (*self.rules, *self.detection, *self.alerts, *self.sharings, *self.forecasts):
            parts_by_name.setdefault(f"rule/{policy.name}", []).append(policy)
        for policy in (*self.escalations.repeats, *self.escalations.combinations):
            parts_by_name.setdefault(f"rule/{policy.name}", []).append(policy)
        for name, playbook in self.playbooks.items():
            parts_by_name[f"playbook/{name}"] = [playbook, *self._runs_in(playbook)]
        return parts_by_name

    def _runs_in(self, playbook: Playbook) -> Iterator[msgspec.Struct | str]:
        """The tests and the site's commands that it may start."""
        scripts = {str(step.input.get("script")) for step in playbook.steps} & self.scripts.keys()
        if any("depth" in step.input for step in playbook.steps):
            yield self.validation
            scripts |= {test for depth in self.validation.depths.values() for test in depth.tests}
        for script in sorted(scripts & self.scripts.keys()):
            yield self.scripts[script]
        if any(step.do is Verb.site_command for step in playbook.steps):
            yield from (self.commands[name] for name in sorted(self.commands))

    @cached_property
    def _proven(self) -> dict[str, tuple[ForecastRule, ...]]:
        return {}

    def forecasts_proven_by(self, fault: str) -> tuple[ForecastRule, ...]:
        """The forecasts that this fault proves right; cached per fault."""
        if fault not in self._proven:
            self._proven[fault] = tuple(
                rule for rule in self.forecasts if any(fnmatchcase(fault, glob) for glob in rule.fails)
            )
        return self._proven[fault]

    def rule_for(self, fault: str, fault_class: FaultClass) -> Rule | None:
        """The first rule of the file for a fault of this name and class."""
        for rule in self.rules:
            if rule.classes and fault_class not in rule.classes:
                continue
            if fits(fault, rule.faults):
                return rule
        return None

    def ask_for(self, asked: str | None) -> RecoveryAction | None:
        """The driver's request by Xid 154, or by a flag of another line."""
        return next((ask for ask in self.recovery_actions.values() if ask.asked == asked), None)

    def guards_in(self, cluster: str, partition: str) -> GuardSettings:
        """The settings of a partition: its own, else its cluster's, else the general ones."""
        for name in (f"{cluster}/{partition}", partition):
            if name in self.partition_guards:
                return self.partition_guards[name]
        return self.cluster_guards.get(cluster, self.guards)

    def mode_of(self, rule: Rule, modes: Mapping[str, Mode] = MappingProxyType({})) -> Mode:
        """The rule's mode; for a forecast at most what HEALER_MODE allows, and at most approve. `modes` that
        were set while running come first."""
        if mode := modes.get(rule.name):
            return mode
        if rule.forecast:
            return min(rule.mode or Mode.approve, self.default_mode, key=list(Mode).index)
        return rule.mode or self.default_mode
