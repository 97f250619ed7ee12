"""docker-compose.yml: the secrets, volumes, networks, user and login of each part, and that they suffice."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.roles import missing, rights, tables
from healer.embedded.guardian import Guardian
from healer.embedded.postgres import Postgres
from healer.embedded.user import server_user
from healer.settings import load, load_executor, privileged_names
from tests.support.compose import DIGESTS, FOLDER, NotSet, read_compose, settings_of
from tests.support.processes import clean_environ, free_port
from tests.support.stack import scratch_folder
from tests.support.up import ROOT
from tests.support.wait import wait_until

#: Part -> its secrets, volumes (`ro`: it cannot write there), networks, user.
PARTS = {
    "api": (
        {"database_url_api", "token_key"}, {"api", "audit:ro", "sim:ro"},
        {"database", "broker", "front"}, "2001:2001",
    ),
    "detector": (
        {"database_url_detector"}, {"detector", "sim:ro"}, {"database", "broker", "site"}, "2002:2002",
    ),
    "scheduler": (
        {"database_url_scheduler", "webhook_secret"}, {"scheduler", "sim:ro"},
        {"database", "broker", "site"}, "2003:2003",
    ),
    "scraper": ({"database_url_scraper"}, {"scraper"}, {"database", "site"}, "2004:2004"),
    "worker": (
        {"database_url_worker"}, {"worker", "audit", "sim"}, {"database", "broker", "nodes"}, "2005:2005",
    ),
    "migrate": ({"database_url_owner", "token_key"}, set(), {"database"}, "2006:2006"),
}  # fmt: skip
ACTS = {"ssh_key", "ssh_signing_key", "bmc_password", "slurm_token"}
LOGINS = ("api", "detector", "scheduler", "scraper", "worker")


def volumes_of(service: dict[str, list[str]]) -> set[str]:
    found = [volume.split(":") for volume in service.get("volumes", [])]
    return {":".join((name, *how)) for name, _, *how in found}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_has_its_secrets_volumes_networks_and_user_and_no_other(part: str) -> None:
    service = read_compose()["services"][part]
    secrets, volumes, networks, user = PARTS[part]
    found = set(service["secrets"]), volumes_of(service), set(service["networks"]), service["user"]
    assert found == (secrets, volumes, networks, user)
    assert (service["cap_drop"], service["read_only"]) == (["ALL"], True)
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_only_the_worker_gets_the_credentials_that_act() -> None:
    services = read_compose("nodes", "slurm-rest")["services"]
    holders = {name for name, service in services.items() if ACTS & set(service.get("secrets", []))}
    assert holders == {"worker"} and set(services["worker"]["secrets"]) >= ACTS
    for name, service in services.items():
        if name != "worker":
            assert privileged_names() & set(service.get("environment", {})) == set()
    readers = {name for name, service in services.items() if "slurm_read_token" in service.get("secrets", [])}
    assert readers == {"api", "detector", "scheduler"}


def test_database_and_broker_are_on_networks_without_a_way_out() -> None:
    whole = read_compose()
    assert whole["services"]["postgres"]["networks"] == ["database"]
    assert whole["services"]["redis"]["networks"] == ["broker"]
    assert all(whole["networks"][name]["internal"] for name in ("database", "broker"))


def images_of(whole: dict[str, Any]) -> list[str]:
    """Those that come from elsewhere."""
    own = whole["x-healer"]["image"]
    return [service["image"] for service in whole["services"].values() if service["image"] != own]


def test_every_image_from_elsewhere_is_named_by_its_digest() -> None:
    images = images_of(read_compose())
    assert len(images) == 2 and {image.split("@")[1] for image in images} == set(DIGESTS.values())
    for name in DIGESTS:
        with pytest.raises(NotSet, match=f"{name} is not set: run deploy/compose/images.sh"):
            read_compose(environ=DIGESTS | {name: ""})


# --- with a real PostgreSQL ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    secrets: Path
    port: int

    def url(self, part: str) -> str:
        return (self.secrets / f"database_url_{part}").read_text().strip()


@pytest.fixture(scope="module")
def made(postgres: Postgres) -> Iterator[Made]:
    """Secrets and roles by the files that ship, in a server that asks for passwords, with all tables."""
    assert postgres.process is not None
    binaries = Path(f"/proc/{postgres.process.pid}/exe").resolve().parent
    with scratch_folder() as folder:
        copy = folder / "checkout" / "deploy" / "compose"
        shutil.copytree(FOLDER, copy)
        secrets, port = folder / "checkout" / "secrets", free_port()
        environ = os.environ | {"DATABASE": f"127.0.0.1:{port}"}
        subprocess.run(["sh", copy / "secrets.sh"], check=True, env=environ)
        user = server_user()
        data, sockets = user.folder(folder / "data"), user.folder(folder / "run")
        options = {"env": {"LC_ALL": "C"}, "cwd": "/", **user.popen()}
        create = [binaries / "initdb", "-D", data, "--username=postgres", "--auth-local=trust"]
        more = read_compose()["services"]["postgres"]["environment"]["POSTGRES_INITDB_ARGS"].split()
        create += ["--auth-host=scram-sha-256", *more]
        subprocess.run(create, check=True, capture_output=True, **options)
        guardian = Guardian(folder / "guardian.log")
        serve = [binaries / "postgres", "-D", data, "-k", sockets, "-p", str(port), "-h", "127.0.0.1"]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(serve, stdout=log, stderr=log, **{**options, **guardian.popen})
        guardian.add("postgres", server.pid)
        try:
            wait_until((sockets / f".s.PGSQL.{port}").exists, 30, what="PostgreSQL listens")
            environ = {
                "PATH": f"{binaries}:{os.environ['PATH']}",
                "PGHOST": str(sockets),
                "PGPORT": str(port),
            }
            ready = ["psql", "-U", "postgres", "-c", "CREATE DATABASE healer"]
            wait_until(lambda: subprocess.run(ready, env=environ, check=False).returncode == 0, 30)
            environ |= {"POSTGRES_DB": "healer", "SECRETS": str(secrets)}
            subprocess.run(["sh", copy / "roles.sh"], env=environ, check=True)
            found = Made(secrets, port)
            service = read_compose()["services"]["migrate"]
            given = settings_of(service, secrets) | {"HEALER_DATA_DIR": str(folder / "healer")}
            command = [sys.executable, "-m", "healer", *service["command"]]
            subprocess.run(command, env=clean_environ(**given), cwd=ROOT, check=True)
            yield found
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
            guardian.release()


def test_the_script_makes_every_role_that_healer_wants(made: Made) -> None:
    engine = sa.create_engine(made.url("owner").replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as conn:
        assert missing(conn) == []
        asked = sa.text(
            "SELECT rolsuper OR rolcreaterole OR rolcreatedb FROM pg_roles WHERE rolname = 'healer'"
        )
        assert conn.scalar(asked) is False
    engine.dispose()


@pytest.mark.parametrize("part", LOGINS)
def test_a_part_s_login_has_the_rights_of_its_role(made: Made, part: str) -> None:
    asked = "SELECT has_table_privilege(%s, %s)"
    with psycopg.connect(made.url(part)) as conn:
        assert conn.execute("SELECT current_user").fetchone() == (f"healer_{part}",)
        for table in tables():
            whole, _ = rights(table, part)
            for right in ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE"):
                [has] = conn.execute(asked, [table, right]).fetchone() or [None]
                assert has == (right in whole), (table, right)


@pytest.mark.parametrize("part", LOGINS)
def test_a_password_opens_no_other_login(made: Made, part: str) -> None:
    own = sa.make_url(made.url(part))
    for other in ("healer", "postgres", *(f"healer_{each}" for each in LOGINS if each != part)):
        url = own.set(username=other).render_as_string(hide_password=False)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(url)


@pytest.mark.parametrize("part", LOGINS)
def test_a_part_s_settings_are_whole(made: Made, part: str) -> None:
    environ = settings_of(read_compose()["services"][part], made.secrets)
    read = load_executor if part == "worker" else load
    settings = read(environ, which=lambda _: None)
    assert settings.database_url == made.url(part).replace("postgresql:", "postgresql+psycopg:")
    assert (settings.token_key_file is not None) == (part == "api")
    assert (settings.webhook_secret is not None) == (part == "scheduler")
