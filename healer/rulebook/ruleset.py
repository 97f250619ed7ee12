"""Loads and cross-checks all of `rules/` as one value. Everything wrong is found at once, by file and line.

Files: `xid.yaml`, `sxid.yaml`, `policies.yaml` and `playbooks/*.yaml` have to be there; `nvlink5.yaml`,
`xid154.yaml`, `xid74.yaml`, `guards.yaml`, `topology.yaml`, `watches.yaml`, `signals.yaml`, `scrape.yaml`,
`alerts.yaml`, `commands.yaml`, `sharing.yaml`, `escalations.yaml`, `ladders.yaml`, `forecasts.yaml`,
`notifications.yaml` may be left out.
Formats: `docs/rules.md`, `docs/signals.md`, `docs/notifications.md`.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from healer.detection.silence import PLACES_SILENT
from healer.detection.slurm_conditions import PLACES_OFFLINE
from healer.detection.tables import bit_pattern
from healer.model import (
    WAVE_FAULT,
    Catalogue,
    CatalogueEntry,
    DriverAsk,
    GpuModel,
    GuardSettings,
    Mode,
    NvlinkRow,
    Playbook,
    Rule,
    Ruleset,
    Xid74Bits,
)
from healer.rulebook.alert_rules import policy_of_alert, read_alerts
from healer.rulebook.cases.detection_cases import DETECTION_CASES, run_detection_cases
from healer.rulebook.cases.detection_cases import prove as prove_rules
from healer.rulebook.catalogue import read_catalogue
from healer.rulebook.command_rules import check_uses, read_commands
from healer.rulebook.context_rules import read_context
from healer.rulebook.detection_rules import Placed, as_policy, read_models, read_rules
from healer.rulebook.escalation_rules import REPEATS, policies_of, read_escalations, read_ladders
from healer.rulebook.forecast_rules import policy_of_forecast, read_forecasts
from healer.rulebook.line_rules import read_lines
from healer.rulebook.notification_rules import read_notifications
from healer.rulebook.playbook_rules import ALWAYS, needs, read_playbooks
from healer.rulebook.proven import note_proven, one_at_a_time, proven_of
from healer.rulebook.rule_checks import check_guards, read_topology, read_watches
from healer.rulebook.scrape_rules import read_scrape
from healer.rulebook.sharing_rules import policy_of_sharing, read_sharings
from healer.rulebook.source import Problem, Source, did_you_mean
from healer.rulebook.validation_rules import read_validation
from healer.topology.found import FOUND, by_hand_first

__all__ = ["Problem", "RulesInvalid", "load"]

T = TypeVar("T")

#: Faults that no catalogue lists: told without a number, or found by other detectors than the kernel's.
OTHER_FAULTS = (
    "gpu-lost",
    "lemon",
    "node-silent",
    "sender-silent",
    *sorted(PLACES_SILENT),
    "fleet-silent",
    "person-drain",
    "healer-drain",
    "straggler",
    "job-slow",
    "job-creep",
    "job-memory-leak",
    "slowness-shared",
    "slower-than-elsewhere",
    "slower-than-fleet",
    "hang",
    "unusual-node",
    "drifted",
    "lemon-node",
    "result-differs",
    "loss-nan",
    "loss-spike",
    "fabric-manager-version",
    "node-offline",
    *sorted(PLACES_OFFLINE),
    "fleet-offline",
    "below-configured",
    "jobs-completing",
    "controller-backlog",
    "accounting-away",
)
#: They are told of a job, and of no node: a policy of these alone may name a playbook for jobs.
JOB_FAULTS = frozenset({"hang", "job-slow", "slowness-shared", "loss-nan", "loss-spike"})
#: Faults with an open tail: the kind of drain that Slurm set, the program that drained, the check of a node's
#: own hooks, the partition of jobs and why they wait.
OPEN_FAULTS = (
    WAVE_FAULT,
    "slurm-drain:",
    "foreign-drain:",
    "hook:",
    "node-test:",
    "jobs-waiting:",
    "jobs-held:",
    "drift:",
    REPEATS,
)
_RULE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


class RulesInvalid(Exception):
    """The rules cannot be used. `problems` holds everything that is wrong, by file and line."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def load(
    rules_dir: Path,
    *,
    default_mode: Mode = Mode.shadow,
    settle_s: float = 2.0,
    overrides: Mapping[str, Any] | None = None,
    prove: bool = True,
) -> Ruleset:
    """Reads the folder. `overrides` are guard settings from outside; they stand above the top of guards.yaml,
    while what that file says of one cluster or partition still binds there. `prove`: detection rules have to
    do on their cases what the cases say. Raises RulesInvalid."""
    problems: list[Problem] = []
    folder = _Folder(rules_dir, problems)
    xids = folder.by_code("xid.yaml", CatalogueEntry, lambda entry: entry.code)
    sxids = folder.by_code("sxid.yaml", CatalogueEntry, lambda entry: entry.code)
    asks = folder.by_code("xid154.yaml", DriverAsk, lambda ask: ask.code, required=False)
    nvlink5 = _nvlink5(folder)
    lines = read_lines(folder.source("kernel_lines.yaml", required=False))
    xid74 = tuple(row for _, row in folder.entries("xid74.yaml", Xid74Bits, required=False))
    scripts = _scripts(folder)
    paths = sorted((rules_dir / "playbooks").glob("*.yaml"))
    books = [source for path in paths if (source := folder.source(f"playbooks/{path.name}"))]
    validation = read_validation(folder.source("validation/depths.yaml", required=False), scripts)
    playbooks = read_playbooks(books, scripts, validation)
    commands = read_commands(folder.source("commands.yaml", required=False))
    check_uses(books, playbooks, commands)
    _always_there(folder)
    known = [*_known_faults(xids, sxids, asks), *(one.fault for one in lines.lines)]
    rules = _rules(folder, known, playbooks)
    guards, clusters, partitions = _guards(folder, dict(overrides or {}))
    hand, found = (folder.source(name, required=False) for name in ("topology.yaml", FOUND))
    topology = by_hand_first(read_topology(hand), read_topology(found))
    context = read_context(folder.source("context.yaml", required=False))
    watches = read_watches(folder.source("watches.yaml", required=False))
    catalogue = read_catalogue(*_signals(folder))
    scrape = read_scrape(folder.source("scrape.yaml", required=False), catalogue, rules_dir)
    models = read_models(folder.source("gpu_models.yaml", required=False))
    placed = _detection(folder, catalogue, models, rules, playbooks)
    detection = tuple(one.rule for one in placed)
    policies = (*rules, *map(as_policy, detection))
    check = partial(_check_playbook_of, folder, playbooks=playbooks)
    alerts = read_alerts(folder.source("alerts.yaml", required=False), policies, check)
    sharings = read_sharings(folder.source("sharing.yaml", required=False), policies)
    over_time = [*known, *(one.name for one in detection)]
    escalations = read_escalations(
        folder.source("escalations.yaml", required=False),
        over_time,
        [one.name for one in (*policies, *alerts)],
        models,
        check,
    )
    ladders = read_ladders(
        folder.source("ladders.yaml", required=False),
        [*over_time, *(one.name for one in escalations.combinations)],
        models,
    )
    told = folder.source("forecasts.yaml", required=False)
    forecasts = read_forecasts(told, catalogue.signals, models, over_time, playbooks, check)
    notifications = read_notifications(folder.source("notifications.yaml", required=False))
    if prove and placed and not problems:
        _prove(folder, placed, catalogue, models)
    if problems:
        raise RulesInvalid(sorted(problems, key=lambda one: (one.file, one.line)))
    return Ruleset(
        version=folder.version(),
        xids=xids,
        sxids=sxids,
        rules=(
            *policies,
            *(policy_of_alert(one) for one in alerts if one.opens),
            *map(policy_of_sharing, sharings),
            *policies_of(escalations),
            *map(policy_of_forecast, forecasts),
        ),
        guards=guards,
        playbooks=playbooks,
        topology=topology,
        nvlink5=nvlink5,
        driver_asks=asks,
        xid74=xid74,
        kernel_lines=lines,
        default_mode=default_mode,
        settle_s=settle_s,
        cluster_guards=clusters,
        partition_guards=partitions,
        catalogue=catalogue,
        detection=detection,
        gpu_models=models,
        alerts=alerts,
        context=context,
        watches=watches,
        scripts=scripts,
        commands=commands,
        validation=validation,
        scrape=scrape,
        sharings=sharings,
        escalations=escalations,
        ladders=ladders,
        forecasts=forecasts,
        notifications=notifications,
    )


class _Folder:
    """The files read so far."""

    def __init__(self, path: Path, problems: list[Problem]) -> None:
        self.path = path
        self.problems = problems
        self.read: dict[str, bytes] = {}

    def source(self, name: str, *, required: bool = True) -> Source | None:
        path = self.path / name
        try:
            source = Source(path, name, self.problems)
        except FileNotFoundError:
            if required:
                hint = "" if self.path.is_dir() else f"there is no folder {self.path}"
                self.problems.append(Problem(name, 1, "the file is missing", hint))
            return None
        except OSError as error:
            self.problems.append(Problem(name, 1, f"cannot be read: {error.strerror}"))
            return None
        self.read[name] = source.raw
        return source

    def entries(self, name: str, kind: type[T], *, required: bool = True) -> list[tuple[int, T]]:
        """(index in the file, entry) of those that are right."""
        source = self.source(name, required=required)
        if source is None:
            return []
        items = source.items("entries")
        found = ((index, source.convert((index,), item, kind)) for index, item in enumerate(items))
        return [(index, entry) for index, entry in found if entry is not None]

    def by_code(
        self, name: str, kind: type[T], code_of: Callable[[T], int], *, required: bool = True
    ) -> dict[int, T]:
        source = self.source(name, required=required)
        found: dict[int, T] = {}
        for index, item in enumerate(source.items("entries") if source else []):
            entry = source.convert((index,), item, kind) if source else None
            if entry is None or source is None:
                continue
            if code_of(entry) in found:
                source.problem((index, "code"), f"code {code_of(entry)} stands here twice")
            found[code_of(entry)] = entry
        return found

    def version(self) -> str:
        """SHA-256 over names and bytes of the files: the same files, the same version."""
        return sha256_of(part for name, raw in sorted(self.read.items()) for part in (name.encode(), raw))


def sha256_of(parts: Iterable[bytes]) -> str:
    """Of all parts together; where one ends and the next begins is part of it."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(f"{len(part)}\0".encode())
        hasher.update(part)
    return hasher.hexdigest()


def _nvlink5(folder: _Folder) -> tuple[NvlinkRow, ...]:
    source = folder.source("nvlink5.yaml", required=False)
    rows: list[NvlinkRow] = []
    for index, item in enumerate(source.items("rows") if source else []):
        row = source.convert((index,), item, NvlinkRow) if source else None
        if row is None or source is None:
            continue
        for pattern in row.info:
            try:
                bit_pattern(pattern)
            except ValueError as error:
                source.problem((index, "info"), f"info: {error}")
        rows.append(row)
    return tuple(rows)


def _signals(folder: _Folder) -> list[Source | None]:
    """`signals.yaml` and all `signals-….yaml`: one catalogue."""
    more = sorted(path.name for path in folder.path.glob("signals-*.yaml"))
    return [folder.source(name, required=False) for name in ("signals.yaml", *more)]


def _scripts(folder: _Folder) -> dict[str, str]:
    """Whole scripts by the name of their file; each is a batch job that Slurm runs as it stands."""
    found: dict[str, str] = {}
    for path in sorted((folder.path / "validation").glob("*.sh")):
        name = f"validation/{path.name}"
        raw = path.read_bytes()
        folder.read[name] = raw
        try:
            found[path.stem] = raw.decode()
        except UnicodeDecodeError:
            folder.problems.append(Problem(name, 1, "the script is not UTF-8"))
            continue
        if not raw.startswith(b"#!"):
            folder.problems.append(Problem(name, 1, "the script has no #! line: Slurm would not take it"))
    return found


def _always_there(folder: _Folder) -> None:
    for name in ALWAYS:
        if not (folder.path / "playbooks" / f"{name}.yaml").exists():
            folder.problems.append(Problem(f"playbooks/{name}.yaml", 1, "the file is missing"))


def _known_faults(
    xids: Mapping[int, Any], sxids: Mapping[int, Any], asks: Mapping[int, DriverAsk]
) -> list[str]:
    codes = [f"xid-{code}" for code in xids] + [f"sxid-{code}" for code in sxids]
    return [*codes, *(ask.fault for ask in asks.values()), *OTHER_FAULTS]


def _rules(folder: _Folder, known: Sequence[str], playbooks: Mapping[str, Playbook]) -> tuple[Rule, ...]:
    source = folder.source("policies.yaml")
    rules: dict[str, Rule] = {}
    for index, item in enumerate(source.items("rules") if source else []):
        rule = source.convert((index,), item, Rule) if source else None
        if rule is None or source is None:
            continue
        if not _RULE_NAME.fullmatch(rule.name):
            source.problem((index, "name"), f"name: {rule.name!r} has to be small letters, digits and dashes")
        if rule.name in rules:
            source.problem((index, "name"), f"the rule {rule.name} stands here twice")
        if not rule.faults:
            source.problem((index, "faults"), "faults: the list is empty")
        for number, fault in enumerate(rule.faults):
            _check_fault(source, (index, "faults", number), fault, known)
        if rule.playbook is not None:
            _check_playbook_of(folder, source, index, rule.playbook, playbooks, rule.faults)
        rules[rule.name] = rule
    return tuple(rules.values())


def _detection(
    folder: _Folder,
    catalogue: Catalogue,
    models: Sequence[GpuModel],
    rules: Sequence[Rule],
    playbooks: Mapping[str, Playbook],
) -> list[Placed]:
    paths = sorted((folder.path / "detection").glob("*.yaml"))
    sources = [source for path in paths if (source := folder.source(f"detection/{path.name}"))]
    if not catalogue.signals and folder.problems:
        return []  # each name would be a problem of its own
    check = partial(_check_playbook_of, folder, playbooks=playbooks)
    return read_rules(sources, catalogue.signals, models, rules, check)


def case_sources(rules_dir: Path, problems: list[Problem], pattern: str) -> list[Source]:
    """The case files whose names fit."""
    paths = sorted((rules_dir / "cases").glob(pattern))
    return [Source(path, f"cases/{path.name}", problems) for path in paths]


#: What was proven in this process: of each rule a hash of all that its proof depends on.
_proven: set[str] = set()
MOST_PROVEN = 5000


def _prove(
    folder: _Folder, placed: Sequence[Placed], catalogue: Catalogue, models: Sequence[GpuModel]
) -> None:
    sources = case_sources(folder.path, folder.problems, DETECTION_CASES)
    signals = sorted(name for name in folder.read if name.startswith("signals"))
    told = (*signals, "gpu_models.yaml")
    read = [folder.read.get(name, b"") for name in told]
    cases: dict[str, list[bytes]] = {}
    for source in sources:
        for item in source.items("cases"):
            rule = str(item.get("rule")) if isinstance(item, dict) else ""
            cases.setdefault(rule, []).append(_written(source, item))
    proofs = {
        one.rule.name: sha256_of(
            [*read, _written(one.source, one.source.data[one.index]), *cases.get(one.rule.name, ())]
        )
        for one in placed
    }
    _proven.update(proven_of(set(proofs.values()) - _proven))
    new = {name for name, proof in proofs.items() if proof not in _proven}
    if not new and cases.keys() <= proofs.keys():
        return
    rules = {one.rule.name: one.rule for one in placed}
    with one_at_a_time():
        meanwhile = proven_of(proofs[name] for name in new)
        new = {name for name in new if proofs[name] not in meanwhile}
        outcomes = run_detection_cases(sources, rules, catalogue, models, only=new)
        prove_rules(outcomes, [one for one in placed if one.rule.name in new])
        if not folder.problems:
            if len(_proven) >= MOST_PROVEN:
                _proven.clear()
            _proven.update(proofs.values())
            note_proven(proofs[name] for name in new)


def _written(source: Source, item: Any) -> bytes:
    """What the file says of one of its entries: all that it says where parts may stand for others. Aliases of
    aliases, written out, are millions of places."""
    return source.digest if b"&" in source.raw else repr(item).encode()


def _check_playbook_of(
    folder: _Folder,
    source: Source,
    place: int | tuple[str | int, ...],
    name: str,
    playbooks: Mapping[str, Playbook],
    faults: Sequence[str] = (),
) -> None:
    """`faults` that the rule takes: a playbook for jobs needs that each of them is told of a job."""
    # A playbook whose file is wrong has its own problem already.
    names = {path.stem for path in (folder.path / "playbooks").glob("*.yaml")}
    path = (*place, "playbook") if isinstance(place, tuple) else (place, "playbook")
    if name not in names:
        hint = did_you_mean(name, names) or f"one of {', '.join(sorted(names))}"
        source.problem(path, f"there is no playbook {name}", hint)
    elif name in playbooks and playbooks[name].target == "job" and not JOB_FAULTS.issuperset(faults or [""]):
        text = f"the playbook {name} is for a job, not for a node"
        alien = ", ".join(fault for fault in faults if fault not in JOB_FAULTS)
        hint = f"{alien}: not told of a job, as {', '.join(sorted(JOB_FAULTS))} are" if alien else ""
        source.problem(path, text, hint)
    elif name in playbooks and playbooks[name].target == "node" and JOB_FAULTS.intersection(faults):
        source.problem(path, f"the playbook {name} is for a node, and this is told of a job and of no node")
    elif name in playbooks and (needed := needs(playbooks[name])):
        text = f"the playbook {name} needs {', '.join(needed)}, which only a person gives"
        source.problem(path, text, "give its inputs a default")


def _check_fault(source: Source, path: Sequence[str | int], fault: str, known: Sequence[str]) -> None:
    if fault.count("[") != fault.count("]") or not fault.strip():
        source.problem(path, f"faults: {fault!r} is not a name or a glob")
    elif any(fault.startswith(head) for head in OPEN_FAULTS):
        return
    elif not any(fnmatchcase(name, fault) for name in known):
        faults = (*known, *OPEN_FAULTS)
        source.problem(path, f"faults: {fault} is no fault that healer knows", did_you_mean(fault, faults))


def _guards(
    folder: _Folder, overrides: dict[str, Any]
) -> tuple[GuardSettings, dict[str, GuardSettings], dict[str, GuardSettings]]:
    source = folder.source("guards.yaml", required=False)
    data = source.mapping((), source.data, "a mapping of guard settings") if source else {}
    base, special = GuardSettings(), {}
    if source is not None:
        special = {name: data.pop(name, None) for name in ("clusters", "partitions")}
        base = check_guards(source, (), data) or base
    base = msgspec.structs.replace(base, **overrides)
    places: list[dict[str, GuardSettings]] = []
    for name in ("clusters", "partitions"):
        found: dict[str, GuardSettings] = {}
        given = source.mapping((name,), special[name], f"{name} by name") if source else {}
        for place, fields in given.items():
            if source is None or not isinstance(fields, dict):
                if source is not None:
                    source.problem((name, place), f"{place}: expected guard settings")
                continue
            own = check_guards(source, (name, place), fields)
            if own is not None:
                told = {key: getattr(own, key) for key in fields}
                found[place] = msgspec.structs.replace(base, **told)
                if name == "partitions":
                    # What a partition leaves out is its cluster's, where that has values of its own.
                    for cluster, around in places[0].items():
                        found[f"{cluster}/{place}"] = msgspec.structs.replace(around, **told)
        places.append(found)
    return base, places[0], places[1]
