"""Builds the packages of one commit, byte for byte the same each time: `make packages`, docs/install.md.

What lies in them is laid out once as a tree of files, the same for deb and rpm; dpkg-deb and rpmbuild only
pack it.
"""

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import deb
import rpm
from package import Commit, Package, Scripts

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
#: The oldest C library that a package must run with: that of EL 8.
PLATFORM = "manylinux_2_28"
ARCHES = ("x86_64", "aarch64")
VENV = "opt/healer/.venv"


@dataclass(frozen=True)
class Target:
    """A distribution: who packs, the mark in the version, its Python and the package that has it."""

    kind: str
    mark: str
    python: str
    needs: str
    #: systemd 250 knows `%d`, 247 credentials. Below that parts have no secrets: their units stay away.
    systemd: int = 250
    #: Small systems have no time zones, not even UTC, and the worker asks for it.
    zones: str = "tzdata"


TARGETS = {
    "debian12": Target("deb", "~deb12", "3.11", "python3.11"),
    "debian13": Target("deb", "~deb13", "3.13", "python3.13"),
    "ubuntu22.04": Target("deb", "~ubuntu22.04", "3.11", "python3.11", systemd=249),
    "ubuntu24.04": Target("deb", "~ubuntu24.04", "3.12", "python3.12"),
    "el8": Target("rpm", ".el8", "3.11", "python3.11", systemd=239),
    "el9": Target("rpm", ".el9", "3.11", "python3.11"),
    "opensuse": Target("rpm", ".suse", "3.11", "python311", zones="timezone"),
}
#: Libraries of the wheels, and what makes users and folders: an image has only these two programs of systemd.
SYSTEM = {
    "deb": (
        "libc6 (>= 2.28)", "libgcc-s1", "libstdc++6", "zlib1g",
        "systemd | systemd-standalone-sysusers", "systemd | systemd-standalone-tmpfiles",
    ),
    # By what they hold: EL and openSUSE call these packages by other names.
    "rpm": (
        "libc.so.6(GLIBC_2.28)(64bit)", "libgcc_s.so.1()(64bit)", "libstdc++.so.6()(64bit)",
        "libz.so.1()(64bit)", "systemd",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Shop:
    """Where packages of one commit for one kind of machine are made."""

    commit: Commit
    arch: str
    work: Path

    @property
    def papers(self) -> Path:
        """What documents.py writes."""
        return self.work / "papers"


UV = Path(sys.executable).with_name("uv")


def run(*command: str | Path, **more: object) -> str:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **more)  # type: ignore[call-overload]
    return done.stdout


# --- the commit ------------------------------------------------------------------------------------------


def take_source(name: str, version: str | None, release: str, folder: Path) -> Commit:
    """Unpacks the commit, never what lies uncommitted beside it, with what `healer --version` says."""
    digest, epoch, date = run("git", "show", "-s", "--format=%H %ct %cs", name, cwd=ROOT).split()
    folder.mkdir()
    archive = folder.with_suffix(".tar")
    run("git", "archive", f"--output={archive}", digest, cwd=ROOT)
    run("tar", "-xf", archive, "-C", folder)
    ours = folder / "healer" / "__init__.py"
    text = ours.read_text()
    own = re.search(r'^__version__ = "(.*)"$', text, re.M)
    assert own is not None
    version = version or str(own[1])
    for path in (ours, folder / "pyproject.toml"):
        new = re.sub(r'^(__version__|version) = ".*"$', rf'\1 = "{version}"', path.read_text(), flags=re.M)
        path.write_text(new)
    (folder / "healer" / "build.txt").write_text(
        f"commit {digest[:12]} of {date}, package {version}-{release}\n"
    )
    return Commit(folder, version, release, int(epoch), date)


def write_papers(shop: Shop) -> None:
    commit = shop.commit
    program = (sys.executable, HERE / "documents.py", commit.source / "docs", shop.papers)
    more = {"PYTHONPATH": str(commit.source), "PYTHONDONTWRITEBYTECODE": "1"}
    run(*program, commit.version, commit.date, env=os.environ | more)


def build_wheel(shop: Shop) -> Path:
    environ, folder = os.environ | {"SOURCE_DATE_EPOCH": str(shop.commit.epoch)}, shop.work / "wheel"
    run(UV, "build", "--quiet", "--wheel", "--out-dir", folder, shop.commit.source, env=environ)
    [wheel] = folder.glob("*.whl")
    return wheel


# --- the server ------------------------------------------------------------------------------------------


def lay_environment(shop: Shop, wheel: Path, target: Target, tree: Path) -> None:
    """`/opt/healer/.venv` of the lock file's own files, as the distribution's Python sees it."""
    venv = tree / VENV
    packages = venv / "lib" / f"python{target.python}" / "site-packages"
    (venv / "bin").mkdir(parents=True)
    locked = shop.work / "locked.txt"
    export = (
        "export",
        "--quiet",
        "--frozen",
        "--no-dev",
        "--extra",
        "otel",
        "--no-emit-project",
        "--no-header",
    )
    run(UV, *export, "--output-file", locked, cwd=shop.commit.source)
    into = (
        "pip", "install", "--quiet", "--target", packages, "--python", sys.executable, "--no-deps",
        "--python-version", target.python, "--python-platform", f"{shop.arch}-{PLATFORM}",
        "--only-binary", ":all:", "--link-mode", "copy",
    )  # fmt: skip
    run(UV, *into, "--require-hashes", "--requirements", locked)
    run(UV, *into, wheel)
    shutil.rmtree(packages / "bin")  # started by name: only healer itself is
    (packages / ".lock").unlink(missing_ok=True)
    forget_where_it_came_from(packages)
    lines = ("home = /usr/bin", "include-system-site-packages = false", f"version = {target.python}")
    (venv / "pyvenv.cfg").write_text("\n".join(lines) + "\n")
    for name in ("python", "python3", f"python{target.python}"):
        (venv / "bin" / name).symlink_to(f"/usr/bin/python{target.python}")
    put(HERE / "scripts" / "entry.py", venv / "bin" / "healer", 0o755)


def forget_where_it_came_from(packages: Path) -> None:
    """What uv notes of the wheel's file: its path and its time on this machine."""
    [info] = packages.glob("healer-*.dist-info")
    noted = {"direct_url.json", "uv_cache.json", "uv_build.json"}
    for name in noted:
        (info / name).unlink(missing_ok=True)
    rows = (info / "RECORD").read_text().splitlines(keepends=True)
    (info / "RECORD").write_text(
        "".join(row for row in rows if row.split(",")[0].split("/")[-1] not in noted)
    )


def lay_server(shop: Shop, target: Target, tree: Path) -> None:
    """All but the environment."""
    commit, papers = shop.commit, shop.papers
    put(HERE / "scripts" / "healer.command", tree / "usr/bin/healer", 0o755)
    put(papers / "healer.toml", tree / "etc/healer/healer.toml")
    shutil.copytree(commit.source / "rules", tree / "etc/healer/rules")
    units = commit.source / "deploy/systemd"
    for unit in sorted(each for each in units.glob("healer*") if each.is_file()):
        if unit.name == "healer.service" or target.systemd >= 247:
            write(tree / "usr/lib/systemd/system" / unit.name, unit_text(unit, target))
    put(units / "sysusers.conf", tree / "usr/lib/sysusers.d/healer.conf")
    put(units / "tmpfiles.conf", tree / "usr/lib/tmpfiles.d/healer.conf")
    for drop_in in sorted((units / "optional").glob("*/*.conf")) if target.systemd >= 247 else []:
        to = tree / "usr/share/doc/healer/examples/systemd" / drop_in.relative_to(units / "optional")
        write(to, unit_text(drop_in, target))
    for each in (
        *commit.source.glob("deploy/grafana/*.json"),
        *commit.source.glob("deploy/prometheus/*.yml"),
    ):
        put(each, tree / "usr/share/healer" / each.parent.name / each.name)
    shutil.copytree(commit.source / "docs", tree / "usr/share/doc/healer/docs", ignore=not_a_page)
    put(papers / "healer.bash", tree / "usr/share/bash-completion/completions/healer")
    zsh = "vendor-completions" if target.kind == "deb" else "site-functions"
    put(papers / "_healer", tree / "usr/share/zsh" / zsh / "_healer")
    put(papers / "healer.fish", tree / "usr/share/fish/vendor_completions.d/healer.fish")
    for page in (papers / "man").iterdir():
        pack(page.read_bytes(), tree / "usr/share/man/man1" / f"{page.name}.gz")
    lay_legal(commit, "healer", target.kind, tree)


def unit_text(unit: Path, target: Target) -> str:
    text = unit.read_text()
    return text if target.systemd >= 250 else text.replace("=%d/", "=/run/credentials/%n/")


def not_a_page(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if not name.endswith(".md") and not Path(folder, name).is_dir()} | {
        "images", "decisions", "schemas",
    }  # fmt: skip


def server(shop: Shop, name: str, wheel: Path) -> Package:
    target, tree = TARGETS[name], shop.work / name
    lay_environment(shop, wheel, target, tree)
    lay_server(shop, target, tree)
    settle(tree, shop.commit.epoch)
    return Package(
        "healer", "Self-healing control plane for GPU clusters under Slurm",
        "It hears what nodes, jobs and Slurm say, finds faulty and slow nodes, drains\n"
        "and repairs them, and proves each step. This is the server: API and console,\n"
        "detector, scheduler and worker.",
        target.kind, target.mark, shop.arch, tree, Scripts("healer"),
        needs=(*SYSTEM[target.kind], target.needs, target.zones),
        wishes=("ca-certificates", "munge"),
        config=("/etc/healer/healer.toml", "/etc/healer/rules"),
    )  # fmt: skip


# --- a node ----------------------------------------------------------------------------------------------


def node(shop: Shop, kind: str) -> Package:
    """Hook, follower and node program: nothing but the system's Python."""
    commit, tree = shop.commit, shop.work / f"node-{kind}"
    hooks = commit.source / "healer/hooks"
    for name in ("healer-hook", "healer-follow", "healer-node", "healer-ship", "healer-nvhcd"):
        put(hooks / name, tree / "usr/lib/healer" / name, 0o755)
    for name in ("healer-follow.service", "healer-nvhcd.service"):
        unit = (hooks / name).read_text().replace("/usr/local/lib/healer/", "/usr/lib/healer/")
        write(tree / "usr/lib/systemd/system" / name, unit)
    for path in sorted((shop.papers / "node").iterdir()):
        put(path, tree / "usr/share/healer-node" / path.name, 0o644 if path.suffix else 0o755)
    lay_legal(commit, "healer-node", kind, tree)
    settle(tree, commit.epoch)
    python = {"deb": "python3 (>= 3.6)", "rpm": "(python3 >= 3.6 or platform-python >= 3.6)"}[kind]
    return Package(
        "healer-node", "Programs of healer on a node: Slurm's hooks, the follower, the node program",
        "It tells healer what this node's kernel, GPUs and file systems say, and does\n"
        "what healer's signed requests ask. It needs only the system's Python.",
        kind, "", "noarch", tree, Scripts("healer-node"),
        needs=(python,), wishes=("openssl", "munge"),
    )  # fmt: skip


def absolute(path: str) -> Path:
    return Path(path).absolute()


# --- files -----------------------------------------------------------------------------------------------


def put(source: Path, to: Path, mode: int = 0o644) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, to)
    to.chmod(mode)


def write(to: Path, text: str) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text)


def pack(data: bytes, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(gzip.compress(data, 9, mtime=0))


def lay_legal(commit: Commit, name: str, kind: str, tree: Path) -> None:
    folder = tree / "usr/share/doc" / name
    changes = (commit.source / "CHANGELOG.md").read_bytes()
    if kind == "rpm":
        put(commit.source / "LICENSE", folder / "LICENSE")
        put(commit.source / "CHANGELOG.md", folder / "CHANGELOG.md")
        return
    put(HERE / "copyright", folder / "copyright")
    pack(changes, folder / "NEWS.gz")
    pack(deb.changelog(name, commit).encode(), folder / "changelog.Debian.gz")


def settle(tree: Path, epoch: int) -> None:
    """The same modes and times, whoever builds, wherever."""
    for path in sorted([tree, *tree.rglob("*")], reverse=True):  # what a folder holds, before the folder
        if not path.is_symlink():
            runs = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if runs else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def archive(made: Path, entries: Mapping[str, Path], epoch: int) -> None:
    """Files and folders by their names in it; the same bytes from the same files."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime, entry.mode = epoch, 0o755 if entry.isdir() else 0o644
        return entry

    with tarfile.open(made, "w", format=tarfile.PAX_FORMAT) as file:
        for name, path in entries.items():
            file.add(path, name, filter=plain)


# --- all of it -------------------------------------------------------------------------------------------


def packages(names: Sequence[str], shop: Shop) -> Iterator[Package]:
    write_papers(shop)
    yield from (node(shop, kind) for kind in ("deb", "rpm") if f"node-{kind}" in names)
    if servers := [name for name in names if name in TARGETS]:
        wheel = build_wheel(shop)
        yield from (server(shop, name, wheel) for name in servers)


def build(asked: argparse.Namespace) -> None:
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="healer-packages-", dir=asked.work) as folder:
        work = Path(folder)
        commit = take_source(asked.commit, asked.version, asked.release, work / "source")
        for package in packages(asked.names, Shop(commit, asked.arch, work)):
            packer = {"deb": deb.build, "rpm": rpm.build}[package.kind]
            quick = asked.quick and package.arch != "noarch"  # a node's is small anyway
            made = packer(replace(package, quick=quick), commit, work, asked.out)
            shutil.rmtree(package.tree)
            print(f"{made.stat().st_size / 1e6:8.1f} MB  {made}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    every = [*(f"node-{kind}" for kind in ("deb", "rpm")), *TARGETS]
    parser = argparse.ArgumentParser(prog="tools/packages", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="PACKAGE", help=f"some of {', '.join(every)}; all of them"
    )
    parser.add_argument(
        "--arch", choices=ARCHES, default="x86_64", help="the machines of the server (x86_64)"
    )
    parser.add_argument("--commit", default="HEAD", help="what is packaged (HEAD)")
    parser.add_argument("--version", help="another version than healer's own, to try an upgrade")
    parser.add_argument("--release", default="1", help="of the package, within a version (1)")
    parser.add_argument("--out", type=absolute, default=ROOT / "dist", help="folder of the packages (dist)")
    parser.add_argument("--work", type=absolute, help="folder for temporary files: about 1 GB (the system's)")
    parser.add_argument("--quick", action="store_true", help="weak compression, to try packages sooner")
    asked = parser.parse_args(arguments)
    asked.names = asked.names or every
    if unknown := set(asked.names) - set(every):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(every)}")
    missing = [name for name in ("dpkg-deb", "rpmbuild") if shutil.which(name) is None]
    if missing:
        parser.error(f"{', '.join(missing)} is missing: install Debian's packages dpkg and rpm")
    os.umask(0o022)
    build(asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
