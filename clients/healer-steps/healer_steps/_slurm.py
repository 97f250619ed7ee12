"""What Slurm says of the job and its nodes, and what the programs of this package say to the user."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from typing import Mapping

_SWAP = re.compile(r"healer:swap=([1-9][0-9]{0,4})\Z")


def say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        seen = "".join(letter if letter.isprintable() else "?" for letter in text)
        sys.stderr.write("healer-steps: %s\n" % seen)
        sys.stderr.flush()


def scontrol(environ: Mapping[str, str], *words: str) -> list[str] | None:
    """The lines that `scontrol show` prints; None outside of a job, without it, and where it fails."""
    program = shutil.which("scontrol", path=environ.get("PATH"))
    if program is None or not environ.get("SLURM_JOB_ID", "").isdigit():
        return None
    try:
        done = subprocess.run(
            [program, "show", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return [line.strip() for line in done.stdout.decode("utf-8", "replace").splitlines()]


def consent(environ: Mapping[str, str]) -> int | None:
    """With how many nodes the job goes on: HEALER_SWAP, else the word in the job's comment. None: no consent,
    or it is not known."""
    least = environ.get("HEALER_SWAP", "")
    if least:
        return int(least) if least.isdecimal() and int(least) > 0 else None
    lines = scontrol(environ, "job", environ.get("SLURM_JOB_ID", "")) or []
    words = " ".join(line.partition("=")[2] for line in lines if line.startswith(("Comment=", "Extra=")))
    found = [match.group(1) for match in map(_SWAP.match, re.split(r"[\s,;]+", words)) if match]
    return max(int(number) for number in found) if found else None


def contradicted(environ: Mapping[str, str], node: str) -> str:
    """What Slurm says against the verdict. It is the second word: who can write the verdict cannot drain."""
    if shutil.which("scontrol", path=environ.get("PATH")) is None or not environ.get("SLURM_JOB_ID"):
        return ""  # in a container, or without Slurm
    lines = scontrol(environ, "node", node)
    if lines is None:
        return "Slurm does not say whether %s is drained" % node
    drained = any(line.startswith("State=") and "DRAIN" in line.split()[0] for line in lines)
    if drained and any(line.startswith("Reason=healer:") for line in lines):
        return ""
    return "Slurm does not show %s as drained by healer" % node
