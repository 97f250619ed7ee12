"""The tests of `rules/validation` as real processes, beside stand-ins for NVIDIA's and Slurm's programs."""

import os
import subprocess
from pathlib import Path

import msgspec

from healer.actions.test_form import TestReport, batch, parse_report

VALIDATION = Path(__file__).parents[2] / "rules" / "validation"

SMI = """\
case "$*" in
-q) cat <<'END'
Driver Version                            : 580.65.06
CUDA Version                              : 13.0
    VBIOS Version                         : 96.00.CF.00.01
    GSP Firmware Version                  : 580.65.06
    VBIOS Version                         : 96.00.CF.00.01
    GSP Firmware Version                  : N/A
END
;;
*--query-gpu=index,pci.bus_id*) cat <<'END'
0, 00000000:19:00.0, Enabled, Enabled, [N/A], 0
1, 00000000:3B:00.0, Enabled, Enabled, [N/A], 2
END
;;
*--query-remapped-rows*) printf '00000000:19:00.0, No, No\\n00000000:3B:00.0, No, No\\n' ;;
*pcie.link*) printf '0, 16, 16\\n1, 16, 16\\n' ;;
nvlink*) printf 'GPU 0: NVIDIA H100 (UUID: GPU-1)\\n\\t Link 0: 26.562 GB/s\\n\\t Link 1: 26.562 GB/s\\n'
    printf 'GPU 1: NVIDIA H100 (UUID: GPU-2)\\n\\t Link 0: 26.562 GB/s\\n\\t Link 1: 26.562 GB/s\\n' ;;
esac
"""


class Said(msgspec.Struct, frozen=True):
    code: int
    results: dict[str, str]
    says: str


class Bench:
    """A node: a folder of programs, and one in place of /sys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sys = folder / "sys"
        self.programs = folder / "bin"
        self.programs.mkdir()
        self.env = {"PATH": f"{self.programs}:{os.environ['PATH']}", "HEALER_TEST_SYS": str(self.sys)}
        self.env |= {"SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_ID": "4711", "HEALER_TEST_BURN_S": "0"}

    def put(self, program: str, body: str) -> None:
        path = self.programs / program
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def port(self, card: str, state: str, phys: str = "5: LinkUp", rate: str = "400 Gb/sec (4X NDR)") -> None:
        where = self.sys / "class" / "infiniband" / card / "ports" / "1"
        where.mkdir(parents=True)
        for name, text in (("state", state), ("phys_state", phys), ("rate", rate)):
            (where / name).write_text(text + "\n")
        (where / "link_layer").write_text("InfiniBand\n")
        (where.parents[1] / "fw_ver").write_text("28.41.1000\n")

    def run(self, test: str, **env: str) -> Said:
        """One test, unchanged."""
        command = ["/bin/sh", str(VALIDATION / f"{test}.sh")]
        done = subprocess.run(
            command, env=self.env | env, capture_output=True, text=True, timeout=60, check=False
        )
        lines = done.stdout.splitlines()
        results = dict(one.split()[1:3] for one in lines if one.startswith("healer-result "))
        says = [one.removeprefix("healer-says ") for one in lines if one.startswith("healer-says ")]
        return Said(done.returncode, results, says[-1] if says else "")

    def slurm(self) -> None:
        """`scontrol update` of a job: its admin comment is kept."""
        self.put("scontrol", f'[ "$1 $2" = "update JobId=4711" ] && printf %s "$3" >{self.folder}/comment')

    def job(self, tests: dict[str, str], depth: str = "") -> tuple[int, TestReport | None]:
        """What healer submits, run here."""
        done = subprocess.run(["/bin/sh", "-c", batch(tests, depth)], env=self.env, timeout=60, check=False)
        kept = self.folder / "comment"
        text = kept.read_text() if kept.exists() else ""
        return done.returncode, parse_report(text.removeprefix("AdminComment="))


def shipped(*names: str) -> dict[str, str]:
    return {name: (VALIDATION / f"{name}.sh").read_text() for name in names}
