"""The package of the server by distribution: installed without a network, run, upgraded, removed, purged."""

from collections.abc import Iterator

import pytest

from tests.packages.builds import ADDED, BOTH, FIRST, OURS, SECOND, Builds
from tests.packages.distro_machine import distro_machine
from tests.packages.site import PYTHON, Site, nodes_of
from tests.support.stack import scratch_folder
from tests.support.units import PARTS
from tests.support.wait import wait_until


@pytest.fixture(scope="module", params=["debian12", "debian13", "ubuntu22.04", "ubuntu24.04"])
def site(request: pytest.FixtureRequest, builds: Builds) -> Iterator[Site]:
    with scratch_folder() as folder, distro_machine(request.param, folder) as machine:
        made = Site(request.param, machine, builds)
        made.install()
        yield made


def test_users_folders_and_modes_are_those_of_the_docs(site: Site) -> None:
    said = site.machine.run("getent", "passwd", *(f"healer-{part}" for part in PARTS), "healer", "healer-db")
    assert {line.rsplit(":", 1)[1] for line in said.splitlines()} == {"/usr/sbin/nologin"}
    assert len(said.splitlines()) == len(PARTS) + 2
    assert site.modes(
        "/etc/healer", "/etc/healer/healer.toml", "/etc/healer/rules", "/etc/healer/credentials",
        "/opt/healer", "/usr/bin/healer",
        "/var/lib/healer", "/var/lib/healer/audit", "/var/lib/healer/recordings",
    ) == {
        "/etc/healer": "755 root root", "/etc/healer/healer.toml": "644 root root",
        "/etc/healer/rules": "755 root root", "/etc/healer/credentials": "700 root root",
        "/opt/healer": "755 root root", "/usr/bin/healer": "755 root root",
        "/var/lib/healer": "755 root root", "/var/lib/healer/audit": "2751 healer-worker healer",
        "/var/lib/healer/recordings": "2750 healer-detector healer",
    }  # fmt: skip
    unsafe = "find /opt/healer /etc/healer ! -type l ( ! -user root -o ! -group root -o -perm /022 )"
    assert site.machine.run(*unsafe.split()) == ""


def test_no_library_is_missing(site: Site) -> None:
    """What the wheels' own binaries ask of the system is what the package depends on."""
    found = r"find /opt/healer ( -name *.so -o -name *.so.* -o -path */bin/* ) -type f -exec ldd {} +"
    said = site.machine.run(*found.split(), check=False)
    missing = {line.split()[0] for line in said.splitlines() if "not found" in line}
    # A wheel's library finds the others of its wheel when it is loaded, not when it is looked at.
    own = set(site.machine.run("find", "/opt/healer", "-name", "*.so*", "-printf", "%f\\n").split())
    assert missing - own == set()
    site.machine.run(
        PYTHON, "-c", "import sklearn.ensemble, scipy.stats, numpy, psycopg, re2, uvloop, cramjam"
    )


def test_the_command_says_its_commit_and_completes(site: Site) -> None:
    said = site.machine.run("healer", "--version")
    assert said.startswith(f"healer {FIRST} (commit ") and f"package {FIRST}-1)" in said
    assert "token" in site.machine.run("setpriv", "--reuid=nobody", "--clear-groups", "healer", "--help")
    ask = (
        ". /usr/share/bash-completion/completions/healer; COMP_WORDS=(healer token c); COMP_CWORD=2; _healer"
    )
    assert site.machine.run("bash", "-c", f'{ask}; echo "${{COMPREPLY[@]}}"').split() == ["create"]


def test_systemd_understands_every_unit(site: Site) -> None:
    units = site.machine.run("sh", "-c", "ls /usr/lib/systemd/system/healer*").split()
    done = site.machine.execute("systemd-analyze", "verify", *units)
    unknown = [line for line in done.stderr.splitlines() if "healer" in line and "nknown" in line]
    assert (len(units), unknown, done.returncode) == (10, [], 0), done.stderr


def test_the_parts_run_as_their_units_say(site: Site) -> None:
    site.start_database()
    site.start_slurm()
    site.machine.run("systemctl", "start", "healer-upgrade")
    site.machine.run("systemctl", "start", "healer.target")
    site.wait_until_ready()
    units = [f"healer-{part}" for part in PARTS]
    wait_until(lambda: site.active(*units) == ["active"] * len(PARTS), 60, what="all parts are active")
    for part in PARTS:
        assert (
            site.machine.run("systemctl", "show", "--property=NRestarts", "--value", f"healer-{part}").strip()
            == "0"
        )
    for part in PARTS:
        shown = site.machine.run("systemctl", "show", "--property=MainPID", "--value", f"healer-{part}")
        user = site.machine.run("ps", "-o", "user:20=", "-p", shown.strip())
        assert user.strip() == f"healer-{part}"
    site.add("healer-backup.service.d/parts.conf")
    assert site.back_up() == 1
    site.machine.run("sh", "-c", "rm -r /etc/systemd/system/healer-backup.service.d /var/backups/healer/*")
    site.machine.run("systemctl", "stop", "healer.target")
    wait_until(lambda: set(site.active(*units)) == {"inactive"}, 90, what="all parts are stopped")
    site.end_database()


def test_an_upgrade_keeps_settings_and_data_and_a_removal_keeps_data(site: Site) -> None:
    site.machine.run("systemctl", "enable", "--now", "healer.service")
    site.wait_until_ready()
    token = site.machine.run("healer", "token", "create", "--role", "viewer").split()[-1]
    wait_until(lambda: site.get("/api/v1/nodes", token)[0] == 200, 30, what="the token counts")
    site.edit_settings()
    assert site.machine.run("systemctl", "is-enabled", "healer-backup.timer", check=False) == "disabled\n"
    site.machine.run("systemctl", "enable", "--now", "healer-backup.timer")
    assert site.back_up() == 1
    site.install(SECOND)
    assert site.active("healer-backup.timer") == ["active"], "the site's word stays"
    assert f"healer {SECOND} " in site.machine.run("healer", "--version")
    assert site.active("healer") == ["active"], "it ran before, so it runs again"
    site.wait_until_ready()
    status, text = site.get("/api/v1/nodes", token)
    assert status == 200 and nodes_of(text) == 32, "the same database"
    rules = "/etc/healer/rules"
    assert "HEALER_GUARD_MAX_NODES = 4" in site.read("/etc/healer/healer.toml")
    assert site.read(f"{rules}/{OURS}").endswith(ADDED), "not the site's: ours"
    assert site.read(f"{rules}/{BOTH}").endswith("# of the site\n"), "the site's own stays"
    assert site.read(f"{rules}/{BOTH}.dpkg-dist").endswith(ADDED), "and ours lies beside it"

    site.dpkg("--remove", "healer")
    assert site.active("healer") == ["inactive"]
    left = site.left()
    assert not [path for path in left if path.startswith(("/opt", "/usr"))]
    assert {"/etc/healer/healer.toml", "/var/lib/healer/postgres/data/PG_VERSION"} <= left
    site.machine.run("rm", "-r", "/etc/healer/credentials/backup")
    said = site.dpkg("--purge", "healer")
    assert "kept /var/lib/healer" in said and "kept /var/backups/healer" in said
    left = site.left()
    assert not [path for path in left if not path.startswith(("/var/lib/healer", "/var/backups"))]
    assert [path for path in left if path.startswith("/var/backups/healer/healer-")]
    assert "/var/lib/healer/postgres/data/PG_VERSION" in left
    assert site.machine.run("sh", "-c", "find /etc/systemd -name 'healer*'") == ""


def test_installation_after_a_purge_creates_the_data_again(site: Site) -> None:
    site.install(SECOND)
    site.machine.run("systemctl", "start", "healer.service")
    site.wait_until_ready()
    assert site.machine.run("sh", "-c", "ls /var/lib/healer/postgres | wc -l").strip() != "0"
    site.machine.run("systemctl", "stop", "healer.service")
