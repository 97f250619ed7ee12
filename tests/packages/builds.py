"""Packages of the checked-out commit, and of one after it with another version and two changed rules."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.up import ROOT

FIRST, SECOND = "0.1.0", "0.1.1"
#: Changed by the second: the site has changed one of them too.
OURS, BOTH = "gpu_models.yaml", "scrape.yaml"
ADDED = "# said by the second version\n"


class Builds:
    """Made in a clone, where the second commit is of this test alone. `folder` takes 1 GB."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._clone = folder, folder / "clone"
        self._git("clone", "--quiet", "--shared", str(ROOT), str(self._clone), cwd=folder)
        for name in (OURS, BOTH):
            with (self._clone / "rules" / name).open("a") as file:
                file.write(ADDED)
        self._git(
            "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "-am", "second"
        )

    def _git(self, *words: str, cwd: Path | None = None) -> None:
        subprocess.run(["git", *words], cwd=cwd or self._clone, check=True)

    def made(self, name: str, version: str, arch: str = "x86_64") -> Path:
        """The file of `name` as tools/packages names it, built at its first use."""
        out = self._folder / f"{name}-{version}-{arch}"
        if not out.exists():
            commit = "HEAD~1" if version == FIRST else "HEAD"
            command = [
                sys.executable,
                self._clone / "deploy/packages/build.py",
                name,
                "--quick",
                "--arch",
                arch,
                "--work",
                self._folder,
            ]
            done = subprocess.run(
                [*command, "--commit", commit, "--version", version, "--out", out],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                shutil.rmtree(out)
                raise AssertionError(done.stdout + done.stderr)
        [made] = out.iterdir()
        return made
