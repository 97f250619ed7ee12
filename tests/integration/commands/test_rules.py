"""`healer rules check` and `healer rules test`, as a person runs them."""

import json
import shutil
from pathlib import Path
from typing import Any, Self

import pytest
from typer.testing import CliRunner

from healer.commands import rules as rules_command
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


class Asked:
    """Stands in for the API."""

    url = "http://healer"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return body | {"id": "7"}


@pytest.mark.parametrize("more", [[], ["--samples"], ["--json"]])
def test_a_rehearsal_without_measurements_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """A rule over metrics finds nothing in it, and would seem to be of no use."""
    monkeypatch.setattr(rules_command, "Client", Asked)
    file = tmp_path / "changed.yaml"
    file.write_text("")
    words = ["rules", "try", str(file), "--as", "detection/slow.yaml", "--reason", "r", *more]
    done = CliRunner().invoke(build(), words)
    assert done.exit_code == 0
    if "--json" in more:
        assert json.loads(done.stdout)["samples"] is False
    else:
        assert done.stdout == "http://healer/rehearsals/7\n"
    assert ("measurements" in done.stderr and "--samples" in done.stderr) is ("--samples" not in more)
