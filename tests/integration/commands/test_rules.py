"""`healer rules check` and `healer rules test`, as a person runs them."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from healer.commands.cli import build

pytestmark = pytest.mark.heavy

SHIPPED = Path(__file__).parents[3] / "rules"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(SHIPPED, tmp_path / "rules"))
    policies = folder / "policies.yaml"
    policies.write_text(policies.read_text().replace("severity: P1", "severity: P9", 1))
    return folder


def test_check() -> None:
    done = CliRunner().invoke(build(), ["rules", "check", "--rules", str(SHIPPED), "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["ok"] is True


def test_check_names_what_is_wrong(broken: Path) -> None:
    done = CliRunner().invoke(build(), ["rules", "check", "--rules", str(broken)])
    assert done.exit_code == 1
    assert f"{broken}/policies.yaml:" in done.stdout
    assert "P9" in done.stdout


def test_cases() -> None:
    done = CliRunner().invoke(build(), ["rules", "test", "--rules", str(SHIPPED)])
    assert done.exit_code == 0
    assert "cases pass" in done.stdout


def test_cases_of_broken_rules_are_not_run(broken: Path) -> None:
    done = CliRunner().invoke(build(), ["rules", "test", "--rules", str(broken)])
    assert done.exit_code == 1
