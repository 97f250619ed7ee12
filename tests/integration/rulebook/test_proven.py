"""A proof of the rules is kept on this machine, and trusted only where no one else could have written it."""

import shutil
import threading
import time
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import msgspec
import pytest

from healer.rulebook import proven, ruleset
from healer.rulebook import source as rulefiles
from healer.rulebook.cases import detection_cases as detectioncases
from healer.rulebook.proven import proof_lock, save_proofs, saved_proofs
from healer.rulebook.ruleset import RulesInvalid, load

pytestmark = pytest.mark.heavy

SHIPPED = Path(__file__).parents[3] / "rules"
RULE = """\
- name: site-crowded
  title: Too many processes can run
  when: procs_running > {limit}
  scope: node
  severity: P3
  fault_class: degraded
  cause: unclear
  signal: procs_running
  threshold: {limit}
  remedy: [none]
  source: the site's own figure
"""
CASES = """\
- {{name: a crowd, rule: site-crowded, fires: [n1], series: {{procs_running: {many}}}}}
- {{name: a few, rule: site-crowded, series: {{procs_running: 12}}}}
"""


def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in another process."""
    monkeypatch.setattr(ruleset, "_proven", set())
    monkeypatch.setattr(ruleset, "_read", {})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _forget(monkeypatch)
    return tmp_path / "healer" / "proven"


def test_next_process_reads_the_saved_proofs() -> None:
    assert saved_proofs({"a"}) == set()
    save_proofs(["a", "c"])
    assert saved_proofs({"a", "b", "c"}) == {"a", "c"}


def test_changed_code_is_proven_again(monkeypatch: pytest.MonkeyPatch) -> None:
    save_proofs(["a"])
    monkeypatch.setattr(proven, "code_digest", lambda: "changed")
    assert saved_proofs({"a"}) == set()


def test_a_folder_that_others_may_write_is_not_believed(cache: Path) -> None:
    save_proofs(["a"])
    cache.chmod(0o777)
    assert saved_proofs({"a"}) == set()


def test_waiting_ends_when_the_prover_was_stopped(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proven, "LONGEST_S", 0.2)
    cache.mkdir(parents=True)
    with cache.with_suffix(".lock").open("w") as other:
        flock(other, LOCK_EX)
        begun = time.monotonic()
        with proof_lock():
            assert time.monotonic() - begun >= 0.2, "it waited, and for so long"
            save_proofs(["a"])
    assert saved_proofs({"a"}) == {"a"}


def test_a_lock_that_is_a_link_empties_no_file(cache: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    cache.mkdir(parents=True)
    cache.with_suffix(".lock").symlink_to(other)
    with proof_lock():
        save_proofs(["a"])
    assert other.read_text() == "kept"
    assert saved_proofs({"a"}) == {"a"}


def test_unwritable_cache_keeps_no_proofs(tmp_path: Path) -> None:
    (tmp_path / "healer").write_text("a file")
    save_proofs(["a"])
    assert saved_proofs({"a"}) == set()


def test_only_the_newest_are_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proven, "MOST_KEPT", 3)
    for number in range(9):
        save_proofs([str(number)])
    assert len(list(cache.iterdir())) == 3


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The rules whose cases were run, each time. All that ship hold: only a site's own are really run."""
    rules: list[str] = []
    play = detectioncases._play

    def noted(batch: Sequence[Any], *more: Any) -> Iterator[tuple[str, tuple[str, bool]]]:
        rules.extend(case.rule.name for case in batch)
        if own := [case for case in batch if case.rule.name == "site-crowded"]:
            yield from play(own, *more)
        yield from ((case.mark, ("", True)) for case in batch if case.rule.name != "site-crowded")

    monkeypatch.setattr(detectioncases, "_play", noted)
    return rules


def test_rules_that_are_known_to_hold_are_not_run_again(
    ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(SHIPPED)
    assert len(ran) > 100
    ran.clear()
    _forget(monkeypatch)
    load(SHIPPED)
    assert ran == []


def test_the_same_files_and_settings_are_read_once() -> None:
    read = load(SHIPPED, prove=False, settle_s=3)
    assert load(SHIPPED, prove=False, settle_s=3) is read
    assert load(SHIPPED, prove=False, settle_s=4) is not read


def test_rules_that_were_read_are_still_to_be_proven(ran: list[str]) -> None:
    load(SHIPPED, prove=False)
    assert ran == []
    load(SHIPPED)
    assert len(ran) > 100


def test_changed_rule_or_case_is_proven_again(ran: list[str], tmp_path: Path) -> None:
    load(SHIPPED)
    changed = tmp_path / "rules"
    shutil.copytree(SHIPPED, changed)
    rules, cases = changed / "detection" / "site.yaml", changed / "cases" / "detection-site.yaml"
    rules.write_text(RULE.format(limit=500))
    cases.write_text(CASES.format(many=900))
    for file, text in ((rules, RULE.format(limit=400)), (cases, CASES.format(many=800))):
        ran.clear()
        load(changed)
        assert set(ran) == {"site-crowded"}
        file.write_text(text)
    ran.clear()
    load(changed)
    assert set(ran) == {"site-crowded"}


def test_failing_rule_is_reported_again(ran: list[str], tmp_path: Path) -> None:
    changed = tmp_path / "rules"
    shutil.copytree(SHIPPED, changed)
    (changed / "detection" / "site.yaml").write_text(RULE.format(limit=1000))
    (changed / "cases" / "detection-site.yaml").write_text(CASES.format(many=900))
    for _ in range(2):
        with pytest.raises(RulesInvalid, match="a crowd: site-crowded did not fire"):
            load(changed)
    assert ran.count("site-crowded") == 4


def test_case_without_a_rule_is_reported_even_if_all_rules_are_proven(ran: list[str], tmp_path: Path) -> None:
    load(SHIPPED)
    changed = tmp_path / "rules"
    shutil.copytree(SHIPPED, changed)
    (changed / "cases" / "detection-site.yaml").write_text(CASES.format(many=900))
    with pytest.raises(RulesInvalid, match="there is no detection rule site-crowded"):
        load(changed)


def test_waiting_process_uses_the_proof_of_the_other(
    ran: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(SHIPPED)
    ran.clear()
    _forget(monkeypatch)
    looked = threading.Event()

    def looks(proofs: Iterable[str]) -> set[str]:
        found = saved_proofs(proofs)
        looked.set()
        return found

    monkeypatch.setattr(ruleset, "saved_proofs", looks)
    waits = threading.Thread(target=load, args=(SHIPPED,))
    with proven.proof_lock():
        aside = cache.rename(cache.with_name("aside"))
        waits.start()
        assert looked.wait(60)
        aside.rename(cache)
    waits.join(60)
    assert ran == []


def test_aliases_of_aliases_are_not_written_out(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator may try such a file: it must not take the API's memory, nor its processor."""
    changed = tmp_path / "rules"
    shutil.copytree(SHIPPED, changed)
    deep = [f"x{level}: &x{level} [{', '.join([f'*x{level - 1}'] * 10)}]" for level in range(1, 7)]
    lines = ["name: deep", "rule: gpu-hot", "x0: &x0 [a, a, a, a, a, a, a, a, a, a]", *deep, "fires: *x6"]
    (changed / "cases" / "detection-site.yaml").write_text("- " + "\n  ".join(lines) + "\n")
    looked = 0
    look = rulefiles.Source._unknown_fields

    def counted(*args: Any) -> None:
        nonlocal looked
        looked += 1
        look(*args)

    monkeypatch.setattr(rulefiles.Source, "_unknown_fields", counted)
    tracemalloc.start()
    try:
        with pytest.raises(RulesInvalid, match="unknown field x0"):
            load(changed)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 30 << 20, "ten million places"
    assert looked < 20_000


def test_shared_entries_are_checked_once(tmp_path: Path) -> None:
    class Entry(msgspec.Struct):
        jobs: dict[str, int] = {}

    jobs = ", ".join(f"j{number}: {number}" for number in range(50))
    path = tmp_path / "site.yaml"
    path.write_text(f"- &one {{jobs: {{{jobs}}}, oops: 1}}\n" + "- *one\n" * 50)
    problems: list[rulefiles.Problem] = []
    source = rulefiles.Source(path, path.name, problems)
    for index, data in enumerate(source.items()):
        source.convert((index,), data, Entry)
    assert [one.text for one in problems] == ["unknown field oops"]
