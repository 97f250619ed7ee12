"""What `healer --version` and the docs say of this very program."""

import re
import subprocess
from pathlib import Path

import pytest

from healer import __version__
from healer.commands.build_note import build_note
from healer.commands.cli import main
from tests.support.up import ROOT

pytestmark = pytest.mark.heavy


def test_a_package_says_its_commit_and_release(tmp_path: Path) -> None:
    note = tmp_path / "build.txt"
    note.write_text("commit 0123456789ab of 2026-11-25, package 0.1.0-1\n")
    assert build_note(note) == "commit 0123456789ab of 2026-11-25, package 0.1.0-1"


def test_a_checkout_says_what_is_checked_out(capsys: pytest.CaptureFixture[str]) -> None:
    head = subprocess.check_output(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, text=True).strip()
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    said = capsys.readouterr().out
    assert ended.value.code in (0, None)
    assert re.fullmatch(rf"healer {__version__} \(commit {head} of \d{{4}}-\d\d-\d\d, no package\)\n", said)


def test_unknown_build_says_so(tmp_path: Path) -> None:
    (tmp_path / "site-packages/healer").mkdir(parents=True)
    assert build_note(tmp_path / "site-packages/healer/build.txt") == "unknown commit, no package"
    (tmp_path / "site-packages/.git").mkdir()
    assert build_note(tmp_path / "site-packages/healer/build.txt") == "unknown commit, no package"


def test_the_docs_carry_the_version() -> None:
    assert f"describe healer {__version__}." in (ROOT / "docs/README.md").read_text()
    assert re.search(rf"^## {re.escape(__version__)}$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    named = re.findall(r"healer(?:-node)?[-_](\d+\.\d+\.\d+)-1", (ROOT / "docs/install.md").read_text())
    assert named and set(named) == {__version__}
