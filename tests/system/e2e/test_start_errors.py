"""What keeps `healer up` and `healer demo` from starting: one sentence each, with the way out."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from healer.embedded.tree import check_port
from healer.embedded.user import EmbeddedError, system_users
from healer.settings import Listen
from tests.support.forked import run
from tests.support.processes import clean_environ, free_port
from tests.support.small_disk import mounted

ROOT = Path(__file__).parents[3]
DATA_DIR = "choose another with --data-dir or HEALER_DATA_DIR.\n"
ADDRESS = "choose another address with --listen or HEALER_LISTEN.\n"

#: A package that Python does not find, read by each interpreter that starts.
MISSING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def refusal(*command: str, status: int = 1, before: tuple[str, ...] = (), **environ: str) -> str:
    """What it says on standard error when it does not start: one line."""
    settings = clean_environ(**({"HEALER_SLURM_ADAPTERS": "sim"} | environ))
    done = (
        subprocess.run(
            [*before, sys.executable, "-m", "healer", *command], env=settings, cwd=ROOT,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90, check=False,
        )
        if before
        else run(command, settings, timeout=90)
    )  # fmt: skip
    assert done.returncode == status, done.stderr or done.stdout
    assert done.stderr.startswith("healer: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("healer: ")


@pytest.fixture
def busy() -> Iterator[str]:
    """An address that is already in use."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"127.0.0.1:{other.getsockname()[1]}"


# --- the address -----------------------------------------------------------------------------------------


def test_an_address_in_use_is_named_with_the_two_ways_to_another(busy: str, scratch: Path) -> None:
    why = f"cannot listen on {busy}: Address already in use; {ADDRESS}"
    assert refusal("up", "--data-dir", str(scratch / "data"), "--listen", busy) == why
    assert refusal("demo", "--slurm", "sim", "--listen", busy) == why
    assert refusal("demo", "--slurm", "sim", HEALER_LISTEN=busy) == why


def test_the_option_of_the_demo_wins_over_the_setting(busy: str) -> None:
    said = refusal("demo", "--slurm", "sim", "--listen", busy, HEALER_LISTEN=f"127.0.0.1:{free_port()}")
    assert said.startswith(f"cannot listen on {busy}:")


@pytest.mark.parametrize("command", ["up", "demo"])
def test_an_address_of_another_machine_is_refused(command: str, scratch: Path) -> None:
    address = f"192.0.2.1:{free_port()}"
    said = refusal(
        command, "--listen", address, HEALER_ALLOW_PLAIN_HTTP="on", HEALER_DATA_DIR=str(scratch / "data")
    )
    assert said == f"cannot listen on {address}: Cannot assign requested address; {ADDRESS}"


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "fe80::zz"])
def test_invalid_listen_address_is_refused(host: str) -> None:
    with pytest.raises(EmbeddedError, match=r"^cannot listen on .*; choose another address with --listen"):
        check_port(Listen(host, 8080), system_users().service)


@pytest.mark.parametrize("command", ["up", "demo"])
def test_a_listen_that_is_no_address_is_the_settings_sentence(command: str) -> None:
    said = refusal(command, status=2, HEALER_LISTEN="8080")
    assert said == "HEALER_LISTEN must be an address and a port, like 127.0.0.1:8080, not '8080'.\n"


# --- the data directory ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("/proc/healer", "cannot be created: No such file or directory"),  # not even root writes there
        ("/proc", "cannot be used (/proc/log: No such file or directory)"),
        ("{scratch}/file", "is a file"),
        ("{scratch}/file/data", "cannot be created: Not a directory"),
        ("{scratch}/other", "cannot be used ({scratch}/other/lock: Is a directory)"),
        ("{scratch}/" + "x" * 90, "has a name that is too long for the socket of the simulated Slurm"),
    ],
)
def test_a_data_directory_that_cannot_be_used(place: str, why: str, scratch: Path) -> None:
    (scratch / "file").touch()
    (scratch / "other" / "lock").mkdir(parents=True)
    place, why = place.format(scratch=scratch), why.format(scratch=scratch)
    said = refusal("up", "--data-dir", place, "--listen", f"127.0.0.1:{free_port()}")
    assert said == f"the data directory {place} {why}; {DATA_DIR}"


def test_a_full_disk_is_said_to_be_full(scratch: Path) -> None:
    with mounted(scratch / "small", 16) as small:
        said = refusal("up", "--data-dir", str(small / "data"), "--listen", f"127.0.0.1:{free_port()}")
        assert said == f"the data directory {small}/data has no space left; {DATA_DIR}"
        said = refusal("demo", "--slurm", "sim", "--listen", f"127.0.0.1:{free_port()}", TMPDIR=str(small))
        assert "has no space left; set TMPDIR=FOLDER to use another place." in said
        assert [one.name for one in small.iterdir() if one.name.startswith("healer-demo")] == []


@pytest.mark.parametrize(("bytes_at_most", "why"), [(0, "cannot be created: "), (2000, "cannot be filled: ")])
def test_the_demo_finds_no_room_for_its_folder(bytes_at_most: int, why: str, scratch: Path) -> None:
    said = refusal(
        *("demo", "--slurm", "sim", "--listen", f"127.0.0.1:{free_port()}"),
        before=("prlimit", f"--fsize={bytes_at_most}"),  # no file may be larger
        TMPDIR=str(scratch),
    )
    assert said.startswith("healer's folder ") and why in said
    assert said.endswith("; set TMPDIR=FOLDER to use another place.\n")
    assert list(scratch.iterdir()) == []


# --- rules and packages ----------------------------------------------------------------------------------


def test_rules_that_cannot_be_used_end_the_start(scratch: Path) -> None:
    rules = scratch / "rules"
    rules.mkdir()
    (rules / "guards.yaml").write_text(": : [")
    command = ("up", "--data-dir", str(scratch / "data"), "--listen", f"127.0.0.1:{free_port()}")
    said = refusal(*command, status=2, HEALER_RULES_DIR=str(rules))
    assert said.startswith(f"the rules in {rules} cannot be used (HEALER_RULES_DIR chooses others); ")
    assert "run `healer rules check` for all problems; the first is guards.yaml:1: not valid YAML" in said
    said = refusal(*command, status=2, HEALER_RULES_DIR=str(scratch / "none"))
    assert said.endswith("(HEALER_RULES_DIR chooses others); it is not a folder\n")


@pytest.mark.parametrize("package", ["typer", "redis"])
def test_a_package_that_is_missing_is_named_with_what_installs_it(package: str, scratch: Path) -> None:
    """The first is needed by the command line, the second by a part, through a library that hides it."""
    (scratch / "sitecustomize.py").write_text(MISSING.format(package=package))
    said = refusal(
        *("up", "--data-dir", str(scratch / "data"), "--listen", f"127.0.0.1:{free_port()}"),
        status=2,
        PYTHONPATH=str(scratch),
    )
    assert said == f"the Python package {package} is missing: `tools/setup` installs all that healer needs.\n"
