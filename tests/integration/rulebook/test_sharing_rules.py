"""`rules/sharing.yaml`: what is right is taken as a policy too, what is wrong is named by line."""

import shutil
from pathlib import Path

import pytest

from healer.model import PlaceKind, Remedy, Severity
from healer.rulebook.ruleset import RulesInvalid, load
from tests.support.loop import SHIPPED, shipped

pytestmark = pytest.mark.heavy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "rules"))


def problems(folder: Path, text: str) -> list[str]:
    (folder / "sharing.yaml").write_text(text)
    with pytest.raises(RulesInvalid) as caught:
        load(folder, prove=False)
    return [str(one) for one in caught.value.problems]


def test_each_sharing_entry_only_notifies_and_takes_no_node() -> None:
    rules = shipped()
    assert rules.sharings
    for entry in rules.sharings:
        policy = rules.by_name[entry.name]
        assert (policy.faults, policy.playbook) == ((entry.fault,), None)
        assert Remedy.notify in policy.remedy
        assert policy.severity <= Severity.P2


def test_the_file_may_be_left_out(folder: Path) -> None:
    (folder / "sharing.yaml").unlink()
    assert load(folder, prove=False).sharings == ()


def test_an_entry_of_the_sites_own(folder: Path) -> None:
    text = (
        "- {name: my-pdu, title: Power, place: pdu, faults: [host-*], source: ours, at_least: 2, share: 0.1}"
    )
    (folder / "sharing.yaml").write_text(text)
    (entry,) = load(folder, prove=False).sharings
    assert (entry.place, entry.at_least, entry.share, entry.within_s) == (PlaceKind.pdu, 2, 0.1, 300)


GOOD = "- {name: a-pdu, title: Power, place: pdu, faults: [x], source: ours}\n"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("place: pdu", "place: shelf", "place: 'shelf' is not an allowed value"),
        ("faults: [x]", "faults: []", "faults: the list is empty"),
        ("faults: [x]", 'faults: ["xid-["]', "not a name or a glob"),
        ("faults: [x]", "faults: [x], at_least: 0", "at_least: must be between 1 and 1000"),
        ("faults: [x]", "faults: [x], share: 2", "share: must be between 0 and 1"),
        ("faults: [x]", "faults: [x], within_s: 0", "within_s: must be above 0 and at most 3600"),
        ("faults: [x]", "faults: [x], playbook: drain", "unknown field playbook"),
        ("name: a-pdu", "name: gpu-lost", "the name gpu-lost is already in use"),
        ("name: a-pdu", "name: A PDU", "name: 'A PDU' must consist of lowercase letters, digits and dashes"),
    ],
)
def test_mistakes(folder: Path, old: str, new: str, says: str) -> None:
    (problem,) = problems(folder, "# ours\n" + GOOD.replace(old, new))
    assert problem.startswith("sharing.yaml:2:")
    assert says in problem
