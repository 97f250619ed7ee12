"""The training frameworks in .venv-torch, and programs that run in it."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.forked import ROOT, Program

PYTHON = ROOT / ".venv-torch" / "bin" / "python"
CLIENT = ROOT / "clients" / "healer-steps"
#: Nothing is looked for on the network, and one thread each: a few processes share two cores.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONPATH": str(CLIENT),
}


def python() -> Path:
    """Fails where the frameworks are missing."""
    if not PYTHON.exists():
        pytest.fail(
            "tests/torch.txt is not installed in .venv-torch: tools/setup --system does it", pytrace=False
        )
    return PYTHON


def agent() -> Program:
    """torchrun that leaves a bad node."""
    environ = QUIET | {"PYTHONPATH": f"{CLIENT}:{ROOT}"}
    return Program(str(python()), "healer_steps.torchrun", tuple(environ.items()))


def run(program: Path, folder: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The program with this environment and nothing else; it must end well."""
    base = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)}
    done = subprocess.run(
        [str(python()), str(program)],
        env=base | QUIET | environ, cwd=folder, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done
