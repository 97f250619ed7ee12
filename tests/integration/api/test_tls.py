"""`healer api` with TLS of its own: real certificates by openssl, read again while it runs."""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from healer.commands.remote import Client, ClientError
from tests.support.api import XID_79
from tests.support.api_process import ApiProcess, api_process
from tests.support.openssl import Authority, Pair
from tests.support.wait import wait_until

NAMES = "DNS:healer.example,DNS:inner.example,IP:127.0.0.1"
PUBLIC = "https://healer.example"


class Secure:
    """A running API, its authority and the files of its certificate."""

    def __init__(self, api: ApiProcess, authority: Authority, files: Pair) -> None:
        self.api, self.authority, self.files = api, authority, files

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority.cert))

    def serial(self) -> str:
        """Of the certificate that a new connection gets."""
        with closing(self.connect()) as link:
            return str(link.getpeercert()["serialNumber"])  # type: ignore[index]

    def connect(self, name: str = "healer.example") -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.api.port), 20)
        return self.trust().wrap_socket(raw, server_hostname=name)

    def log(self) -> str:
        return (self.api.folder / "api.log").read_text()


@pytest.fixture
def secure(fresh_database: sa.Engine, tmp_path: Path) -> Iterator[Secure]:
    authority = Authority(tmp_path)
    files = authority.sign("healer", "healer.example", NAMES)
    settings = {
        "HEALER_TLS_CERT": str(files.cert),
        "HEALER_TLS_KEY": str(files.key),
        "HEALER_PUBLIC_URL": PUBLIC,
        "HEALER_PROXIES": "127.0.0.3",
    }
    with api_process(fresh_database, tmp_path, **settings) as api:
        secure = Secure(api, authority, files)
        api.trust = secure.trust()
        yield secure


def test_all_answers_come_by_tls_and_say_so(secure: Secure) -> None:
    with secure.api.client("viewer") as viewer, secure.api.client() as sender:
        page = viewer.get("/nodes")
        line = {"node": "gpu0001", "boot_id": "b", "entries": [{"seq": 1, "line": XID_79}]}
        taken = sender.post("/signals/kernel-log", json=line)
        wrong = sender.post("/signals/kernel-log", json=line, headers={"Authorization": "Bearer heal_x_y"})
    assert [page.status_code, taken.status_code, wrong.status_code] == [200, 202, 401]
    for answer in (page, taken, wrong):
        assert answer.headers["strict-transport-security"] == "max-age=31536000"
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{secure.api.port}/healthz", timeout=5)
    with pytest.raises(ssl.SSLCertVerificationError):  # by the system's authorities alone
        ssl.create_default_context().wrap_socket(
            socket.create_connection(("127.0.0.1", secure.api.port), 20), server_hostname="healer.example"
        )


def test_a_command_that_does_not_know_the_authority_names_the_setting_for_it(secure: Secure) -> None:
    url = f"https://127.0.0.1:{secure.api.port}"
    known = {"HEALER_URL": url, "HEALER_TOKEN": "heal_x"}
    with Client(known) as stranger, pytest.raises(ClientError) as refused:
        stranger.get("/nodes")
    assert str(refused.value) == (
        f"the certificate of {url} is not trusted here: unable to get local issuer certificate; "
        "HEALER_CA_FILE names the file of the site's own authority"
    )
    with (
        Client(known | {"HEALER_CA_FILE": str(secure.authority.cert)}) as friend,
        pytest.raises(ClientError, match="is not valid"),
    ):
        friend.get("/nodes")


def test_new_files_are_served_and_open_connections_go_on(secure: Secure) -> None:
    before = secure.serial()
    open_link = http.client.HTTPSConnection("127.0.0.1", secure.api.port, timeout=20, context=secure.trust())
    open_link.request("GET", "/healthz")
    open_link.getresponse().read()
    secure.files.put(secure.authority.sign("renewed", "healer.example", NAMES))
    wait_until(lambda: secure.serial() != before, what="the new certificate is served")
    open_link.request("GET", "/healthz")
    assert open_link.getresponse().status == 200
    open_link.close()
    assert "certificate reloaded" in secure.log()


def test_files_that_cannot_be_used_leave_the_old_certificate_and_the_log_says_why(secure: Secure) -> None:
    before = secure.serial()
    other = secure.authority.sign("other", "healer.example", NAMES)
    expired = secure.authority.sign("expired", "healer.example", NAMES, "-days", "-1")
    good = (secure.files.cert.read_bytes(), secure.files.key.read_bytes())
    for cert, key, why in (
        (other.cert.read_bytes(), good[1], "the key does not belong to the certificate"),
        (good[0][:200], good[1], "holds no certificate"),
        (good[0], b"", "cannot be used"),
        (expired.cert.read_bytes(), expired.key.read_bytes(), "it has expired"),
    ):
        secure.files.key.write_bytes(key)
        secure.files.cert.write_bytes(cert)

        def logged(why: str = why) -> bool:
            assert secure.serial() == before  # each connection looks
            return why in secure.log()

        wait_until(logged, what=f"the log says {why}")
    secure.files.cert.unlink()
    assert secure.serial() == before
    secure.files.put(other)
    wait_until(lambda: secure.serial() != before, what="the next good files are served")


def status(secure: Secure, *headers: str, path: str = "/healthz", method: str = "GET") -> int:
    with closing(secure.connect()) as link:
        link.sendall(
            "\r\n".join([f"{method} {path} HTTP/1.1", *headers, "Connection: close", "", ""]).encode()
        )
        return int(link.recv(100).split()[1])


def test_a_request_by_the_name_of_another_site_is_refused(secure: Secure) -> None:
    for name in ("healer.example", "inner.example:8443", f"127.0.0.1:{secure.api.port}", "localhost"):
        assert status(secure, f"Host: {name}") == 200
    for path, method in (("/healthz", "GET"), ("/sign-in", "GET"), ("/api/v1/signals/heartbeat", "POST")):
        assert status(secure, "Host: evil.example", path=path, method=method) == 421
    with secure.api.client("viewer") as viewer:
        refused = viewer.get("/nodes", headers={"Host": "evil.example"})
    assert refused.json()["code"] == "wrong_host"
    assert "HEALER_PUBLIC_URL" in refused.json()["detail"]
    assert json.loads(refused.content)["title"] == "Misdirected Request"


def test_a_stranger_cannot_name_another_host_by_a_proxys_header(secure: Secure) -> None:
    spoofed = "X-Forwarded-Host: healer.example", "Forwarded: for=10.0.0.1;host=healer.example"
    for header in spoofed:  # 127.0.0.1 is no named proxy here
        assert status(secure, "Host: evil.example", header) == 421


def test_a_handshake_that_never_ends_is_ended(secure: Secure) -> None:
    with closing(socket.create_connection(("127.0.0.1", secure.api.port), 30)) as silent:
        assert silent.recv(1) == b""
    assert status(secure, "Host: localhost") == 200


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda files: files.key.unlink(), "HEALER_TLS_KEY names {key}, which cannot be read"),
        (lambda files: files.cert.write_text("x"), "HEALER_TLS_CERT {cert} holds no certificate"),
        (
            lambda files: files.key.write_text("x"),
            "HEALER_TLS_CERT {cert} and HEALER_TLS_KEY {key} cannot",
        ),
    ],
)
def test_wrong_files_stop_the_start_with_a_sentence(
    fresh_database: sa.Engine, tmp_path: Path, spoil: object, why: str
) -> None:
    files = Authority(tmp_path).sign("healer", "healer.example", NAMES)
    spoil(files)  # type: ignore[operator]
    settings = {"HEALER_TLS_CERT": str(files.cert), "HEALER_TLS_KEY": str(files.key)}
    with pytest.raises(AssertionError) as ended, api_process(fresh_database, tmp_path, **settings):
        pass
    assert why.format(cert=files.cert, key=files.key) in str(ended.value)
