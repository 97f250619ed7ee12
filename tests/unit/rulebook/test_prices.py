"""What `healer rules check` says of `rules/prices.yaml`."""

from pathlib import Path

import pytest

from healer.model.goodput import Prices
from healer.rulebook.rule_checks import read_prices
from healer.rulebook.source import Problem, Source


def read(folder: Path, text: str) -> tuple[Prices, list[Problem]]:
    path, problems = folder / "prices.yaml", list[Problem]()
    path.write_text(text)
    return read_prices(Source(path, "prices.yaml", problems)), problems


def test_a_partition_has_its_own_price_and_others_the_general_one(tmp_path: Path) -> None:
    prices, problems = read(tmp_path, "currency: EUR\ngpu_hour: 2\npartitions: {big: 3.5}\n")
    assert problems == []
    assert (prices.currency, prices.of("big"), prices.of("small")) == ("EUR", 3.5, 2.0)
    assert Prices().of("big") is None


@pytest.mark.parametrize(
    ("text", "line"),
    [("currency: EUR\ngpu_hour: -1\n", 2), ("partitions:\n  big: -3\n", 2), ("price: 3\n", 1)],
)
def test_a_wrong_price_is_named_by_its_line(tmp_path: Path, text: str, line: int) -> None:
    _, problems = read(tmp_path, text)
    assert [problem.line for problem in problems] == [line]
