"""What a release is, in one folder: packages, changes, bill of materials, sums, signatures. `make release`.

Signatures are those that nodes check today (docs/decisions/0016-order-of-adapters.md): ECDSA by the key of
`healer node-keys`, detached, for `openssl dgst -sha256 -verify package.pub -signature FILE.sig FILE`.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from build import ARCHES, TARGETS, archive
from image import BASE

from healer import __version__
from healer.bootstrap.node_keys import read_key, sign
from healer.ports.node_exec import NodeError

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SUMS = "SHA256SUMS"
#: Wheels that the index does not have, and what replaces them.
NO_WHEEL = "Redis: none for aarch64 and none for Python 3.12 and newer; there the broker is PostgreSQL\n"


def changes(version: str) -> str:
    """The section of CHANGELOG.md, without its heading. Empty: there is none."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    found = re.search(rf"^## {re.escape(version)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def write_sums(folder: Path) -> Path:
    """As sha256sum prints them, for `sha256sum --check`."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(SUMS))
    rows = []
    for path in files:
        with path.open("rb") as file:
            rows.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (folder / SUMS).write_text("".join(rows))
    return folder / SUMS


def sign_files(paths: Sequence[Path], keys: Path) -> None:
    key = read_key(keys / "package.key")
    for path in paths:
        path.with_name(f"{path.name}.sig").write_bytes(sign(key, path.read_bytes()))


def bundle(folder: Path, version: str) -> Path:
    """All of it in one archive, for a site without a network; the same bytes from the same files."""
    made = folder.with_name(f"healer-{version}-offline.tar")
    epoch = int(subprocess.check_output(["git", "show", "-s", "--format=%ct"], cwd=ROOT))
    archive(made, {f"healer-{version}": folder}, epoch)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tools/release", description="Makes a release of the commit that is checked out"
    )
    parser.add_argument("names", nargs="*", metavar="PACKAGE", help="only these, to try it; all of them")
    parser.add_argument("--keys", type=Path, help="folder of `healer node-keys`: package.key signs")
    parser.add_argument("--arch", choices=ARCHES, action="append", help="machines of the server (both)")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder, emptied first (dist)")
    parser.add_argument("--offline", action="store_true", help="also one archive beside the folder")
    parser.add_argument("--image", action="store_true", help="also the image; see tools/image")
    parser.add_argument("--quick", action="store_true", help="weak compression, to try it")
    asked = parser.parse_args(arguments)
    if subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, check=False).returncode:
        parser.error("there are changes that are not committed; a release is one commit")
    if not (notes := changes(__version__)):
        parser.error(f"CHANGELOG.md has no section ## {__version__}")
    shutil.rmtree(asked.out, ignore_errors=True)
    try:
        made = make(asked)
    except NodeError as error:
        parser.error(str(error))
    print(f"\nhealer {__version__}\n\n{notes}\n\n{made.read_text()}", end="")
    if asked.keys is None:
        print("not signed: give --keys FOLDER of `healer node-keys`")
    if asked.offline:
        print(bundle(asked.out, __version__))
    return 0


def make(asked: argparse.Namespace) -> Path:
    """The file of sums."""
    for number, arch in enumerate(asked.arch or ARCHES):
        # What runs on any machine is made once.
        names = [
            name
            for name in asked.names or ["node-deb", "node-rpm", *TARGETS]
            if name in TARGETS or not number
        ]
        if names:
            options = ["--arch", arch, "--out", asked.out, *(["--quick"] if asked.quick else [])]
            subprocess.run([sys.executable, HERE / "build.py", *names, *options], check=True)
    if asked.image:
        [package] = asked.out.glob(f"healer_*{TARGETS[BASE].mark}_amd64.deb")
        subprocess.run(
            [sys.executable, HERE / "image.py", "--package", package, "--out", asked.out], check=True
        )
    bill = asked.out / f"healer-{__version__}.cdx.json"
    subprocess.run([sys.executable, ROOT / "tools/sbom", bill], check=True)
    shutil.copyfile(ROOT / "CHANGELOG.md", asked.out / "CHANGELOG.md")
    (asked.out / "NO-WHEEL").write_text(NO_WHEEL)
    if asked.keys is not None:
        sign_files(sorted(asked.out.glob("healer-node*")), asked.keys)
    sums = write_sums(asked.out)
    if asked.keys is not None:
        sign_files([sums], asked.keys)
    return sums


if __name__ == "__main__":
    sys.exit(main())
