"""`healer doctor` where Slurm is reached in two ways and one of them is dead."""

import json
from pathlib import Path
from typing import Any

import pytest

from healer.embedded.embedded_slurm import RealSlurm, free_ports
from tests.support.forked import run
from tests.support.processes import clean_environ


def doctor(folder: Path, **settings: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Its exit code, and what it says of Slurm by name."""
    environ = clean_environ(HEALER_DATA_DIR=str(folder), **settings)
    done = run(["doctor", "--json"], environ, timeout=120)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    return done.returncode, {name: check for name, check in checks.items() if name.startswith("slurm")}


@pytest.mark.slurm
def test_a_dead_way_to_slurm_is_said_in_words_and_the_living_one_is_used(
    real_slurm: RealSlurm,
    tmp_path: Path,
) -> None:
    token = tmp_path / "token"
    # {"sun": "healer", "exp": 4102444800}, unsigned: doctor reads it and does not check it.
    token.write_text("eyJhbGciOiJIUzI1NiJ9.eyJzdW4iOiJoZWFsZXIiLCJleHAiOjQxMDI0NDQ4MDB9.x")
    token.chmod(0o600)
    port = free_ports(1)
    code, checks = doctor(
        tmp_path,
        SLURM_CONF=str(real_slurm.slurm_conf),
        HEALER_SLURM_ADAPTERS="rest,cli",
        HEALER_SLURM_REST_URL=f"http://127.0.0.1:{port}",
        HEALER_SLURM_TOKEN_FILE=str(token),
    )
    assert code == 1
    assert {name: check["ok"] for name, check in checks.items()} == {
        "slurm rest token": True,
        "slurm rest read token": True,
        "slurm rest": False, "slurm cli": True, "slurm cli rights": True, "slurm": True,
    }  # fmt: skip
    assert checks["slurm rest token"]["text"].startswith("for healer, ")
    assert f"127.0.0.1:{port}" in checks["slurm rest"]["text"]
    assert "HEALER_SLURM_REST_URL" in checks["slurm rest"]["repair"]
    assert checks["slurm cli"]["text"].endswith("cluster pod1")
    assert checks["slurm cli rights"]["text"] == "root may drain: tried on a node that does not exist"
    assert checks["slurm"]["text"] == "cluster pod1, 32 nodes, 32 with GPUs"


def test_all_ways_dead_leaves_nothing_to_say_of_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "pyslurm.py").write_text(
        "raise ImportError('libslurmfull.so: cannot open shared object file')"
    )
    code, checks = doctor(
        tmp_path,
        HEALER_SLURM_ADAPTERS="sim,pyslurm",
        HEALER_SIM_SOCKET=str(tmp_path / "nobody"),
        HEALER_MUNGE_SOCKET=str(tmp_path / "nobody-either"),
        PYTHONPATH=str(tmp_path),
    )
    assert code == 1
    assert {name: check["ok"] for name, check in checks.items()} == {
        "slurm sim": False,
        "slurm pyslurm": False,
    }
    assert "cannot load the libslurm" in checks["slurm pyslurm"]["text"]
    assert all(check["repair"] for check in checks.values())
