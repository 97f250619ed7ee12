"""A proof of the rules is kept on this machine, and believed only where nobody else could have written it."""

from pathlib import Path

import pytest

from healer import detectioncases, proven, ruleset
from healer.proven import is_proven, note_proven
from healer.ruleset import load

SHIPPED = Path(__file__).parents[2] / "rules"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(ruleset, "_proven", set())
    return tmp_path / "healer" / "proven"


def test_what_was_proven_is_known_by_the_next_process() -> None:
    assert not is_proven("a")
    note_proven("a")
    assert is_proven("a")
    assert not is_proven("b")


def test_other_code_proves_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    note_proven("a")
    monkeypatch.setattr(proven, "_code", lambda: "changed")
    assert not is_proven("a")


def test_a_folder_that_others_may_write_is_not_believed(cache: Path) -> None:
    note_proven("a")
    cache.chmod(0o777)
    assert not is_proven("a")


def test_where_nothing_can_be_kept_rules_are_proven_each_time(tmp_path: Path) -> None:
    (tmp_path / "healer").write_text("a file")
    note_proven("a")
    assert not is_proven("a")


def test_only_the_newest_are_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proven, "MOST_KEPT", 3)
    for number in range(9):
        note_proven(str(number))
    assert len(list(cache.iterdir())) == 3


def test_rules_that_are_known_to_hold_are_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []

    def counted(*told: object) -> list[detectioncases.Outcome]:
        runs.append(1)
        return []

    monkeypatch.setattr(ruleset, "run_detection_cases", counted)
    monkeypatch.setattr(ruleset, "prove_rules", lambda *_: None)
    load(SHIPPED)
    monkeypatch.setattr(ruleset, "_proven", set())
    load(SHIPPED)
    assert runs == [1]
