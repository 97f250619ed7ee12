"""The recipes of docs/sign-in.md, as they are printed there: what they make is what healer can use."""

import os
import re
import subprocess
from pathlib import Path

from healer.adapters.certificate_files import CertificateFiles, read_certificate

PAGE = (Path(__file__).parents[2] / "docs" / "sign-in.md").read_text("utf-8")


def recipe(heading: str) -> str:
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert found, f"no recipe under {heading}"
    return found.group(1)


def run(script: str, folder: Path, **environ: str) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), **environ}
    done = subprocess.run(
        ["sh", "-e"], input=script, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_authority_of_ones_own_and_an_acme_client_make_what_healer_serves(tmp_path: Path) -> None:
    run(recipe("Your own authority"), tmp_path)
    CertificateFiles(tmp_path / "healer.crt", tmp_path / "healer.key", tmp_path / "ca.crt").context()
    assert read_certificate(tmp_path / "healer.crt").names == ("healer.example", "127.0.0.1")
    verified = ["openssl", "verify", "-CAfile", tmp_path / "ca.crt", tmp_path / "healer.crt"]
    assert subprocess.run(verified, capture_output=True, check=False).returncode == 0

    # As certbot calls its hook: the folder of the renewed files is in the environment.
    renewed, place = tmp_path / "renewed", tmp_path / "tls"
    renewed.mkdir()
    place.mkdir()
    (tmp_path / "healer.crt").rename(renewed / "fullchain.pem")
    (tmp_path / "healer.key").rename(renewed / "privkey.pem")
    hook = recipe("ACME").replace("/etc/healer/tls", str(place)).replace("-g healer", f"-g {os.getgid()}")
    run(hook, tmp_path, RENEWED_LINEAGE=str(renewed))
    CertificateFiles(place / "healer.crt", place / "healer.key").context()
    assert (place / "healer.key").stat().st_mode & 0o777 == 0o640
