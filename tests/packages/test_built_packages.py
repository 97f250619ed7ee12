"""deb and rpm as tools/packages builds them of the checked-out commit: the same bytes twice, and what is in.

That they install, run, upgrade and go is seen in real roots by `make packages-test`.
"""

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.stack import scratch_folder
from tests.support.units import UNITS
from tests.support.up import ROOT

pytestmark = pytest.mark.heavy

NAMES = ("debian12", "node-deb", "node-rpm")
#: The names that no file of settings may hold: where it lies, and what clients alone read.
NOT_IN_FILE = re.compile(r"HEALER_(CONFIG|URL|TOKEN|TOKEN_FILE|CA_FILE|HOOK_SPOOL)$")


@dataclass(frozen=True)
class Built:
    first: Path
    second: Path
    #: The first's server, and its node package, unpacked; the commit's own source.
    server: Path
    node: Path
    source: Path


def build(commit: str, out: Path, work: Path, mask: int = 0o022, **environ: str) -> None:
    work.mkdir()
    options = ["--quick", "--commit", commit, "--out", out, "--work", work]
    command = [sys.executable, ROOT / "deploy/packages/build.py", *NAMES, *options]
    done = subprocess.run(
        command, umask=mask, env=os.environ | environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    with scratch_folder("/var/tmp") as folder:
        made = Built(*(folder / name for name in ("first", "second", "server", "node", "source")))
        commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
        build(commit, made.first, folder / "a")
        build(commit, made.second, folder / "another-place", mask=0o077, TZ="Asia/Tokyo", LANG="C")
        for name, to in (("healer_*.deb", made.server), ("healer-node_*.deb", made.node)):
            [package] = made.first.glob(name)
            subprocess.run(["dpkg-deb", "--raw-extract", package, to], check=True)
        made.source.mkdir()
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", made.source], input=archive, check=True)
        yield made


def of_commit(built: Built, program: str) -> set[str]:
    """The words that a program with the commit's own healer prints."""
    environ = os.environ | {"PYTHONPATH": str(built.source)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, check=True, capture_output=True, text=True
    )
    return set(done.stdout.split("\n")) - {""}


def test_the_same_commit_gives_the_same_bytes(built: Built) -> None:
    def sums(folder: Path) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}

    first = sums(built.first)
    assert len(first) == len(NAMES)
    assert sums(built.second) == first


def test_the_settings_file_names_every_setting_and_sets_one(built: Built) -> None:
    text = (built.server / "etc/healer/healer.toml").read_text()
    assert tomllib.loads(text) == {"HEALER_RULES_DIR": "/etc/healer/rules"}
    every = set(tomllib.loads(re.sub(r"^#(HEALER_\w+ = )", r"\1", text, flags=re.M)))
    names = of_commit(built, "from healer.settings import setting_names\nprint(*setting_names(), sep='\\n')")
    secrets = of_commit(built, "from healer.settings import secret_names\nprint(*secret_names(), sep='\\n')")
    wanted = {f"{name}_FILE" if name in secrets else name for name in names if not NOT_IN_FILE.match(name)}
    assert every == wanted


_COMMANDS = """
import typer
from healer.commands.cli import build
def below(command, path):
    print("-".join(path))
    for name, one in getattr(command, "commands", {}).items():
        if not one.hidden:
            below(one, (*path, name))
below(typer.main.get_command(build()), ("healer",))
"""


def test_every_command_has_a_page_and_completes(built: Built) -> None:
    commands = of_commit(built, _COMMANDS)
    pages = {path.name.removesuffix(".1.gz") for path in (built.server / "usr/share/man/man1").iterdir()}
    assert pages == commands and "healer-token-create" in pages
    shown = subprocess.run(
        ["man", "--warnings", "-l", built.server / "usr/share/man/man1/healer-token-create.1.gz"],
        capture_output=True, text=True, check=True, env=os.environ | {"MANWIDTH": "100", "PAGER": "cat"},
    )  # fmt: skip
    assert shown.stderr == "" and "--role <viewer|" in shown.stdout
    completion = built.server / "usr/share/bash-completion/completions/healer"
    ask = f". {completion}; COMP_WORDS=(healer audit --json v); COMP_CWORD=3; _healer; echo ${{COMPREPLY[@]}}"
    said = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["verify"]


def test_units_users_and_folders_are_those_of_the_repository(built: Built) -> None:
    units = {path.name for path in (built.server / "usr/lib/systemd/system").iterdir()}
    assert units == {
        path.name for path in UNITS.iterdir() if path.name.startswith("healer") and path.is_file()
    }
    for name in units:
        packed = built.server / "usr/lib/systemd/system" / name
        assert packed.read_bytes() == (built.source / "deploy/systemd" / name).read_bytes()
        program = re.search(r"^ExecStart=(\S+)", packed.read_text(), re.M)
        assert program is None or (built.server / program[1][1:]).is_file()
    for kind in ("sysusers", "tmpfiles"):
        packed = built.server / f"usr/lib/{kind}.d/healer.conf"
        assert packed.read_bytes() == (built.source / f"deploy/systemd/{kind}.conf").read_bytes()


def test_dashboards_and_alerts_are_those_of_the_repository(built: Built) -> None:
    packed = built.server / "usr/share/healer"
    names = {str(path.relative_to(packed)) for path in packed.rglob("*") if path.is_file()}
    boards = ("detectors", "fleet", "health", "jobs")
    assert names == {
        *(f"grafana/{name}.json" for name in boards), "prometheus/alerts.yml", "prometheus/recording.yml",
    }  # fmt: skip
    for name in names:
        assert (packed / name).read_bytes() == (built.source / "deploy" / name).read_bytes()


def test_settings_and_rules_are_the_site_s_to_change(built: Built) -> None:
    conffiles = set((built.server / "DEBIAN/conffiles").read_text().split())
    rules = {f"/etc/healer/rules/{path.relative_to(built.source / 'rules')}" for path in rules_of(built)}
    assert conffiles == {"/etc/healer/healer.toml", *rules} and len(rules) > 20


def rules_of(built: Built) -> list[Path]:
    return [path for path in (built.source / "rules").rglob("*") if path.is_file()]


def test_nothing_names_the_machine_that_built_it(built: Built) -> None:
    words = [str(ROOT), str(built.first.parent), "/.venv/bin/python3.1"]
    search = ["grep", "-rlIF", *(word for each in words for word in ("-e", each)), built.server]
    found = subprocess.run(search, capture_output=True, text=True, check=False).stdout.splitlines()
    assert found == []


def test_a_node_s_package_needs_python_and_brings_five_programs(built: Built) -> None:
    [package] = built.first.glob("healer-node_*.deb")
    needs = subprocess.check_output(["dpkg-deb", "--field", package, "Depends"], text=True).strip()
    assert needs == "python3 (>= 3.6)"
    hooks = built.source / "healer/hooks"
    for name in ("healer-hook", "healer-follow", "healer-node", "healer-ship", "healer-nvhcd"):
        assert (built.node / "usr/lib/healer" / name).read_bytes() == (hooks / name).read_bytes()
        assert os.access(built.node / "usr/lib/healer" / name, os.X_OK)
    for name in ("healer-follow.service", "healer-nvhcd.service"):
        unit = (built.node / "usr/lib/systemd/system" / name).read_text()
        assert unit.replace("/usr/lib/healer/", "/usr/local/lib/healer/") == (hooks / name).read_text()
    assert "exec" not in (built.node / "usr/share/healer-node/prolog").read_text()
    assert "/usr/lib/healer/healer-hook prolog" in (built.node / "usr/share/healer-node/prolog").read_text()


def test_the_rpm_of_a_node_holds_the_same_files_and_asks_for_any_python(built: Built) -> None:
    [package] = built.first.glob("*.rpm")

    def asked(*words: str) -> list[str]:
        return subprocess.check_output(["rpm", "-qp", *words, package], text=True).splitlines()

    files = {path for path in asked("--list") if not path.startswith("/usr/share/doc")}
    within = {f"/{path.relative_to(built.node)}" for path in built.node.rglob("*") if path.is_file()}
    ours = {path for path in within if not path.startswith(("/usr/share/doc", "/DEBIAN"))}
    assert ours <= files
    assert "(python3 >= 3.6 or platform-python >= 3.6)" in asked("--requires")
    assert asked("--queryformat", "%{ARCH} %{BUILDHOST}") == ["noarch healer"]


@pytest.mark.parametrize("name", ["preinst", "postinst", "prerm", "postrm"])
def test_the_scripts_are_scripts(built: Built, name: str) -> None:
    for tree in (built.server, built.node):
        if (tree / "DEBIAN" / name).exists():
            subprocess.run(["sh", "-n", tree / "DEBIAN" / name], check=True)


#: A function of a package, where systemd notes what is asked of it. $1: script, $2: folder, $3: function.
_ASKED = """
. "$1"
WANTS=$2 RAN=$2/ran noted=$2/$3
systemd_runs() { :; }
systemctl() {
    case $1 in
    list-*) printf 'healer%s.service enabled\\n' '' -api -follow -nvhcd ;;
    *) echo "$*" >>"$noted" ;;
    esac
}
"$3"
"""


def test_each_package_stops_its_own_units_alone(tmp_path: Path) -> None:
    def asked(script: str, function: str) -> set[str]:
        words = [ROOT / "deploy/packages/scripts" / script, tmp_path, function]
        subprocess.run(["sh", "-c", _ASKED, "sh", *words], check=True)
        return set((tmp_path / function).read_text().split())

    server, node = {"healer.service", "healer-api.service"}, {"healer-follow.service", "healer-nvhcd.service"}
    wanted = tmp_path / "healer-nvhcd.service"
    wanted.symlink_to("/usr/lib/systemd/system/healer-nvhcd.service")
    assert asked("healer.sh", "stop_for_good") & (server | node) == server
    assert asked("healer.sh", "stop_for_upgrade") & (server | node) == server
    (tmp_path / "stop_for_good").unlink()
    assert asked("healer-node.sh", "stop_for_good") & (server | node) == node
    assert not wanted.is_symlink()


def test_an_upgrade_after_one_that_was_cut_off_starts_what_that_one_stopped(tmp_path: Path) -> None:
    """dpkg unpacks, is killed, and unpacks again: by then no unit runs."""
    twice = """
    . "$1"
    RAN=$2/ran runs=healer-api.service
    systemd_runs() { :; }
    systemctl() { case $1 in list-*) echo "$runs" ;; *) echo "$*" ;; esac; }
    stop_for_upgrade
    runs=
    stop_for_upgrade
    start_again
    [ ! -e "$RAN" ]
    """
    words = [ROOT / "deploy/packages/scripts/healer.sh", tmp_path]
    done = subprocess.run(["sh", "-c", twice, "sh", *words], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "start healer-api.service"
