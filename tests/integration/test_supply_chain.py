"""What healer installs: its bill of materials, and the check for known vulnerabilities by pip-audit."""

import json
import os
import ssl
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_stand_in import Quiet, running

ROOT = Path(__file__).parents[2]
FAULT = {
    "id": "TEST-2026-1",
    "modified": "2026-11-01T00:00:00Z",
    "summary": "a template leaves its sandbox",
    "affected": [
        {
            "package": {"name": "jinja2", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.0"}]}],
        }
    ],
}


class Service(BaseHTTPRequestHandler):
    """OSV's query API. `faulty`: packages that it calls faulty."""

    faulty: frozenset[str] = frozenset()

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = query.get("package", {}).get("name")
        body = json.dumps({"vulns": [FAULT]} if asked in self.faulty else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(params=[frozenset(), frozenset({"jinja2"})], ids=["no fault", "a fault"])
def service(request: pytest.FixtureRequest) -> Iterator[tuple[str, bool]]:
    handler = type("Handler", (Service,), {"faulty": request.param})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/query", bool(request.param)
    server.shutdown()
    serving.join()
    server.server_close()


#: A proxy that does not exist: only the test's own services answer.
NOBODY = "http://127.0.0.1:9"


def tool(name: str, *arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, ROOT / "tools" / name, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"HTTPS_PROXY": NOBODY, "https_proxy": NOBODY} | environ,
    )


def test_osv_is_asked_about_every_locked_package(service: tuple[str, bool]) -> None:
    url, faulty = service
    done = tool("check-advisories", "--service-url", url)
    assert done.returncode == int(faulty), done.stdout + done.stderr
    assert f"packages, by {url}: {int(faulty)} found" in done.stdout
    assert ("jinja2 3.1.6 is locked: TEST-2026-1; mended in 99.0" in done.stderr) is faulty


class PyPI(Quiet):
    """PyPI's JSON API, at the end of a proxy's tunnel. `folder`: of the authority. `lacks`: not there."""

    protocol_version = "HTTP/1.1"
    folder: Path
    faulty: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()

    def do_CONNECT(self) -> None:
        self.send_response(200)
        self.end_headers()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate_of(self.path.partition(":")[0], self.folder))
        self.connection = context.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
        self.close_connection = False

    def do_GET(self) -> None:
        _, name, _, _ = self.path.strip("/").split("/")
        fault = {"id": "TEST-2026-2", "aliases": [], "summary": "a fault", "fixed_in": ["99.0"]}
        body = {"vulnerabilities": [fault] if name in self.faulty else []}
        self.give(404 if name in self.lacks else 200, {}, json.dumps(body).encode())


def certificate_of(host: str, folder: Path) -> Path:
    """Certificate and key of a host, in one file, by the authority `ca.pem`, which is made first."""
    file = folder / f"{host}.pem"
    if not file.exists():
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ]
        command += ["-days", "1", "-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"]
        if host != "ca":
            ca = folder / "ca.pem"
            command += ["-CA", str(ca), "-CAkey", str(ca), "-addext", "basicConstraints=critical,CA:FALSE"]
        subprocess.run([*command, "-keyout", file, "-out", folder / "cert"], check=True, capture_output=True)
        file.write_text(file.read_text() + (folder / "cert").read_text())
    return file


@pytest.mark.parametrize(
    ("faulty", "lacks", "by", "said"),
    [
        ("", "", "PyPI: 0 found", ""),
        ("jinja2", "", "PyPI: 1 found", "jinja2 3.1.6 is locked: TEST-2026-2; mended in 99.0"),
        ("jinja2", "idna", "as no service answers: 0 found", ""),
    ],
    ids=["no fault", "a fault", "it lacks one of them"],
)
def test_pypi_replaces_an_unreachable_osv_if_it_has_every_package(
    tmp_path: Path, faulty: str, lacks: str, by: str, said: str
) -> None:
    certificate_of("ca", tmp_path)
    handler = type(
        "Handler", (PyPI,), {"folder": tmp_path, "faulty": frozenset([faulty]), "lacks": frozenset([lacks])}
    )
    with running(ThreadingHTTPServer(("127.0.0.1", 0), handler), threading.Event()) as port:
        proxy = f"http://127.0.0.1:{port}"
        trust = {"REQUESTS_CA_BUNDLE": str(tmp_path / "ca.pem"), "HTTPS_PROXY": proxy, "https_proxy": proxy}
        done = tool("check-advisories", *NOWHERE, **trust)
    assert by in done.stdout, done.stdout + done.stderr
    assert (done.returncode, done.stderr.strip()) == (int(bool(said)), said)


NOWHERE = ("--service-url", "http://127.0.0.1:9/v1/query")


def test_without_a_service_pip_audit_reads_the_list_and_it_is_said() -> None:
    done = tool("check-advisories", *NOWHERE)
    assert done.returncode == 0, done.stderr
    assert "advisories of advisories.yaml, as no service answers: 0 found" in done.stdout


def test_locked_and_allowed_versions_are_both_checked(tmp_path: Path) -> None:
    listed = tmp_path / "advisories.yaml"
    listed.write_text(
        'jinja2: {below: "99.0", why: "FAULT-1"}\n'  # a direct one: locked, and allowed
        'mako: {below: "99.0", why: "FAULT-2"}\n'  # brought by another: locked
        'celery: {below: "0.1", why: "FAULT-3"}\n'  # mended long ago
    )
    done = tool("check-advisories", *NOWHERE, "--list", str(listed))
    assert done.returncode == 1
    lines = [line.partition(": ")[0].split()[0] for line in done.stderr.splitlines()]
    assert lines == ["jinja2", "mako", "jinja2>=3.1.6"]
    assert "FAULT-3" not in done.stderr


def test_the_bill_of_materials_names_all_that_is_installed_and_carried(tmp_path: Path) -> None:
    bill = tmp_path / "healer.cdx.json"
    done = tool("sbom", str(bill))
    assert done.returncode == 0, done.stderr
    document = json.loads(bill.read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    named = {part["name"]: part for part in document["components"]}
    with (ROOT / "pyproject.toml").open("rb") as file:
        direct = [line.split(">")[0].split("[")[0] for line in tomllib.load(file)["project"]["dependencies"]]
    assert not set(direct) - set(named)
    assert "pytest" not in named
    assert all(part["purl"] for part in named.values())
    sums = (ROOT / "web" / "static" / "vendor" / "SHA256SUMS").read_text()
    assert named["uplot"]["hashes"][0]["content"] in sums
    refs = [part["bom-ref"] for part in document["components"]]
    assert len(refs) == len(set(refs))
