"""tools/setup: which Python it takes, and one sentence with the way out for what stops it."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
SETUP = ROOT / "tools" / "setup"


def named_pythons() -> list[str]:
    named = re.search(r'^PYTHONS="(.*)"', SETUP.read_text(), re.MULTILINE)
    assert named is not None
    return named[1].split()


def run(folder: Path, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """tools/setup in a checkout of its own, with nothing of the caller's environment but PATH."""
    (folder / "tools").mkdir(exist_ok=True)
    for name in ("tools/setup", "uv.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    return subprocess.run(
        [folder / "tools/setup", *options],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **environ},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def shell(script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A script after all functions of tools/setup."""
    functions = re.findall(
        r"^\w+\(\) \{.*?^}|^\w+\(\) \{.*}$|^PYTHONS=.*$", SETUP.read_text(), re.DOTALL | re.MULTILINE
    )
    return subprocess.run(
        ["sh", "-euc", "\n".join([*functions, script])],
        env={"PATH": os.environ["PATH"], **environ}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_same_pythons_are_named_everywhere() -> None:
    minors = [int(version.partition(".")[2]) for version in named_pythons()]
    assert minors == list(range(minors[0], minors[-1] + 1))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">=3.{minors[0]},<3.{minors[-1] + 1}"
    classified = [
        one for one in project["classifiers"] if one.startswith("Programming Language :: Python :: 3.")
    ]
    assert classified == [f"Programming Language :: Python :: {version}" for version in named_pythons()]
    spoken = f"Python {', '.join(named_pythons()[:-1])} or {named_pythons()[-1]}"
    for page in ("README.md", "docs/install.md"):
        assert spoken in (ROOT / page).read_text(), page


def test_a_python_that_is_named_is_taken_or_refused_with_its_name(tmp_path: Path) -> None:
    done = run(tmp_path, PYTHON="no-such-python")
    assert (done.returncode, done.stderr) == (
        1,
        "setup: PYTHON names no-such-python, which is no program here\n",
    )
    old = tmp_path / "python3.6"
    old.write_text("#!/bin/sh\necho 3.6\n")
    old.chmod(0o755)
    done = run(tmp_path, PYTHON=str(old))
    assert done.returncode == 1
    assert (
        done.stderr == f"setup: PYTHON names {old}, and healer runs on Python {' '.join(named_pythons())}\n"
    )
    assert shell("find_python", PYTHON=sys.executable).stdout == f"{sys.executable}\n"


def test_without_a_python_that_serves_it_says_which_do(tmp_path: Path) -> None:
    for name in ("sh", "dirname", "cksum", "cat", "rm"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    done = run(tmp_path, PATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"setup: healer runs on Python {' '.join(named_pythons())}, and PATH has none"
    )


def test_an_index_that_does_not_answer_is_one_sentence(tmp_path: Path) -> None:
    """A port of this machine on which nothing listens, in the place of the package index."""
    done = run(
        tmp_path, PYTHON=sys.executable, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0",
        PIP_CONFIG_FILE=os.devnull,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        "setup: uv could not be installed into .venv: the package index does not answer;"
    )


#: What uv and pip print of each, shortened, and what the sentence says of it.
PRINTED = {
    "Failed to build `httptools==0.9.0`\n  error: command 'gcc' failed: No such file or directory": (
        "httptools==0.9.0 has no ready build for this Python on"
    ),
    "failed to write\n  cause: No space left on device (os error 28)": "the disk is full; make room in",
    "[Errno 30] Read-only file system: '/srv/.venv/lib'": "Read-only file system: '/srv/.venv/lib'",
    "Request failed after 3 retries\n  cause: dns error: no address": "the package index does not answer",
    "something else\nsecond line": "see the lines above",
}


@pytest.mark.parametrize("printed", PRINTED)
def test_each_installer_error_becomes_one_sentence(tmp_path: Path, printed: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"error: {printed}\n")
    done = shell(f"explain 'the packages could not be installed' '{log}'")
    assert done.returncode == 1
    assert PRINTED[printed] in done.stderr.splitlines()[-1]
    assert not log.exists()


def test_a_home_that_cannot_be_written_keeps_no_cache() -> None:
    asked = "spare_the_home; echo ${UV_NO_CACHE:-kept} ${PIP_NO_CACHE_DIR:-kept}"
    assert shell(asked, HOME="/proc/none").stdout == "1 1\n"
    assert shell(asked, HOME="/proc/none", XDG_CACHE_HOME="/tmp").stdout == "kept kept\n"


def test_tools_for_package_tests_are_installed_or_named(tmp_path: Path) -> None:
    (tmp_path / "mmdebstrap").symlink_to("/bin/true")
    (tmp_path / "man").symlink_to("/bin/true")
    stub = f"PATH={tmp_path}\nmay_install() {{ false; }}\nsetup_packages"
    missing = "umoci skopeo crun qemu-user-static rpm iproute2 openssl"
    assert f"apt-get install {missing}\n" in shell(stub).stderr
    stub = f"PATH={tmp_path}\nmay_install() {{ true; }}\nwithout_units() {{ echo $*; }}\nsetup_packages"
    assert shell(stub).stdout == f"install_packages {missing}\n"
