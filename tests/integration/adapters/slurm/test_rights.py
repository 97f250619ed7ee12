"""Whether an account may drain, by what `scontrol` and `sacctmgr` print."""

from pathlib import Path

import pytest

from healer.adapters.slurm.cli_client import CliScheduler
from healer.adapters.slurm.commands import rights_of
from healer.ports.scheduling import SchedulerRefused

pytestmark = pytest.mark.heavy

CONFIG = "SlurmUser               = slurm(64030)\nSlurmdUser              = root(0)\n"


def commands(folder: Path, level: str | None) -> Path:
    """Stand-ins for the two commands; without a level accounting does not answer."""
    programs = {
        "scontrol": f"cat <<'.'\n{CONFIG}.\n",
        "sacctmgr": "echo no slurmdbd >&2; exit 1" if level is None else f'echo "{level}"',
    }
    for name, lines in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("user", "level", "may"),
    [
        ("root", None, True),
        ("slurm", None, True),
        ("healer", "Administrator", True),
        ("healer", "Operator", False),
        ("healer", "None", False),
        ("healer", "", False),
        ("healer", None, None),
    ],
)
def test_who_may_drain(tmp_path: Path, user: str, level: str | None, may: bool | None) -> None:
    found = rights_of(user, commands(tmp_path, level))
    assert found.may is may
    assert found.text.startswith(f"unknown whether {user}" if may is None else user)
    assert bool(found.way_out) is (may is False)


def test_the_way_out_names_the_account(tmp_path: Path) -> None:
    found = rights_of("healer", commands(tmp_path, "Operator"))
    assert found.way_out == "`sacctmgr modify user healer set AdminLevel=Administrator`"
    assert "its AdminLevel is Operator" in found.text


def test_a_drain_that_is_refused_names_the_right(tmp_path: Path) -> None:
    scontrol = tmp_path / "scontrol"
    # The very words of 22.05 and 24.11 to somebody who may not.
    scontrol.write_text("#!/bin/sh\necho 'slurm_update error: Invalid user id' >&2; exit 1\n")
    scontrol.chmod(0o755)
    with pytest.raises(SchedulerRefused, match=r"lacks the permission.*AdminLevel=Administrator") as raised:
        CliScheduler(bin_dir=tmp_path).drain("gpu0001", "healer:test")
    assert raised.value.no_right
