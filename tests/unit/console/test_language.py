"""Sentences of the console in a second language."""

from pathlib import Path

import pytest

from healer.console import language
from healer.console.language import (
    MOST_CHARS,
    Catalogue,
    CatalogueError,
    Steps,
    checked,
    chosen,
    load,
    pattern,
)

CATALOGUE = Catalogue(
    {
        "Sign out": "退出登录",
        "open": "未处理",
        "{count} nodes": "{count} 个节点",
        "{when|t}, {count} nodes are {state|t}": "{when}有 {count} 个节点{state}",
        "{count} min ago": "{count} 分钟前",
        "node {node} is out": "节点 {node} 已停用",
        "node {node} is out: {why|t}": "节点 {node} 已停用：{why}",
        "{share} % of nodes": "{share}% 的节点",
        "{where}: {what|t!}": "{where}：{what}",
        "heat {figure|n}": "温度 {figure}",
        "GPU {gpu} of {node|w}": "{node} 的 GPU {gpu}",
        "{where|t} fell off": "{where} 掉线",
    }
)


@pytest.mark.parametrize(
    ("english", "said"),
    [
        ("Sign out", "退出登录"),
        (" Sign out\n", " 退出登录\n"),
        ("12 nodes", "12 个节点"),
        ("4 min ago, 3 nodes are open", "4 分钟前有 3 个节点未处理"),
        ("node gpu1 is out", "节点 gpu1 已停用"),
        ("node gpu1 is out: 3 nodes", "节点 gpu1 已停用：3 个节点"),
        ("node open is out", "节点 open 已停用"),
        ("node gpu1 is out: somebody said so", "节点 gpu1 已停用：somebody said so"),
        ("a line of a log", "a line of a log"),
        ("gpu1: sign out", "gpu1：退出登录"),
        ("GPU 3 of gpu1", "gpu1 的 GPU 3"),
        ("GPU 3 of gpu1 fell off", "gpu1 的 GPU 3 掉线"),
        ("GPU 3 of gpu1 is odd", "GPU 3 of gpu1 is odd"),
        ("GPU 3 of gpu1: sign out", "GPU 3 of gpu1：退出登录"),
        ("heat 91 °C", "温度 91 °C"),
        ("heat of the day", "heat of the day"),
        ("gpu1: node gpu2 is out", "gpu1：节点 gpu2 已停用"),
        ("kernel: a line of a log", "kernel: a line of a log"),
        ("", ""),
    ],
)
def test_a_finished_sentence_is_translated_and_a_strange_one_kept(english: str, said: str) -> None:
    assert CATALOGUE.translate(english) == said


def test_nothing_is_not_known() -> None:
    assert not CATALOGUE.knows("")
    assert not CATALOGUE.knows("  ")
    assert CATALOGUE.knows("Sign out")


def test_a_story_is_known_as_a_whole_or_not_at_all() -> None:
    story = ("a line of a log, " * MOST_CHARS).strip()
    assert Catalogue({story: "日志"}).translate(story) == "日志"
    assert CATALOGUE.translate(f"gpu1: sign out{' ' + story}") == f"gpu1: sign out {story}"


def test_what_is_tried_for_one_text_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Catalogue({"{one|t}; {more|t}": "{one}；{more}"})
    assert chain.translate("a; b; c; d") == "a；b；c；d"
    monkeypatch.setattr(language, "MOST_STEPS", 3)
    again = Catalogue({"{one|t}; {more|t}": "{one}；{more}"})
    assert again.translate("a; b; c; d") == "a; b; c; d"


def test_a_text_made_to_be_cut_in_a_billion_ways_is_given_up() -> None:
    holes = "{figure} {value} is {share} % of {good} on {reference}; {more|t}"
    text = f"{'a ' * 90}{'is ' * 60}{'% of ' * 30}{'on ' * 60}"
    assert len(text) <= MOST_CHARS
    assert Catalogue({holes: holes}).translate(text + "; ") == text + "; "


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a is b is 5 % of c", {"what": "a is b", "share": "5", "all": "c"}),
        ("a is 5 % of c % of d", {"what": "a", "share": "5", "all": "c % of d"}),
        ("a is x % of d", None),
        ("a is 5 % of ", None),
        (" is 5 % of d", None),
    ],
)
def test_a_hole_is_as_short_as_it_can_be(text: str, parts: dict[str, str] | None) -> None:
    assert pattern("{what} is {share|n} % of {all}", "x").fits(text, Steps(100)) == parts


def test_a_name_that_stands_twice_is_the_same_twice() -> None:
    twice = pattern("{node} to {other}, {node} back", "x")
    assert twice.fits("a to b, c to d, a back", Steps(100)) == {"node": "a", "other": "b, c to d"}
    assert twice.fits("a to b, c back", Steps(100)) is None


def test_a_template_gets_the_sentence_with_its_own_placeholders() -> None:
    assert CATALOGUE.form("%(count)s nodes") == "%(count)s 个节点"
    assert CATALOGUE.form("%(share)s %% of nodes") % {"share": 5} == "5% 的节点"
    assert CATALOGUE.form("unknown %(x)s") == "unknown %(x)s"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (("Open", ""), "no text"),
        (("{n} nodes", "{m} 个"), "m stands on the right alone"),
        (("{n}", "{n}"), "would fit every text"),
    ],
)
def test_a_bad_entry_is_named(entry: tuple[str, str], said: str) -> None:
    with pytest.raises(CatalogueError, match=said):
        checked([entry], "pages.yaml")


def test_an_entry_of_two_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("no: 否\n", "utf-8")
    (tmp_path / "b.yaml").write_text("no: 不\n", "utf-8")
    with pytest.raises(CatalogueError, match=r"b.yaml: 'no'"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("cookie", "accepts", "language"),
    [
        ("zh", "en", "zh"),
        ("en", "zh-CN,zh;q=0.9", "en"),
        (None, "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        (None, "de, en;q=0.5, zh;q=0.3", "en"),
        ("xx", "", "en"),
    ],
)
def test_whose_language(cookie: str | None, accepts: str, language: str) -> None:
    assert chosen(cookie, accepts) == language
