"""Cases of detection rules: given these series over time, the rule fires there, or stays silent.

`rules/cases/detection-*.yaml`; the form is in docs/rules.md. A case goes through the same `Telemetry` and
`RuleEngine` as production, with one sample of each series every `every`.
"""

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from healer.detection.language.parse import duration_s
from healer.model import (
    DEVICE_MARK,
    Catalogue,
    Column,
    Component,
    DetectionRule,
    GpuModel,
    Part,
    Place,
    Scope,
    Signal,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Topology,
)
from healer.model.vocabulary import did_you_mean
from healer.rulebook.detection_rules import PlacedRule
from healer.rulebook.source import Source, Where
from healer.text import Said, joined, quoted, said_by, say

_PIECE = re.compile(
    r"(?P<value>.*?)\s*(?:(?P<slope>[+-]\s*[\d.]+(?:e[+-]?\d+)?)/(?P<per>[smh]))?(?:(?:^|\s+)x\s+(?P<lasts>\S+))?"
)
_PER_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


class CaseWrong(Exception):
    """A case that cannot be run. `path` leads to the error in it."""

    def __init__(self, path: Sequence[str | int], text: str, hint: str = "") -> None:
        super().__init__(text)
        self.path, self.text, self.hint = tuple(path), text, hint


class Track:
    """How one series goes: `1755 x 2m, 1290`, `0 +31/m`, `- x 1m, 5`, `Completed`. None: nothing is sent."""

    def __init__(self, signal: Signal, text: Any, path: Sequence[str | int]) -> None:
        # Since when, from what, by how much per second.
        self._pieces: list[tuple[float, float | None, float]] = []
        wrong = partial(CaseWrong, path)
        begin_s: float | None = 0.0
        value: float | None = None
        for piece in str(text).split(","):
            match = _PIECE.fullmatch(piece.strip())
            if match is None or not piece.strip():
                raise wrong(say("cases.not_a_track", text=piece.strip()), say("cases.track_examples"))
            if begin_s is None:
                raise wrong(say("cases.never_reached", text=piece.strip()), say("cases.give_duration"))
            if match["value"]:
                value = _value(signal, match["value"], wrong)
            slope = 0.0
            if match["slope"]:
                slope = float(match["slope"].replace(" ", "")) / _PER_S[match["per"]]
            self._pieces.append((begin_s, value, slope))
            if match["lasts"] is None:
                begin_s = None
                continue
            try:
                lasts_s = duration_s(match["lasts"])
            except ValueError as error:
                raise wrong(said_by(error)) from None
            value = None if value is None else value + slope * lasts_s
            begin_s += lasts_s

    def __call__(self, passed_s: float) -> float | None:
        begin_s, value, slope = next(piece for piece in reversed(self._pieces) if piece[0] <= passed_s)
        return None if value is None else value + slope * (passed_s - begin_s)


def _value(signal: Signal, text: str, wrong: Any) -> float | None:
    if text == "-":
        return None
    if text in signal.words:
        return float(signal.words[text])
    if signal.bits and all(bit in signal.bits for bit in text.split("|")):
        return float(sum(signal.bits[bit] for bit in text.split("|")))
    try:
        return float(text)
    except ValueError:
        why = say("cases.not_a_value", text=text, signal=signal.name)
        raise wrong(why, did_you_mean(text, signal.words)) from None


if TYPE_CHECKING:
    from healer.observations.telemetry_windows import Telemetry

#: Case files of detection rules; all others are cases of lines and faults.
DETECTION_CASES = "detection-*.yaml"
#: When, and on which cluster, the cases play.
START = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
CLUSTER = "case"
_LONGEST_S = 3600.0
_MOST_SAMPLES = 720


# Wide: the fields of one case of `rules/cases/detection-*.yaml`.
class DetectionCase(msgspec.Struct, frozen=True, kw_only=True):
    """One case. `nodes` are n1, n2, …, each with `gpus` GPUs of `model`, `links` NVLinks per GPU and `ports`.
    `devices`: device -> its parts.

    `series`: signal -> value for all parts, or part -> value (`each` for the others). `fires`: the parts on
    which the rule fires, none: it stays silent. `within`: at most this long after the start. `says`: words
    that one of its findings has to contain.
    """

    name: str
    rule: str
    series: dict[str, Any] = {}
    fires: tuple[str, ...] = ()
    within: str = ""
    says: str = ""
    lasts: str = "5m"
    every: str = "30s"
    nodes: int = 1
    gpus: int = 8
    model: str = "h100"
    links: int = 2
    ports: tuple[str, ...] = ("mlx5_0/1",)
    devices: dict[str, tuple[str, ...]] = msgspec.field(default_factory=lambda: {"d1": ("p1", "p2")})
    jobs: dict[str, tuple[str, ...]] = {}
    switches: dict[str, tuple[str, ...]] = {}
    racks: dict[str, tuple[str, ...]] = {}
    states: dict[str, tuple[str, ...]] = {}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """`why` is empty when the case holds. `was_false`: the rule was known false of some part at some time."""

    case: DetectionCase
    at: Where
    why: str
    was_false: bool


def run_detection_cases(
    sources: Iterable[Source],
    rules: Mapping[str, DetectionRule],
    catalogue: Catalogue,
    models: Sequence[GpuModel],
    *,
    only: Container[str] | None = None,
) -> list[Outcome]:
    """Runs every case, or those of `only` these rules. Cases that cannot be read or run are problems of their
    source."""
    cases: list[tuple[Where, _Prepared]] = []
    for source in sources:
        for at, case in source.entries(DetectionCase):
            rule = rules.get(case.rule)
            if rule is None:
                hint = did_you_mean(case.rule, rules)
                at.at("rule").problem(say("cases.no_detection_rule", name=case.rule), hint)
                continue
            if only is not None and rule.name not in only:
                continue
            try:
                cases.append((at, _prepared(case, rule, catalogue, f"{len(cases)}~")))
            except CaseWrong as error:
                at.at(*error.path).problem(
                    say("words.labelled", label=case.name, text=error.text), error.hint
                )
    batches = _batches([prepared for _, prepared in cases])
    played = {mark: result for batch in batches for mark, result in _play(batch, catalogue, models)}
    outcomes = []
    for at, prepared in cases:
        why, was_false = played[prepared.mark]
        outcomes.append(Outcome(case=prepared.case, at=at, why=why, was_false=was_false))
    return outcomes


#: What compares a part with those of other nodes, and the rows that lie within one.
_ACROSS_NODES = re.compile(r"\b(?:peers|peer_z|peers_at|rack_peers)\b")
_WITHIN_NODES = frozenset({Scope.node, Scope.gpu, Scope.link, Scope.device, Scope.device_part})


def _looks_across(rule: DetectionRule, catalogue: Catalogue) -> frozenset[str]:
    """The signals of other nodes that the rule uses."""
    text = f"{rule.when} {rule.threshold}"
    if rule.scope in _WITHIN_NODES and not _ACROSS_NODES.search(text):
        return frozenset()
    return frozenset(re.findall(r"\w+", text)) & catalogue.signals.keys()


def _batches(cases: Iterable["_Prepared"]) -> list[list["_Prepared"]]:
    """Cases that are played side by side: equally long, and none uses what the nodes of another send."""
    found: dict[tuple[float, float], list[list[_Prepared]]] = {}
    for case in cases:
        batches = found.setdefault((case.every_s, case.lasts_s), [])
        fits = (batch for batch in batches if all(_are_apart(case, other) for other in batch))
        if (batch := next(fits, None)) is not None:
            batch.append(case)
        else:
            batches.append([case])
    return [batch for batches in found.values() for batch in batches]


def _are_apart(case: "_Prepared", other: "_Prepared") -> bool:
    if case.across and case.rule.name == other.rule.name:
        return False
    return case.across.isdisjoint(other.sends) and other.across.isdisjoint(case.sends)


def prove(outcomes: Sequence[Outcome], rules: Iterable[PlacedRule]) -> None:
    """Cases that do not hold, and rules that their cases do not prove, become problems."""
    by_rule: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_rule.setdefault(outcome.case.rule, []).append(outcome)
        if outcome.why:
            outcome.at.problem(say("words.labelled", label=outcome.case.name, text=outcome.why))
    for placed in rules:
        rule, at = placed.rule, placed.at
        cases = by_rule.get(rule.name, [])
        if not any(outcome.case.fires for outcome in cases):
            at.problem(say("cases.never_fires", rule=rule.name))
        if not any(not outcome.case.fires for outcome in cases):
            at.problem(say("cases.never_silent", rule=rule.name))
        elif not any(outcome.was_false for outcome in cases):
            at.at("when").problem(say("cases.never_false", rule=rule.name))


# --- one case ---


class _Prepared(NamedTuple):
    """`mark` begins the names of its nodes, devices and jobs: others are played together with them."""

    case: DetectionCase
    rule: DetectionRule
    mark: str
    lasts_s: float
    every_s: float
    within_s: float
    series: dict[str, list[tuple[Column, Track]]]
    #: Signals of its nodes, and those of other nodes that its rule looks at.
    sends: frozenset[str]
    across: frozenset[str]
    snapshot: SlurmSnapshot
    places: Topology


def _prepared(case: DetectionCase, rule: DetectionRule, catalogue: Catalogue, mark: str) -> _Prepared:
    lasts_s, every_s = _seconds(case, "lasts"), _seconds(case, "every")
    within_s = _seconds(case, "within") if case.within else math.inf
    if not 0 < every_s <= lasts_s <= _LONGEST_S or lasts_s / every_s > _MOST_SAMPLES:
        raise CaseWrong(("lasts",), say("cases.too_many_samples", most=_MOST_SAMPLES))
    series = _all_series(case, catalogue, mark)
    derived = {name for name, signal in catalogue.signals.items() if signal.derived}
    return _Prepared(
        case=case,
        rule=rule,
        mark=mark,
        lasts_s=lasts_s,
        every_s=every_s,
        within_s=within_s,
        series=series,
        sends=frozenset(case.series) | derived,
        across=_looks_across(rule, catalogue),
        snapshot=_slurm(case, mark),
        places=_places(case, mark),
    )


def _play(
    batch: Sequence[_Prepared], catalogue: Catalogue, models: Sequence[GpuModel]
) -> Iterator[tuple[str, tuple[str, bool]]]:
    """The outcome of each case, by its mark. All take equally long."""
    from healer.detection.measured import RuleEngine
    from healer.detection.protocol import TickInput
    from healer.observations.steps import StepTimes
    from healer.observations.telemetry_windows import Telemetry

    lasts_s, every_s = batch[0].lasts_s, batch[0].every_s
    series = {subject: tracks for prepared in batch for subject, tracks in prepared.series.items()}
    telemetry = Telemetry(CLUSTER, catalogue, models)
    rules = {prepared.rule.name: prepared.rule for prepared in batch}
    engine, steps = RuleEngine(list(rules.values()), catalogue), StepTimes(CLUSTER)
    snapshot, places = _one_cluster(batch)
    book = _Book([column for of_node in series.values() for column, _ in of_node])
    of_case = {(prepared.mark, prepared.rule.name) for prepared in batch}
    across = {prepared.rule.name: prepared.mark for prepared in batch if prepared.across}
    fired: dict[str, dict[str, float]] = {prepared.mark: {} for prepared in batch}
    texts: dict[str, list[str]] = {prepared.mark: [] for prepared in batch}
    false: set[tuple[str, str]] = set()
    passed_s = 0.0
    telemetry.show(snapshot, places)
    of_slurm = any(catalogue.signals[name].derived for name in engine.signals)
    while passed_s <= lasts_s:
        now = START + timedelta(seconds=passed_s)
        if of_slurm:
            telemetry.show(msgspec.structs.replace(snapshot, taken_at=now), places)
        _send(telemetry, book, series, passed_s, now)
        left = of_case - false
        watched = [
            (name, part)
            for name in sorted({name for _, name in left})
            for part in telemetry.axis(rules[name].scope).components()
            if (_mark_of(part) or across.get(name), name) in left
        ]
        sensed = engine.tick(TickInput(now, telemetry, steps, watched=watched))
        false |= {(_mark_of(part) or across[name], name) for name, part in sensed.clear_since}
        for finding in sensed.findings:
            part = finding.evidence[0].component
            mark = _mark_of(part) or across[finding.rule]
            if (mark, finding.rule) in of_case:
                fired[mark].setdefault(part_name(part, mark), passed_s)
                texts[mark].append(finding.text.replace(mark, ""))
        passed_s += every_s
    for prepared in batch:
        why = _compare(prepared.case, fired[prepared.mark], texts[prepared.mark], prepared.within_s)
        yield prepared.mark, (why, (prepared.mark, prepared.rule.name) in false)


def _one_cluster(batch: Iterable[_Prepared]) -> tuple[SlurmSnapshot, Topology]:
    nodes: dict[str, SlurmNode] = {}
    jobs: dict[str, SlurmJob] = {}
    places: dict[str, Place] = {}
    for prepared in batch:
        nodes |= prepared.snapshot.nodes
        jobs |= prepared.snapshot.jobs
        places |= prepared.places.places
    shown = SlurmSnapshot(cluster=CLUSTER, taken_at=START, nodes=nodes, jobs=jobs)
    return shown, Topology(places=places)


def _mark_of(part: Component) -> str:
    """Empty for the fabric, which belongs to no node and no single case."""
    name = next(filter(None, (part.node, part.device, part.job, part.switch)), "")
    return name[: name.find("~") + 1]


def _compare(case: DetectionCase, fired: Mapping[str, float], texts: Sequence[str], within_s: float) -> str:
    missing = [part for part in case.fires if part not in fired]
    beyond = [part for part in fired if part not in case.fires]
    if missing or beyond:
        message = [say("cases.its_message", text=quoted(texts[0]))] if texts else []
        return joined([_mismatch(case.rule, ", ".join(fired), ", ".join(case.fires)), *message], "semicolon")
    late = [say("cases.part_after", part=part, seconds=at) for part, at in fired.items() if at > within_s]
    if late:
        return say("cases.fired_late", rule=case.rule, parts=joined(late, "comma"))
    if case.says and not any(case.says in text for text in texts):
        first = quoted(texts[0]) if texts else say("cases.no_message")
        return say("cases.other_message", rule=case.rule, wanted=case.says, text=first)
    return ""


def _mismatch(rule: str, came: str, wanted: str) -> Said:
    if not wanted:
        return say("cases.fired", rule=rule, came=came)
    if not came:
        return say("cases.did_not_fire", rule=rule, wanted=wanted)
    return say("cases.fired_elsewhere", rule=rule, came=came, wanted=wanted)


def part_name(component: Component, mark: str) -> str:
    """How cases name it, without the `mark`: `n1`, `n1 gpu3`, `n1 gpu3 link0`, `n1 mlx5_0/1`, `d1`, `d1 p1`,
    `job 7`, `switch s`, `fabric`."""
    if component.device is not None:
        return " ".join(filter(None, (component.device.removeprefix(mark), component.part)))
    if component.node is None:
        for kind in ("job", "switch"):
            if value := getattr(component, kind):
                return f"{kind} {value.removeprefix(mark)}"
        return "fabric"
    words = [component.node.removeprefix(mark)]
    if component.gpu is not None:
        words.append(f"gpu{component.gpu}")
    if component.link is not None:
        words.append(f"link{component.link}")
    if component.nic is not None:
        words.append(component.nic)
    return " ".join(words)


class _Book:
    """Numbers of the case's series (`ports.ColumnBook`)."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self.numbers = {column: number for number, column in enumerate(dict.fromkeys(columns))}
        self._columns = dict(enumerate(self.numbers))

    def ids(self, columns: Sequence[Column]) -> list[int]:
        return [self.numbers[column] for column in columns]

    def columns(self, ids: Iterable[int]) -> dict[int, Column]:
        return {number: self._columns[number] for number in ids}


def _send(
    telemetry: "Telemetry",
    book: _Book,
    series: Mapping[str, Sequence[tuple[Column, Track]]],
    passed_s: float,
    now: datetime,
) -> None:
    import numpy as np

    from healer.model.telemetry import Report

    reports = []
    for node, tracks in series.items():
        samples = [
            (book.numbers[column], value)
            for column, track in tracks
            if (value := track(passed_s)) is not None
        ]
        if samples:
            columns = np.array([number for number, _ in samples], np.int32)
            values = np.array([value for _, value in samples], np.float64)
            reports.append(Report(CLUSTER, node, now, now, columns, values))
    telemetry.update(reports, book)


# --- the cluster of a case ---


def _slurm(case: DetectionCase, mark: str) -> SlurmSnapshot:
    nodes = {}
    held = {node for names in case.jobs.values() for node in names}
    for name in _nodes(case):
        state = case.states.get(name, ("ALLOCATED",) if name in held else ("IDLE",))
        nodes[mark + name] = SlurmNode(name=mark + name, state=state, gpus=case.gpus, gpu_model=case.model)
    jobs = {}
    for job, names in case.jobs.items():
        marked = tuple(mark + name for name in names)
        gpus = dict.fromkeys(marked, tuple(range(case.gpus)))
        jobs[mark + job] = SlurmJob(id=mark + job, state="RUNNING", nodes=marked, gpus=gpus)
    for field, named in (("jobs", held), ("states", set(case.states))):
        for name in named - set(_nodes(case)):
            text = say("rulebook.field", field=field, text=say("cases.no_node", name=name))
            raise CaseWrong((field,), text, say("cases.nodes_are", last=case.nodes))
    return SlurmSnapshot(cluster=CLUSTER, taken_at=START, nodes=nodes, jobs=jobs)


def _places(case: DetectionCase, mark: str) -> Topology:
    switch_of = {mark + node: mark + name for name, nodes in case.switches.items() for node in nodes}
    rack_of = {mark + node: mark + name for name, nodes in case.racks.items() for node in nodes}
    return Topology(
        places={
            node: Place(switch=switch_of.get(node, ""), rack=rack_of.get(node, ""))
            for node in switch_of.keys() | rack_of.keys()
        }
    )


def _nodes(case: DetectionCase) -> list[str]:
    return [f"n{number}" for number in range(1, case.nodes + 1)]


def _parts(case: DetectionCase, signal: Signal, mark: str) -> list[tuple[str, str, Part]]:
    """(name in the case, marked node, part) of everything that the signal is measured of."""
    found: list[tuple[str, str, Part]] = []
    if signal.scope is Scope.device:
        return [(device, DEVICE_MARK + mark + device, Part()) for device in case.devices]
    if signal.scope is Scope.device_part:
        pairs = [(device, part) for device, parts in case.devices.items() for part in parts]
        return [(f"{device} {part}", DEVICE_MARK + mark + device, Part(port=part)) for device, part in pairs]
    for node in _nodes(case):
        if signal.scope is Scope.node:
            found.append((node, mark + node, Part()))
        elif signal.scope is Scope.gpu:
            found += [(f"{node} gpu{gpu}", mark + node, Part(gpu=gpu)) for gpu in range(case.gpus)]
        elif signal.name.startswith("nvlink"):
            found += [
                (f"{node} gpu{gpu} link{link}", mark + node, Part(gpu=gpu, link=link))
                for gpu in range(case.gpus)
                for link in range(case.links)
            ]
        else:
            found += [(f"{node} {port}", mark + node, Part(port=port)) for port in case.ports]
    return found


def _all_series(
    case: DetectionCase, catalogue: Catalogue, mark: str
) -> dict[str, list[tuple[Column, Track]]]:
    """By marked node: its series and how they go."""
    nodes, devices = (
        (mark + node for node in _nodes(case)),
        (DEVICE_MARK + mark + name for name in case.devices),
    )
    subjects = (*nodes, *devices)
    found: dict[str, list[tuple[Column, Track]]] = {subject: [] for subject in subjects}
    for name, given in case.series.items():
        signal = catalogue.signals.get(name)
        if signal is None:
            hint = did_you_mean(name, catalogue.signals)
            raise CaseWrong(("series", name), say("rulebook.there_no_signal", name=name), hint)
        if signal.derived:
            raise CaseWrong(("series", name), say("cases.derived_signal", name=name))
        by_part = given if isinstance(given, dict) else {"each": given}
        parts = _parts(case, signal, mark)
        # A node's value holds for all its parts that have none of their own.
        part_names = {part for part, _, _ in parts}
        wholes = {part.partition(" ")[0] for part in part_names}
        for part in by_part.keys() - {"each", *wholes, *part_names}:
            raise CaseWrong(
                ("series", name, part),
                say("cases.no_part", part=part),
                say("cases.part_example", part=parts[0][0]),
            )
        tracks = {part: Track(signal, text, ("series", name)) for part, text in by_part.items()}
        for part, node, place in parts:
            track = tracks.get(part, tracks.get(part.partition(" ")[0], tracks.get("each")))
            if track is not None:
                found[node].append((Column(name, place), track))
    return found


def _seconds(case: DetectionCase, field: str) -> float:
    try:
        return duration_s(getattr(case, field))
    except ValueError as error:
        raise CaseWrong((field,), said_by(error)) from None
