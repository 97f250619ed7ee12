"""Packs a tree with rpmbuild."""

import os
import subprocess
from pathlib import Path

from package import HOMEPAGE, MAINTAINER, Commit, Package

#: What rpm calls, with the number of installed packages that are left as $1; and which functions then.
SCRIPTS = {
    "%pre": [("[ $1 -eq 1 ]", "first"), ("[ $1 -gt 1 ]", "stop_for_upgrade")],
    "%preun": [("[ $1 -eq 0 ]", "stop_for_good drop_bytecode")],
    "%postun": [("[ $1 -eq 0 ]", "gone")],
}
#: When the old files are gone too. rpm says there no more whether it is an upgrade: %pre has noted it.
LAST = "%posttrans"
#: Folders that are ours, or that a system without that shell does not have: what makes them removes them.
OWNED = ("etc/healer", "usr/share/bash-completion", "usr/share/fish", "usr/share/zsh")
#: Settings that make the bytes the same each time, and leave the files of the tree as they are.
DEFINED = {
    "_build_id_links": "none",
    "__os_install_post": "%{nil}",
    "__brp_mangle_shebangs": "%{nil}",
    "debug_package": "%{nil}",
    "use_source_date_epoch_as_buildtime": "1",
    "clamp_mtime_to_source_date_epoch": "1",
    "_buildhost": "healer",
    "_source_filedigest_algorithm": "8",
    "_binary_filedigest_algorithm": "8",
}


def build(package: Package, commit: Commit, work: Path, out: Path) -> Path:
    top = work / "rpm"
    top.mkdir(exist_ok=True)
    spec = top / f"{package.name}.spec"
    spec.write_text(text(package, commit))
    defined = DEFINED | {
        "_topdir": str(top),
        "_rpmdir": str(top / "made"),
        "_dbpath": str(top / "db"),
        "_rpmfilename": "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm",
        "_binary_payload": "w1.gzdio" if package.quick else "w2.xzdio",
    }
    words = [word for name, value in defined.items() for word in ("--define", f"{name} {value}")]
    target = "noarch" if package.arch == "noarch" else package.arch
    environ = os.environ | {"SOURCE_DATE_EPOCH": str(commit.epoch)}
    done = subprocess.run(
        ["rpmbuild", "-bb", "--quiet", "--target", f"{target}-linux", *words, spec],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"rpmbuild failed:\n{done.stdout}{done.stderr}")
    [made] = (top / "made").glob("*.rpm")
    return made.replace(out / made.name)


def text(package: Package, commit: Commit) -> str:
    head = {
        "Name": package.name,
        "Version": commit.version,
        "Release": f"{commit.release}{package.mark}",
        "Summary": package.summary,
        "License": "Apache-2.0",
        "URL": HOMEPAGE,
        "Packager": MAINTAINER,
        "AutoReqProv": "no",
    }
    rows = [f"{name}: {value}\n" for name, value in head.items()]
    rows += ["BuildArch: noarch\n"] if package.arch == "noarch" else []
    rows += [f"Requires: {each}\n" for each in package.needs]
    rows += [f"Recommends: {each}\n" for each in package.wishes]
    rows += [f"\n%description\n{package.description}\n"]
    rows += [f"\n%install\ncp -a {package.tree}/. %{{buildroot}}/\n"]
    rows += ["\n%files\n%defattr(-,root,root)\n", *files(package)]
    for when, calls in SCRIPTS.items():
        rows += section(package, when, calls)
    rows += last(package)
    return "".join(rows)


def files(package: Package) -> list[str]:
    """Whole folders of our own, and single files in those of the system."""
    config = set(package.config_files())
    own = ("opt/healer", "usr/lib/healer", f"usr/share/{package.name}", f"usr/share/doc/{package.name}")
    rows = [f"/{each}\n" for each in own if (package.tree / each).is_dir()]
    for path in sorted(package.tree.rglob("*")):
        name = str(path.relative_to(package.tree))
        if name.startswith(own):
            continue
        if name.startswith(OWNED) and path.is_dir():
            rows.append(f"%dir /{name}\n")
        elif not path.is_dir():
            rows.append(f"{'%config(noreplace) ' if f'/{name}' in config else ''}/{name}\n")
    return rows


def section(package: Package, when: str, calls: list[tuple[str, str]]) -> list[str]:
    rows = []
    for condition, names in calls:
        found = [each for each in names.split() if package.scripts.has(each)]
        rows += [f"if {condition}; then\n", *(f"    {each}\n" for each in found), "fi\n"] if found else []
    return [f"\n{when}\n", _escaped(package), *rows] if rows else []


def last(package: Package) -> list[str]:
    names = [each for each in ("set_up", "start_again") if package.scripts.has(each)]
    return [f"\n{LAST}\n", _escaped(package), *(f"{each}\n" for each in names)] if names else []


def _escaped(package: Package) -> str:
    return package.scripts.functions.replace("%", "%%") + "\n"
