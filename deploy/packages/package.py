"""What a package is before dpkg-deb or rpmbuild packs it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

HERE = Path(__file__).parent
MAINTAINER = "healer <healer@localhost>"
HOMEPAGE = "https://healer.example"


@dataclass(frozen=True)
class Commit:
    """The unpacked source, its version, and when it was committed (seconds since 1970; a date)."""

    source: Path
    version: str
    release: str
    epoch: int
    date: str


@dataclass(frozen=True)
class Scripts:
    """The functions of `scripts/NAME.sh`, called at a packer's own times."""

    name: str

    @cached_property
    def functions(self) -> str:
        return (HERE / "scripts" / f"{self.name}.sh").read_text()

    def has(self, function: str) -> bool:
        return f"\n{function}()" in self.functions


@dataclass(frozen=True)
class Package:
    """A tree of files with what is said of it. `config`: files or folders that are the site's to change."""

    name: str
    summary: str
    description: str
    kind: str
    mark: str
    arch: str
    tree: Path
    scripts: Scripts
    needs: tuple[str, ...] = ()
    wishes: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    quick: bool = False

    def config_files(self) -> list[str]:
        found: list[str] = []
        for each in self.config:
            path = self.tree / each[1:]
            files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
            found += (f"/{file.relative_to(self.tree)}" for file in files)
        return found
