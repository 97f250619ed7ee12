"""What the shipped rules say on pages, and the runbooks, stand in Chinese too."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from healer.console.render import Runbooks
from healer.detection.presentation import label
from healer.incidents.incident_verdict import sentence_of
from healer.model import Component, FaultClass
from healer.rulebook.ruleset import load
from healer.rulebook.runbooks import runbooks_dir
from healer.text import in_language, language, quoted
from healer.text.catalogues import term
from tests.support.gate import incident

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[3]
RULES = load(ROOT / "rules", prove=False)
ENGLISH, CHINESE = ROOT / "docs/runbooks", ROOT / "docs/runbooks/zh"


def chinese(text: str) -> str:
    """As a page shows it; the same text where the catalogue lacks it."""
    return term("zh", text)


RUNBOOKS = sorted(path.stem for path in ENGLISH.glob("*.md"))
#: Names, and what has none but names in it: the same in both languages.
SAME = {"kernel panic", "B100/GB200"}
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_CHINESE = re.compile(r"[\u3000-\u9fff\uff00-\uffef]")


def titles() -> Iterator[str]:
    yield from (one.title for one in RULES.rules)
    yield from (one.title for one in (*RULES.detection, *RULES.forecasts, *RULES.alerts, *RULES.sharings))
    yield from (one.title for one in (*RULES.escalations.repeats, *RULES.escalations.combinations))


def catalogue_titles() -> Iterator[str]:
    """What findings say by a catalogue: it is a title too."""
    for entry in (*RULES.xids.values(), *RULES.sxids.values()):
        yield entry.text
        yield from (other.text for other in entry.by_model if other.text)
    yield from (one.text for one in (*RULES.recovery_actions.values(), *RULES.kernel_lines.lines))


def beside() -> Iterator[str]:
    """What a verdict quotes beside it, and what decides."""
    yield from (entry.note.partition(". ")[0].rstrip(".") for entry in RULES.xids.values() if entry.note)
    yield from (entry.note.partition(". ")[0].rstrip(".") for entry in RULES.sxids.values() if entry.note)
    yield from (row.note for row in RULES.nvlink5 if row.note)
    yield from (row.text for row in RULES.xid74)
    yield from (one.text for one in RULES.escalations.cancels)
    yield from (one.retest.text for one in RULES.ladders)


def steps() -> Iterator[str]:
    for playbook in RULES.playbooks.values():
        yield playbook.title
        yield from (given.help for given in playbook.inputs.values() if given.help)
        for step in playbook.steps:
            yield step.title
            by_hand = step.input.get("by_hand")
            if isinstance(by_hand, str):
                yield by_hand


def signals() -> Iterator[str]:
    yield from (signal.text for signal in RULES.catalogue.signals.values())


@pytest.mark.parametrize("texts", [titles, catalogue_titles, beside, steps, signals])
def test_every_text_of_the_shipped_rules_is_there(texts: type[Iterator[str]]) -> None:
    known = {text for text in texts() if text}
    assert len(known) > 30
    assert [text for text in sorted(known - SAME) if not _CHINESE.search(chinese(text))] == []


def test_sources_of_rules_have_a_chinese_form_except_names() -> None:
    sources = {
        one.source
        for one in (
            *RULES.detection,
            *RULES.forecasts,
            *RULES.alerts,
            *RULES.xids.values(),
            *RULES.sxids.values(),
        )
        if one.source
    }
    unknown = {source for source in sources if not _CHINESE.search(chinese(source))}
    assert unknown == {
        "node-exporter mixin",
        "nvidia-smi fabric/health/summary",
        "node_exporter vmstat oom_kill",
    }


@pytest.mark.parametrize(
    "root",
    [
        Component(cluster="pod1", node="gpu0017", gpu=3),
        Component(cluster="pod1", node="gpu0017"),
        Component(cluster="pod1", job="4711"),
        Component(cluster="pod1", device="leaf-3"),
    ],
    ids=str,
)
def test_an_incidents_sentence_begins_with_every_title(root: Component) -> None:
    strange = []
    for title in {*titles(), *catalogue_titles()}:
        one = incident(
            fault="a-fault", fault_class=FaultClass.degraded, title=quoted(title), root=root, evidence=()
        )
        head = in_language(sentence_of(one, 1.0), "zh")
        if title in head and title not in SAME:
            strange.append(head)
    assert strange == []


def test_every_measured_signal_and_unit_has_a_chinese_label() -> None:
    """Signals that a rule measures or gives as evidence, and units of forecasts."""
    names = {name for rule in RULES.detection for name in (rule.signal, *rule.evidence)}
    words = {label(RULES.catalogue.signals[name]) for name in names}
    words |= {rule.unit for rule in RULES.forecasts if " " in rule.unit}
    assert [one for one in sorted(words) if " " in one and chinese(one) == one] == []


def said_by_tests() -> Iterator[str]:
    """What `rules/validation/*.sh` say, with a figure for each variable of shell, awk and Python."""
    for script in RULES.scripts.values():
        for line in script.splitlines():
            shell = re.search(r'(?:echo "healer-says |untested "|fail ")([^"]+)', line)
            awk = re.search(r'print ("GPU [^;]*)', line)
            python = re.search(r'"((?:healer-says \d|GPUs?|core) [^"]*%[^"]*)"', line)
            if shell:
                yield re.sub(r"\$\(.*|\$\{[^}]*\}|\$\w+|\$[#?*]", "7", shell[1])
            elif awk:
                yield "".join(words or "7" for words, _ in re.findall(r'"([^"]*)"|(\S+)', awk[1]))
            elif python:
                yield re.sub(r"%[ds]", "7", python[1].removeprefix("healer-says "))


def test_every_sentence_of_the_node_tests_has_a_chinese_form() -> None:
    known = {text for text in said_by_tests() if re.search(r"[a-z]", text)}
    assert len(known) > 50
    assert [text for text in sorted(known) if "7" not in text and not _CHINESE.search(chinese(text))] == []


def parts(path: Path) -> dict[str, object]:
    """What a runbook has in either language: commands, links, and how it is laid out."""
    text = path.read_text("utf-8")
    prose = _FENCED.sub("", text)
    links = (link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", prose))
    return {
        "blocks": _FENCED.findall(text),
        "code": Counter(re.findall(r"`([^`\n]+)`", prose)),
        "links": Counter((Path(where).name, place) for where, _, place in links),
        "headings": re.findall(r"^#+ ", prose, re.MULTILINE),
        "rows": [line.count("|") for line in prose.splitlines() if line.startswith("|")],
        "points": re.findall(r"^(?:-|\d+\.) ", prose, re.MULTILINE),
    }


@pytest.mark.parametrize("name", RUNBOOKS)
def test_a_runbook_has_the_same_commands_and_links_in_chinese(name: str) -> None:
    assert parts(CHINESE / f"{name}.md") == parts(ENGLISH / f"{name}.md")
    prose = _FENCED.sub("", (CHINESE / f"{name}.md").read_text("utf-8"))
    assert [line for line in re.findall(r"^#+ .*$", prose, re.MULTILINE) if not _CHINESE.search(line)] == []


def test_no_chinese_runbook_is_left_over() -> None:
    assert sorted(path.stem for path in CHINESE.glob("*.md")) == RUNBOOKS


@pytest.fixture
def in_chinese() -> Iterator[None]:
    before = language.current.set("zh")
    yield
    language.current.reset(before)


@pytest.mark.usefixtures("in_chinese")
def test_a_runbook_is_shown_in_the_language_of_the_request() -> None:
    books = Runbooks(runbooks_dir())
    assert books.title("gpu-reset") == "复位 GPU"
    html = books.html("gpu-reset")
    assert "<strong>healer 的动作</strong>" in html and 'href="/runbooks/validate"' in html
    assert [name for name in RUNBOOKS if "**" in books.html(name)] == []


@pytest.mark.usefixtures("in_chinese")
def test_a_runbook_that_has_no_chinese_is_shown_in_english(tmp_path: Path) -> None:
    (tmp_path / "zh").mkdir()
    (tmp_path / "site.md").write_text("# Ours\n\nCall Mara.\n", "utf-8")
    (tmp_path / "zh" / "stray.md").write_text("# 多余\n", "utf-8")
    books = Runbooks(tmp_path)
    assert (books.title("site"), "Call Mara" in books.html("site")) == ("Ours", True)
    assert "stray" not in books
