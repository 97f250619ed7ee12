"""What healer installs: its bill of materials, and the check for known vulnerabilities by pip-audit."""

import json
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

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


def tool(name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, ROOT / "tools" / name, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_service_is_asked_about_every_locked_package(service: tuple[str, bool]) -> None:
    url, faulty = service
    done = tool("check-advisories", "--service-url", url)
    assert done.returncode == int(faulty), done.stdout + done.stderr
    assert ("TEST-2026-1" in done.stdout) is faulty
    assert ("jinja2" in done.stdout) is faulty


NOWHERE = ("--service-url", "http://127.0.0.1:9/v1/query")


def test_without_a_service_the_list_is_read_and_said_so() -> None:
    done = tool("check-advisories", *NOWHERE)
    assert done.returncode == 0, done.stderr
    assert "no service answers" in done.stdout
    assert "advisories.yaml: 0 found" in done.stdout


def test_what_is_locked_and_what_is_allowed_are_both_judged(tmp_path: Path) -> None:
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
