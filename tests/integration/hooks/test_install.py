"""`healer hook install` and `uninstall`: shown first, the site's own go on, given back byte for byte."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from healer.commands import slurm_conf
from healer.commands.hook_install import HOOK
from healer.commands.slurm_conf import ConfProblem, changed, find, restored
from tests.support.forked import run

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[3]
PLAIN = b"ClusterName=pod1\nNodeName=gpu[1-8] State=UNKNOWN\nPrologEpilogTimeout=60\n"


class Machine:
    """slurm.conf and the folders of one machine; `healer hook` runs as a program, as root would."""

    def __init__(self, folder: Path, conf: bytes) -> None:
        self.folder, self.to = folder, folder / "lib"
        self.slurm_conf = folder / "slurm.conf"
        self.slurm_conf.write_bytes(conf)
        self.slurm_conf.chmod(0o640)
        self.conf = folder / "etc" / "hook.conf"

    def hook(self, verb: str, *options: str, say: str = "") -> subprocess.CompletedProcess[str]:
        command = ["hook", verb, "--slurm-conf", str(self.slurm_conf), "--to", str(self.to)]
        if verb == "install":
            command += ["--conf", str(self.conf), "--url", "https://healer:8080"]
        return run([*command, *options], os.environ, given=say)

    def files(self) -> dict[str, bytes]:
        """All that lies there, but for slurm.conf's backup."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and not path.name.endswith(".before-healer")
        }

    @property
    def text(self) -> str:
        return self.slurm_conf.read_text()

    def value(self, name: str) -> str | None:
        return slurm_conf.value_of(self.text, name)


def machine(folder: Path, conf: bytes = PLAIN) -> Machine:
    return Machine(folder, conf)


def test_install_prints_changes_and_applies_them_only_on_request(tmp_path: Path) -> None:
    one = machine(tmp_path)
    before = one.files()
    done = one.hook("install", say="n\n")
    assert done.returncode == 0, done.stderr
    assert f"+Prolog={one.to}/prolog" in done.stdout and f"create {one.to}/healer-hook" in done.stdout
    assert "Nothing was changed." in done.stdout
    plan = one.hook("install", "--json")
    assert json.loads(plan.stdout)["applied"] is False
    assert one.files() == before


def test_installed_twice_changes_nothing_and_uninstalled_is_as_before(tmp_path: Path) -> None:
    one = machine(tmp_path)
    one.hook("install", "--yes")
    installed = one.files()
    assert one.value("Prolog") == f"{one.to}/prolog" and one.value("HealthCheckInterval") == "300"
    assert (one.to / "healer-hook").read_bytes() == HOOK.read_bytes()
    assert os.access(one.to / "healer-hook", os.X_OK) and os.access(one.to / "epilog", os.X_OK)
    assert one.slurm_conf.stat().st_mode & 0o777 == 0o640
    again = one.hook("install", "--yes", "--json")
    assert json.loads(again.stdout)["changes"] == [] and one.files() == installed
    assert one.hook("uninstall", "--yes").returncode == 0
    left = one.files()
    assert left.pop("etc/hook.conf").startswith(b"# What `healer-hook`")
    assert left.keys() == {"slurm.conf", "lib/prolog", "lib/epilog", "lib/health-check"}
    assert one.slurm_conf.read_bytes() == PLAIN
    assert one.slurm_conf.with_name("slurm.conf.before-healer").read_bytes() == PLAIN
    assert json.loads(one.hook("uninstall", "--json").stdout)["changes"] == []


def test_the_sites_own_hooks_run_first_and_its_health_check_becomes_a_probe(tmp_path: Path) -> None:
    conf = (
        PLAIN
        + b"Prolog=/etc/slurm/prolog.sh # ours\r\nHealthCheckProgram=/usr/sbin/nhc\nHealthCheckInterval=60"
    )
    one = machine(tmp_path, conf)
    one.hook("install", "--yes")
    assert (one.to / "prolog").read_text().splitlines()[2] == "/etc/slurm/prolog.sh || exit $?"
    assert "--probe /usr/sbin/nhc ||" in (one.to / "health-check").read_text()
    assert f"Prolog={one.to}/prolog # ours\r\n" in one.slurm_conf.read_bytes().decode()
    assert one.value("HealthCheckInterval") == "60"
    one.hook("uninstall", "--yes")
    assert one.slurm_conf.read_bytes() == conf


def test_uninstallation_keeps_later_changes_of_the_site(tmp_path: Path) -> None:
    one = machine(tmp_path, PLAIN + b"Epilog=/site/epilog")
    one.hook("install", "--yes")
    with one.slurm_conf.open("a") as file:
        file.write("MaxJobCount=7\n")
    one.hook("install", "--yes")
    one.hook("uninstall", "--yes")
    assert one.slurm_conf.read_bytes() == PLAIN + b"Epilog=/site/epilog\nMaxJobCount=7\n"


def test_a_folder_of_the_sites_gets_ours_beside_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "epilog.d"
    folder.mkdir()
    (folder / "50-site.sh").write_text("#!/bin/sh\n")
    one = machine(tmp_path, PLAIN + f"Epilog={folder}/*.sh\n".encode())
    one.hook("install", "--yes")
    assert one.value("Epilog") == f"{folder}/*.sh"
    assert sorted(path.name for path in folder.iterdir()) == ["50-site.sh", "healer-hook.sh"]
    one.hook("uninstall", "--yes")
    assert [path.name for path in folder.iterdir()] == ["50-site.sh"]


def test_of_several_lines_the_last_is_ours_and_runs_the_sites(tmp_path: Path) -> None:
    """An older Slurm takes the last line alone, a newer one runs all of them."""
    conf = PLAIN + b"Prolog=/a\nProlog=/b\nHealthCheckProgram=/c\nHealthCheckProgram=/d\n"
    one = machine(tmp_path, conf)
    one.hook("install", "--yes")
    assert [row.value for row in find(one.text, "Prolog")] == ["/a", f"{one.to}/prolog"]
    assert "/b || exit $?" in (one.to / "prolog").read_text()
    assert one.value("HealthCheckProgram") == f"{one.to}/health-check"
    assert "--probe /d" in (one.to / "health-check").read_text()
    one.hook("uninstall", "--yes")
    assert one.slurm_conf.read_bytes() == conf


@pytest.mark.parametrize("how", ["gone", "not to be run", "killed", "no such Python"])
@pytest.mark.parametrize("hook", ["prolog", "epilog", "health-check"])
def test_without_a_healer_hook_that_runs_only_the_sites_own_counts(
    tmp_path: Path, hook: str, how: str
) -> None:
    """Slurm drains a node whose prolog or epilog fails."""
    site = tmp_path / "site"
    names = {"prolog": "Prolog", "epilog": "Epilog", "health-check": "HealthCheckProgram"}
    one = machine(tmp_path, PLAIN + f"{names[hook]}={site}\n".encode())
    one.hook("install", "--yes")
    program = one.to / "healer-hook"
    if how == "gone":
        program.unlink()
    elif how == "not to be run":
        program.chmod(0o644)
    else:
        program.write_text("#!/bin/sh\nkill -9 $$\n" if how == "killed" else "#!/nosuch/python\n")
    for status in (0, 3):
        site.write_text(f"#!/bin/sh\necho ran >> {tmp_path}/ran\nexit {status}\n")
        site.chmod(0o755)
        done = subprocess.run([one.to / hook], env={}, check=False, capture_output=True)
        runs_it = hook != "health-check" or how in ("gone", "not to be run")
        assert done.returncode == (status if runs_it else 0)
    assert (tmp_path / "ran").exists() == runs_it


def test_a_hook_that_is_permitted_to_fail_still_fails(tmp_path: Path) -> None:
    one = machine(tmp_path)
    one.hook("install", "--yes")
    (one.to / "healer-hook").write_text("#!/bin/sh\nexit 1\n")
    assert subprocess.run([one.to / "prolog"], env={}, check=False).returncode == 1


@pytest.mark.parametrize("how", ["an included file", "marks taken out", "deeper"])
def test_uninstall_takes_nothing_that_slurm_still_names(tmp_path: Path, how: str) -> None:
    one = machine(tmp_path)
    other = tmp_path / "hooks.conf"
    if how == "marks taken out":
        one.hook("install", "--yes")
        lines = one.text.splitlines(keepends=True)
        one.slurm_conf.write_text("".join(line for line in lines if not line.startswith("#")))
    else:
        other.write_text("PrologEpilogTimeout=60\n")
        between = tmp_path / "between.conf"
        between.write_text("Include hooks.conf\n")
        name = between.name if how == "deeper" else other.name
        one.slurm_conf.write_text(f"ClusterName=a\nInclude {name}\n")
        one.hook("install", "--yes", "--slurm-conf", str(other))
    before = one.files()
    assert f"{one.to}/prolog" in (one.text + (other.read_text() if other.exists() else ""))
    done = one.hook("uninstall", "--yes")
    assert done.returncode == 1 and "this command does not remove it" in done.stderr
    assert one.files() == before
    if how == "marks taken out":
        again = one.hook("install", "--yes")
        assert again.returncode == 1 and one.files() == before, "what it ran of the site's is not known now"
    else:
        assert one.hook("uninstall", "--yes", "--slurm-conf", str(other)).returncode == 0


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_file_that_was_given_other_line_ends_is_given_back_too(tmp_path: Path, end: str) -> None:
    conf = PLAIN + f"Prolog=/site/p{end}".encode()
    one = machine(tmp_path, conf)
    one.hook("install", "--yes")
    one.slurm_conf.write_bytes(one.slurm_conf.read_bytes().replace(b"\n", b"\r\n"))
    assert one.hook("uninstall", "--yes").returncode == 0
    assert one.slurm_conf.read_bytes().replace(b"\r\n", b"\n").rstrip() == conf.rstrip()


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    one = machine(tmp_path)
    real = tmp_path / "shared.conf"
    one.slurm_conf.rename(real)
    one.slurm_conf.symlink_to(real)
    one.hook("install", "--yes")
    assert one.slurm_conf.is_symlink() and "Prolog=" in real.read_text()


def test_a_program_that_is_gone_is_put_back(tmp_path: Path) -> None:
    one = machine(tmp_path, PLAIN + b"Prolog=/site/prolog\n")
    one.hook("install", "--yes")
    before = one.files()
    (one.to / "prolog").unlink()
    one.hook("install", "--yes")
    assert one.files() == before


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("Prolog=prolog.sh\n", "not a full path"),
        ("Prolog=/etc/slurm/prolog.sh\\\n  X=1\n", "continues on the next line"),
        ("Include sub.conf\n", "give --slurm-conf"),
        ("Epilog=/etc/*/epilog\n", "knows no file name"),
        ("HealthCheckInterval=60s\n", "HealthCheckInterval=60s is not a number of seconds"),
    ],
)
def test_impossible_installation_is_refused_and_changes_no_file(tmp_path: Path, more: str, said: str) -> None:
    (tmp_path / "sub.conf").write_text("Prolog=/x\n")
    one = machine(tmp_path, PLAIN + more.encode())
    before = one.files()
    done = one.hook("install", "--yes")
    assert done.returncode == 1 and said in done.stderr
    assert one.files() == before


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_a_slurm_conf_that_is_missing_is_named_in_a_sentence(tmp_path: Path, verb: str) -> None:
    one = machine(tmp_path)
    one.slurm_conf.unlink()
    done = one.hook(verb, "--yes")
    said = f"healer: {one.slurm_conf} cannot be read: No such file or directory\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert one.files() == {}


def test_a_folder_that_cannot_be_made_is_named_in_a_sentence(tmp_path: Path) -> None:
    one = machine(tmp_path)
    one.to.write_text("a file where the folder is to be")
    done = one.hook("install", "--yes")
    assert done.returncode == 1
    assert f"{one.to} cannot be written: " in done.stderr and "Errno" not in done.stderr
    assert one.text == PLAIN.decode()


def test_timeouts_are_warned_of_and_left_alone(tmp_path: Path) -> None:
    one = machine(tmp_path, b"ClusterName=pod1\nEpilogTimeout=3\n")
    printed = json.loads(one.hook("install", "--yes", "--json").stdout)
    assert [text.split()[0] for text in printed["warnings"]] == ["nodes", "Neither", "Slurm"]
    assert one.value("EpilogTimeout") == "3"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A=1",
        "A=1\n",
        "\n\n",
        "A=1\r\nProlog=/a\r\n",
        'Prolog=/a Epilog="/b c" \\\n  X=1\nY=2',
        "#Prolog=/a\n",
    ],
)
def test_put_in_and_taken_out_is_the_same_text(text: str) -> None:
    replaced = [(one, "/h") for one in find(text, "prolog", "epilog")]
    assert restored(changed(text, replaced, {"Q": "1", "R": "2"})) == text
    assert restored(changed(text, replaced, {})) == text


def test_a_value_is_found_as_slurm_reads_it() -> None:
    text = 'prolog = "/a b" # Prolog=/no\nEpilog=/c\\\nX=1\n'
    assert next((one.name, one.value) for one in find(text, "Prolog", "Epilog")) == ("prolog", "/a b")


def test_uninstallation_refuses_marks_that_were_changed_by_hand() -> None:
    text = changed("A=1\n", [], {"Prolog": "/h"})
    for broken in (text.replace(slurm_conf.END, ""), text.replace(slurm_conf.BEGIN, "")):
        with pytest.raises(ConfProblem, match="backup"):
            restored(broken)
