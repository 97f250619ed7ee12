"""What `healer rules check` says of `rules/validation/depths.yaml`."""

from pathlib import Path

import pytest

from healer.model import Remedy, Validation
from healer.rulebook.playbook_rules import read_validation
from healer.rulebook.source import Problem, Source

GOOD = """\
depths:
  quick: {tests: [gpus, versions], limit_s: 60}
  soft: {tests: [gpus, burn], limit_s: 600}
fits: {restart_service: quick}
otherwise: soft
"""


SCRIPTS = dict.fromkeys(("gpus", "versions", "burn"), "#!/bin/sh\n")


def read(folder: Path, text: str) -> tuple[Validation, list[str]]:
    path = folder / "depths.yaml"
    path.write_text(text)
    problems: list[Problem] = []
    found = read_validation(Source(path, "validation/depths.yaml", problems), SCRIPTS)
    return found, [str(one) for one in problems]


def test_a_site_has_depths_of_its_own_or_none(tmp_path: Path) -> None:
    found, problems = read(tmp_path, GOOD)
    assert problems == []
    assert found.depths["soft"].tests == ("gpus", "burn")
    assert (found.depth_for(Remedy.restart_service), found.depth_for(None)) == ("quick", "soft")
    missing = Source.if_there(tmp_path / "none.yaml", "validation/depths.yaml", [])
    assert read_validation(missing, SCRIPTS) == Validation()


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("quick: {tests", "fit: {tests", 2, "depths: fit is reserved for the depth that fits the remedy"),
        ("[gpus, versions]", "[gpus, gpus]", 2, "each test only once"),
        ("[gpus, versions]", "[]", 2, "at least one test"),
        ("[gpus, versions]", "[gpu]", 2, "there is no script gpu (did you mean gpus?)"),
        ("limit_s: 60}", "limit_s: 0}", 2, "limit_s: must be above 0 and at most 86400"),
        ("limit_s: 60}", "limit: 60}", 2, "unknown field limit"),
        ("restart_service: quick", "diagnose: quick", 4, "fits: diagnose is not a remedy"),
        ("restart_service: quick", "restart_service: quickly", 4, "there is no depth quickly"),
        ("otherwise: soft", "otherwise: none", 5, "otherwise: there is no depth none"),
    ],
)
def test_each_mistake_is_reported_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, says: str
) -> None:
    assert old in GOOD
    _, found = read(tmp_path, GOOD.replace(old, new))
    assert any(one.startswith(f"validation/depths.yaml:{line}:") and says in one for one in found), found
