"""Packs a tree with dpkg-deb."""

import hashlib
import os
import subprocess
from email.utils import formatdate
from pathlib import Path

from package import HOMEPAGE, MAINTAINER, Commit, Package

ARCH = {"x86_64": "amd64", "aarch64": "arm64", "noarch": "all"}
#: What dpkg calls, and when it calls which of the functions.
SCRIPTS = {
    "preinst": {"install": "first", "upgrade": "stop_for_upgrade"},
    "postinst": {"configure": "set_up", "abort-upgrade|abort-remove|abort-deconfigure": "start_again"},
    "prerm": {"remove|deconfigure": "stop_for_good drop_bytecode", "upgrade": "drop_bytecode"},
    "postrm": {"remove": "gone", "purge": "purged", "abort-install|abort-upgrade": "start_again"},
}
#: The function that follows.
AFTER = {"set_up": "start_again"}


def build(package: Package, commit: Commit, work: Path, out: Path) -> Path:
    control = package.tree / "DEBIAN"
    control.mkdir()
    size_kib = sum(-(-path.lstat().st_size // 1024) or 1 for path in package.tree.rglob("*"))
    (control / "control").write_text(fields(package, commit, size_kib))
    if files := package.config_files():
        (control / "conffiles").write_text("".join(f"{name}\n" for name in files))
    (control / "md5sums").write_text(sums(package.tree))
    for name, calls in SCRIPTS.items():
        if text := script(package, calls):
            (control / name).write_text(text)
            (control / name).chmod(0o755)
    for path in (*control.iterdir(), control, package.tree):
        os.utime(path, (commit.epoch, commit.epoch))
    made = out / f"{package.name}_{version(package, commit)}_{ARCH[package.arch]}.deb"
    packing = ["-Zzstd", "-z3"] if package.quick else ["-Zxz", "-z2"]
    command = ["dpkg-deb", "--root-owner-group", "--threads-max=1", *packing, "--build", package.tree, made]
    environ = os.environ | {"SOURCE_DATE_EPOCH": str(commit.epoch)}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ)
    return made


def version(package: Package, commit: Commit) -> str:
    return f"{commit.version}-{commit.release}{package.mark}"


def fields(package: Package, commit: Commit, size_kib: int) -> str:
    rows = {
        "Package": package.name,
        "Version": version(package, commit),
        "Architecture": ARCH[package.arch],
        "Maintainer": MAINTAINER,
        "Installed-Size": size_kib,
        "Depends": ", ".join(package.needs),
        "Recommends": ", ".join(package.wishes),
        "Section": "admin",
        "Priority": "optional",
        "Homepage": HOMEPAGE,
        "Description": package.summary + "".join(f"\n {row}" for row in package.description.splitlines()),
    }
    return "".join(f"{name}: {value}\n" for name, value in rows.items() if value)


def sums(tree: Path) -> str:
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    return "".join(
        f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n"  # noqa: S324 # dpkg's own
        for path in files
        if "DEBIAN" not in path.relative_to(tree).parts[:1]
    )


def script(package: Package, calls: dict[str, str]) -> str:
    """Empty where the package has none of the functions."""
    cases = []
    for when, names in calls.items():
        found = [each for each in names.split() if package.scripts.has(each)]
        found += [AFTER[each] for each in found if package.scripts.has(AFTER.get(each, ""))]
        if found:
            cases.append(f"{when}) {'; '.join(found)} ;;\n")
    return f"#!/bin/sh\n{package.scripts.functions}\ncase $1 in\n{''.join(cases)}esac\n" if cases else ""


def changelog(name: str, commit: Commit) -> str:
    """Debian's own form; NEWS lists what changed."""
    return (
        f"{name} ({commit.version}-{commit.release}) unstable; urgency=medium\n\n"
        f"  * healer {commit.version}; what changed is in NEWS.gz.\n\n"
        f" -- {MAINTAINER}  {formatdate(commit.epoch)}\n"
    )
