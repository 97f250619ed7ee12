"""Scripts of deploy/ that make and take secrets."""

import os
import subprocess
from pathlib import Path

from tests.support.up import ROOT

HOSTS = "198.51.100.1 198.51.100.2 198.51.100.3"


def make(secrets: Path, **environ: str) -> None:
    environ = os.environ | {"SECRETS": str(secrets)} | environ
    subprocess.run(["sh", ROOT / "deploy/compose/secrets.sh"], check=True, env=environ)


def fill(secrets: Path, out: Path) -> subprocess.CompletedProcess[str]:
    environ = {"SECRETS": str(secrets), "SITE": "healer.example", "POSTGRES_BIN": "/bin"}
    command = ["sh", ROOT / "deploy/ha/fill.sh", "db1", "198.51.100.1", HOSTS, out]
    return subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, check=False)


def test_secrets_that_are_there_keep_text_and_mode(tmp_path: Path) -> None:
    make(tmp_path, DATABASE="127.0.0.1:5000")
    before = {file.name: file.read_text() for file in tmp_path.iterdir()}
    own = tmp_path / "ssh_key"
    own.write_text("of the site")
    own.chmod(0o400)
    (tmp_path / "token_key").unlink()
    make(tmp_path)
    assert own.stat().st_mode & 0o777 == 0o400, "ssh refuses a key that others may read"
    after = {file.name: file.read_text() for file in tmp_path.iterdir() if file != own}
    assert {name for name in before if before[name] != after[name]} == {"token_key"}
    assert after["database_url_api"].strip().endswith("@127.0.0.1:5000/healer")


def test_a_password_that_would_mean_something_to_yaml_is_refused(tmp_path: Path) -> None:
    for name in ("superuser", "replication"):
        (tmp_path / f"password_{name}").write_text("s3cret.~_-\n")
    assert fill(tmp_path, tmp_path / "out").returncode == 0
    assert '"s3cret.~_-"' in (tmp_path / "out/patroni.yml").read_text()
    for text in ("a&b", 'a"b', "a|b", "a b", "", "first\nsecond"):
        (tmp_path / "password_replication").write_text(text)
        done = fill(tmp_path, tmp_path / "refused")
        assert done.returncode == 1 and "password_replication" in done.stderr, text
        assert not (tmp_path / "refused").exists()
