"""The parts as the systemd units of `deploy/systemd` give them: what a unit says, and its process.

No systemd runs here. `start` reads the unit and does what systemd would: the user and its groups, its folder,
the environment, the credentials, no new privileges, the system calls, and no memory that is written and run.
"""

import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
OPTIONAL = UNITS / "optional"
PARTS = ("api", "detector", "scheduler", "scraper", "worker")
_BEGIN = Path("/opt/healer/.venv/bin/healer")


@dataclass(frozen=True)
class Unit:
    """Its lines by name, in their order; drop-ins add theirs."""

    name: str
    lines: dict[str, list[str]]
    drop_ins: tuple[str, ...] = ()

    def one(self, name: str) -> str:
        [value] = self.lines[name]
        return value

    @property
    def environ(self) -> dict[str, str]:
        pairs = (pair for line in self.lines.get("Environment", []) for pair in line.split())
        return dict(pair.split("=", 1) for pair in pairs)

    @property
    def credentials(self) -> dict[str, Path]:
        """The file of each credential, by its name."""
        pairs = (line.split(":", 1) for line in self.lines.get("LoadCredential", []))
        return {name: Path(path) for name, path in pairs}


def read_unit(part: str, *drop_ins: str, folder: Path = UNITS) -> Unit:
    """`healer-PART.service`, with drop-ins of `optional/` by their names."""
    name = f"healer-{part}.service"
    files = [folder / name, *(OPTIONAL / f"{name}.d" / f"{each}.conf" for each in drop_ins)]
    lines: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for line in file.read_text().splitlines():
            key, found, value = line.partition("=")
            if found and not line.startswith("#"):
                lines[key].append(value)
    return Unit(part, dict(lines), drop_ins)


def drop_ins(part: str) -> list[str]:
    """The names of all drop-ins that ship for this part."""
    return sorted(path.stem for path in (OPTIONAL / f"healer-{part}.service.d").glob("*.conf"))


@dataclass(frozen=True)
class Machine:
    """A folder with the `etc/healer` and `var/lib/healer` of a machine."""

    root: Path

    def place(self, path: str | Path) -> Path:
        """Where a path of a unit is on this machine."""
        return self.root / str(path).lstrip("/")

    def give(self, unit: Unit, **values: str) -> None:
        """Writes root's files of the unit's credentials. `values` by name, with `_` for `-`."""
        for name, path in unit.credentials.items():
            file = self.place(path)
            if (value := values.get(name.replace("-", "_"))) is not None:
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                file.touch(mode=0o600)
                file.write_text(value)

    def credentials_of(self, part: str) -> Path:
        """What `$CREDENTIALS_DIRECTORY` is in this part's process."""
        return self.place(f"/run/credentials/healer-{part}.service")

    def start(self, unit: Unit, **environ: str) -> "subprocess.Popen[bytes]":
        """Starts the part; its output is `log/PART.log` below the root. It ends with the test's process."""
        command = ["setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "tests.support.unit_program"]
        log = self.place(f"/log/{unit.name}.log")
        log.parent.mkdir(exist_ok=True)
        rest = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        with log.open("ab") as out:
            return subprocess.Popen(
                [*command, str(self.root), unit.name, *unit.drop_ins],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=rest | environ, cwd=ROOT,
            )  # fmt: skip


def arguments(unit: Unit) -> list[str]:
    """`healer`'s arguments in ExecStart."""
    program, *rest = unit.one("ExecStart").split()
    assert Path(program) == _BEGIN
    return rest
