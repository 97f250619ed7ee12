"""Loads and cross-checks all of `rules/` as one value. Everything wrong is found at once, by file and line.

Files: `xid.yaml`, `sxid.yaml`, `policies.yaml` and `playbooks/*.yaml` have to be there; `nvlink5.yaml`,
`xid154.yaml`, `xid74.yaml`, `guards.yaml`, `topology.yaml`, `watches.yaml`, `signals.yaml`, `scrape.yaml`,
`alerts.yaml`, `commands.yaml`, `sharing.yaml`, `escalations.yaml`, `ladders.yaml`, `forecasts.yaml`,
`notifications.yaml`, `access.yaml`, `prices.yaml` may be left out.
Formats: `docs/rules.md`, `docs/signals.md`, `docs/notifications.md`, `docs/sign-in.md`.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from healer.decisions.decide import takes_nothing
from healer.detection.readings import bit_pattern
from healer.incidents.certainty import CONCLUDED
from healer.model import (
    Catalogue,
    CatalogueEntry,
    GpuModel,
    GuardSettings,
    Mode,
    NvlinkRow,
    Playbook,
    RecoveryAction,
    Rule,
    Ruleset,
    Sense,
    Xid74Bits,
)
from healer.model.faults import Trait, faults_with, heads_with
from healer.model.vocabulary import UserError, did_you_mean
from healer.rulebook.access_rules import read_access
from healer.rulebook.cases.detection_cases import DETECTION_CASES, run_detection_cases
from healer.rulebook.cases.detection_cases import prove as prove_rules
from healer.rulebook.detection_rules import PlacedRule, as_policy, read_models, read_rules
from healer.rulebook.echoes import without_echoes
from healer.rulebook.escalation_rules import (
    BROKEN,
    policies_of,
    policy_of_sharing,
    read_context,
    read_escalations,
    read_ladders,
    read_sharings,
)
from healer.rulebook.forecast_rules import policy_of_forecast, read_forecasts
from healer.rulebook.line_rules import policy_of_alert, read_alerts, read_lines
from healer.rulebook.notification_rules import read_notifications
from healer.rulebook.playbook_rules import (
    ALWAYS,
    check_uses,
    read_commands,
    read_playbooks,
    read_validation,
    required_inputs,
)
from healer.rulebook.proven import proof_lock, save_proofs, saved_proofs
from healer.rulebook.rule_checks import (
    PARTITION_FIELDS,
    check_guards,
    check_known_fault,
    check_name,
    check_policy,
    is_glob,
    read_prices,
    read_topology,
    read_watches,
)
from healer.rulebook.signal_rules import read_catalogue, read_scrape
from healer.rulebook.source import Problem, Source, Where, rule_files
from healer.text import said_by, say
from healer.topology.found import FOUND, by_hand_first

__all__ = ["Problem", "RulesInvalid", "load"]

T = TypeVar("T")

#: Faults that no file lists: reported without a number, or found by other detectors than the kernel's.
OTHER_FAULTS = faults_with(Trait.by_code)
#: Faults of jobs, not of nodes: only a policy for these alone may name a playbook for jobs.
JOB_FAULTS = frozenset(faults_with(Trait.of_job))
#: Faults with an open tail: the kind of drain that Slurm set, the program that drained, the check of a node's
#: own hooks, the partition of jobs and why they wait.
OPEN_FAULTS = heads_with(Trait.by_code)


class RulesInvalid(UserError):
    """The rules cannot be used. `problems` holds everything that is wrong, by file and line."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[Any, ...]:
        return RulesInvalid, (self.problems,)  # as a process of a comparison sends it


#: The last sets that were read, by all that they depend on, and whether detection rules passed their cases.
#: `healer up` forks its parts from a process that has read theirs.
_read: dict[tuple[Any, ...], tuple[Ruleset, bool]] = {}
MOST_READ = 8
#: Folders in which each file `*.yaml` is read.
_WHOLE = frozenset({"playbooks", "detection", "cases"})


def load(
    rules_dir: Path,
    *,
    default_mode: Mode = Mode.shadow,
    settle_s: float = 2.0,
    overrides: Mapping[str, Any] | None = None,
    prove: bool = True,
) -> Ruleset:
    """Reads the folder. `overrides` are guard settings from outside; they override the general ones of
    guards.yaml, but not what that file sets for one cluster or partition. `prove`: detection rules have to
    pass their cases. Raises RulesInvalid."""
    asked = (_files_digest(rules_dir), default_mode, settle_s, repr(overrides))
    rules, is_proven = _read.get(asked, (None, False))
    if rules is None or (prove and not is_proven):
        rules = _load(rules_dir, default_mode, settle_s, overrides or {}, prove)
        if len(_read) >= MOST_READ:
            _read.clear()
        if _files_digest(rules_dir) == asked[0]:  # otherwise someone saved a file meanwhile
            _read[asked] = rules, prove
    return rules


def _files_digest(folder: Path) -> str:
    """A digest of the names and bytes of all files below the folder, and of why some cannot be read. Of a
    link to a folder elsewhere it has what a load reads there: the files, but no folders within."""
    linked = [path for path in folder.glob("*") if path.is_symlink() and path.is_dir()]
    found = list[bytes]()
    for path in sorted({*folder.rglob("*"), *(path for link in linked for path in link.glob("*"))}):
        found.append(os.fsencode(path.relative_to(folder)))
        try:
            found.append(path.read_bytes())
        except OSError as error:
            found.append(f"error {error.errno}".encode())
    return sha256_of(found)


def _load(
    rules_dir: Path, default_mode: Mode, settle_s: float, overrides: Mapping[str, Any], prove: bool
) -> Ruleset:
    problems: list[Problem] = []
    folder = _Folder(rules_dir, problems)
    codes, started = _codes(folder), _started(folder)
    named = [*(ask.fault for ask in codes["recovery_actions"].values()), *OTHER_FAULTS]
    coded = [f"xid-{code}" for code in codes["xids"]] + [f"sxid-{code}" for code in codes["sxids"]]
    known_faults = [*coded, *named, *(line.fault for line in codes["kernel_lines"].lines)]
    rules = _rules(folder, known_faults, started["playbooks"])
    guards = _guards(folder, dict(overrides))
    about = _about_site(folder)
    measured, placed = _measured(folder, rules, started["playbooks"])
    policies, opened = _opened(folder, rules, known_faults, measured, started["playbooks"])
    heads = [f"{head}*" for head in OPEN_FAULTS]
    handled = [*known_faults, *heads, *(fault for rule in policies for fault in rule.faults)]
    named = [*(rule.name for rule in policies), *started["playbooks"]]  # a person's run has its playbook's
    routable = (named, handled) if not problems else None  # else each name would be a problem of its own
    notifications = read_notifications(folder.optional("notifications.yaml"), routable)
    access = read_access(folder.optional("access.yaml"), started["playbooks"])
    _check_unread(folder)
    if prove and placed and not problems:
        _prove(folder, placed, measured["catalogue"], measured["gpu_models"])
    if problems:
        found = without_echoes(problems, folder.read)
        raise RulesInvalid(sorted(found, key=lambda problem: (problem.file, problem.line)))
    parts = codes | started | guards | about | measured | opened
    return Ruleset(
        version=folder.version(),
        rules=policies,
        notifications=notifications,
        access=access,
        default_mode=default_mode,
        settle_s=settle_s,
        **parts,
    )


def _check_unread(folder: "_Folder") -> None:
    """A YAML file that nothing reads is a mistake in its name: what it says would have no effect."""
    for path in sorted(folder.path.rglob("*.y*ml")):
        part = path.relative_to(folder.path)
        is_hidden = any(word.startswith(".") for word in part.parts)
        if path.suffix not in {".yaml", ".yml"} or is_hidden:
            continue
        anyhow = part.with_suffix(".yaml").as_posix() if str(part.parent) in _WHOLE else ""
        if (name := part.as_posix()) not in {*folder.names, anyhow}:
            hint = did_you_mean(name, filter(None, {*folder.names, anyhow}))
            printable = os.fsencode(name).decode(errors="backslashreplace")
            folder.problems.append(Problem(printable, 1, say("rulebook.file_unread"), hint))


def _codes(folder: "_Folder") -> dict[str, Any]:
    """What lines of the kernel and of the driver mean."""
    return {
        "xids": folder.by_code("xid.yaml", CatalogueEntry, lambda entry: entry.code),
        "sxids": folder.by_code("sxid.yaml", CatalogueEntry, lambda entry: entry.code),
        "recovery_actions": folder.by_code(
            "xid154.yaml", RecoveryAction, lambda ask: ask.code, required=False
        ),
        "nvlink5": _nvlink5(folder),
        "kernel_lines": read_lines(folder.optional("kernel_lines.yaml")),
        "xid74": tuple(row for _, row in folder.optional("xid74.yaml").entries(Xid74Bits)),
    }


def _started(folder: "_Folder") -> dict[str, Any]:
    """Playbooks, and what they start."""
    scripts = _scripts(folder)
    paths = rule_files(folder.path / "playbooks", "*.yaml")
    books = [folder.source(f"playbooks/{path.name}") for path in paths]
    books = [source for source in books if source.name in folder.read]
    validation = read_validation(folder.optional("validation/depths.yaml"), scripts)
    playbooks = read_playbooks(books, scripts, validation)
    commands = read_commands(folder.optional("commands.yaml"))
    check_uses(books, playbooks, commands)
    for name in ALWAYS:
        if not os.path.lexists(folder.path / "playbooks" / f"{name}.yaml"):
            folder.problems.append(Problem(f"playbooks/{name}.yaml", 1, say("rulebook.file_missing")))
    return {"scripts": scripts, "validation": validation, "playbooks": playbooks, "commands": commands}


def _about_site(folder: "_Folder") -> dict[str, Any]:
    hand, found = (read_topology(folder.optional(name)) for name in ("topology.yaml", FOUND))
    return {
        "topology": by_hand_first(hand, found),
        "context": read_context(folder.optional("context.yaml")),
        "watches": read_watches(folder.optional("watches.yaml")),
        "prices": read_prices(folder.optional("prices.yaml")),
    }


def _measured(
    folder: "_Folder", rules: Sequence[Rule], playbooks: Mapping[str, Playbook]
) -> tuple[dict[str, Any], list[PlacedRule]]:
    """What is measured and fetched, and the detection rules with their places in the files."""
    names = ("signals.yaml", *(path.name for path in rule_files(folder.path, "signals-*.yaml")))
    catalogue = read_catalogue(*map(folder.optional, names))
    scrape = read_scrape(folder.optional("scrape.yaml"), catalogue, folder.path)
    models = read_models(folder.optional("gpu_models.yaml"))
    placed: list[PlacedRule] = []
    if catalogue.signals or not folder.problems:  # otherwise each name would be a problem of its own
        paths = rule_files(folder.path / "detection", "*.yaml")
        sources = [folder.source(f"detection/{path.name}") for path in paths]
        check = partial(_check_playbook_of, folder, playbooks=playbooks)
        placed = read_rules(sources, catalogue.signals, models, rules, check)
        for found in placed:
            _check_taking(found, playbooks)
    detection = tuple(placed_rule.rule for placed_rule in placed)
    parts = {"catalogue": catalogue, "scrape": scrape, "gpu_models": models, "detection": detection}
    return parts, placed


def _check_taking(placed: PlacedRule, playbooks: Mapping[str, Playbook]) -> None:
    """Only what is broken is taken out of service, and nothing because nothing is known of it."""
    rule = placed.rule
    playbook = playbooks.get(rule.playbook) if rule.playbook is not None else None
    if playbook is None or takes_nothing(playbook):
        return
    if rule.fault_class not in BROKEN:
        placed.at.wrong("playbook", say("rulebook.only_fault_class_fatal"))
    if placed.of_silence:
        placed.at.wrong("when", say("rulebook.true_of_silence"), say("rulebook.silence_is_no_fault"))


def _opened(
    folder: "_Folder",
    rules: Sequence[Rule],
    known_faults: Sequence[str],
    measured: Mapping[str, Any],
    playbooks: Mapping[str, Playbook],
) -> tuple[tuple[Rule, ...], dict[str, Any]]:
    """All policies, and what opens incidents besides single faults: alerts, places, repeats, forecasts."""
    models, detection = measured["gpu_models"], measured["detection"]
    check = partial(_check_playbook_of, folder, playbooks=playbooks)
    policies = (*rules, *map(as_policy, detection))
    alerts = read_alerts(folder.optional("alerts.yaml"), policies, check)
    sharings = read_sharings(folder.optional("sharing.yaml"), policies)
    over_time = [*known_faults, *(rule.name for rule in detection)]
    taken = [rule.name for rule in (*policies, *alerts)]
    source = folder.optional("escalations.yaml")
    escalations = read_escalations(source, over_time, taken, models, check)
    combined = [*over_time, *(combination.name for combination in escalations.combinations)]
    ladders = read_ladders(folder.optional("ladders.yaml"), combined, models)
    source, signals = folder.optional("forecasts.yaml"), measured["catalogue"].signals
    forecasts = read_forecasts(source, signals, models, over_time, playbooks, check)
    policies = (
        *policies,
        *(policy_of_alert(alert) for alert in alerts if alert.opens),
        *map(policy_of_sharing, sharings),
        *policies_of(escalations),
        *map(policy_of_forecast, forecasts),
    )
    opened = {"alerts": alerts, "sharings": sharings, "escalations": escalations}
    return policies, opened | {"ladders": ladders, "forecasts": forecasts}


class _Folder:
    """The files read so far."""

    def __init__(self, path: Path, problems: list[Problem]) -> None:
        self.path = path
        self.problems = problems
        self.read: dict[str, bytes] = {}
        #: The files that were looked for, whether they are there or not.
        self.names: set[str] = set()

    def source(self, name: str, *, required: bool = True) -> Source:
        """An empty one if the file is missing, which is a problem if it is `required`."""
        path = self.path / name
        self.names.add(name)
        try:
            source = Source(path, name, self.problems)
        except OSError as error:
            if not isinstance(error, FileNotFoundError) or path.is_symlink():  # it leads nowhere
                self.problems.append(_unreadable(name, error))
            elif required:
                hint = "" if self.path.is_dir() else say("rulebook.there_no_folder", path=str(self.path))
                self.problems.append(Problem(name, 1, say("rulebook.file_missing"), hint))
            return Source(path, name, self.problems, raw=b"")
        self.read[name] = source.raw
        return source

    def optional(self, name: str) -> Source:
        return self.source(name, required=False)

    @cached_property
    def playbook_names(self) -> frozenset[str]:
        """The names of the files, including invalid ones."""
        return frozenset(path.stem for path in rule_files(self.path / "playbooks", "*.yaml"))

    def by_code(
        self, name: str, kind: type[T], code_of: Callable[[T], int], *, required: bool = True
    ) -> dict[int, T]:
        source = self.source(name, required=required)
        found: dict[int, T] = {}
        for at, entry in source.entries(kind):
            if code_of(entry) in found:
                at.at("code").problem(say("rulebook.code_twice", code_of=code_of(entry)))
            found[code_of(entry)] = entry
        return found

    def version(self) -> str:
        """SHA-256 over names and bytes of the files: the same files, the same version."""
        return sha256_of(part for name, raw in sorted(self.read.items()) for part in (name.encode(), raw))


def sha256_of(parts: Iterable[bytes]) -> str:
    """A hash of all parts, including where one ends and the next begins."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(f"{len(part)}\0".encode())
        hasher.update(part)
    return hasher.hexdigest()


def _nvlink5(folder: _Folder) -> tuple[NvlinkRow, ...]:
    source = folder.optional("nvlink5.yaml")
    rows: list[NvlinkRow] = []
    for at, row in source.entries(NvlinkRow):
        for pattern in row.info:
            try:
                bit_pattern(pattern)
            except ValueError as error:
                at.wrong("info", said_by(error))
        rows.append(row)
    return tuple(rows)


def _scripts(folder: _Folder) -> dict[str, str]:
    """Whole scripts by the name of their file; each is a batch job that Slurm runs unchanged."""
    found: dict[str, str] = {}
    for path in rule_files(folder.path / "validation", "*.sh"):
        name = f"validation/{path.name}"
        try:
            folder.read[name] = raw = path.read_bytes()
            found[path.stem] = raw.decode()
        except OSError as error:
            folder.problems.append(_unreadable(name, error))
            continue
        except UnicodeDecodeError:
            folder.problems.append(Problem(name, 1, say("rulebook.script_not_utf")))
            continue
        if not raw.startswith(b"#!"):
            folder.problems.append(Problem(name, 1, say("rulebook.script_no_line_slurm")))
    return found


def _rules(
    folder: _Folder, known_faults: Sequence[str], playbooks: Mapping[str, Playbook]
) -> tuple[Rule, ...]:
    source = folder.source("policies.yaml")
    rules: dict[str, Rule] = {}
    for at, rule in source.entries(Rule, unique=True):
        check_name(at, rule.name)
        check_policy(at, rule)
        _check_own_fields(at, rule)
        at.check("faults", bool(rule.faults), say("rulebook.list_empty"))
        for number, fault in enumerate(rule.faults):
            if not is_glob(fault):
                at.at("faults", number).problem(say("rulebook.faults_not_name_or", fault=fault))
            elif not fault.startswith(tuple(OPEN_FAULTS)):
                check_known_fault(at.at("faults", number), fault, (*known_faults, *OPEN_FAULTS))
        if rule.playbook is not None:
            _check_playbook_of(folder, at, rule.playbook, playbooks, rule.faults)
        rules[rule.name] = rule
    return tuple(rules.values())


def _check_own_fields(at: Where, rule: Rule) -> None:
    for name in ("detection", "forecast", "sign"):
        at.check(name, not getattr(rule, name), say("rulebook.set_by_healer"), say("rulebook.leave_out"))
    most = len(Sense) - len(CONCLUDED)  # a conclusion counts as no second sense
    at.check_between("senses", rule.senses, 1, most)


def case_sources(rules_dir: Path, problems: list[Problem], pattern: str) -> list[Source]:
    """The case files with matching names."""
    found: list[Source] = []
    for path in rule_files(rules_dir / "cases", pattern):
        name = f"cases/{path.name}"
        try:
            found.append(Source(path, name, problems))
        except OSError as error:
            problems.append(_unreadable(name, error))
    return found


def _unreadable(name: str, error: OSError) -> Problem:
    return Problem(name, 1, say("rulebook.cannot_read", strerror=error.strerror))


#: What was proven in this process: of each rule a hash of all that its proof depends on.
_proven: set[str] = set()
MOST_PROVEN = 5000


def _prove(
    folder: _Folder, placed: Sequence[PlacedRule], catalogue: Catalogue, models: Sequence[GpuModel]
) -> None:
    sources = case_sources(folder.path, folder.problems, DETECTION_CASES)
    if folder.problems:
        return
    signals = sorted(name for name in folder.read if name.startswith("signals"))
    names = (*signals, "gpu_models.yaml")
    read = [folder.read.get(name, b"") for name in names]
    cases: dict[str, list[bytes]] = {}
    for source in sources:
        for item in source.items():
            rule = str(item.get("rule")) if isinstance(item, dict) else ""
            cases.setdefault(rule, []).append(_written(source, item))
    proofs = {
        placed_rule.rule.name: sha256_of(
            [
                *read,
                _written(placed_rule.at.source, placed_rule.at.source.data[placed_rule.at.path[0]]),
                *cases.get(placed_rule.rule.name, ()),
            ]
        )
        for placed_rule in placed
    }
    _proven.update(saved_proofs(set(proofs.values()) - _proven))
    new = {name for name, proof in proofs.items() if proof not in _proven}
    if not new and cases.keys() <= proofs.keys():
        return
    rules = {placed_rule.rule.name: placed_rule.rule for placed_rule in placed}
    with proof_lock():
        meanwhile = saved_proofs(proofs[name] for name in new)
        new = {name for name in new if proofs[name] not in meanwhile}
        outcomes = run_detection_cases(sources, rules, catalogue, models, only=new)
        if not folder.problems:  # otherwise a rule may lack only the case that is wrong
            prove_rules(outcomes, [placed_rule for placed_rule in placed if placed_rule.rule.name in new])
        if not folder.problems:
            if len(_proven) >= MOST_PROVEN:
                _proven.clear()
            _proven.update(proofs.values())
            save_proofs(proofs[name] for name in new)


def _written(source: Source, item: Any) -> bytes:
    """An entry as its file has it; of a file with aliases the digest of all of it. Aliases of aliases,
    written out, are millions of places."""
    return source.digest if b"&" in source.raw else repr(item).encode()


def _check_playbook_of(
    folder: _Folder, at: Where, name: str, playbooks: Mapping[str, Playbook], faults: Sequence[str] = ()
) -> None:
    """`faults` that the rule takes: a playbook for jobs needs that all of them are faults of jobs."""
    # A playbook whose file is wrong has its own problem already.
    names = folder.playbook_names
    at = at.at("playbook")
    if name not in names:
        hint = did_you_mean(name, names) or say("rulebook.one_of", words=", ".join(sorted(names)))
        at.problem(say("rulebook.there_no_playbook", name=name), hint)
    elif name in playbooks and playbooks[name].target == "job" and not JOB_FAULTS.issuperset(faults or [""]):
        text = say("rulebook.playbook_for_job_not", name=name)
        alien = ", ".join(fault for fault in faults if fault not in JOB_FAULTS)
        hint = (
            say("rulebook.not_given_to_job", alien=alien, job_faults=", ".join(sorted(JOB_FAULTS)))
            if alien
            else ""
        )
        at.problem(text, hint)
    elif name in playbooks and playbooks[name].target == "node" and JOB_FAULTS.intersection(faults):
        at.problem(say("rulebook.playbook_for_node_this", name=name))
    elif name in playbooks and (needed := required_inputs(playbooks[name])):
        text = say("rulebook.playbook_needs_which_only", name=name, needed=", ".join(needed))
        at.problem(text, say("rulebook.give_its_inputs_default"))


def _guards(folder: _Folder, overrides: dict[str, Any]) -> dict[str, Any]:
    source = folder.optional("guards.yaml")
    data = source.mapping((), source.data)
    special = {name: data.pop(name, None) for name in ("clusters", "partitions")}
    base = msgspec.structs.replace(check_guards(source.at(), data) or GuardSettings(), **overrides)
    places: list[dict[str, GuardSettings]] = []
    for name, by_name in special.items():
        found: dict[str, GuardSettings] = {}
        for place, fields in source.mapping((name,), by_name).items():
            if not isinstance(fields, dict):
                source.at(name, place).problem(say("rulebook.expected_guard_settings", place=place))
                continue
            at = source.at(name, place)
            for field in fields if name == "partitions" else ():
                if field in GuardSettings.__struct_fields__ and field not in PARTITION_FIELDS:
                    hint = say("rulebook.one_of", words=", ".join(PARTITION_FIELDS))
                    at.wrong(field, say("rulebook.not_of_partition"), hint)
            settings = check_guards(at, fields)
            if settings is not None:
                given = {key: getattr(settings, key) for key in fields}
                found[place] = msgspec.structs.replace(base, **given)
                if name == "partitions":
                    # Fields that a partition leaves out are its cluster's, if that has values of its own.
                    for cluster, around in places[0].items():
                        found[f"{cluster}/{place}"] = msgspec.structs.replace(around, **given)
        places.append(found)
    return {"guards": base, "cluster_guards": places[0], "partition_guards": places[1]}
