"""`healer topology import`: shows first, writes on --yes, changes nothing a second time."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from healer.commands.cli import build
from healer.model.vocabulary import UserError
from healer.rulebook.ruleset import load
from tests.support.topology_samples import IB, LLDP_LINES, LLDP_ONE

SHIPPED = Path(__file__).parents[3] / "rules"
HAND = '# ours\nplaces:\n  "gpu[0001-0002]": {rack: r01}\n'
SLURM = "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=gpu[0001-0003]\n"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(SHIPPED, tmp_path / "rules"))
    (folder / "topology.yaml").write_text(HAND, encoding="utf-8")
    return folder


def run(rules: Path, *words: str, text: str | None = None) -> Result:
    return CliRunner().invoke(build(), ["topology", "import", *words, "--rules", str(rules)], input=text)


def test_it_shows_then_writes_then_changes_nothing(rules: Path, tmp_path: Path) -> None:
    source = tmp_path / "ib.txt"
    source.write_text(IB, encoding="utf-8")
    shown = run(rules, str(source))
    assert shown.exit_code == 0, shown.output
    assert "read: 3 switches, 4 cables to 2 nodes" in shown.output
    assert "+ node gpu0001: leaf leaf1" in shown.output
    assert "nothing is written" in shown.output
    assert not (rules / "topology-found.yaml").exists()
    written = run(rules, "-", "--yes", text=IB)
    assert "written: " in written.output
    loaded = load(rules, prove=False)
    assert loaded.topology.place("pod1", "gpu0001").rack == "r01"
    assert loaded.topology.place("pod1", "gpu0001").switch == "leaf1"
    assert loaded.topology.behind("leaf2", "1") == ("gpu0001",)
    first = (rules / "topology-found.yaml").read_bytes()
    again = run(rules, str(source), "--yes")
    assert "nothing changes" in again.output
    assert (rules / "topology-found.yaml").read_bytes() == first
    assert (rules / "topology.yaml").read_text() == HAND


@pytest.mark.heavy
def test_one_fabric_after_the_other(rules: Path) -> None:
    run(rules, "-", "--yes", text=IB)
    merged = run(rules, "-", "--merge", "--yes", text=LLDP_LINES)
    assert "+ cable tor1 Ethernet1/1: gpu0001 eth0" in merged.output
    links = load(rules, prove=False).topology.links
    assert {"leaf1", "leaf2", "tor1"} <= set(links)
    alone = run(rules, "-", "--yes", "--host", "gpu0001", text=LLDP_ONE)
    assert "- switch leaf1" in alone.output
    assert set(load(rules, prove=False).topology.links) == {"tor1"}


def test_slurm_is_compared(rules: Path, tmp_path: Path) -> None:
    (tmp_path / "slurm.txt").write_text(SLURM, encoding="utf-8")
    output = run(rules, "-", "--slurm", str(tmp_path / "slurm.txt"), text=IB)
    assert "gpu0003: in Slurm's tree, but no cable was found" in output.output
    (tmp_path / "slurm.txt").write_text("No topology information available\n", encoding="utf-8")
    output = run(rules, "-", "--slurm", str(tmp_path / "slurm.txt"), text=IB)
    assert "Slurm has no tree of switches to compare with" in output.output


@pytest.mark.parametrize(
    ("words", "text", "why"),
    [
        (("-",), "nonsense", "contains no switch"),
        (("-",), LLDP_ONE, "give --host"),
        (("/nowhere/at/all",), "", "cannot be read"),
    ],
)
def test_unreadable_input_is_reported_and_changes_nothing(
    rules: Path, words: tuple[str, ...], text: str, why: str
) -> None:
    result = run(rules, *words, "--yes", text=text)
    assert isinstance(result.exception, UserError)
    assert why in str(result.exception)
    assert not (rules / "topology-found.yaml").exists()
