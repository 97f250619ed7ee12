"""Makes an OCI image of the package for Debian 12, without a daemon: `make image`, docs/install.md.

mmdebstrap installs the package into a root of its own, as on a machine; umoci makes that the one layer.
What a container may write are the volumes of docker-compose.yml and nothing else.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from build import absolute, archive, run

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BASE = "debian12"
#: Users by the numbers of docker-compose.yml: what lies in a volume outlives the image.
PARTS = ("api", "detector", "scheduler", "scraper", "worker", "migrate")
FIRST = 2001
GROUP = 2000
#: What the worker calls beside its own, and what makes users and folders where no systemd runs.
INCLUDED = (
    "systemd-standalone-sysusers", "systemd-standalone-tmpfiles",
    "ca-certificates", "libmunge2", "openssh-client", "slurm-client",
)  # fmt: skip
#: Of Debian's packages, what no container reads. Licences stay.
LEFT_OUT = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
)
KEPT = "path-include=/usr/share/doc/*/copyright"
CONFIG = {
    "config.user": f"{FIRST}:{FIRST}",
    "config.entrypoint": "/usr/bin/healer",
    "config.workingdir": "/var/lib/healer",
    "config.exposedports": "8080/tcp",
    "config.stopsignal": "SIGTERM",
}
ENVIRON = ("PATH=/opt/healer/.venv/bin:/usr/bin:/bin", "PYTHONUNBUFFERED=1")


def users() -> str:
    """In place of the package's own, whose numbers are any."""
    rows = [f'u healer {GROUP} "healer" /var/lib/healer\n', 'u healer-db - "unused" /var/lib/healer\n']
    rows += [
        f'u healer-{part} {FIRST + place} "healer {part}" /var/lib/healer/{part}\n'
        for place, part in enumerate(PARTS)
    ]
    return "".join(rows)


def folders() -> str:
    """In place of the package's own: a volume takes over owner and mode of what lies under it."""
    rows = ["d /var/lib/healer 0755 root root -\n"]
    rows += [f"d /var/lib/healer/{part} 0700 healer-{part} healer-{part} -\n" for part in PARTS]
    rows += [f"d /var/lib/healer/{name} 2751 healer-worker healer -\n" for name in ("audit", "sim")]
    return "".join(rows)


def root(package: Path, epoch: int, mirror: Sequence[str], work: Path) -> Path:
    """The image's files, as one archive."""
    (work / "users").write_text(users())
    (work / "folders").write_text(folders())
    hooks = (
        'mkdir -p "$1/etc/sysusers.d" "$1/etc/tmpfiles.d"',
        f"upload {work / 'users'} /etc/sysusers.d/healer.conf",
        f"upload {work / 'folders'} /etc/tmpfiles.d/healer.conf",
    )
    options = [f"--dpkgopt={each}" for each in (*LEFT_OUT, KEPT)]
    options += [f"--essential-hook={each}" for each in hooks]
    # No program makes its caller another user.
    options += ['--customize-hook=find "$1" -xdev -type f -perm /6000 -exec chmod a-s {} +']
    options += ["--hook-dir=/usr/share/mmdebstrap/hooks/file-mirror-automount"]
    options += [f"--include={','.join(INCLUDED)}", f"--include={package}"]
    made = work / "root.tar"
    environ = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "TMPDIR": str(work)}
    run("mmdebstrap", "--quiet", "--variant=essential", *options, "bookworm", made, *mirror, env=environ)
    return made


def image(layer: Path, version: str, revision: str, date: str, work: Path) -> Path:
    """The folder of an image with one layer."""
    layout = work / "image"
    name = ("--image", f"{layout}:{version}")
    history = ("--history.created", date, "--history.created_by", "mmdebstrap and healer's package")
    labels = {"title": "healer", "version": version, "revision": revision, "licenses": "Apache-2.0"}
    options = [f"--{key}={value}" for key, value in CONFIG.items()]
    options += [f"--config.env={each}" for each in ENVIRON]
    options += [f"--config.label=org.opencontainers.image.{key}={value}" for key, value in labels.items()]
    run("umoci", "init", "--layout", layout)
    run("umoci", "new", *name)
    run("umoci", "raw", "add-layer", *name, *history, layer)
    run("umoci", "config", *name, *options, "--created", date, "--no-history")
    run("umoci", "gc", "--layout", layout)
    return layout


def package_of(asked: argparse.Namespace, work: Path) -> Path:
    if asked.package is not None:
        package: Path = asked.package
        return package
    run(sys.executable, HERE / "build.py", BASE, "--quick", "--out", work / "package", "--work", work)
    [made] = (work / "package").iterdir()
    return made


def commit_of(package: Path) -> str:
    """What `healer --version` says."""
    unpack = 'dpkg-deb --fsys-tarfile "$1" | tar -xO --wildcards "*/site-packages/healer/build.txt"'
    return run("sh", "-c", unpack, "sh", package).split()[1]


def build(asked: argparse.Namespace) -> Path:
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="healer-image-", dir=asked.work) as folder:
        work = Path(folder)
        work.chmod(0o755)
        package = package_of(asked, work)
        version = run("dpkg-deb", "--field", package, "Version").strip().partition("-")[0]
        show = ("git", "show", "-s", "--format=%H %ct %cI", commit_of(package))
        revision, epoch, date = run(*show, cwd=ROOT).split()
        layer = root(package, int(epoch), asked.mirror, work)
        made = asked.out / f"healer-{version}-x86_64.oci.tar"
        layout = image(layer, version, revision, date, work)
        archive(made, {path.name: path for path in sorted(layout.iterdir())}, int(epoch))
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools/image", description=__doc__)
    parser.add_argument("--package", type=absolute, help=f"the package for {BASE} (built of the commit)")
    parser.add_argument(
        "--mirror", action="append", default=[], help="Debian's mirror, as mmdebstrap takes it"
    )
    parser.add_argument("--out", type=absolute, default=ROOT / "dist", help="folder of the image (dist)")
    parser.add_argument("--work", type=absolute, help="folder for temporary files: about 2 GB (the system's)")
    asked = parser.parse_args(arguments)
    missing = [name for name in ("mmdebstrap", "umoci") if shutil.which(name) is None]
    if missing:
        parser.error(f"{', '.join(missing)} is missing: install Debian's packages mmdebstrap and umoci")
    made = build(asked)
    print(f"{made.stat().st_size / 1e6:8.1f} MB  {made}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
