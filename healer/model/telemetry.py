"""What may be measured: the catalogue of signals, and the subject of a series."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from healer.model.vocabulary import REMEDY_LADDER, Remedy
from healer.text import Said, no_words

if TYPE_CHECKING:  # the command line loads these types, but no numpy
    import numpy as np
    from numpy.typing import NDArray


class SignalKind(StrEnum):
    """How values of a signal are read. A counter only grows; when it falls it was reset."""

    gauge = "gauge"
    counter = "counter"
    enum = "enum"
    bits = "bits"


class Scope(StrEnum):
    """What a rule speaks of. Signals themselves live on the first three and the last two.

    A device is what is no node: a switch, a storage server, a PDU. Its parts are ports, outlets, targets.
    """

    gpu = "gpu"
    node = "node"
    link = "link"
    job = "job"
    switch = "switch"
    rack = "rack"
    fabric = "fabric"
    device = "device"
    device_part = "device_part"


#: Scopes that signals live on, and that have series: parts that stay. The others are for rules.
MEASURED_SCOPES = (Scope.gpu, Scope.node, Scope.link, Scope.device, Scope.device_part)
#: In these scopes, no series names a node.
OF_DEVICES = frozenset({Scope.device, Scope.device_part})


class DeviceKind(StrEnum):
    """What kind of device a signal is about."""

    switch = "switch"
    storage = "storage"
    power = "power"
    cooling = "cooling"
    rack = "rack"


class Combine(StrEnum):
    """What several series of one node and one moment make where the signal is one number."""

    last = "last"
    sum = "sum"
    max = "max"
    min = "min"


class Alias(msgspec.Struct, frozen=True, kw_only=True):
    """A name under which a signal arrives; `scale` makes its unit ours (value × scale).

    `{link}` in the name is replaced by each NVLink number. `labels`: only series with these labels (globs)
    count, as in `node_systemd_unit_state`, whose name alone says little. `part`: the label that names the
    part of a device, if not one of those read by default; `a/b`: both together.
    """

    name: str
    scale: float = 1.0
    labels: dict[str, str] = {}
    part: str = ""


class SignalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A signal as `rules/signals*.yaml` has it, with plain words allowed as aliases."""

    name: str
    unit: str
    kind: SignalKind
    scope: Scope
    text: str
    source: str
    aliases: tuple[str | Alias, ...] = ()
    words: dict[str, int] = {}
    bits: dict[str, int] = {}
    stale_s: float = 90.0
    derived: bool = False
    combine: Combine = Combine.last
    device: DeviceKind | None = None


class Signal(SignalEntry, frozen=True, kw_only=True):
    """One signal that rules may use.

    `name` is ours (unit last), `unit` one of `healer.detection.language.units`. `aliases` are the names of
    exporters; those of nvidia-smi's XML begin with `nvidia-smi:`. `words` are an enum's values by their
    word, `bits` a bit mask's by name. A value older than `stale_s` is unknown. `derived`: computed by healer
    itself (from Slurm's picture), never taken from the wire. `combine`: see `Combine`. `device`: the kind of
    device that it is about, for signals of devices and their parts alone.
    """

    aliases: tuple[Alias, ...] = ()


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """All signals by name, and the names that may arrive (the signal's own among them).

    Aliases that need labels, or hold `{link}`, are left out of `arriving`: the name alone does not decide.
    """

    signals: dict[str, Signal] = {}
    #: Arriving name -> (signal's name, scale).
    arriving: dict[str, tuple[str, float]] = {}


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which part of its node or device a series is about. All None: that itself. `port` as in `mlx5_0/1`;
    of a device it is the name of any part."""

    gpu: int | None = None
    link: int | None = None
    port: str | None = None


class Column(msgspec.Struct, frozen=True):
    """One series of a node, whatever the node: a signal of the catalogue on one part."""

    signal: str
    part: Part = Part()


class UnknownSeries(msgspec.Struct, frozen=True, kw_only=True):
    """A name that arrives and that the catalogue does not have, or a series that names no node we know."""

    cluster: str
    name: str
    why: Said
    count: int
    first_seen: datetime
    last_seen: datetime
    example: dict[str, Any] = {}


#: The sender of data stored by an earlier version, which kept none: treated as a relay.
UNNAMED_SENDER = "an unnamed sender"


class Report(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What one node measured at one moment. `columns` are ids of a `ports.ColumnBook`.

    columns: (n,) int32; values: (n,) float64, NaN where the sender had none. `at` is the sender's clock.
    `relayed_by`: the token that sent it, where it is not the node's own word (`Caller.relay_of`) and
    no scrape of ours.
    """

    cluster: str
    node: str
    at: datetime
    arrived_at: datetime
    columns: "NDArray[np.int32]"
    values: "NDArray[np.float64]"
    relayed_by: str = ""


#: Activity of a rank that has ended no step for a while: computes, waits in a collective, is between two
#: steps, or saves or evaluates, as reported by its program.
DOING = ("compute", "collective", "between", "checkpoint", "evaluation")


#: Columns of `StepBatch`: the parts of a step's time, and results, of which one that is not a number is
#: infinite. NaN: not reported.
PARTS, RESULTS = ("compute_s", "comm_s", "data_s"), ("loss", "grad_norm")


# Wide: columns of one table: a row is one step of one rank.
@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """Step times of one job and one of its lives, from one sender.

    Arrays are (n,): `rank` int32, `step` int64, `at` float64 (s since 1970), `node` int32 (index into
    `nodes`, -1 unknown), `gpu` int32 (-1), `stage` int32 (-1); float64, NaN if not sent: `step_s`,
    `compute_s`, `comm_s`, `data_s`, `work`, `loss`, `grad_norm` (infinite: sent as NaN or infinity).

    `doing` (n,) int8, indexes of `DOING`: ranks in an unfinished step, with `step_s` its duration so far.
    None: finished steps. `sent_by`: the token; empty where an earlier version stored them.
    """

    cluster: str
    job: str
    restart: int
    arrived_at: datetime
    nodes: tuple[str, ...]
    rank: "NDArray[np.int32]"
    step: "NDArray[np.int64]"
    at: "NDArray[np.float64]"
    node: "NDArray[np.int32]"
    gpu: "NDArray[np.int32]"
    stage: "NDArray[np.int32]"
    step_s: "NDArray[np.float64]"
    compute_s: "NDArray[np.float64]"
    comm_s: "NDArray[np.float64]"
    data_s: "NDArray[np.float64]"
    work: "NDArray[np.float64]"
    loss: "NDArray[np.float64]"
    grad_norm: "NDArray[np.float64]"
    doing: "NDArray[np.int8] | None" = None
    sent_by: str = ""


class TargetGroup(msgspec.Struct, frozen=True):
    """Targets of a job with labels of their own, which override the job's.

    `__scheme__` and `__metrics_path__` replace the job's; `__param_NAME` is part of the query.
    """

    targets: tuple[str, ...]
    labels: dict[str, str] = {}


class ScrapeJob(msgspec.Struct, frozen=True, kw_only=True):
    """Exporters of one kind, all fetched in the same way (`rules/scrape.yaml`).

    `targets` are `host:port`, also as hostlists; `groups` are more of them with labels.
    `node` says whose the samples are: `host`, the host of the target; `series`, the labels of each series;
    `device`, the device that the target's label `device` names, or else its host; any other word is the name
    of a target's label. `cluster`: only that cluster's scraper fetches them.
    """

    name: str
    targets: tuple[str, ...] = ()
    groups: tuple[TargetGroup, ...] = ()
    interval_s: float = 15
    timeout_s: float = 10
    scheme: str = "http"
    path: str = "/metrics"
    tls_ca_file: str | None = None
    bearer_token_file: str | None = None
    labels: dict[str, str] = {}
    node: str = "host"
    cluster: str = ""


class ScrapeQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A question in PromQL whose answer is a signal of the catalogue; its labels say of which part."""

    signal: str
    query: str
    interval_s: float = 30
    cluster: str = ""


class ScrapeRules(msgspec.Struct, frozen=True, kw_only=True):
    """All of `rules/scrape.yaml`; hostlists are expanded.

    `follow_interval_s`: how often to fetch every signal of the catalogue that the Prometheus-compatible
    server has; 0 is never.
    """

    jobs: tuple[ScrapeJob, ...] = ()
    queries: tuple[ScrapeQuery, ...] = ()
    follow_interval_s: float = 0

    def __bool__(self) -> bool:
        return bool(self.jobs or self.queries or self.follow_interval_s)


class TargetState(msgspec.Struct, frozen=True, kw_only=True):
    """How the last fetch of one target went. `up` is None before the first one has ended.

    A target that does not answer says nothing about its node: its values become stale and then unknown.
    `samples` of the last fetch were stored, `unrecognised` were not in the catalogue; `error` says in one
    sentence why nothing came.
    """

    cluster: str
    job: str
    target: str
    node: str = ""
    up: bool | None = None
    scraped_at: datetime | None = None
    took_s: float = 0.0
    bytes: int = 0
    samples: int = 0
    unrecognised: int = 0
    failures: int = 0
    error: Said = msgspec.field(default_factory=no_words)


class ScrapeState(msgspec.Struct, frozen=True, kw_only=True):
    """Latest state of one cluster's scraper: its targets, and its counts since it started."""

    cluster: str
    at: datetime
    targets: tuple[TargetState, ...] = ()
    #: Targets beyond those in `targets`.
    more: int = 0
    scrapes: int = 0
    failed: int = 0
    samples: int = 0
    #: Why the Prometheus-compatible server gives nothing; empty while all is well.
    troubles: tuple[Said, ...] = ()


#: The scorer's name in `ScorerResult.way`.
FOREST = "forest"


class FeatureShare(msgspec.Struct, frozen=True, kw_only=True):
    """`share` of the score comes from this feature. `away` is how far the node is from its peers (or from its
    own past, where the feature says so), in their spread or in the least difference that matters."""

    feature: str
    share: float
    away: float


class ScorerResult(msgspec.Struct, frozen=True, kw_only=True):
    """A scorer's score. `threshold` comes from nodes held out of training, `middle` is the class's median
    now. Above its threshold for long enough raises `unusual-node`."""

    way: str
    score: float
    threshold: float
    middle: float
    parts: tuple[FeatureShare, ...] = ()


class Unusual(msgspec.Struct, frozen=True, kw_only=True):
    """A node at one moment, by the model in force of its class (GPU model, load). `scored`: nodes of that
    class at that moment."""

    cluster: str
    node: str
    at: datetime
    hardware: str
    load: str
    model: str
    scored: int
    ways: tuple[ScorerResult, ...] = ()


class LossReason(StrEnum):
    """Why data of a sender was not stored. Words for people: `healer.console.words`."""

    shed = "shed"  # too much waited to be written: 429
    quota = "quota"  # the token sent more than it may: 429
    not_ready = "not_ready"  # Slurm has not been asked yet which nodes there are: 503
    database_away = "database_away"  # nothing could be stored: 503
    disk_full = "disk_full"  # the database's disk, or the spool's
    spool_full = "spool_full"  # the database was away for longer than the spool holds
    too_large = "too_large"  # the body, packed or unpacked: 413
    stalled = "stalled"  # the body did not come in time: 408
    bad_body = "bad_body"  # the body as a whole cannot be read: 400, 415, 422
    rejected = "rejected"  # one entry of a body that was taken
    not_kernel = "not_kernel"  # a log line that its sender does not mark as the kernel's
    late = "late"  # older than the windows, on arrival or when it was looked at
    out_of_order = "out_of_order"  # not newer than the last sample of its series
    series_limit = "series_limit"  # more series than a token, node or cluster may have
    not_recorded = "not_recorded"  # taken and judged, but the recorder could not keep it
    sender = "sender"  # the sender itself says that it lost them


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """`count` entries of `source` (a route's name, or the part of healer that dropped them) were lost.

    `who` is the name of the token that sent them, empty where it is not known. `example` says it of one.
    """

    cluster: str
    source: str
    reason: LossReason
    who: str = ""
    count: int = 1
    first_seen: datetime
    last_seen: datetime
    example: Said = msgspec.field(default_factory=no_words)


class Sender(msgspec.Struct, frozen=True, kw_only=True):
    """What one token sent by one route. `bytes` as they were sent; `node`: the one that it is bound to."""

    cluster: str
    who: str
    source: str
    node: str = ""
    requests: int = 1
    bytes: int = 0
    first_seen: datetime
    last_seen: datetime


#: The depth that follows from the incident's remedy.
FIT = "fit"


class Depth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tests` of `rules/validation` in their order, the first of which decides whether the node was tested at
    all; `limit_s` is the time limit of their one job. `same_facts`: versions other than on the good node of
    its kind fail it; otherwise they are only reported (drift has incidents of its own). `pair`: tests of it
    and an idle node together, once it has passed alone."""

    tests: tuple[str, ...]
    limit_s: int
    same_facts: bool = False
    pair: tuple[str, ...] = ()


class Validation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`fits`: the depth for a remedy of the ladder; one that is not in it takes that of the next lower one.
    `otherwise` is it where no remedy is known."""

    depths: dict[str, Depth] = {}
    fits: dict[Remedy, str] = {}
    otherwise: str = ""

    def depth_for(self, remedy: Remedy | None) -> str:
        if remedy is None or remedy not in REMEDY_LADDER:
            return self.otherwise
        upto = REMEDY_LADDER[: REMEDY_LADDER.index(remedy) + 1]
        return next((self.fits[rung] for rung in reversed(upto) if rung in self.fits), self.otherwise)
