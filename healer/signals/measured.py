"""What a request of samples holds, whatever its wire form."""

import msgspec

from healer.model import Observation
from healer.model.samples import Report
from healer.signals.rejects import Rejected, Rejects

#: Names told as unknown, of one request; samples of the others are only counted.
NAMES_TOLD = 200
#: Reports of one node in one request, and samples of one report: far above what any sender needs who did not
#: fall silent for an hour, or any machine has.
REPORTS_MAX = 64
SAMPLES_MAX = 20_000
#: Series that one process knows of one node; 8 GPUs with 18 links each and 30 ports are below 5,000.
SERIES_OF_NODE_MAX = 20_000
TOO_MANY_SERIES = f"more than {SERIES_OF_NODE_MAX} series of this node"
TOO_MANY_MOMENTS = f"too many moments: of one node the newest {REPORTS_MAX} of a request are taken"


class Unknown(msgspec.Struct, kw_only=True):
    """Samples that were not stored under one name: why the last one was not, and its labels."""

    why: str
    count: int
    example: dict[str, str] = {}


class Measured(msgspec.Struct, kw_only=True):
    """`samples` were accepted and stand in `reports`; `unrecognised` have no place in the catalogue or on a
    node of ours, and `unknown` lists them by name. `rejected_more` were rejected beyond those in `rejected`.
    `placed` series were not known before. `inventory` are observations of the kinds `gpu_inventory` and
    `inventory`. `cluster` is
    that of what names none, if known."""

    cluster: str = ""
    reports: list[Report] = []
    samples: int = 0
    unrecognised: int = 0
    rejected: tuple[Rejected, ...] = ()
    rejected_more: int = 0
    unknown: dict[str, Unknown] = {}
    placed: int = 0
    inventory: list[Observation] = []

    def nodes(self) -> set[tuple[str, str]]:
        """Every (cluster, node) that something would be stored for: for tokens bound to one node."""
        return {(one.cluster, one.node) for one in self.reports} | {
            (one.component.cluster, one.component.node or "") for one in self.inventory
        }

    def reject(self, rejects: Rejects) -> None:
        self.rejected, self.rejected_more = rejects.sorted(), rejects.more

    def unplaced(self, name: str, why: str, count: int = 1, example: dict[str, str] | None = None) -> None:
        """Counts samples that are not stored."""
        self.unrecognised += count
        known = self.unknown.get(name)
        if known is not None:
            known.count += count
            known.why = why
        elif len(self.unknown) < NAMES_TOLD:
            self.unknown[name] = Unknown(why=why, count=count, example=example or {})
