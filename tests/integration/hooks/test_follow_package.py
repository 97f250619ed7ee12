"""The package for nodes, run for real on folders in the place of a node's root."""

import re
import stat
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from healer.commands.cli import build
from healer.commands.hook_install import installation
from healer.commands.node_package import HOOKS, package
from healer.commands.slurm_conf import find
from tests.support.up import ROOT

pytestmark = pytest.mark.heavy

URL = "https://healer.example:8443"
LIB = "usr/local/lib/healer"
WANTS = "etc/systemd/system/multi-user.target.wants/healer-follow.service"
FILES = {
    f"{LIB}/healer-hook": 0o755,
    f"{LIB}/prolog": 0o755,
    f"{LIB}/epilog": 0o755,
    f"{LIB}/health-check": 0o755,
    f"{LIB}/healer-follow": 0o755,
    f"{LIB}/healer-node": 0o755,
    "etc/systemd/system/healer-follow.service": 0o644,
    "etc/healer/hook.conf": 0o644,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "a root"
    (made / "usr/bin").mkdir(parents=True)
    (made / "usr/bin/python3").symlink_to("python3.11")
    return made


def run(script: str, *arguments: str, status: int = 0) -> list[str]:
    """As clush runs it on a node: the script by standard input. Its lines, errors too."""
    done = subprocess.run(
        ["sh", "-s", *arguments],
        input=script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={}, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout
    return done.stdout.splitlines()


def install(script: str, root: Path, *options: str) -> list[str]:
    return run(script, "install", "--root", str(root), *options)


def found(root: Path) -> dict[str, int]:
    paths = [path for path in root.rglob("*") if path.is_file() and "usr/bin" not in str(path)]
    return {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in paths}


def test_install_lists_each_file_it_writes(root: Path) -> None:
    lines = install(package(URL), root)
    assert lines[-1] == "healer-node: 9 changed"
    assert [line.removeprefix(f"new {root}/") for line in lines[:-1]] == [*FILES, WANTS]
    assert found(root) == FILES
    for name in ("healer-hook", "healer-follow", "healer-node"):
        assert (root / LIB / name).read_bytes() == (HOOKS / name).read_bytes()
    assert str((root / WANTS).readlink()) == "/etc/systemd/system/healer-follow.service"
    assert f"HEALER_URL={URL}\n" in (root / "etc/healer/hook.conf").read_text()


def test_a_second_time_changes_nothing(root: Path) -> None:
    install(package(URL), root)
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*")}
    assert install(package(URL), root) == ["healer-node: 0 changed"]
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*")} == before


def test_dry_run_prints_the_same_and_changes_nothing(root: Path) -> None:
    would = install(package(URL), root, "--dry-run")
    assert found(root) == {}
    did = install(package(URL), root)
    assert would[:-1] == did[:-1] and "dry run" in would[-1]


def test_installation_replaces_only_files_that_differ(root: Path) -> None:
    install(package(URL), root)
    (root / LIB / "healer-follow").write_text("an older one\n")
    (root / LIB / "healer-hook").chmod(0o700)
    assert install(package(URL), root) == [
        f"changed {root}/{LIB}/healer-hook",
        f"changed {root}/{LIB}/healer-follow",
        "healer-node: 2 changed",
    ]
    assert found(root) == FILES


def test_settings_that_are_there_stay_unless_asked(root: Path) -> None:
    install(package(URL), root)
    conf = root / "etc/healer/hook.conf"
    conf.write_text("HEALER_URL=https://ours\n")
    assert install(package(URL), root) == [
        f"kept {conf}: it differs from the package (--replace-conf)",
        "healer-node: 0 changed",
    ]
    assert conf.read_text() == "HEALER_URL=https://ours\n"
    assert install(package(URL), root, "--replace-conf")[-1] == "healer-node: 1 changed"
    assert URL in conf.read_text()


def test_uninstall_takes_the_programs_and_purge_the_rest(root: Path) -> None:
    install(package(URL), root)
    (root / "etc/healer/token").write_text("heal_x\n")
    uninstall = ("uninstall", "--root", str(root))
    assert run(package(URL), *uninstall, "--dry-run")[-1].startswith("healer-node: 5 changed")
    assert found(root).keys() == {*FILES, "etc/healer/token"}
    *kept, last = run(package(URL), *uninstall)[5:]
    assert last == "healer-node: 5 changed"
    called = {f"{LIB}/{name}" for name in ("prolog", "epilog", "health-check")}
    assert found(root).keys() == {"etc/healer/hook.conf", "etc/healer/token", *called}
    assert [line.partition(":")[0] for line in kept] == [
        f"kept {root}/{path}" for path in FILES if path in called
    ]
    assert run(package(URL), *uninstall) == [*kept, "healer-node: 0 changed"]
    run(package(URL), *uninstall, "--purge")
    assert found(root).keys() == called and not (root / "etc/healer").exists()


def test_a_node_has_each_program_that_slurm_conf_names_with_the_sites_own_in_it(tmp_path: Path) -> None:
    """On Slurm a Prolog that is not there drains the node."""
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"ClusterName=a\nProlog=/site/prolog\nEpilog={tmp_path}/epilog.d/*\n")
    script = package(URL, slurm_conf=conf)
    # Where nothing lies yet: this machine may have hooks of its own, or what is left of them.
    lib, hook_conf = tmp_path / "lib", tmp_path / "hook.conf"
    plan = installation(conf, lib, hook_conf, url=URL, token_file="/t")  # shows, changes nothing

    def on_a_node(text: str) -> str:
        return text.replace(str(lib), f"/{LIB}").replace(str(hook_conf), "/etc/healer/hook.conf")

    (tmp_path / "root").mkdir()
    install(script, tmp_path / "root")
    changed = {on_a_node(str(one.path)): on_a_node((one.after or b"").decode()) for one in plan.changes}
    for row in find(changed[str(conf)], "Prolog", "Epilog", "HealthCheckProgram"):
        named = row.value.replace("*", "healer-hook")
        assert (tmp_path / f"root{named}").read_text() == changed[named]
    assert "/site/prolog || exit $?" in (tmp_path / f"root/{LIB}/prolog").read_text()
    conf.write_text(changed[str(conf)])
    assert package(URL, slurm_conf=conf) == script, "also from a slurm.conf that names ours already"


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_an_image_whose_link_leads_onto_this_machine_is_refused(
    root: Path, tmp_path: Path, verb: str
) -> None:
    machine = tmp_path / "machine"
    (machine / "healer").mkdir(parents=True)
    (machine / "healer/healer-hook").write_text("this machine's own\n")
    (root / "usr/local").mkdir()
    (root / "usr/local/lib").symlink_to(machine)
    *_, last = run(package(URL), verb, "--root", str(root), status=1)
    assert (
        last
        == f"healer-node: {root}/{LIB} leads out of {root} through a link: run this in the image, with chroot"
    )
    assert {path: path.read_text() for path in machine.rglob("*") if path.is_file()} == {
        machine / "healer/healer-hook": "this machine's own\n"
    }


def test_a_link_that_stays_in_the_image_is_followed(root: Path) -> None:
    (root / "opt/lib").mkdir(parents=True)
    (root / "usr/local").mkdir()
    (root / "usr/local/lib").symlink_to("../../opt/lib")
    install(package(URL), root)
    assert (root / "opt/lib/healer/healer-hook").is_file()


def test_a_slurm_conf_that_cannot_be_read_makes_no_package(tmp_path: Path) -> None:
    words = ["node-package", "--url", URL, "--slurm-conf", str(tmp_path / "nosuch")]
    assert CliRunner().invoke(build(), words).exit_code == 1


def test_no_command_of_the_docs_runs_as_root_what_others_may_have_written() -> None:
    """Who made /tmp/NAME first owns it, whatever is copied over it."""
    docs = Path(__file__).parents[3] / "docs"
    wrong = [
        f"{path.name}: {line}"
        for path in docs.rglob("*.md")
        for line in path.read_text().splitlines()
        if re.search(r"(?:\bsh|\bbash|\bsource|-a) /tmp/", line)
    ]
    assert wrong == []


def test_half_a_script_does_nothing(root: Path) -> None:
    script = package(URL)
    for part in (script[: len(script) // 2], script[: script.rindex("main")]):
        subprocess.run(
            ["sh", "-s", "install", "--root", str(root)],
            input=part, capture_output=True, text=True, env={}, check=False,
        )  # fmt: skip
        assert found(root) == {}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "expected install or uninstall"),
        (("install", "--rot", "/x"), "--rot is not an option"),
        (("install", "--root"), "--root needs a folder"),
        (("install", "--root", "/no/such/folder"), "--root needs a folder"),
    ],
)
def test_wrong_usage_is_reported_and_changes_nothing(arguments: tuple[str, ...], why: str) -> None:
    assert run(package(URL), *arguments, status=1) == [f"healer-node: {why}"]


def test_machine_without_python_is_reported(tmp_path: Path) -> None:
    assert install(package(URL), tmp_path)[0].startswith("note: Python 3 is not installed")


def test_the_command_writes_the_script_with_cluster_and_certificate(tmp_path: Path) -> None:
    certificate = tmp_path / "ca.pem"
    certificate.write_text("-----BEGIN CERTIFICATE-----\nEND_OF_FILE\n$(reboot)\n`reboot`\n")
    made = tmp_path / "healer-node.sh"
    words = ["node-package", "--url", URL, "--cluster", "pod1", "--ca-file", str(certificate)]
    done = CliRunner().invoke(build(), [*words, "--output", str(made)])
    assert done.exit_code == 0, done.output
    assert stat.S_IMODE(made.stat().st_mode) == 0o755
    root = tmp_path / "root"
    root.mkdir()
    install(made.read_text(), root)
    assert (root / "etc/healer/ca.pem").read_bytes() == certificate.read_bytes()
    conf = (root / "etc/healer/hook.conf").read_text()
    assert "HEALER_CLUSTER=pod1\n" in conf and "HEALER_CA_FILE=/etc/healer/ca.pem\n" in conf


@pytest.mark.parametrize(
    "options", [["--url", "healer.example"], ["--url", "https://x\nA=b"], ["--url", URL, "--cluster", "a b"]]
)
def test_a_wrong_address_or_name_is_refused(options: list[str]) -> None:
    assert CliRunner().invoke(build(), ["node-package", *options]).exit_code == 2


@pytest.mark.parametrize(
    "words", [["node-package"], ["hook", "install", "--yes", "--slurm-conf", "/nonexistent/slurm.conf"]]
)
def test_nodes_send_no_token_over_plain_http_unless_the_site_allows_it(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(url: str) -> str:
        return str(CliRunner().invoke(build(), [*words, "--url", url]).exception)

    assert "needs https" in said("http://healer.example:8080")
    for url in (URL, "http://127.0.0.1:8080"):
        assert "needs https" not in said(url)
    monkeypatch.setenv("HEALER_ALLOW_PLAIN_HTTP", "on")
    assert "needs https" not in said("http://healer.example:8080")


def test_the_role_calls_the_package_as_it_wants_to_be_called() -> None:
    role = ROOT / "deploy/ansible/roles/node"
    check, task = yaml.safe_load((role / "tasks/script.yml").read_text())
    known = yaml.safe_load((role / "defaults/main.yml").read_text())
    command = task["ansible.builtin.script"]["cmd"]
    options = {"healer_node_package", "healer_node_state", "healer_node_options"}
    assert options | {"healer_node_package_key"} <= set(known)
    assert all(name in command for name in options)
    assert check["ansible.builtin.command"]["argv"][:3] == ["openssl", "dgst", "-sha256"]
    assert "'install'" in command and "'uninstall'" in command and "'--dry-run'" in command
    assert "healer-node: 0 changed" in task["changed_when"]


def test_the_unit_starts_what_the_package_puts_there() -> None:
    unit = (HOOKS / "healer-follow.service").read_text().splitlines()
    assert f"ExecStart=/{LIB}/healer-follow" in unit and "Type=notify" in unit


def test_the_page_says_where_the_follower_may_write() -> None:
    """Its unit lets it write nowhere else, and a token that is not kept pages at each boot."""
    unit = (HOOKS / "healer-follow.service").read_text()
    may = re.findall(r"^(?:ReadWritePaths|RuntimeDirectory)=(.*)$", unit, re.M)
    folders = [name.lstrip("-") for words in may for name in words.split()]
    page = (HOOKS.parents[1] / "docs" / "nodes.md").read_text()
    (said,) = re.findall(r"^Its unit lets the follower write only below (.*?)\. ", page, re.M)
    assert re.findall(r"`/(?:run/)?([^`]*)`", said) == [name.lstrip("/") for name in folders]
    assert "\nReadWritePaths=-/" in page, "without the dash it does not start where the disk is lost"
