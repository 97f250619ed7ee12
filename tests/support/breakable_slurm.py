"""A real Slurm whose daemons and nodes a test kills, starts and boots."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from healer.embedded.embedded_slurm import RealSlurm


class BreakableSlurm(RealSlurm):
    """`files`: more files beside slurm.conf, by name. `own_addresses`: node N (up to 254) is at 127.0.1.N, as
    enrolment distinguishes nodes by address."""

    def __init__(
        self,
        directory: Path | str,
        nodes: int = 32,
        *,
        files: Mapping[str, str] | None = None,
        own_addresses: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(directory, nodes, **settings)
        self._files = dict(files or {})
        if own_addresses:
            self.addresses = f"127.0.1.[1-{nodes}]"

    def kill_node(self, name: str) -> None:
        """Kills the node's slurmd and all processes of its jobs with SIGKILL."""
        self._order(f"kill {self._checked(name)}")

    def start_node(self, name: str) -> None:
        """Starts the node's slurmd, which registers again."""
        self._order(f"start {self._checked(name)}")

    def boot_node(self, name: str) -> None:
        """Reboots the node: kills all its processes, and slurmd registers with a new boot time."""
        self._order(f"boot {self._checked(name)}")

    def kill_controller(self) -> None:
        self._order("kill slurmctld")

    def start_controller(self, timeout_s: float = 30) -> None:
        self._order("start slurmctld")
        self._wait(self._controller_answers, time.monotonic() + timeout_s, "slurmctld does not answer")

    def _checked(self, name: str) -> str:
        if name not in self.node_names:
            raise ValueError(f"no node {name} in this Slurm")
        return name

    def _guardian_command(self) -> list[str]:
        *python, _, directory = super()._guardian_command()
        return [*python, "tests.support.breaking_guard", directory]

    def _write_files(self) -> None:
        super()._write_files()
        for name, text in self._files.items():
            (self.directory / name).write_text(text)
