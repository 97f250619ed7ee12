"""Scenarios: one YAML file each, which names the source of every assumption."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml

from healer.decisions.comments import SWAP
from healer.model.vocabulary import UserError
from healer.sim.planted_faults import WAYS
from healer.sim.slurm_world import SlurmTimes
from healer.text import joined, said_by, say

SHIPPED = Path(__file__).parent / "scenarios"
SPARES = "spares"
DAYS_MOST = 3650


class BadScenario(UserError):
    """The text names the file and what is wrong in it."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The large job: synchronous, on whole nodes. Times in seconds.

    `checkpoint_s`: work between two durable checkpoints; `checkpoint_stall_s`: how long each stops it.
    `restarts_s`: until its script restarts it in the same allocation, if its nodes are well. `fails_s`: from
    a fault to the end of the program.

    `spares`: nodes that it holds inside its allocation beyond `nodes`, to go on without a bad one; `meets_s`:
    from the drain of a node on which it works to the start of the new workers by its launcher.
    """

    nodes: int
    spares: int = 0
    meets_s: float = 10.0
    checkpoint_s: float
    checkpoint_stall_s: float = 0.0
    startup_s: float
    restarts_s: float = 60.0
    fails_s: float = 30.0
    comment: str = "healer:requeue"

    @property
    def asks(self) -> int:
        """The nodes that it asks Slurm for."""
        return self.nodes + self.spares

    @property
    def agreed(self) -> str:
        """Its comment in Slurm, with the least number of nodes if it gives one up."""
        return f"{self.comment} {SWAP}{self.nodes}" if self.spares else self.comment


class Filler(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Small jobs that run again and again on the spare nodes."""

    count: int
    nodes: int
    runtime_s: float


class SlurmSpec(SlurmTimes, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Slurm's times in a large fleet, where nodes take longer to boot."""

    boot_s: float = 300.0


class FaultSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The process by which nodes fail (published_figures 3)."""

    per_node_day: float = 0.0
    shape: float = 0.9
    relapse: float = 0.15
    relapse_days: float = 7.0
    not_taken: float = 0.2
    not_taken_h: float = 6.0


class Cause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the mix: how often it occurs, and the ways it shows by weight."""

    cause: str
    count: float
    ways: dict[str, float]


class People(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long people take: medians in minutes, spread as the sigma of a log-normal. Hours are UTC.

    `answer_min`: to answer a page or question that names the node. `find_min`: to find the node without help.
    `notice_h`: to notice a fault that stops nothing. `works`: first and last hour, on weekdays, in which
    repaired nodes are brought back by hand.
    """

    answer_min: float = 10.0
    find_min: float = 30.0
    notice_h: float = 24.0
    sigma: float = 0.6
    works: tuple[int, int] = (9, 17)


class Repair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Repair times of a broken node in hours: median and 90th percentile of a log-normal."""

    median_h: float = 15.0
    p90_h: float = 60.0


class Tests(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tests of a node before its return: duration, and the share of failed repairs that they find."""

    takes_s: float = 900.0
    find: float = 0.8


class Telemetry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which telemetry is simulated: metrics each `every_s`, each `fine_s` during a fault.

    A window of `peers` + 1 nodes is open from `before_min` before to `after_min` after a fault that sensors
    show; `samples_per_day` windows of `sample_nodes` healthy nodes open at random. `beats`: heartbeats of all
    nodes always (`all`), or of nodes about to fall silent (`near`). `innocent_per_day`: harmless kernel lines
    over the whole fleet.
    """

    every_s: float = 60.0
    fine_s: float = 15.0
    peers: int = 7
    before_min: float = 17.0
    after_min: float = 60.0
    samples_per_day: float = 0.0
    sample_nodes: int = 16
    beats: str = "near"
    innocent_per_day: float = 0.0


class Happening(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A planted event, `at_h` hours after the start; `what` is a key of `playing._KINDS`."""

    at_h: float
    what: str
    minutes: float = 0.0
    nodes: int = 0
    way: str = ""
    place: str = ""


class Checks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Checks of the mender `thresholds`: each `every_s` on all nodes."""

    every_s: float = 300.0
    false_per_1000_node_days: float = 1.0
    retry_min: float = 11.0


# Wide: the fields of one file of `scenarios/`.
class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    title: str
    shows: str
    start: datetime = datetime(2026, 1, 5, tzinfo=UTC)
    days: float
    nodes: int
    #: So many, the last ones, are in the reservation `SPARES`: they replace what the jobs lose.
    spares: int = 0
    nodes_per_rack: int = 4
    racks_per_switch: int = 4
    gpus: int = 8
    job: JobSpec
    fillers: tuple[Filler, ...] = ()
    slurm: SlurmSpec = SlurmSpec()
    faults: FaultSpec = FaultSpec()
    mix: tuple[Cause, ...] = ()
    planned_stops_per_day: float = 0.0
    planned_stop_min: float = 10.0
    repair: Repair = Repair()
    people: People = People()
    tests: Tests = Tests()
    telemetry: Telemetry = Telemetry()
    checks: Checks = Checks()
    happenings: tuple[Happening, ...] = ()
    guards: dict[str, Any] = {}
    #: Rules changed for this scenario: name -> fields.
    rules: dict[str, dict[str, Any]] = {}


def shipped() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def load(name: str, *, days: float | None = None) -> Scenario:
    """By name or path. Raises BadScenario."""
    path = SHIPPED / f"{name}.yaml"
    if not path.is_file():
        path = Path(name)
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        scenario = msgspec.convert(document, Scenario)
    except FileNotFoundError:
        raise BadScenario(
            say("simulation.no_scenario_there_are", name=name, shipped=joined(shipped(), "comma"))
        ) from None
    except OSError as error:
        raise BadScenario(say("simulation.cannot_read", name=name, why=error.strerror)) from error
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise BadScenario(say("simulation.invalid", name=path.name, why=said_by(error))) from error
    if days is not None:
        scenario = msgspec.structs.replace(scenario, days=days)
    if wrong := _wrong(scenario):
        raise BadScenario(say("words.labelled", label=path.name, text=wrong))
    return scenario


def _wrong(scenario: Scenario) -> str | None:
    """What is wrong beyond types; None if nothing is."""
    job = scenario.job
    used = job.asks + sum(filler.count * filler.nodes for filler in scenario.fillers)
    if not 0 < scenario.days <= DAYS_MOST:
        return f"days has to be above 0 and at most {DAYS_MOST}"
    if scenario.nodes < 1 or job.nodes < 1:
        return "nodes and job.nodes have to be above 0"
    if job.spares < 0 or job.meets_s < 0:
        return "job.spares and job.meets_s may not be below 0"
    if used > scenario.nodes - scenario.spares:
        return f"the jobs want {used} nodes, the fleet has {scenario.nodes - scenario.spares} for them"
    if job.checkpoint_s <= 0 or scenario.start.tzinfo is None:
        return "job.checkpoint_s has to be above 0, and start needs a zone"
    if scenario.faults.per_node_day and not scenario.mix:
        return "faults without a mix"
    if scenario.telemetry.beats not in {"all", "near"}:
        return f"telemetry.beats is `all` or `near`, not {scenario.telemetry.beats!r}"
    ways = [way for cause in scenario.mix for way in cause.ways] + [
        happening.way for happening in scenario.happenings if happening.way
    ]
    unknown = sorted(set(ways) - WAYS.keys())
    return f"no way {unknown[0]!r}; there are {', '.join(WAYS)}" if unknown else None
