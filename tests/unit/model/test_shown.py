"""Nothing that a reader cannot see leaves healer: every way out, with all code points."""

import ast
import io
import json
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import DictLoader

from healer import bootstrap, console, hooks
from healer.adapters.notify import alertmanager, group_bots, mail, pagerduty, slack
from healer.adapters.tickets.desk import DeskTickets, Found
from healer.adapters.webhook import WebhookNotifier
from healer.api.problems import Problem
from healer.api.responses import answer
from healer.commands import Failed, cli, print_line, say_json
from healer.commands.remote import print_json, print_table
from healer.console import fleet_map, machine_pages
from healer.console.render import Renderer, markdown_file, text_file
from healer.console.views import report_charts_view
from healer.console.views.svg_charts import Kind, Series, SvgChart, Unit
from healer.console.views.svg_lanes import Lane, LaneChart, Span
from healer.decisions.comments import Remark, with_remark
from healer.model import About, Channel, ChannelKind, Message, Severity, Ticket
from healer.model.shown import one_line, shown, shown_json
from healer.model.slurm import plain
from healer.telling.news import notice_of
from healer.text import quoted

AT = datetime(2026, 11, 20, 3, tzinfo=UTC)
TURNS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
UNSEEN = {0xAD, 0x61C, 0x200B, 0x200E, 0x200F, 0x2060, 0x3164, 0xFEFF, 0xFFF9, 0xFFFA, 0xFFFB}
REAL = "显卡掉了，节点　gpu0017 – é ü ß 東京 서울 مرحبا می\u200cخواهم नमस्ते क्\u200dष 👩\u200d💻 ❤\ufe0f €½→█"


#: All code points, and joiners within a name.
ALL = "".join(map(chr, range(sys.maxunicode + 1))) + "gpu\u200d1 gpu\u200c1"
#: What no reader sees, by Unicode's own tables and not by ours.
HIDDEN = frozenset(
    letter
    for letter in ALL
    if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")
    or unicodedata.bidirectional(letter) in TURNS
    or ord(letter) in UNSEEN
    or 0xE0000 <= ord(letter) < 0xE0080
)


def hidden(text: str, keep: str = "") -> str:
    return "".join(sorted((HIDDEN & set(text)) - set(keep)))


#: What must not come out, for the ways out that are bounded: in pieces that none of them cuts.
BAD = "".join(sorted(HIDDEN))
PIECES = ["a".join(BAD[at : at + 60]) for at in range(0, len(BAD), 60)]


def test_all_code_points_are_fit_for_eyes() -> None:
    assert hidden(shown(ALL)) == ""
    assert hidden(shown(ALL, keep="\n\t")) == "\t\n"
    assert hidden(one_line(ALL)) == ""
    assert not {"\u200c", "\u200d"} & set(shown("gpu\u200d1 gpu\u200c1 节\u200d点")), "a joiner within a name"


def test_text_of_all_scripts_stays() -> None:
    assert shown(REAL) == REAL
    # Letters, marks, digits, signs: of every assigned one that can be seen.
    seen = "".join(letter for letter in ALL if unicodedata.category(letter)[0] in "LNPSM")
    lost = set(seen) - set(shown(seen))
    assert all("FILLER" in unicodedata.name(letter) or "INHERENT" in unicodedata.name(letter)
               or unicodedata.name(letter) == "COMBINING GRAPHEME JOINER" or "MONGOLIAN FREE" in
               unicodedata.name(letter) for letter in lost)  # fmt: skip


@given(st.text(st.characters(codec=None)))
def test_once_is_enough(text: str) -> None:
    assert shown(shown(text)) == shown(text)
    assert hidden(shown(text)) == ""


def test_a_large_answer_costs_little_more_than_one_pass_over_it() -> None:
    """Anybody may ask for some, and others wait meanwhile."""
    document = json.dumps("a node – " * 25_000, ensure_ascii=False)

    def cost_s(work: Callable[[], object]) -> float:
        times = []
        for _ in range(5):
            began_s = time.process_time()
            work()
            times.append(time.process_time() - began_s)
        return min(times)

    one_pass_s = cost_s(lambda: re.sub("[^ -~]", "-", document))
    assert cost_s(lambda: shown_json(document)) < 2 * one_pass_s


@given(st.recursive(st.text(st.characters(codec=None)), lambda inner: st.lists(inner, max_size=3)))
def test_json_for_a_terminal_is_the_same_document(document: Any) -> None:
    text = shown_json(json.dumps(document, ensure_ascii=False))
    assert hidden(text) == ""
    assert json.loads(text) == json.loads(json.dumps(document))


@pytest.mark.parametrize(
    ("put", "keep"),
    [
        (print_line, "\n"),
        (lambda text: print_line(text, err=True), "\n"),
        (lambda text: print_line(text, lines=True), "\n\t"),
        (print_json, "\n"),
        (lambda text: say_json(msgspec.json.encode(text.encode("utf-8", "replace").decode())), "\n"),
    ],
    ids=["say", "error", "lines", "json", "bytes"],
)
def test_the_command_line(put: Callable[[str], None], keep: str, capfd: pytest.CaptureFixture[str]) -> None:
    put(ALL)
    said = "".join(capfd.readouterr())
    assert len(said) > sys.maxunicode
    assert hidden(said, keep) == ""


def test_tables(capfd: pytest.CaptureFixture[str]) -> None:
    print_table(["NODE", "JOB"], [["gpu0001", piece] for piece in PIECES])
    said = capfd.readouterr().out
    assert said.count("\n") == len(PIECES) + 1
    assert hidden(said, "\n") == ""


def test_how_a_command_fails(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def refused() -> Callable[[object], None]:
        raise Failed(ALL)

    monkeypatch.setattr(cli, "build", refused)
    with pytest.raises(SystemExit):
        cli.main(["nodes"])
    assert hidden(capfd.readouterr().err, "\n") == ""


def test_commands_print_by_one_way_only() -> None:
    """A `typer.echo` or a `print`, to standard error too, would go past the symbols."""
    folder = Path(cli.__file__).parent
    past = [
        f"{path.name}:{node.lineno}"
        for path in sorted({*folder.glob("*.py")} - {folder / "__init__.py", folder / "cli.py"})
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Attribute) and node.attr in ("echo", "secho"))
        or (isinstance(node, ast.Name) and node.id == "print")
    ]
    assert past == []


@pytest.fixture
def _logging() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("_logging")
@pytest.mark.parametrize("configure", [bootstrap.log_to_stderr, bootstrap.log_as_json])
def test_logs(configure: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    configure()
    log = structlog.get_logger()
    log.warning("a line of others", line=ALL, node=[ALL[:200]])
    log.warning(ALL)
    try:
        raise ValueError(ALL)
    except ValueError:
        log.exception("it failed", why=ALL[:100])
    lines = out.getvalue()
    assert hidden(lines, "\n") == ""
    assert "a line of others" in lines


def notice(text: str) -> Any:
    about = About(node="gpu0001", preview=(text,))
    message = Message(id="1f2e3d4c:p0", cluster="pod1", title=text, text=f"Job: {text}\n{text}",
                      severity=Severity.P0, page=True, about=about)  # fmt: skip
    return notice_of(message, AT, page=True, console_url="https://healer.example")


def test_every_notice() -> None:
    made = notice(ALL)
    assert hidden(made.text, "\n") == ""
    assert hidden("".join(made.preview)) == ""


CHANNEL = Channel(
    name="m", kind=ChannelKind.email, server="127.0.0.1:25", sender="h@x.example", to=("a@x.example",)
)
DRAWN: dict[str, Callable[[Any], Any]] = {
    "slack": slack.message,
    "dingtalk": lambda it: group_bots._dingtalk_body(it, ("13800000000",)),
    "feishu": group_bots._feishu_body,
    "wecom": group_bots._wecom_body,
    "pagerduty": lambda it: pagerduty.body(it, "key", "alert"),
    "alertmanager": lambda it: alertmanager.alert(it, AT),
}


@pytest.mark.parametrize("name", DRAWN)
def test_chats_and_pagers(name: str) -> None:
    for piece in PIECES:
        body = json.dumps(DRAWN[name](notice(piece)), ensure_ascii=False).replace("\\n", "")
        assert hidden(body) == ""
        assert "\\u00" not in body


def test_mails() -> None:
    for piece in PIECES:
        raw = mail.letter(notice(piece), "", CHANNEL, AT).as_bytes()
        read = message_from_bytes(raw, policy=policy.default)
        assert hidden(str(read["Subject"])) == ""
        for part in read.iter_parts():
            assert hidden(part.get_content(), "\n") == ""


class Desk:
    """Keeps the ticket it gets."""

    calls: Any = SimpleNamespace(delivery=nullcontext)
    settles_s = 0.0
    ticket: Ticket

    def find(self, key: str, since: datetime | None) -> Found | None:
        return None

    def create(self, ticket: Ticket, key: str) -> Found:
        self.ticket = ticket
        return Found(name="T-1", handle="1", closed=False)


def test_tickets() -> None:
    desk: Any = Desk()
    DeskTickets(desk).send(
        Ticket(id="k:ticket", cluster="pod1", node="n", incident=None, title=ALL, text=ALL)
    )
    assert hidden(desk.ticket.title) == ""
    assert hidden(desk.ticket.text, "\n\t") == ""


def test_webhook_messages_contain_no_hidden_characters() -> None:
    sent: list[Any] = []
    hook: Any = SimpleNamespace(post=sent.append)
    WebhookNotifier(hook).send(Message(id="1", cluster="pod1", title=ALL, text=ALL, severity=Severity.P1))
    assert hidden(sent[0]["data"]["title"]) == ""
    assert hidden(sent[0]["data"]["text"], "\n\t") == ""


def test_slurm_reasons_contain_no_hidden_characters() -> None:
    assert all(" " <= letter <= "~" for letter in plain(ALL))
    for piece in PIECES:
        assert hidden(with_remark("", Remark(text=piece))) == ""


def test_pages() -> None:
    render = Renderer()
    for env in render._envs.values():
        env.loader = DictLoader({"any": "<p title='{{ foreign }}'>{{ foreign }}</p>"})
    page = bytes(render.page("any", foreign=ALL).body).decode()
    assert hidden(page, "\n\t") == ""
    assert len(page) > sys.maxunicode
    assert hidden(bytes(markdown_file("a.md", ALL).body).decode(), "\n\t") == ""


TRANSLATE: Callable[[str], str] = str


def test_charts_and_what_a_pointer_shows_on_them() -> None:
    lane = Lane(name=BAD, spans=(Span(begin=AT, end=None, text=BAD, tone="warn"),))
    until = AT + timedelta(hours=1)
    lanes = LaneChart(id="a", title=BAD, note=BAD, lanes=(lane,), since=AT, until=until, ticks=((AT, BAD),))
    series = Series(name=BAD, values=(1.0, 2.0))
    chart = SvgChart(id="b", title=BAD, note=BAD, kind=Kind.bars, unit=Unit.nodes, times=(BAD, BAD),
                     ticks=((0, BAD),), series=(series,))  # fmt: skip
    render = Renderer()
    for env in render._envs.values():
        env.loader = DictLoader({"any": "{{ chart|svg }}{{ lanes|lanes }}"})
    page = bytes(render.page("any", chart=chart, lanes=lanes).body).decode()
    assert "<title>" in page and len(page) > 10 * len(BAD)
    assert hidden(page, "\n\t") == ""
    file = text_file("a.csv", report_charts_view.csv_text(chart, TRANSLATE), "text/csv")
    assert hidden(bytes(file.body).decode(), "\n\t") == ""


def test_data_for_page_scripts_contains_no_hidden_characters() -> None:
    """Scripts put the data on the page and into tooltips."""
    asks: Any = SimpleNamespace(headers={})
    text = json.dumps({"name": BAD.encode("utf-8", "replace").decode()}, ensure_ascii=False)
    assert hidden(bytes(machine_pages._json(asks, text).body).decode()) == ""
    assert hidden(fleet_map._encode({"name": BAD.encode("utf-8", "replace").decode()}).decode()) == ""


def test_the_console_answers_in_these_ways_only() -> None:
    """A `Response` with a body that is made elsewhere would go past the symbols."""
    made = {
        f"{path.name}:{where.name}"
        for path in Path(console.__path__[0]).rglob("*.py")
        for where in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(where, ast.FunctionDef)
        for call in ast.walk(where)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Response"
        and call.args
    }  # fmt: skip
    assert made == {
        "render.py:text_file", "render.py:page", "machine_pages.py:_json",
        "render.py:response",  # files that ship
        "fleet_pages.py:fleet_json",  # what `fleet_map` encodes
    }  # fmt: skip


def test_api_answers_escape_hidden_characters() -> None:
    """People print answers: the documents are the same, with escapes for hidden characters."""
    foreign = {"line": ALL.encode("utf-8", "replace").decode()}
    asks: Any = SimpleNamespace(method="GET", headers={})
    body = bytes(answer(asks, foreign).body).decode()
    assert hidden(body) == "" and json.loads(body) == foreign
    problem = bytes(Problem(422, quoted(foreign["line"])).response().body).decode()
    assert hidden(problem) == "" and "gpu" in problem


@pytest.mark.parametrize("program", ["healer-hook", "healer-follow", "healer-ship"])
def test_node_programs_print_no_hidden_characters(program: str) -> None:
    """The output goes to the log of slurmd, the journal and syslog. A blank letter hides nothing."""
    loader = SourceFileLoader(program.replace("-", "_"), str(Path(hooks.__path__[0]) / program))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    made = module_from_spec(spec)
    loader.exec_module(made)
    assert set(hidden(made.seen(ALL))) <= {"\u3164"}
    assert made.seen("显卡 gpu0017 é \x1b[2J\n") == "显卡 gpu0017 é ?[2J?"
