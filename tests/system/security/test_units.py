"""The systemd units: what each part may do and which secrets it has, as the files say."""

import re
import subprocess
from pathlib import Path

import pytest

from healer.embedded.user import SERVERS, SERVICE
from healer.settings import privileged_names, secret_names, setting_names
from tests.support.units import PARTS, ROOT, UNITS, Unit, drop_ins, read_unit

#: The most that the API's exposure may be, by `systemd-analyze security`.
LIMIT = 2.0
#: systemd-analyze notes in /run that it has read units: it gets one of its own.
OWN_RUN = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs run /run && exec "$@"', "sh")
#: Part -> the secrets that its unit has, and those that a drop-in adds. Nothing else.
SECRETS = {
    "api": ({"database-url", "broker-url", "token-key"}, {
        "slurm-read-token", "prometheus-token", "slack-signing-secret", "link-secret",
    }),
    "detector": ({"database-url", "broker-url"}, {"slurm-read-token", "prometheus-token"}),
    "scheduler": ({"database-url", "broker-url"}, {
        "slurm-read-token", "webhook-secret", "notify-url", "slack-token", "slack-signing-secret",
        "tickets-token", "smtp-password", "link-secret",
    }),
    "scraper": ({"database-url"}, {"slurm-read-token", "prometheus-token"}),
    "worker": ({"database-url", "broker-url"}, {
        "ssh-key", "ssh-signing-key", "bmc-password", "slurm-token", "witnesses",
    }),
    "upgrade": ({"database-url", "token-key"}, set()),
}  # fmt: skip
#: Lines that each unit has alike.
HARDENED = (
    "NoNewPrivileges=yes", "CapabilityBoundingSet=", "AmbientCapabilities=", "ProtectSystem=strict",
    "ProtectHome=yes", "SystemCallFilter=@system-service", "SystemCallArchitectures=native",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6", "RestrictNamespaces=yes", "PrivateTmp=yes",
    "PrivateDevices=yes", "PrivateUsers=yes", "MemoryDenyWriteExecute=yes", "ProtectProc=invisible",
    "ProtectKernelTunables=yes", "ProtectKernelModules=yes", "ProtectKernelLogs=yes", "RestrictSUIDSGID=yes",
)  # fmt: skip
#: What a part may write beside its own folder: what it gives to others.
SHARED = {"detector": ["/var/lib/healer/recordings"], "worker": ["/var/lib/healer/audit"]}
#: Lines that open a wall again.
OPENERS = (
    "BindPaths", "BindReadOnlyPaths", "CacheDirectory", "ConfigurationDirectory", "LogsDirectory",
    "RuntimeDirectory", "DeviceAllow", "PermissionsStartOnly",
)  # fmt: skip


def exposure(file: Path) -> float:
    """The figure of `systemd-analyze security`, 0 to 10."""
    command = [*OWN_RUN, "systemd-analyze", "security", "--offline=true", "--no-pager", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    return float(found[1])


def test_exposure_of_each_unit_is_low_and_matches_the_docs() -> None:
    measured = {part: exposure(UNITS / f"healer-{part}.service") for part in (*PARTS, "upgrade", "backup")}
    assert max(measured.values()) <= LIMIT
    text = (ROOT / "docs" / "install.md").read_text()
    written = dict(re.findall(r"^\| `healer-(\w+)` \|.*\| ([0-9.]+) \|$", text, re.M))
    assert {part: float(figure) for part, figure in written.items()} == measured


def test_exposure_of_all_in_one_matches_the_docs(tmp_path: Path) -> None:
    """It forks users, so it stays root: the figure is higher than a part's."""
    file = UNITS / "healer.service"
    plain = tmp_path / "healer.service"
    words = ("[Unit]", "[Service]", "Description=", "ExecStart=")
    plain.write_text("\n".join(line for line in file.read_text().splitlines() if line.startswith(words)))
    text = (ROOT / "docs" / "install.md").read_text()
    sentence = r"rates its exposure at ([0-9.]+), compared with ([0-9.]+) without sandboxing"
    written = re.search(sentence, text)
    assert written and (float(written[1]), float(written[2])) == (exposure(file), exposure(plain))


def test_systemd_understands_every_line(tmp_path: Path) -> None:
    """`systemd-analyze verify` on units whose program is here."""
    for file in (path for path in UNITS.glob("healer*") if path.is_file()):
        text = file.read_text().replace("/opt/healer/.venv/bin/healer", "/bin/true")
        (tmp_path / file.name).write_text(text)
        for part in (UNITS / "optional" / f"{file.name}.d").glob("*.conf"):
            folder = tmp_path / f"{file.name}.d"
            folder.mkdir(exist_ok=True)
            (folder / part.name).write_text(part.read_text())
    files = sorted(str(path) for path in tmp_path.iterdir() if path.is_file())
    done = subprocess.run(
        [*OWN_RUN, "systemd-analyze", "verify", "--man=no", *files],
        capture_output=True, text=True, check=False,
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("part", SECRETS)
def test_a_unit_has_the_secrets_of_its_part_and_no_other(part: str) -> None:
    own, more = SECRETS[part]
    plain = read_unit(part)
    added = set[str]()
    for name in drop_ins(part):
        added |= read_unit(part, name).credentials.keys() - plain.credentials.keys()
    assert (set(plain.credentials), added) == (own, more)
    whole = read_unit(part, *drop_ins(part))
    folders = {path.parent.name for name, path in whole.credentials.items() if name != "token-key"}
    assert folders == {part}, "a folder of root for each part"


def names_of(unit: Unit) -> dict[str, str]:
    return {name: value for name, value in unit.environ.items() if value.startswith("%d/")}


@pytest.mark.parametrize("part", SECRETS)
def test_every_credential_is_a_setting_that_this_part_reads(part: str) -> None:
    unit = read_unit(part, *drop_ins(part))
    files = names_of(unit)
    assert {value.removeprefix("%d/") for value in files.values()} == set(unit.credentials)
    for name in files:
        assert name in setting_names() or name.removesuffix("_FILE") in secret_names(), name
        assert (name in privileged_names()) <= (part == "worker"), name


def test_only_the_worker_names_what_acts_and_only_the_others_the_token_that_reads() -> None:
    for part in PARTS:
        names = names_of(read_unit(part, *drop_ins(part)))
        assert ("HEALER_SLURM_TOKEN_FILE" in names) == (part == "worker")
        assert ("HEALER_SLURM_READ_TOKEN_FILE" in names) == (part != "worker")


def test_each_part_is_its_own_user_with_its_own_folder_and_the_same_walls() -> None:
    users = set()
    for part in PARTS:
        unit = read_unit(part)
        users.add(unit.one("User"))
        assert unit.one("Group") == unit.one("User") == f"healer-{part}"
        assert unit.one("StateDirectory") == f"healer/{part}" and unit.one("StateDirectoryMode") == "0700"
    assert len(users) == len(PARTS)
    made = (UNITS / "sysusers.conf").read_text()
    assert users | {SERVICE, SERVERS} == set(re.findall(r"^u (\S+)", made, re.M))
    for part in (*PARTS, "upgrade"):
        lines = (UNITS / f"healer-{part}.service").read_text().splitlines()
        assert [line for line in HARDENED if line not in lines] == []
        unit = read_unit(part)
        assert unit.lines.get("ReadWritePaths", []) == SHARED.get(part, [])
        assert unit.lines.keys() & set(OPENERS) == set()


def test_a_backup_reads_all_and_writes_one_folder() -> None:
    unit, lines = read_unit("backup"), (UNITS / "healer-backup.service").read_text().splitlines()
    assert unit.one("CapabilityBoundingSet") == "CAP_DAC_OVERRIDE", "root, to read keys of other users"
    assert unit.one("ReadWritePaths") == "/var/backups/healer" and unit.lines.keys() & set(OPENERS) == set()
    assert set(unit.credentials) == {"passphrase"}
    assert set(HARDENED) - set(lines) == {"CapabilityBoundingSet=", "PrivateUsers=yes"}
    whole = read_unit("backup", *drop_ins("backup"))
    assert whole.credentials["database-url"] == read_unit("upgrade").credentials["database-url"]
    assert whole.credentials["token-key"] == read_unit("upgrade").credentials["token-key"]
    assert f"d {unit.one('ReadWritePaths')} 0700 root root -" in (UNITS / "tmpfiles.conf").read_text()


def test_no_unit_gives_up_starting() -> None:
    """systemd's own limit is five starts within 10 s."""
    units = [UNITS / f"healer-{part}.service" for part in PARTS]
    for file in (*units, UNITS / "healer.service"):
        head = file.read_text().partition("[Service]")[0]
        assert "StartLimitIntervalSec=0" in head.splitlines(), file.name


def test_the_target_starts_every_part() -> None:
    wanted = re.search(r"^Wants=(.*)$", (UNITS / "healer.target").read_text(), re.M)
    assert wanted and set(wanted[1].split()) == {f"healer-{part}.service" for part in PARTS}
