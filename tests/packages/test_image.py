"""The image of the package, and docker-compose.yml with it: each part runs as its own user in its walls."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.packages.builds import FIRST, Builds
from tests.packages.containers import Containers
from tests.packages.distro_machine import root_of
from tests.support.compose import DIGESTS, FILE, FOLDER
from tests.support.stack import scratch_folder
from tests.support.up import ROOT
from tests.support.wait import wait_until

PARTS = ("api", "detector", "scheduler", "scraper", "worker")
_READY = """
import urllib.error, urllib.request
try:
    print(urllib.request.urlopen("http://127.0.0.1:8080/readyz", timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""
#: $1: a token.
_NODES = """
import json, sys, urllib.request
request = urllib.request.Request("http://127.0.0.1:8080/api/v1/nodes")
request.add_header("Authorization", "Bearer " + sys.argv[1])
print(len(json.load(urllib.request.urlopen(request, timeout=20))["items"]))
"""


@pytest.fixture(scope="module")
def containers(builds: Builds) -> Iterator[Containers]:
    with scratch_folder("/var/tmp") as folder:
        program = (sys.executable, ROOT / "deploy/packages/image.py", "--out", folder, "--work", folder)
        package = builds.made("debian12", FIRST)
        subprocess.run([*program, "--package", package], check=True, capture_output=True)
        [made] = folder.glob("*.oci.tar")
        (folder / "layout").mkdir()
        subprocess.run(["tar", "-xf", made, "-C", folder / "layout"], check=True)
        running = Containers(f"{folder / 'layout'}:{FIRST}", folder)
        try:
            yield running
        finally:
            running.stop_all()


def test_the_image_is_no_root_s_and_nothing_in_it_makes_one(containers: Containers) -> None:
    config = json.loads((containers.bundle / "config.json").read_text())
    assert (config["process"]["user"]["uid"], config["process"]["args"]) == (2001, ["/usr/bin/healer"])
    files = containers.bundle / "rootfs"
    found = subprocess.check_output(["find", files, "-xdev", "-type", "f", "-perm", "/6000"], text=True)
    assert found == ""
    assert not (files / "usr/bin/apt-get").exists() and not (files / "usr/bin/systemctl").exists()


def test_each_service_s_user_is_in_the_image_and_owns_its_volume(containers: Containers) -> None:
    files = containers.bundle / "rootfs"
    ids = {row.split(":")[0]: row.split(":")[2:4] for row in (files / "etc/passwd").read_text().splitlines()}
    for part in (*PARTS, "migrate"):
        assert ":".join(ids[f"healer-{part}"]) == containers.services[part]["user"]
        folder = (files / "var/lib/healer" / part).stat()
        assert (oct(folder.st_mode)[-3:], f"{folder.st_uid}:{folder.st_gid}") == (
            "700", containers.services[part]["user"],
        )  # fmt: skip
    assert containers.services["worker"]["group_add"] == [ids["healer"][1]]


def compose(folder: Path, *files: str, digests: str) -> "subprocess.CompletedProcess[str]":
    """`docker compose config` by Debian 13's Compose 2, which needs no daemon for that."""
    root = folder / "compose"
    if not root.exists():
        shutil.copytree(root_of("compose"), root, symlinks=True)
        (root / "site/deploy").mkdir(parents=True)
        shutil.copy(FILE, root / "site")
        shutil.copytree(FOLDER, root / "site/deploy/compose")
    (root / "site/.env").write_text(digests)
    words = [word for file in files for word in ("-f", file)]
    program = ["chroot", root, "sh", "-c", 'cd /site && exec docker-compose "$@"', "sh", *words, "config"]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def test_compose_takes_the_file_with_its_overlays(tmp_path: Path) -> None:
    digests = "".join(f"{name}={digest}\n" for name, digest in DIGESTS.items())
    plain = ("docker-compose.yml", "deploy/compose/nodes.yml", "deploy/compose/slurm-rest.yml")
    done = compose(tmp_path, *plain, digests=digests)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert {each["source"] for each in services["worker"]["secrets"]} == {
        "database_url_worker", "ssh_key", "ssh_signing_key", "bmc_password", "slurm_token",
    }  # fmt: skip
    assert {each["source"] for each in services["detector"]["secrets"]} == {
        "database_url_detector", "slurm_read_token",
    }  # fmt: skip
    for part in PARTS[:3]:
        assert services[part]["read_only"] is True and services[part]["cap_drop"] == ["ALL"]
    done = compose(tmp_path, "docker-compose.yml", digests="")
    assert done.returncode != 0 and "run deploy/compose/images.sh" in done.stderr


def test_every_part_runs_and_healer_is_ready(containers: Containers) -> None:
    containers.start("postgres", "redis")
    for name in ("postgres", "redis"):
        containers.wait_until_healthy(name)
    containers.start("migrate")
    assert containers.wait("migrate") == 0, containers.log("migrate").read_text()
    containers.start("sim-slurm", *PARTS)
    containers.wait_until_healthy("api")
    last = [""]

    def is_ready() -> bool:
        last[0] = containers.execute("api", "python", "-c", _READY).stdout
        return last[0].startswith("200")

    wait_until(is_ready, 120, what="all parts are ready")
    token = containers.execute("api", "healer", "token", "create", "--role", "viewer").stdout.split()[-1]

    def nodes() -> str:
        return containers.execute("api", "python", "-c", _NODES, token).stdout.strip()

    wait_until(lambda: nodes() == "32", 60, what="the token counts, and Slurm's nodes are known")
    for part in PARTS:
        assert containers.is_running(part), containers.log(part).read_text()


@pytest.mark.parametrize("part", PARTS)
def test_a_part_writes_its_volumes_alone_and_has_no_right_of_root(containers: Containers, part: str) -> None:
    service = containers.services[part]
    volumes = [each.split(":") for each in service["volumes"]]
    for path in ("/", "/opt/healer", "/etc/healer/rules", "/usr/bin"):
        assert "Read-only file system" in containers.execute(part, "touch", f"{path}/new").stderr
    for _, path, *how in volumes:
        wrote = containers.execute(part, "sh", "-c", f"touch {path}/new && rm {path}/new").returncode == 0
        assert wrote == (how != ["ro"]), path
    seen = containers.execute(part, "ls", "/run/secrets").stdout.split()
    assert set(seen) == set(service["secrets"])
    # The part itself, which is the first process.
    status = containers.execute(part, "cat", "/proc/1/status").stdout
    assert re.findall(r"^(?:Cap\w+|NoNewPrivs|Uid):\s+(\S+)", status, re.M) == [
        service["user"].split(":")[0], *["0" * 16] * 5, "1",
    ]  # fmt: skip


def test_every_part_ends_when_it_is_asked_to(containers: Containers) -> None:
    for part in ("worker", "scheduler", "detector", "scraper", "api"):
        assert containers.stop(part) == 0, containers.log(part).read_text()
