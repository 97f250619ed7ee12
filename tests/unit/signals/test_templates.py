# ruff: noqa: E501 - lines of exporters are long
"""Scrapes that look like one before are read as a whole, and give what they would give line by line."""

import math
import tracemalloc
from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from healer.signals import templates
from healer.signals.series import Measured
from healer.signals.templates import NO_SAMPLE, UNWANTED, Line, Template, Templates, first_sample_of
from tests.support.measuring import NOW, Bench, known

TEXTS = (
    "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).",
    'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-aa",modelName="NVIDIA H100 80GB",Hostname="gpu0001"} ',
    'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-aa",modelName="NVIDIA H100 80GB",Hostname="gpu0001"} ',
    'DCGM_FI_DEV_FB_USED{gpu="0",Hostname="gpu0001",GPU_I_ID="3"} ',
    'node_edac_uncorrectable_errors_total{controller="0",instance="gpu0001:9100"} ',
    'node_edac_uncorrectable_errors_total{controller="1",instance="gpu0001:9100"} ',
    'node_load1{instance="gpu0001:9100"} ',
    'node_load1{instance="gpu0002:9100"} ',
    'node_load1{instance="nowhere:9100"} ',
    'go_gc_duration_seconds{quantile="0.5"} ',
    "go_goroutines ",
    ' node_load5{instance="gpu0001:9100"} ',
    '{"node_load15",instance="gpu0001:9100"} ',
    '{"go.goroutines"} ',
    '{instance="gpu0001:9100"} ',
    "  # a note",
    "",
)  # fmt: skip
VALUES = (
    "0",
    "61",
    "-1.5",
    "1e3",
    "NaN",
    "+Inf",
    "2147483632",
    "oops",
    "",
    "7 ",
    "7 1795000000000",
    "1,2",
    "[1]",
    "1\r",
    "x y",
    "null",
    "1_000",
    "\uff13",
)


def take(bench: Bench, text: str, now: datetime = NOW, node: str | None = None) -> Measured:
    return bench.translator.exposition(text.encode(), known, now, node=node)


def outcome(bench: Bench, taken: Measured) -> object:
    reports = [(one.node, one.at, sorted(bench.values(one).items(), key=str)) for one in taken.reports]
    unknown = {name: (one.why, one.count, one.example) for name, one in taken.unknown.items()}
    wrong = [(one.index, one.reason) for one in taken.rejected]
    return sorted(reports), taken.samples, taken.unrecognised, unknown, wrong, taken.rejected_more


def written(lines: list[tuple[str, str]]) -> str:
    return "\n".join(text if not text or text[0] == "#" else text + value for text, value in lines)


_lines = st.lists(st.tuples(st.sampled_from(TEXTS), st.sampled_from(VALUES)), min_size=1, max_size=12)


@pytest.mark.heavy
@settings(deadline=None, max_examples=50)
@example([(TEXTS[1], "0")] * 3, ["0", "7 ", *["0"] * 10], None)
@given(
    _lines, st.lists(st.sampled_from(VALUES), min_size=12, max_size=12), st.sampled_from([None, "gpu0001"])
)
def test_a_scrape_that_comes_again_gives_what_its_lines_give(
    lines: list[tuple[str, str]], values: list[str], node: str | None
) -> None:
    first = written([(text, "1") for text, _ in lines])
    again = written([(text, values[place]) for place, (text, _) in enumerate(lines)])
    whole, single = Bench(), Bench()
    for _ in range(3):
        take(whole, first, node=node)
        take(single, first, node=node)
    # One more empty line: another shape, of which nothing is remembered yet.
    assert outcome(whole, take(whole, again, node=node)) == outcome(
        single, take(single, again + "\n", node=node)
    )


def made(*texts: str) -> Template:
    lines = [Line(text.encode(), NO_SAMPLE if text[0] == "#" else 7) for text in texts]
    return Template(lines, (1, None), None)


def read(template: Template, body: bytes) -> list[float] | None:
    values = template.values(body)
    return None if values is None else values.tolist()


def test_values_follow_the_texts() -> None:
    assert read(made("# a", "x{} ", "y "), b"# a\nx{} 1\ny -2.5e3") == [1, -2500]
    (number,) = read(made("x "), b"x NaN") or [0.0]
    assert math.isnan(number)


@pytest.mark.parametrize(
    "body",
    [b"# b\nx{} 1\ny 2", b"\nx{} 1\ny 2", b"# a\n1\ny 2", b"# a\nx{} 1\ny ", b"# a\nx{} 1,2\ny 3", b"# a\nx{} 1\nz 2", b"# a x\nx{} 1\ny 2"],
)  # fmt: skip
def test_a_body_that_is_another_one_does_not_fit(body: bytes) -> None:
    assert read(made("# a", "x{} ", "y "), body) is None


def test_unwanted_lines_are_counted_without_a_value() -> None:
    lines = [Line(b"a ", UNWANTED, "a"), Line(b"x ", 3), Line(b"a{} ", UNWANTED, "a")]
    template = Template(lines, (1, None), None)
    assert read(template, b"a 1\nx 2\na{} 3") == [2]
    assert (template.slots.tolist(), template.unwanted) == ([3], {"a": 2})


def test_a_scrape_begins_with_its_first_sample() -> None:
    assert first_sample_of("n", b'# a\n\nx{b="c d"} 1\ny 2') == ("n", b'x{b="c d"} ')
    assert [first_sample_of("", body) for body in (b"# a\n", b"# a", b"\n", b"")] == [None] * 4


def test_of_another_age_it_is_no_more() -> None:
    store, template, begin = Templates(), made("x "), ("", b"x ")
    store.add((begin, 1), template)
    found = store.read(begin, b"x 1", (1, NOW))
    assert found is not None and found[0] is template
    assert store.read(begin, b"x 1", (2, NOW)) is None
    store.add((begin, 1), Template([Line(b"x ", 7)], (1, NOW), None))
    assert store.read(begin, b"x 1", (1, NOW)) is not None
    assert store.read(begin, b"x 1", (1, NOW + timedelta(minutes=1))) is None


def test_of_two_that_begin_alike_each_is_found() -> None:
    store, begin = Templates(), ("n", b"x ")
    short, long = made("x ", "y "), made("x ", "y ", "z ")
    store.add((begin, 2), short)
    store.add((begin, 3), long)
    for _ in range(2):
        for body, template in ((b"x 1\ny 2", short), (b"x 1\ny 2\nz 3", long)):
            found = store.read(begin, body, (1, None))
            assert found is not None and found[0] is template
    assert store.read(begin, b"x 1", (1, None)) is None


def test_they_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "LINES_MAX", 10)
    monkeypatch.setattr(templates, "BYTES_MAX", 5_000)
    store = Templates()
    body = b"a 1\nb 1\nc 1\nd 1"
    begins = [("", b"%d " % number) for number in range(20)]
    for begin in begins:
        store.add((begin, 4), made("a ", "b ", "c ", "d "))
        assert len(store) <= 10
        assert store.read(begin, body, (1, None)) is not None
    store.add((begins[-1], 4), made("a " * 3_000))
    assert store.read(begins[-1], body, (1, None)) is None
    assert store.size <= 5_000


def test_template_that_never_repeats_is_made_less_often() -> None:
    store, key = Templates(), (("", b"x "), 1)
    assert sum(store.worth_making(key) for _ in range(1000)) == 10
    store.add(key, made("x "))
    assert store.read(key[0], b"x 1", (1, None)) is not None
    assert store.worth_making(key)


def test_misses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "_MISSES_MAX", 5)
    store = Templates()
    for number in range(100):
        store.worth_making((("", b"%d " % number), 1))
        assert len(store._misses) <= 5


def test_a_node_that_slurm_shows_no_more_is_not_kept_from_memory() -> None:
    bench = Bench()
    for _ in range(3):
        assert take(bench, 'node_load1{instance="gpu0001:9100"} 1\n').samples == 1
    taken = bench.translator.exposition(
        b'node_load1{instance="gpu0001:9100"} 1\n', lambda cluster, node: False, NOW, node=None
    )
    assert (taken.samples, taken.unrecognised) == (0, 1)


def test_series_of_an_unknown_node_is_checked_again_after_a_minute() -> None:
    bench, there = Bench(), {"gpu0001"}
    text = 'node_load1{instance="gpu0001:9100"} 1\nnode_load1{instance="new:9100"} 2\n'

    def heard(after_s: float) -> int:
        now = NOW + timedelta(seconds=after_s)
        return bench.translator.exposition(
            text.encode(), lambda _, node: node in there, now, node=None
        ).samples

    assert [heard(second) for second in (0, 1, 2)] == [1, 1, 1]
    there.add("new")
    assert [heard(second) for second in (61, 62, 63)] == [2, 2, 2]


def _body(values: Sequence[float | str]) -> bytes:
    return b"".join(b"# x\n" * (number % 5 == 0) + b"x%d %s\n" % (number, str(value).encode()) for number, value in enumerate(values))  # fmt: skip


def test_only_what_changed_is_read_and_all_of_it_counts() -> None:
    """Few values change, then most do, then few again; lengths change too."""
    random = Random(7)
    values: list[float | str] = [float(number) for number in range(100)]
    texts = [line[: line.rfind(b" ") + 1] or line for line in _body(values).split(b"\n")]
    lines = [
        Line(b"# x", NO_SAMPLE) if text == b"# " else Line(text, NO_SAMPLE if not text else 7)
        for text in texts
    ]
    template = Template(lines, (1, None), None)
    for turn in range(200):
        changed = 3 if turn % 100 < 40 else 90
        for place in random.sample(range(100), changed):
            values[place] = random.choice((0, 1e12, "1.50", -3, "NaN", random.random()))
        got = template.values(_body(values))
        assert got is not None
        assert repr(got.tolist()) == repr([float(one) for one in values])
        # What does not fit leaves no trace.
        broken = [*values[:60], "x", *values[61:]]
        assert template.values(_body(broken)) is None
        assert template.values(_body(values) + b"y 1\n") is None
        assert template.values(_body(values)[:-1]) is None


def test_an_empty_value_is_none_though_nothing_was_seen_before() -> None:
    template = made("x ", "y ")
    assert [read(template, body) for body in (b"x \ny ", b"x 1\ny 2", b"x 1\ny ", b"x \ny 2")] == [
        None, [1, 2], None, None,
    ]  # fmt: skip


def test_memory_of_a_template_is_not_underestimated() -> None:
    lines = [Line(b"go_goroutines ", UNWANTED, "go_goroutines"), Line(b"", NO_SAMPLE)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = [Template(lines, (1, None), None) for _ in range(500)]
        for one in made:
            assert one.values(b"go_goroutines 7\n") is not None
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken <= sum(one.size for one in made)


def test_bodies_that_begin_with_a_long_line_are_not_remembered() -> None:
    assert first_sample_of("gpu0001", b'foo{a="%b"} 1\n' % (b"x" * 5_000)) is None
    many, begin = Templates(), ("gpu0001", b'foo{a="%b"} ' % (b"x" * 4_000))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(500):
            assert many.worth_making(((begin[0], begin[1] + b"%d" % number), 2))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken < 500 * 500, "not the texts themselves"
