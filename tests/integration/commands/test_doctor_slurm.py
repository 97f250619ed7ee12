"""What `healer doctor` says of Slurm's tokens and rights."""

import re
from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from healer.bootstrap.doctor_checks import Check, check_slurm
from healer.settings import load_executor

pytestmark = pytest.mark.heavy


def looks(folder: Path, token: str, **settings: str) -> dict[str, Check]:
    (folder / "token").write_text(token)
    (folder / "token").chmod(0o600)
    given = {
        "HEALER_DATA_DIR": str(folder),
        "HEALER_SLURM_ADAPTERS": "rest",
        "HEALER_SLURM_REST_URL": f"unix://{folder}/nobody-listens",
        "HEALER_SLURM_TOKEN_FILE": str(folder / "token"),
    }
    return {found.name: found for found in check_slurm(load_executor(given | settings))}


def a_token(**claims: object) -> str:
    """Unsigned: doctor reads it and does not check it."""
    body = urlsafe_b64encode(msgspec.json.encode(claims)).rstrip(b"=").decode()
    return f"eyJhbGciOiJIUzI1NiJ9.{body}.x"


@pytest.mark.parametrize(
    ("left_s", "ok", "words"),
    [
        (1830, True, "for healer, expires in 30 min"),
        (-630, False, "for healer, expired 1[01] min ago"),
        (-3, False, "for healer, expired 0 min ago"),
    ],
)
def test_how_long_a_token_lasts(tmp_path: Path, left_s: int, ok: bool, words: str) -> None:
    end = int(datetime.now(UTC).timestamp()) + left_s
    found = looks(tmp_path, a_token(sun="healer", exp=end))["slurm rest token"]
    assert found.ok is ok
    assert re.match(words, found.text)
    assert bool(found.repair) is not ok


def test_token_of_an_unnamed_user_that_never_expires(tmp_path: Path) -> None:
    found = looks(tmp_path, a_token())["slurm rest token"]
    assert (found.ok, found.text) == (True, "for an unnamed user, does not expire")


def test_doctor_reports_an_invalid_slurm_token_without_showing_it(tmp_path: Path) -> None:
    found = looks(tmp_path, "hunter2")
    assert not found["slurm rest token"].ok and not found["slurm rest"].ok
    assert "hunter2" not in str(found)
    assert "slurm" not in found, "an unreachable cluster is not mentioned"
