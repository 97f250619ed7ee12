"""The console in Chinese: each sentence of a template or a script has it, no page shows English words."""

import functools
import re
from collections.abc import Iterator
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient
from jinja2 import Environment

from healer.console.render import web_dir
from healer.model import LogEntry, Remedy, StepEvent
from healer.text.language import COOKIE
from tests.support.console_pages import BROWSER, NO_PAGES, pages, read_by_people
from tests.support.console_sample import NOW, shipped
from tests.support.console_site import Site, make_sample
from tests.support.sayings import by_english

pytestmark = pytest.mark.heavy

TEMPLATES = by_english("zh", "templates")
SCRIPTS = by_english("zh", "scripts")
#: Of scripts: words that are no literal where they are asked for.
_BY_NAME = {"d", "h", "min", "s", "live", "reconnecting"}

#: Terms that an engineer in China writes so, too.
_TERMS = frozenset(
    re.findall(
        r"\S+",
        """
        Slurm healer Prometheus Redis PostgreSQL Celery Markdown Linux
        Xid SXid NVLink NVSwitch PCIe InfiniBand
        ssh tmp rank requeue drain exporter kB ms Enter Esc
        NVIDIA NVSentinel Fabric Manager Grace crossbar fabric clique None Yes No
        bank pause power brake loss credit target inode steal port level dcgmi diag hold
        kernel panic slurmctld slurmdbd slurmrestd alertmanager
        """,
    )
)


def _messages() -> Iterator[str]:
    env = Environment(extensions=["jinja2.ext.i18n"], trim_blocks=True, lstrip_blocks=True)
    for path in sorted((web_dir() / "templates").glob("*.html")):
        extracted: Any = env.extract_translations  # pyright: ignore[reportAttributeAccessIssue]  # of the extension
        for _, _, found in extracted(path.read_text("utf-8")):
            yield from (one for one in (found if isinstance(found, tuple) else (found,)) if one)


def test_each_sentence_of_a_template_has_chinese_and_none_is_left_over() -> None:
    assert set(_messages()) == set(TEMPLATES)


def _first_argument(text: str) -> str:
    """The text before the comma or the bracket that ends it."""
    depth, quoted = 0, False
    for place, sign in enumerate(text):
        if sign == '"':
            quoted = not quoted
        elif not quoted:
            if not depth and sign in ",)":
                return text[:place]
            depth += (sign in "([{") - (sign in ")]}")
    return text


def _of_scripts() -> Iterator[str]:
    for path in sorted((web_dir() / "static").glob("*.js")):
        text = path.read_text("utf-8")
        for call in re.finditer(r"\bw\(", text):
            argument = re.sub(r'=== "[^"]*"', "", _first_argument(text[call.end() :]))
            yield from re.findall(r'"([^"]*)"', argument)


def test_each_sentence_of_a_script_has_chinese_and_none_is_left_over() -> None:
    assert set(_of_scripts()) | _BY_NAME == set(SCRIPTS)


@pytest.mark.parametrize("entries", [TEMPLATES, SCRIPTS])
def test_no_name_is_lost_on_the_way(entries: dict[str, str]) -> None:
    holes = re.compile(r"%\(\w+\)s|\{\w+\}")
    names = {one: (set(holes.findall(one)), set(holes.findall(said))) for one, said in entries.items()}
    # The one form of Chinese gives the number where English says "its next run".
    assert [one for one, (ours, theirs) in names.items() if not ours <= theirs <= ours | {"%(count)s"}] == []


class _Shown(HTMLParser):
    """What a page says in healer's own words; names, code and what others wrote are left out. A runbook has a
    test of its own: it quotes what commands and pages say."""

    _ATTRIBUTES = ("aria-label", "title", "placeholder", "alt", "data-label", "data-title", "data-effect")
    _VOID = frozenset({"input", "br", "meta", "link", "img", "hr", "path"})
    _OTHERS = frozenset({"script", "style", "code", "kbd", "pre", "title", "svg"})

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self._kept: list[bool] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        classes = (attributes.get("class") or "").split()
        kept = (
            (bool(self._kept) and self._kept[-1])
            or tag in self._OTHERS
            or attributes.get("translate") == "no"
            or not {"mono", "prose"}.isdisjoint(classes)
            or (tag == "time" and "data-ago" not in attributes)
        )
        if not kept:
            self.said += [
                attributes[name] or "" for name in self._ATTRIBUTES if name in attributes and tag != "time"
            ]
        if tag not in self._VOID:
            self._kept.append(kept)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self._VOID and self._kept:
            self._kept.pop()

    def handle_data(self, data: str) -> None:
        if not (self._kept and self._kept[-1]) and data.strip():
            self.said.append(" ".join(data.split()))


#: The driver's log text follows its name, to the end.
_LOG = re.compile(r"(NVRM|nvidia-nvswitch\d): .*", re.DOTALL)
#: What others wrote, and names that are words: a reason in Slurm, a driver's abbreviation, people's hooks.
_THEIRS = re.compile(
    r"Kill task failed|swap riser, back on Friday|egress privrsperr|403 <script>.*</script>|<b>chat</b>"
    r"|^pager$|sw power cap"
)
#: A command that a person types.
_COMMAND = re.compile(r"healer (doctor|worker|messages retry|token create( --quota| --once)?)\b")
#: A token with a figure, a dot, a dash, a bar or two capitals is a name: gpu0017, run.done, gpu-reset, DRAIN.
_NAME = re.compile(r"[\d_./:@=-]|[A-Z].*[A-Z]")


@functools.cache
def _condition() -> re.Pattern[str]:
    """What a playbook asks, in words of its own."""
    steps = (step for playbook in shipped().playbooks.values() for step in playbook.steps)
    return re.compile("|".join(rf"{re.escape(step.when)}(?=。)" for step in steps if step.when))


def english(text: str, names: frozenset[str]) -> list[str]:
    """The words of a text that are neither terms nor names."""
    for others in (_LOG, _THEIRS, _COMMAND, _condition()):
        text = others.sub("", text)
    tokens = (one.strip("./:@=-") for one in re.findall(r"[A-Za-z0-9_./:@=-]{2,}", text))
    words = (one for one in tokens if re.search(r"[A-Za-z]{2}", one) and not _NAME.search(one))
    return [one for one in words if one not in _TERMS and one not in names]


def test_english_words_are_seen_and_names_are_not() -> None:
    assert english("节点 gpu0017 由 mara 排空，Slurm 显示 IDLE", frozenset({"mara"})) == []
    assert english("节点 gpu0017 is drained by mara", frozenset()) == ["is", "drained", "by", "mara"]


@pytest.fixture(scope="module")
def site() -> Site:
    return Site(make_sample(32))


@pytest.fixture(scope="module")
def client(site: Site) -> TestClient:
    cookies = {"healer_session": "cookie-good", COOKIE: "zh"}
    return TestClient(site.app, base_url="http://healer.test", cookies=cookies, headers=BROWSER)


@pytest.fixture(scope="module")
def names(site: Site) -> frozenset[str]:
    """Of people and their programs, of rules, and of steps."""
    snapshot = site.sample.standing.snapshot
    assert snapshot is not None
    people = {one.actor for detail in site.sample.details.values() for one in detail.records}
    people |= {name for one in snapshot.jobs.values() for name in (one.user, one.name, one.partition)}
    people |= {one.name for one in shipped().rules} | {str(one) for one in Remedy}
    people |= {entry.step for one in site.sample.runs.values() for entry in one.log}
    return frozenset(people | {name for one in snapshot.nodes.values() for name in one.partitions})


def _addresses(site: Site) -> list[str]:
    listed = [one for some in pages(site).values() for one in some]
    return [
        *listed,
        *(f"/?colour={one}" for one in ("verdict", "slurm", "temperature", "throttle", "steps", "lemon")),
        *(f"/?at={NOW - timedelta(hours=hours):%Y-%m-%dT%H:%MZ}" for hours in (1, 9)),
        "/?at=soon",
        *(f"/incidents/{one}" for one in site.sample.details),
        *(f"/runs/{one}" for one in site.sample.runs),
        *(f"/nodes/pod1/gpu{number:04}" for number in (1, 3, 7, 20, 26, 30, 31)),
        "/playbooks/drain",
        "/incidents/0123456789",
        *NO_PAGES,
    ]


def test_every_page_is_looked_at(site: Site) -> None:
    assert set(pages(site)) == set(read_by_people(site.app))


def test_no_page_shows_english_words(site: Site, client: TestClient, names: frozenset[str]) -> None:
    found: dict[str, list[str]] = {}
    for path in dict.fromkeys(_addresses(site)):
        answer = client.get(path)
        assert answer.status_code in (200, 404, 405), path
        parser = _Shown()
        parser.feed(answer.text)
        left = [one for one in dict.fromkeys(parser.said) if english(one, names)]
        seen = {one for some in found.values() for one in some}
        if new := [one for one in left if one not in seen]:
            found[path] = new
    assert not found, "\n".join(f"{path}\n    " + "\n    ".join(some) for path, some in found.items())


def test_a_step_that_was_rolled_back_is_named_in_chinese() -> None:
    sample = make_sample()
    name, record = next(iter(sample.runs.items()))
    undone = LogEntry(run=name, at=NOW, epoch=1, step="undo:drain", event=StepEvent.done)
    sample.runs[name] = msgspec.structs.replace(record, log=(*record.log, undone))
    with TestClient(Site(sample).app, headers=BROWSER) as client:
        client.cookies.update({"healer_session": "cookie-good", COOKIE: "zh"})
        page = client.get(f"/runs/{name}").text
    assert '<b class="mono">回滚 drain</b>' in page and '<b class="mono">drain</b>' in page
