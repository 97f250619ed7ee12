"""`healer up` with TLS: the whole product and its commands by https, as the users that its parts run as."""

import ssl
import subprocess
from pathlib import Path

import httpx

from tests.support.forked import run
from tests.support.openssl import Authority
from tests.support.up import Stack

DAYS = ("-days", "90")


def test_up_serves_tls_and_its_commands_check_the_authority(scratch: Path) -> None:
    authority = Authority(scratch)
    files = authority.sign("healer", "healer.example", "DNS:healer.example,IP:127.0.0.1", *DAYS)
    files.key.chmod(0o644)  # the parts of root's healer run as another user
    stack = Stack(
        scratch,
        HEALER_TLS_CERT=str(files.cert),
        HEALER_TLS_KEY=str(files.key),
        HEALER_SLURM_ADAPTERS="sim",
    )
    with stack:
        url = f"https://127.0.0.1:{stack.port}"
        assert f"healer is ready: {url}" in stack.output.read_text()
        trust = ssl.create_default_context(cafile=str(authority.cert))
        assert httpx.get(f"{url}/readyz", verify=trust).status_code == 200

        def healer(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
            environ = stack.environ | {"HEALER_LISTEN": f"127.0.0.1:{stack.port}", "HEALER_URL": url} | more
            return run(words, environ, timeout=120)

        token = healer("token", "create", "--role", "viewer", "--name", "ada").stdout.strip()
        with_authority = {"HEALER_TOKEN": token, "HEALER_CA_FILE": str(authority.cert)}
        nodes = healer("nodes", "--json", **with_authority)
        assert nodes.returncode == 0 and "gpu0001" in nodes.stdout, nodes.stderr
        refused = healer("nodes", HEALER_TOKEN=token)
        assert refused.returncode == 1 and "is not trusted here" in refused.stderr
        assert "HEALER_CA_FILE" in refused.stderr
        said = healer("doctor").stdout
        assert f"ready at {url}" in said
        assert f"other users can read {files.key} (mode 0644)" in said
