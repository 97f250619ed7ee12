"""`deploy/compose/images.sh`: the digests that it writes for docker-compose.yml, asked of a registry."""

import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.compose import FILE, FOLDER, read_compose
from tests.support.http_stand_in import Quiet, running

IMAGES = {"postgres": "18-bookworm", "redis": "7-bookworm"}
INDEX = "application/vnd.oci.image.index.v1+json"


def manifest(image: str) -> bytes:
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [], "of": image}).encode()


@dataclass
class Registry:
    """What answers as a registry. `folder`: before the names. With `token` it wants one, as most do."""

    folder: str = "mirror/library"
    token: str = ""
    content: Callable[[str], bytes] = manifest
    named: str = ""
    port: int = 0
    asked: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.folder}"

    def answer(self, handler: Quiet) -> None:
        path, query = urlsplit(handler.path).path, parse_qs(urlsplit(handler.path).query)
        self.asked.append(path)
        if path == "/token":
            [scope], [service] = query["scope"], query["service"]
            given = self.token if service == "the registry" else ""
            handler.give(
                200, {}, json.dumps({"expires_in": 60, "token": f"{given} {scope}".strip()}).encode()
            )
            return
        name = path.removeprefix(f"/v2/{self.folder}/").partition("/")[0]
        scope = f"repository:{self.folder}/{name}:pull"
        if self.token and handler.headers["Authorization"] != f"Bearer {self.token} {scope}":
            realm = (
                f'Bearer realm="http://127.0.0.1:{self.port}/token",service="the registry",scope="{scope}"'
            )
            handler.give(401, {"WWW-Authenticate": realm}, b"{}")
        elif path != f"/v2/{self.folder}/{name}/manifests/{IMAGES.get(name)}" or not self._is_index(handler):
            handler.give(404, {}, b'{"errors": []}')
        else:
            content = self.content(name)
            named = self.named or f"sha256:{hashlib.sha256(content).hexdigest()}"
            handler.give(200, {"Docker-Content-Digest": named, "Content-Type": INDEX}, content)

    def _is_index(self, handler: Quiet) -> bool:
        return INDEX in (handler.headers.get_all("Accept") or [])


@pytest.fixture
def registry() -> Iterator[Registry]:
    found = Registry()

    class Handler(Quiet):
        def do_GET(self) -> None:
            found.answer(self)

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler), threading.Event()) as port:
        found.port = port
        yield found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(FOLDER, tmp_path / "deploy" / "compose")
    shutil.copy(FILE, tmp_path)
    return tmp_path


def pin(checkout: Path, address: str) -> "subprocess.CompletedProcess[str]":
    command = ["sh", checkout / "deploy" / "compose" / "images.sh", address]
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(checkout)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ, cwd="/")


def written(checkout: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (checkout / ".env").read_text().splitlines())


@pytest.mark.parametrize("token", ["", "t0ken"])
def test_the_digests_are_of_what_the_registry_has(registry: Registry, checkout: Path, token: str) -> None:
    registry.token = token
    (checkout / ".env").write_text("HEALER_MODE=auto\nHEALER_IMAGE=ours:3\nHEALER_REDIS_DIGEST=sha256:old\n")
    (checkout / ".env").chmod(0o640)
    done = pin(checkout, registry.address)
    assert done.returncode == 0, done.stderr
    digests = {name: f"sha256:{hashlib.sha256(manifest(name)).hexdigest()}" for name in IMAGES}
    place = registry.address.removeprefix("http://")
    wanted = {"HEALER_MODE": "auto", "HEALER_IMAGE": "ours:3"}
    for name, tag in IMAGES.items():
        wanted[f"HEALER_{name.upper()}_IMAGE"] = f"{place}/{name}:{tag}"
        wanted[f"HEALER_{name.upper()}_DIGEST"] = digests[name]
    assert written(checkout) == wanted
    assert (checkout / ".env").stat().st_mode & 0o777 == 0o640
    before = (checkout / ".env").read_text()
    assert pin(checkout, registry.address).returncode == 0 and (checkout / ".env").read_text() == before
    services = read_compose(environ=wanted)["services"]
    assert services["redis"]["image"] == f"{place}/redis:7-bookworm@{digests['redis']}"


def put(**changes: Any) -> Callable[[Registry], None]:
    def change(registry: Registry) -> None:
        for name, value in changes.items():
            setattr(registry, name, value)

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (put(named=f"sha256:{1:064x}"), "and what came is sha256:"),
        (put(content=lambda _: b"<html>log in here</html>"), "with something that is no image"),
        (
            put(content=lambda name: manifest(name) if name != "redis" else b""),
            "with something that is no image",
        ),
        (put(folder="mirror"), ""),
    ],
    ids=["another digest", "no image", "no image for one of them", "all well"],
)
def test_registry_answers_are_checked_and_no_partial_file_is_written(
    registry: Registry, checkout: Path, change: Callable[[Registry], None], sentence: str
) -> None:
    change(registry)
    done = pin(checkout, registry.address)
    assert sentence in done.stderr
    assert (done.returncode == 0) == (sentence == "") == (checkout / ".env").exists(), done.stderr
    assert not list(checkout.glob(".env.*"))


def test_missing_image_or_invalid_registry_is_reported(registry: Registry, checkout: Path) -> None:
    said = pin(checkout, f"http://127.0.0.1:{registry.port}/elsewhere").stderr
    assert "has no elsewhere/postgres:18-bookworm (HTTP status 404)" in said
    assert "does not answer" in pin(checkout, "http://127.0.0.1:9").stderr
    assert (
        "give the registry to pull from, such as https://registry.example/library"
        in pin(checkout, "registry").stderr
    )
    assert not (checkout / ".env").exists()
