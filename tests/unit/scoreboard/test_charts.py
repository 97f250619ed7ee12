"""The pictures of the score board's page show the kept figures, their bounds and the baselines."""

import json
import math
import re
from pathlib import Path
from typing import Any

from benchmarks._scoreboard.charts import LEFT, RIGHT, Chart, Dot, Line, charts_of, svg_of
from benchmarks.scoreboard import KEPT, pictures

PAGE = KEPT.parent / "detection.md"


def kept() -> list[dict[str, Any]]:
    return json.loads(KEPT.read_text(encoding="utf-8"))["boards"]


def words_of(svg: str) -> list[str]:
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg)


def drawn(*lines: Line, log: bool = False) -> str:
    return svg_of(Chart("x", "A chart", (1.0, 10.0, 100.0), lines, more=False, log=log))


def test_a_figure_lies_on_its_axis_with_its_bounds() -> None:
    svg = drawn(Line("a job", Dot(10, 1, 100), ours=True, goal=5), log=True)
    assert f'cx="{(LEFT + RIGHT) / 2:.1f}"' in svg
    assert f'x1="{LEFT:.1f}" y1="59.0" x2="{RIGHT:.1f}" y2="59.0"' in svg
    assert "10 (1.00 to 100)" in words_of(svg) and "a job" in words_of(svg)


def test_scorer_that_finds_nothing_has_no_dot() -> None:
    svg = drawn(Line("a baseline", Dot(math.inf, math.inf, math.inf), ours=False))
    assert "not found" in words_of(svg)
    assert svg.count("<circle") == 2, "those of the legend alone"


def test_the_pictures_are_drawn_from_the_figures_that_are_kept() -> None:
    found = pictures(KEPT.read_text(encoding="utf-8"))
    assert {path: path.read_text(encoding="utf-8") for path in found} == found
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"(images/{path.name})" in page for path in found)
    assert sorted(found) == sorted(Path(KEPT.parent / "images").glob("scoreboard-*.svg"))


def test_each_row_that_is_kept_is_in_a_picture_beside_a_baseline() -> None:
    for chart in charts_of(kept()):
        assert any(line.ours for line in chart.lines) and any(not line.ours for line in chart.lines)
        shown = words_of(svg_of(chart))
        assert all(line.name.replace("<", "&lt;") in shown for line in chart.lines)


def test_the_page_names_the_seed_of_its_figures() -> None:
    titles = [board["title"] for board in kept() if "another author" in board["title"]]
    seeds = {match.group(1) for title in titles[-2:] if (match := re.search(r"seed (\d+)", title))}
    (seed,) = seeds
    assert f"--fresh-seed {seed}" in PAGE.read_text(encoding="utf-8")
