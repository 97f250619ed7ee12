"""What a part has had: what repeats over hours and days is judged by it, and by `rules/escalations.yaml` and
`rules/ladders.yaml`, whose entries stand here too."""

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from healer.model.verdict import Retest
from healer.model.vocabulary import Cause, FaultClass, Mode, Remedy, Severity


class FaultBurst(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Lines of one fault on one part that came close together: one event, however many lines it had.

    `part` is the GPU's UUID where it is known, else its serial number (`SN-…`), else its PCI address, else
    `gpu3`, or what else is broken (`nvswitch0`, `mlx5_0`); empty: the whole node. `pci` and `gpu` are where
    that was then. `jobs` and `users` are those at work there (the first 16 of each), `units` the parts of the
    part that were named (`GPC 2 TPC 3`, `link 4`; the first 8). `incident` is where the burst was placed.
    """

    cluster: str
    node: str
    part: str
    fault: str
    fault_class: FaultClass
    began_at: datetime
    last_at: datetime
    count: int = 1
    boot_id: str | None = None
    pci: str | None = None
    gpu: int | None = None
    jobs: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    incident: str | None = None


class Same(StrEnum):
    """Where bursts count together: on one GPU, on one unit of it (a link, a TPC), on one node."""

    gpu = "gpu"
    unit = "unit"
    node = "node"


# Wide: an entry of rules/escalations.yaml, as sites write it.
class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `repeats` in `rules/escalations.yaml`: what often enough is a fault. It is a policy too.

    `bursts` of one of `faults` (globs; `together`: of any of them) within `within_h` hours at the `same`
    place, in so many different `jobs` of so many `users`. `alone`: a burst whose job had the same on another
    GPU does not count. `models` limits it to GPU models (globs over `rules/gpu_models.yaml`); the first entry
    that takes a fault at a place has it. `one_boot`: only within one boot of the node, as each boot does it
    to a link once or twice.
    """

    name: str
    title: str
    faults: tuple[str, ...]
    bursts: int
    source: str
    within_h: float = 24
    same: Same = Same.gpu
    together: bool = False
    jobs: int = 0
    users: int = 0
    alone: bool = False
    one_boot: bool = False
    models: tuple[str, ...] = ()
    fault_class: FaultClass = FaultClass.degraded
    severity: Severity = Severity.P2
    cause: Cause = Cause.unclear
    remedy: tuple[Remedy, ...] = (Remedy.diagnose,)
    playbook: str | None = None
    mode: Mode | None = None
    runbook: str = ""

    @property
    def within(self) -> timedelta:
        return timedelta(hours=self.within_h)


class Combination(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `combinations`: what faults of one GPU mean together. It is a policy too.

    `faults` are groups of globs: one of each group must have come within `within_s` of each other.
    """

    name: str
    title: str
    faults: tuple[tuple[str, ...], ...]
    source: str
    within_s: float = 60
    fault_class: FaultClass = FaultClass.degraded
    severity: Severity = Severity.P2
    cause: Cause = Cause.unclear
    remedy: tuple[Remedy, ...] = (Remedy.none,)
    playbook: str | None = None
    mode: Mode | None = None
    runbook: str = ""

    @property
    def within(self) -> timedelta:
        return timedelta(seconds=self.within_s)


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `cancels`: after a line of `by` on the same GPU earlier `faults` (globs) are over."""

    by: str
    faults: tuple[str, ...]
    text: str
    source: str


class Escalations(msgspec.Struct, frozen=True, kw_only=True):
    """All of `rules/escalations.yaml`."""

    repeats: tuple[Repeat, ...] = ()
    combinations: tuple[Combination, ...] = ()
    cancels: tuple[Cancel, ...] = ()


class GoneAfter(StrEnum):
    """What ends a fault by itself, where nobody has done anything about it."""

    reset = "reset"  # a reset of the GPU, so a boot too
    boot = "boot"
    seen = "seen"  # a boot after which the GPU is told of again
    test = "test"  # nothing but a test, or another part in its place


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `rules/ladders.yaml`: how a family of faults is found to be transient or permanent.

    `faults` are globs, `classes` and `models` limit them; the first entry that takes a fault has it. The same
    within `repeat_h` hours after its incident ended is answered by the next of `rungs`; so many incidents of
    `lemon` on one part within `lemon_days` days make it a lemon (0: never).
    """

    name: str
    faults: tuple[str, ...]
    retest: Retest
    rungs: tuple[Remedy, ...]
    source: str
    classes: tuple[FaultClass, ...] = ()
    models: tuple[str, ...] = ()
    gone_after: GoneAfter = GoneAfter.test
    repeat_h: float = 6
    lemon: int = 3
    lemon_days: float = 7

    @property
    def repeat(self) -> timedelta:
        return timedelta(hours=self.repeat_h)

    @property
    def lemon_within(self) -> timedelta:
        return timedelta(days=self.lemon_days)
