"""Which commit this program is, and which build."""

import subprocess
from pathlib import Path

#: Written by `tools/packages` into its packages.
NOTE = Path(__file__).parents[1] / "build.txt"
_ASK = ("git", "show", "-s", "--abbrev=12", "--format=commit %h of %cs, no package")


def build_note(note: Path = NOTE) -> str:
    """One line: of a package its commit and release, of a checkout the commit that is checked out."""
    try:
        return note.read_text("utf-8").strip()
    except OSError:
        return _of_checkout(note.parents[1])


def _of_checkout(folder: Path) -> str:
    unknown = "unknown commit, no package"
    if not (folder / ".git").exists():
        return unknown
    try:
        done = subprocess.run(_ASK, cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return unknown
    return done.stdout.strip() or unknown
