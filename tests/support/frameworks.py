"""The training frameworks in .venv-torch, and programs that run in it."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import forked
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


def _forked(module: str, *loads: str) -> Program:
    # Inductor makes this folder when it is imported, and never removes it; the home of the tests is removed.
    cache = Path.home() / ".cache" / "torchinductor"
    environ = QUIET | {"PYTHONPATH": f"{CLIENT}:{ROOT}", "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    return Program(str(python()), module, loads, tuple(environ.items()))


def agent() -> Program:
    """torchrun that leaves a bad node."""
    elastic = "torch.distributed.elastic"
    return _forked(
        "healer_steps.torchrun", "torch.distributed.run", f"{elastic}.agent.server.local_elastic_agent",
        f"{elastic}.rendezvous.c10d_rendezvous_backend", f"{elastic}.rendezvous.dynamic_rendezvous",
    )  # fmt: skip


def run(script: Path, folder: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The script with this environment and nothing else; it must end well."""
    base = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)}
    program = _forked("", "lightning.pytorch.callbacks", "lightning.pytorch.loggers", "transformers.trainer")
    done = forked.run([str(script)], base | QUIET | environ, timeout=150, program=program, folder=folder)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done
