"""The guardian of Slurm 24.11: as `tests.support.breaking_guard`, with every daemon inside a root of its own.

`python -m tests.support.trixie_guard DIRECTORY ROOT`. It is the first process of a process namespace, so the
kernel ends all that is below it together with it, however it ends. One daemon more: `slurmrestd`.
"""

import sys
from pathlib import Path

from healer.embedded import slurm_guard
from tests.support.breaking_guard import BreakingGuardian

#: The user and group in ROOT that slurmrestd runs as: it refuses to be root.
_REST_USER = "slurmrestd:slurmrestd"


class RootGuardian(BreakingGuardian):
    def __init__(self, directory: Path, root: Path) -> None:
        super().__init__(directory)
        self.root = root

    def command(self, name: str) -> list[str]:
        if name != "slurmrestd":
            return ["chroot", str(self.root), *super().command(name)]
        listen = (self.directory / "rest-listen").read_text().split()
        # Without slurmdbd it needs -s to serve slurmctld alone. SLURM_CONF by another way to the
        # same folder, because it may not look into root's temporary folders.
        return [
            "chroot", f"--userspec={_REST_USER}", str(self.root),
            "env", "SLURM_JWT=daemon", "SLURM_CONF=/srv/slurm.conf",
            "slurmrestd", "-s", "slurmctld", "-a", "rest_auth/jwt", *listen,
        ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(slurm_guard.main(RootGuardian(Path(sys.argv[1]), Path(sys.argv[2]))))
