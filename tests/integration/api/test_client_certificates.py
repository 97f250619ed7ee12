"""A node that shows a certificate speaks of itself alone; the real follower's and hook's side included."""

import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from tests.support.api import XID_79
from tests.support.api_process import ApiProcess, api_process
from tests.support.openssl import Authority, Pair
from tests.support.processes import clean_environ

NAMES = "DNS:healer.example,IP:127.0.0.1"
HOOK = Path(__file__).parents[3] / "healer" / "hooks" / "healer-hook"


class Nodes:
    def __init__(self, api: ApiProcess, site: Authority, authority: Authority) -> None:
        self.api, self.site, self.authority = api, site, authority

    def trust(self, shows: Pair | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.site.cert))
        if shows is not None:
            context.load_cert_chain(shows.cert, shows.key)
        return context

    def post(self, spoken_of: str, shows: Pair | None, **bound: str) -> httpx.Response:
        """A kernel line of that node, by a token with these bounds."""
        self.api.trust = self.trust(shows)
        line = {"node": spoken_of, "boot_id": "b", "entries": [{"seq": 1, "line": XID_79}]}
        bound = {"vouches": ""} | bound
        with self.api.client("signals", **bound) as client:
            return client.post("/signals/kernel-log", json=line)


@pytest.fixture
def nodes(fresh_database: sa.Engine, tmp_path: Path) -> Iterator[Nodes]:
    site, authority = Authority(tmp_path), Authority(tmp_path, "nodes")
    files = site.sign("healer", "healer.example", NAMES)
    settings = {"HEALER_TLS_CERT": str(files.cert), "HEALER_TLS_KEY": str(files.key)}
    with api_process(fresh_database, tmp_path, **settings, HEALER_TLS_CLIENT_CA=str(authority.cert)) as api:
        yield Nodes(api, site, authority)


def test_a_node_with_a_certificate_speaks_of_itself_alone(nodes: Nodes) -> None:
    first = nodes.authority.sign("first", "gpu0001.pod1.example", "DNS:gpu0001.pod1.example")
    by_common_name = nodes.authority.sign("second", "gpu0002")
    assert nodes.post("gpu0001", first).status_code == 202  # by a token for all nodes
    assert nodes.post("gpu0002", by_common_name).status_code == 202
    assert nodes.post("gpu0001", first, node="gpu0001", cluster="pod1").status_code == 202
    assert nodes.post("gpu0002", None).status_code == 202
    refused = nodes.post("gpu0002", first)
    assert refused.status_code == 403
    assert "bound to the node gpu0001" in refused.text
    refused = nodes.post("gpu0002", first, node="gpu0002", cluster="pod1")
    assert refused.status_code == 403
    assert "certificate is for gpu0001.pod1.example, not for node gpu0002" in refused.text
    assert nodes.post("gpu0002", first, vouches="kernel").status_code == 202  # a relay speaks of many
    nodes.api.trust = nodes.trust(first)
    with nodes.api.client("viewer") as viewer:
        assert viewer.get("/nodes").status_code == 200


def test_a_certificate_of_another_authority_ends_the_handshake(nodes: Nodes) -> None:
    stranger = nodes.site.sign("stranger", "gpu0001")
    with pytest.raises(httpx.HTTPError):
        nodes.post("gpu0001", stranger)


def test_the_hook_shows_the_nodes_certificate(nodes: Nodes, tmp_path: Path) -> None:
    shows = nodes.authority.sign("first", "gpu0001")
    (tmp_path / "token").write_text(nodes.api.token("signals", vouches=""))
    (tmp_path / "token").chmod(0o600)

    def answer(node: str) -> str:
        environ = clean_environ(
            HEALER_URL=nodes.api.url,
            HEALER_TOKEN_FILE=str(tmp_path / "token"),
            HEALER_CA_FILE=str(nodes.site.cert),
            HEALER_CLIENT_CERT=str(shows.cert),
            HEALER_CLIENT_KEY=str(shows.key),
            HEALER_HOOK_SPOOL=str(tmp_path / "spool"),
            HEALER_NODE=node,
        )
        done = subprocess.run(
            [sys.executable, HOOK, "health-check"], env=environ, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    taken, refused = answer("gpu0001"), answer("gpu0002")
    assert "answered" not in taken and "Error" not in taken
    assert "answered 403" in refused
