"""The rules in force: a valid change is taken, a wrong one is not, and it is said why."""

import shutil
import threading
from pathlib import Path

import pytest

from healer.model import Ruleset
from healer.processes.rulebook import KeptRules, Rulebook
from healer.rulebook.ruleset import Problem, RulesInvalid
from healer.rulebook.ruleset import load as load_rules
from tests.support.loop import SHIPPED
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "rules"))


def load(folder: Path, prove: bool) -> Ruleset:
    return load_rules(folder, prove=prove)


def edit(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))


def test_no_process_starts_without_rules(folder: Path) -> None:
    edit(folder, "guards.yaml", "max_nodes: 10", "max_nodes: many")
    with pytest.raises(RulesInvalid, match="max_nodes"):
        Rulebook(folder, load)


def test_a_change_is_taken_while_running(folder: Path) -> None:
    book = Rulebook(folder, load)
    before = book().version
    edit(folder, "guards.yaml", "max_nodes: 10", "max_nodes: 4")
    wait_until(lambda: book().version != before, 30, what="the new rules")
    assert book().guards.max_nodes == 4
    assert book.problem == ""


def test_a_change_behind_a_linked_folder_is_taken(folder: Path) -> None:
    elsewhere = folder.parent / "shared"
    (folder / "detection").rename(elsewhere)
    (folder / "detection").symlink_to(elsewhere)
    book = Rulebook(folder, load)
    before = book().version
    edit(elsewhere, "gpu.yaml", "severity: P3", "severity: P2")
    wait_until(lambda: book().version != before, 30, what="the new rules")
    assert book.problem == ""


def test_rules_are_kept_while_a_file_is_open_in_an_editor(folder: Path, tmp_path: Path) -> None:
    (folder / ".#policies.yaml").symlink_to("ann@host.4711:17")
    kept = KeptRules(tmp_path / "kept")
    assert Rulebook(folder, load, kept).prove()
    assert kept.folder() is not None


def test_a_wrong_change_leaves_the_old_rules_and_says_why_until_it_is_mended(folder: Path) -> None:
    book = Rulebook(folder, load)
    before = book().version
    edit(folder, "guards.yaml", "max_nodes: 10", "max_nodes: many")
    wait_until(lambda: book() and book.problem, 30, what="the problem")
    assert "guards.yaml" in book.problem
    assert book().version == before
    edit(folder, "guards.yaml", "max_nodes: many", "max_nodes: 3")
    wait_until(lambda: book().guards.max_nodes == 3, 30, what="the mended rules")
    assert book.problem == ""


def test_old_rules_are_served_while_a_change_is_proven_once(
    folder: Path,
) -> None:
    proofs: list[str] = []
    go_on = threading.Event()

    def slow(where: Path, prove: bool) -> Ruleset:
        if prove:
            proofs.append(threading.current_thread().name)
            go_on.wait(60)
        return load(where, prove)

    book = Rulebook(folder, slow)
    before = book().version
    edit(folder, "guards.yaml", "max_nodes: 10", "max_nodes: 4")
    wait_until(lambda: book().version == before and proofs, 30, what="the change is proven")
    edit(folder, "guards.yaml", "max_nodes: 4", "max_nodes: 5")
    book._looked = float("-inf")
    for _ in range(100):
        assert book().version == before
    assert proofs == ["rules"]
    go_on.set()
    wait_until(lambda: book().guards.max_nodes == 5, 30, what="the change that came meanwhile")
    assert set(proofs) == {"rules"} and book.problem == ""


def test_files_that_change_while_they_are_read_are_read_again_and_not_taken(folder: Path) -> None:
    """A copy that is half in place may be a valid set: without guards.yaml no node is protected."""
    half: list[Ruleset] = []

    def slow(where: Path, prove: bool) -> Ruleset:
        rules = load(where, False)
        if prove and not half:
            half.append(rules)
            (folder / "guards.yaml").write_text("max_nodes: 5\n")
        return rules

    book = Rulebook(folder, slow)
    (folder / "guards.yaml").unlink()
    taken: list[Ruleset] = []
    wait_until(lambda: taken.append(book()) or taken[-1].guards.max_nodes == 5, 30, what="the whole set")
    assert half and half[0].version not in {rules.version for rules in taken}


def test_files_that_could_not_be_read_are_read_again(folder: Path) -> None:
    there = threading.Event()

    def flaky(where: Path, prove: bool) -> Ruleset:
        if prove and not there.is_set():
            raise FileNotFoundError("guards.yaml is being replaced")
        return load(where, prove)

    book = Rulebook(folder, flaky)
    edit(folder, "guards.yaml", "max_nodes: 10", "max_nodes: 4")
    wait_until(lambda: book() and "being replaced" in book.problem, 30, what="the problem")
    there.set()
    wait_until(lambda: book().guards.max_nodes == 4, 30, what="the new rules")
    assert book.problem == ""


def test_rules_that_do_not_change_are_read_once(folder: Path) -> None:
    loads: list[Path] = []

    def counted(where: Path, prove: bool) -> Ruleset:
        loads.append(where)
        return load(where, prove)

    book = Rulebook(folder, counted)
    for _ in range(1000):
        book()
    assert len(loads) == 1


def test_rules_that_contradict_their_cases_start_but_are_not_proven_and_it_is_said_why(folder: Path) -> None:
    edit(folder, "detection/pcie.yaml", "when: pcie_link_width <", "when: pcie_link_width >")
    book = Rulebook(folder, load)
    assert book().rules
    assert not book.prove()
    assert "gpu-pcie-narrow did not fire" in book.problem


def test_the_rules_that_ship_are_proven(folder: Path) -> None:
    book = Rulebook(folder, load)
    assert book.prove()
    assert book.problem == ""


# --- the set that is kept on disk ---------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path) -> KeptRules:
    return KeptRules(tmp_path / "kept")


def test_a_process_that_starts_over_broken_files_begins_with_the_last_proven_set(
    folder: Path, kept: KeptRules
) -> None:
    first = Rulebook(folder, load, kept)
    assert first.prove()
    edit(folder, "guards.yaml", "max_nodes: 10", "max_nodes: many")
    again = Rulebook(folder, load, kept)
    assert again().version == first().version
    assert again.prove(), "what is in force is proven: all detectors work"
    assert "max_nodes" in again.problem
    edit(folder, "guards.yaml", "max_nodes: many", "max_nodes: 3")
    wait_until(lambda: again().guards.max_nodes == 3, 30, what="the mended rules")
    assert again.problem == ""


def test_a_set_that_was_taken_while_running_is_kept_and_the_one_before_is_no_longer_read(
    folder: Path, kept: KeptRules
) -> None:
    book = Rulebook(folder, load, kept)
    assert book.prove()
    for most in (4, 5, 6):
        edit(folder, "guards.yaml", f"max_nodes: {most - 1 if most > 4 else 10}", f"max_nodes: {most}")
        wait_until(lambda most=most: book().guards.max_nodes == most, 30, what="the new rules")
    wait_until(lambda: (kept.folder() or folder).name == book().version, 30, what="the kept rules")
    edit(folder, "guards.yaml", "max_nodes: 6", "max_nodes: many")
    assert Rulebook(folder, load, kept)().guards.max_nodes == 6
    assert len([one for one in (folder.parent / "kept").iterdir() if one.is_dir()]) <= 2


def test_rules_whose_cases_fail_give_way_to_the_last_proven_set(folder: Path, kept: KeptRules) -> None:
    assert Rulebook(folder, load, kept).prove()
    edit(folder, "guards.yaml", "max_nodes: 10", "max_nodes: 7")

    def unproven(where: Path, prove: bool) -> Ruleset:
        if prove and where == folder:
            raise RulesInvalid([Problem("rules.yaml", 1, "its case does not fire")])
        return load(where, prove)

    book = Rulebook(folder, unproven, kept)
    assert book().guards.max_nodes == 7
    assert book.prove(), "the set in force is proven"
    assert book().guards.max_nodes == 10
    assert "its case does not fire" in book.problem


def test_a_kept_set_that_this_healer_cannot_read_is_none(folder: Path, kept: KeptRules) -> None:
    assert Rulebook(folder, load, kept).prove()
    where = kept.folder()
    assert where is not None
    edit(where, "guards.yaml", "max_nodes: 10", "max_nodes: many")
    edit(folder, "guards.yaml", "max_nodes: 10", "max_nodes: many")
    with pytest.raises(RulesInvalid, match="max_nodes"):
        Rulebook(folder, load, kept)


def test_a_folder_that_is_not_there_is_a_wrong_setting(folder: Path, kept: KeptRules) -> None:
    assert Rulebook(folder, load, kept).prove()
    with pytest.raises(RulesInvalid):
        Rulebook(folder.parent / "rulez", load, kept)


def test_rules_that_change_during_the_copy_are_not_kept(folder: Path, kept: KeptRules) -> None:
    kept.put(folder, "0123", lambda: False)
    assert kept.folder() is None


def test_a_disk_that_takes_nothing_costs_the_copy_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    book = Rulebook(folder, load, KeptRules(tmp_path / "file"))
    assert book.prove()
    assert book.problem == ""
