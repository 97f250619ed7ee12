"""The documents name everything that exists, name nothing that does not, and their links lead somewhere."""

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec
import pytest
import typer

from healer.actions import CHECKS, VERBS, WAITS
from healer.commands.cli import build
from healer.decisions import GUARDS
from healer.detection.language.expr import FUNCTIONS
from healer.model import (
    AlertRule,
    Alias,
    Cancel,
    CatalogueEntry,
    Cause,
    Combination,
    DetectionRule,
    ForecastRule,
    GpuModel,
    GuardSettings,
    IncidentState,
    Ladder,
    Mode,
    NodeStatus,
    NvlinkRow,
    Place,
    Playbook,
    RecoveryAction,
    Remedy,
    Repeat,
    Role,
    Rule,
    RunState,
    ScrapeJob,
    ScrapeQuery,
    Sharing,
    Signal,
    Step,
    Verdict,
    WatchSettings,
    Xid74Bits,
)
from healer.rulebook.cases.detection_cases import DetectionCase
from healer.rulebook.cases.history_cases import At, ExpectedIncident, HistoryCase
from healer.rulebook.cases.rule_cases import ForecastCase
from healer.rulebook.ruleset import load
from healer.settings import secret_names, setting_names
from healer.signals.step_times import StepSample
from healer.signals.wire import JobCheckpointBody
from tests.support.api import Api
from tests.support.monitoring import alerts

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "SECURITY.md", *DOCS.rglob("*.md")])
#: Seen in process lists, started by `healer up` alone.
PARTS_WITHOUT_COMMAND = {"guardian"}
#: What is printed or signed, and reads like a command.
NO_COMMANDS = ("healer is ready", "healer audit checkpoint")
_FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def codes(text: str) -> set[str]:
    """The text between single backticks."""
    return set(re.findall(r"`([^`\n]+)`", _FENCED.sub("", text)))


def missing(names: Iterator[str] | list[str], name: str) -> list[str]:
    """Names that the page does not show as code, alone or within a longer piece of it."""
    shown = codes(page(name))
    return [one for one in names if not any(re.search(rf"(?<!\w){one}(?!\w)", code) for code in shown)]


def commands() -> list[str]:
    def below(command: object, path: tuple[str, ...]) -> Iterator[str]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield " ".join(path)
        else:
            for name, one in inner.items():
                yield from below(one, (*path, name))

    return list(below(typer.main.get_command(build()), ("healer",)))


def test_every_setting_is_explained() -> None:
    secrets = [f"{name}_FILE" for name in secret_names()]
    assert missing([*setting_names(), *secrets], "settings.md") == []


def test_every_route_is_explained(api: Api) -> None:
    lines = page("api.md").splitlines()
    unnamed = [
        f"{method.upper()} {path}"
        for path, operations in api.app.openapi()["paths"].items()
        for method in operations
        if not any(names(line, method.upper(), path) for line in lines)
    ]
    assert unnamed == []


def names(line: str, method: str, path: str) -> bool:
    """Whether a line of `api.md` names this route; siblings may be named by their last part alone."""
    inside = path.removeprefix("/api/v1")
    if inside == path:
        return f"`{path}`" in line
    head, _, last = inside.rpartition("/")
    alone = re.search(rf"{re.escape(inside)}[`?]", line)
    beside = f"{head}/" in line and f"`/{last}`" in line
    return method in line and bool(alone or beside)


@pytest.fixture
def api(fresh_database: object) -> Iterator[Api]:
    made = Api(fresh_database)  # type: ignore[arg-type]
    yield made
    made.close()


def test_every_command_is_explained() -> None:
    shown = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert [one for one in commands() if not re.search(rf"{one}(?![\w-])", shown)] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_names_a_command_that_is_not_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    fenced = "\n".join(_FENCED.findall(text))
    named = [one for one in codes(text) if one.startswith("healer ") and not one.startswith(NO_COMMANDS)]
    named += re.findall(r"^(?:\w+=\S+ )*(healer .*)$", fenced, re.MULTILINE)
    known = {one.removeprefix("healer ") for one in commands()} | PARTS_WITHOUT_COMMAND
    groups = {one.split()[0] for one in known}
    for one in named:
        words = re.findall(r"^healer ([a-z]+(?:-[a-z]+)*)(?: ([a-z]+(?:-[a-z]+)*))?", one)
        if not words:
            continue  # an option, or healer's name in Slurm
        first, second = words[0]
        assert first in groups, one
        assert first in known or not second or f"{first} {second}" in known, one


@pytest.mark.parametrize(
    "kind",
    [
        Rule, CatalogueEntry, RecoveryAction, NvlinkRow, Xid74Bits, DetectionRule, GpuModel, DetectionCase,
        WatchSettings, AlertRule, Sharing, Place, Repeat, Combination, Cancel, Ladder, HistoryCase, At,
        ExpectedIncident,
    ],
)  # fmt: skip
def test_every_field_of_rules_and_catalogues_is_explained(kind: type[msgspec.Struct]) -> None:
    assert missing(list(kind.__struct_encode_fields__), "rules.md") == []


@pytest.mark.parametrize(
    ("kind", "heading"), [(Rule, "## Policies: "), (DetectionRule, "## Detection rules: ")]
)
def test_the_fields_without_which_a_rule_is_refused_are_named(
    kind: type[msgspec.Struct], heading: str
) -> None:
    section = (DOCS / "rules.md").read_text(encoding="utf-8").partition(heading)[2]
    needed = re.findall(r"`(\w+)`", section.partition("Each needs ")[2].partition(".")[0])
    assert needed == [field.name for field in msgspec.structs.fields(kind) if field.required]


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (Signal, "metrics.md"),
        (ForecastRule, "detection.md"),
        (ForecastCase, "detection.md"),
        (Alias, "metrics.md"),
        (ScrapeJob, "metrics.md"),
        (ScrapeQuery, "metrics.md"),
        (StepSample, "signals.md"),
        (JobCheckpointBody, "signals.md"),
    ],
)
def test_every_field_of_signals_is_explained(kind: type[msgspec.Struct], document: str) -> None:
    assert missing(list(kind.__struct_fields__), document) == []


def test_every_guard_and_its_settings_are_explained() -> None:
    assert missing([*GuardSettings.__struct_fields__, *(guard.value for guard, _ in GUARDS)], "gate.md") == []


def test_every_function_of_the_rule_language_is_explained() -> None:
    assert missing([*FUNCTIONS], "rules.md") == []


@pytest.mark.parametrize("kind", [Playbook, Step])
def test_every_field_of_playbooks_is_explained(kind: type[msgspec.Struct]) -> None:
    assert missing(list(kind.__struct_fields__), "playbooks.md") == []


def test_every_verb_check_and_wait_is_explained() -> None:
    assert missing([*(verb.value for verb in VERBS), *CHECKS, *WAITS], "playbooks.md") == []


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (IncidentState, "concepts.md"),
        (RunState, "concepts.md"),
        (Verdict, "concepts.md"),
        (Cause, "concepts.md"),
        (Remedy, "concepts.md"),
        (NodeStatus, "concepts.md"),
        (Mode, "operate.md"),
        (Role, "api.md"),
    ],
)
def test_every_word_in_answers_is_explained(words: type[StrEnum], name: str) -> None:
    assert missing([word.value for word in words], name) == []


def test_every_runbook_that_rules_and_alerts_name_exists() -> None:
    rules = load(ROOT / "rules")
    named = {one.runbook for one in (*rules.rules, *rules.playbooks.values()) if one.runbook}
    named |= {alert["annotations"]["runbook_url"].rpartition("/")[2] for alert in alerts()}
    assert named == {path.stem for path in (DOCS / "runbooks").glob("*.md")}


def test_the_readme_shows_the_two_commands_that_a_newcomer_needs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"\nmake {target} " in readme
        assert f"\n{target}:" in makefile


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", _FENCED.sub("", text))


def anchors(path: Path) -> set[str]:
    """The anchors that headings get: small letters, spaces as dashes, no punctuation."""
    heads = re.findall(r"^#+ (.+)$", _FENCED.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for link in links(path.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        where, _, anchor = link.partition("#")
        target = (path.parent / where) if where else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_found_from_the_index() -> None:
    index = DOCS / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links(index.read_text())}
    assert [path for path in PAGES if path != index and path.resolve() not in linked] == []


#: How the tests of an attack run: on both forms, on one, or on what both have alike.
FORMS = {"both", "embedded", "packaged", "containers", "same"}


def attacks() -> list[tuple[str, list[str]]]:
    """Of the threat model: the form of each attack, and the tests that are named."""
    rows = [re.split(r" \| ", line.strip("| ")) for line in page("threat-model.md").splitlines()]
    return [(row[3], re.findall(r"`(tests/[^`]+)`", row[2])) for row in rows if len(row) == 4]


def test_each_attack_of_the_threat_model_names_tests_that_exist() -> None:
    rows = attacks()[1:]
    assert len(rows) >= 35 and {form for form, _ in rows} <= FORMS
    for form, tests in rows:
        assert tests, form
        for name in tests:
            file, _, test = name.partition("::")
            path = ROOT / file
            assert path.is_file() and f"def {test or 'test_'}" in path.read_text(encoding="utf-8"), name
        in_both = any("test_both_forms.py" in name for name in tests) or len(tests) > 1
        assert form != "both" or in_both, f"{tests} run on one form"


def test_the_threat_model_names_each_file_of_attacks_on_two_pages() -> None:
    text = page("threat-model.md")
    files = sorted((ROOT / "tests/system/security").glob("test_*.py"))
    assert [path.name for path in files if f"/{path.name}" not in text] == []
    words = [word for word in re.sub(r"\]\([^)]*\)", "]", text).split() if re.search(r"\w", word)]
    assert len(words) <= 1000
