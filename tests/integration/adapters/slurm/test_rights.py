"""`healer doctor` tries whether it may change a node, on one that does not exist; and munge."""

import os
from pathlib import Path

import pytest

from healer.adapters.slurm.cli_client import CliScheduler
from healer.bootstrap.doctor_checks import Check
from healer.bootstrap.trial_checks import NO_NODE, check_munge, check_reboots, tried_rights
from healer.ports.scheduling import SchedulerRefused
from healer.settings import ExecutorSettings, load_executor
from tests.support.munge import realm

pytestmark = pytest.mark.heavy

#: What scontrol of 22.05 and 24.11 prints.
DENIED, OTHER_WORDS = "slurm_update error: Invalid user id", "slurm_update error: Access/permission denied"
UNKNOWN = "slurm_update error: Invalid node name specified"
AWAY = "slurm_update error: Unable to contact slurm controller (connect failure)"


def settings(folder: Path, words: str, mode: str = "auto") -> ExecutorSettings:
    """A stand-in of scontrol that says these words, and writes down by whom it was asked for what."""
    scontrol = folder / "scontrol"
    asked = 'echo "$(id -u) $*" >>"$(dirname "$0")/asked"'
    scontrol.write_text(f"#!/bin/sh\n{asked}\necho '{words}' >&2; exit 1\n")
    scontrol.chmod(0o755)
    folder.chmod(0o777)
    given = {"HEALER_SLURM_BIN_DIR": str(folder), "HEALER_SLURM_ADAPTERS": "cli", "HEALER_MODE": mode}
    return load_executor(given | {"HEALER_DATA_DIR": str(folder)})


@pytest.mark.parametrize(
    ("words", "mode", "states"),
    [
        (UNKNOWN, "auto", ["ok"]),
        (DENIED, "auto", ["fail"]),
        (OTHER_WORDS, "auto", ["fail"]),
        (DENIED, "shadow", ["note"]),
        (AWAY, "auto", []),
    ],
)
def test_slurm_says_whether_a_node_may_be_changed(
    tmp_path: Path, words: str, mode: str, states: list[str]
) -> None:
    looks = tried_rights("cli", settings(tmp_path, words, mode), None)
    assert [look.state for look in looks] == states
    asked = (tmp_path / "asked").read_text()
    assert asked.split(maxsplit=1)[1].startswith(f"update NodeName={NO_NODE} "), "no node of the site"
    assert all("AdminLevel=Administrator" in look.repair for look in looks if look.repair)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as another user")
def test_root_tries_as_the_worker_s_user(scratch: Path) -> None:
    tried_rights("cli", settings(scratch, UNKNOWN), 61002)
    assert (scratch / "asked").read_text().startswith("61002 ")
    assert os.geteuid() == 0


@pytest.mark.parametrize(
    ("returns", "resume_s", "states"),
    [("2", 60, ["note"]), ("1", 60, []), ("0", 60, []), ("2", 3600, [])],
)
def test_slurm_that_returns_a_slow_boot_untested_is_noted(
    tmp_path: Path, returns: str, resume_s: int, states: list[str]
) -> None:
    scontrol = tmp_path / "scontrol"
    shown = f"ResumeTimeout           = {resume_s} sec\nReturnToService         = {returns}\n"
    scontrol.write_text(f"#!/bin/sh\n[ \"$*\" = 'show config' ] && printf '%s' '{shown}'\n")
    scontrol.chmod(0o755)
    given = {"HEALER_SLURM_BIN_DIR": str(tmp_path), "HEALER_SLURM_ADAPTERS": "cli"}
    looks = check_reboots(load_executor(given | {"HEALER_DATA_DIR": str(tmp_path)}))
    assert [look.state for look in looks] == states
    assert all(f"{resume_s} s" in look.text and "ReturnToService=1" in look.repair for look in looks)


def munge_looks(folder: Path, socket: Path) -> list[Check]:
    return check_munge(load_executor({"HEALER_DATA_DIR": str(folder), "HEALER_MUNGE_SOCKET": str(socket)}))


def test_munge_is_tried_by_a_credential_of_its_own(scratch: Path) -> None:
    with realm(scratch) as machines:
        socket = machines.machine("127.0.0.1")
        (well,) = munge_looks(scratch, socket)
        assert well.state == "ok" and str(socket) in well.text
    (dead,) = munge_looks(scratch, socket)
    assert dead.state == "fail" and "munge does not work" in dead.text and "munged" in dead.repair


def test_a_drain_that_is_refused_names_the_right(tmp_path: Path) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho '{DENIED}' >&2; exit 1\n")
    scontrol.chmod(0o755)
    with pytest.raises(SchedulerRefused, match=r"lacks the permission.*AdminLevel=Administrator") as raised:
        CliScheduler(bin_dir=tmp_path).drain("gpu0001", "healer:test")
    assert raised.value.no_right
