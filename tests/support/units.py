"""What the systemd units of `deploy/systemd` say."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
OPTIONAL = UNITS / "optional"
PARTS = ("api", "detector", "scheduler", "scraper", "worker")


@dataclass(frozen=True)
class Unit:
    """Its lines by name, in their order; drop-ins add theirs."""

    name: str
    lines: dict[str, list[str]]

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
    return Unit(part, dict(lines))


def drop_ins(part: str) -> list[str]:
    """The names of all drop-ins that ship for this part."""
    return sorted(path.stem for path in (OPTIONAL / f"healer-{part}.service.d").glob("*.conf"))
