"""A node's programs as a test needs them: real processes that answer by what lies in a folder."""

import json
import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.support.processes import clean_environ, unlogged
from tests.support.wait import wait_until

HEALER_NODE = Path(__file__).parents[2] / "healer" / "hooks" / "healer-node"
#: The owner of a node's jobs: only root can be another user; otherwise the user who runs the tests.
USER, GROUP = (12345, 23456) if os.geteuid() == 0 else (os.geteuid(), os.getegid())

#: `mode.PROGRAM` in the world's folder says how each of them behaves; none: well.
_HEAD = """#!/bin/sh
world={world}
name=$(basename "$0")
echo "$*" >>"$world/asked.$name"
echo $$ >>"$world/pids.$name"
mode=$(cat "$world/mode.$name" 2>/dev/null)
case $mode in
hang) exec sleep 1000 ;;
hang-deep) sleep 1000 & echo $! >>"$world/pids.$name"; sleep 1000 ;;
fail) echo "$name: it went wrong" >&2; exit 3 ;;
flood) exec yes nothing ;;
esac
"""
#: systemd's: `restart --no-block` only puts a job into its queue, `show` lists it.
_SYSTEMCTL = """
for unit; do :; done
unit=${unit%.service}
case $1 in
show)
    [ "$unit" != openibd ] || { echo LoadState=not-found; echo ActiveState=inactive; exit 0; }
    state=active
    [ "$unit" != nvidia-fabricmanager ] || [ ! -e "$world/faults/fabric-manager" ] || state=failed
    [ ! -e "$world/faults/service-stuck" ] || state=failed
    [ ! -e "$world/stopped.$unit" ] || state=inactive
    echo LoadState=loaded; echo ActiveState=$state
    [ ! -e "$world/pending.$unit" ] || echo Job=4711 ;;
restart)
    echo "$unit" >>"$world/restarts"
    [ "$mode" != refuse ] || { echo "Job for $unit failed." >&2; exit 1; }
    if [ "$mode" = late ]; then
        touch "$world/pending.$unit"
        setsid sh -c 'touch "$1/late.$2"; until [ -e "$1/finish" ]; do sleep 0.02; done
            rm -f "$1/faults/fabric-manager" "$1/pending.$2"' - "$world" "$unit" >/dev/null 2>&1 &
        until [ -e "$world/late.$unit" ]; do sleep 0.02; done
    elif [ "$unit" = nvidia-fabricmanager ]; then
        rm -f "$world/faults/fabric-manager"
    fi ;;
stop)
    touch "$world/stopped.$unit"
    [ ! -e "$world/daemon.$unit" ] || { kill -9 "$(cat "$world/daemon.$unit")"; sleep 0.1; } ;;
start) rm -f "$world/stopped.$unit" ;;
esac
exit 0
"""
_NVIDIA_SMI = """
case $1 in
--gpu-reset)
    [ "$mode" != stuck ] || exec sleep 1000
    [ "$mode" != stays ] && [ ! -e "$world/faults/reset-fails" ] || { echo "GPU could not be reset"; exit 4; }
    rm -f "$world/faults/gpu-hung" "$world/faults/remap-pending"; echo "All done."; exit 0 ;;
esac
[ "$2" = -x ] || { echo "password=hunter2 of nobody"; exit 0; }
state=Completed status=Success
[ ! -e "$world/faults/fabric" ] || status="NVLink failure"
[ ! -e "$world/faults/fabric-manager" ] || { state="In Progress"; status=N/A; }
pending=No failed=No gpus=$(cat "$world/gpus")
[ ! -e "$world/faults/remap-pending" ] || pending=Yes
[ ! -e "$world/faults/remap-failed" ] || failed=Yes
[ ! -e "$world/faults/gpu-missing" ] || gpus=${gpus#* }
lost="Unable to determine the device handle for GPU0000:10:00.0: GPU is lost"
[ "$mode" != lost ] || { echo "$lost"; exit 15; }
[ "$mode" != vague ] || pending="Unknown Error"
echo '<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd"><nvidia_smi_log>'
echo '<driver_version>570.124.06</driver_version><cuda_version>12.8</cuda_version>'
for n in $gpus; do
    echo "<gpu id=\\"00000000:1$n:00.0\\"><product_name>NVIDIA H100 80GB HBM3</product_name>"
    echo "<uuid>GPU-0000000$n-aaaa-bbbb-cccc-0123456789ab</uuid><serial>165000000000$n</serial>"
    echo "<minor_number>$n</minor_number><vbios_version>96.00.89.00.01</vbios_version>"
    echo "<utilization><gpu_util>100 %</gpu_util></utilization><gpu_power_readings>"
    echo "<instant_power_draw>182.41 W</instant_power_draw>"
    echo "<current_power_limit>700.00 W</current_power_limit>"
    echo "</gpu_power_readings>"
    echo "<remapped_rows><remapped_row_pending>$pending</remapped_row_pending>"
    echo "<remapped_row_failure>$failed</remapped_row_failure></remapped_rows>"
    echo "<gpu_recovery_action>None</gpu_recovery_action>"
    echo "<fabric><state>$state</state><status>$status</status><cliqueId>0</cliqueId>"
    echo "<clusterUuid>00000000-0000-0000-0000-000000000000</clusterUuid></fabric></gpu>"
done
echo '</nvidia_smi_log>'
"""
_DCGMI = """
until [ -e "$world/finish" ]; do sleep 0.02; done
tests= failed=0
for fault in $(ls "$world/faults"); do
    case $fault in fabric* | service-stuck | reset-fails | remap-* | gpu-missing) continue ;; esac
    failed=1
    tests="$tests"$(printf '{"name":"%s","results":[{"status":"Fail","warnings":[{"warning":"%s is bad"}]}],
        "test_summary":{"status":"Fail"}},' "$fault" "$fault")
done
echo '{"DCGM Diagnostic":{"test_categories":[{"category":"Hardware","tests":['"$tests"
echo '{"name":"pcie","results":[{"entity_group":"GPU","entity_id":0,"status":"Pass"}],'
echo '"test_summary":{"status":"Pass"}}]}]}}'
exit $failed
"""
_DMESG = """
echo "[    1.0] Command line: ro quiet token=s3cr3t-value root=/dev/sda1"
echo "[  100.0] NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus."
"""
_BUG_REPORT = """
gzip >"$2.gz" <<'END'
Authorization: Bearer abc.def
-----BEGIN RSA PRIVATE KEY-----
AAAA
-----END RSA PRIVATE KEY-----
the end
END
"""
#: py-spy 0.4.3's document, as `dump --nonblocking --json` prints it for a program that sleeps.
_PY_SPY = """
echo '[{"pid": 7, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 7, "active": false,
  "owns_gil": false, "frames": [
  {"name": "wait", "filename": "/a/work.py", "module": null, "short_filename": "work.py", "line": 12,
   "locals": null, "is_entry": false, "is_shim_entry": false},
  {"name": "step", "filename": "/a/train.py", "module": null, "short_filename": "train.py", "line": 9,
   "locals": null, "is_entry": true, "is_shim_entry": true}], "process_info": null}]'
"""
_SCONTROL = """
echo "PID      JOBID    STEPID   LOCALID GLOBALID"
while read -r pid; do echo "$pid     4711     0        0       0"; done <"$world/listed"
"""
_PROGRAMS = {
    "py-spy": _PY_SPY,
    "scontrol": _SCONTROL,
    "systemctl": _SYSTEMCTL,
    "nvidia-smi": _NVIDIA_SMI,
    "dcgmi": _DCGMI,
    "dmesg": _DMESG,
    "nvidia-bug-report.sh": _BUG_REPORT,
}


class StandIns:
    """The programs of one node, and healer-node over them. `conf` are settings of healer-node."""

    def __init__(self, folder: Path, **conf: str) -> None:
        self.world = folder
        self.bin, self.state, self.dev = folder / "bin", folder / "state", folder / "dev"
        self.proc = folder / "proc"
        for one in (self.bin, self.dev, self.proc, folder / "faults"):
            one.mkdir(parents=True)
        for name, body in _PROGRAMS.items():
            path = self.bin / name
            path.write_text(_HEAD.format(world=folder) + body)
            path.chmod(0o755)
        (self.bin / "openssl").symlink_to(shutil.which("openssl") or "openssl")
        self.program = folder / "healer-node"
        self.program.write_text(f'#!/bin/sh\nexec {shlex.join(unlogged(str(HEALER_NODE)))} "$@"\n')
        self.program.chmod(0o755)
        self.reachable()
        self.gpus(2)
        self.log_file, self.conf = folder / "healer-node.log", folder / "healer-node.conf"
        self.settings = {
            "STATE": str(self.state), "RUN": str(folder / "run"), "HOOK_CONF": str(folder / "hook.conf"),
            "REQUEST_KEYS": str(folder / "requests.pub"),
            "LOG": str(self.log_file), "DEV": str(self.dev),
            "PROGRAMS": str(self.bin), "PROC": str(self.proc),
            # Limits only end what hangs: on a machine that others share all takes longer.
            "SYSTEMCTL_S": "30", "NVIDIA_SMI_S": "30", "LOOK_SMI_S": "30",
        }  # fmt: skip
        self.configure(**conf)

    def configure(self, **conf: str) -> None:
        self.settings.update(conf)
        self.conf.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        self.conf.chmod(0o600)

    def gpus(self, count: int) -> None:
        """GPU i is at 0000:1i:00.0."""
        (self.world / "gpus").write_text(" ".join(map(str, range(count))))
        for minor in range(count):
            (self.dev / f"nvidia{minor}").touch()

    def kmsg(self, *records: str, facility: int = 0, ago_s: float = 0) -> None:
        """The node has a kernel log, with these records added, in the form of /dev/kmsg."""
        micros = int((time.clock_gettime(time.CLOCK_MONOTONIC) - ago_s) * 1e6)
        path = self.dev / "kmsg"
        if not path.exists():
            path.write_text("6,0,0,-;Linux version 6.8.0\n SUBSYSTEM=none\n")
        with path.open("a") as file:
            file.writelines(f"{facility * 8 + 4},1,{micros},-;{record}\n" for record in records)

    def has_gpu(self, pci: str) -> None:
        """The driver has a GPU at this address, whether or not it can be reached."""
        (self.proc / "driver/nvidia/gpus" / pci).mkdir(parents=True, exist_ok=True)

    # --- how its programs behave

    def mode(self, program: str, mode: str) -> None:
        """`hang`, `fail`, `late`, `refuse` …; empty: well again."""
        (self.world / f"mode.{program}").write_text(mode)

    def finish(self) -> None:
        """What takes long ends now."""
        (self.world / "finish").touch()

    def asked(self, program: str) -> list[str]:
        """The arguments of each time that it was started."""
        try:
            return (self.world / f"asked.{program}").read_text().splitlines()
        except FileNotFoundError:
            return []

    def pids(self, program: str) -> set[int]:
        """Of each time that it was started, and of what it started in `hang-deep`."""
        path = self.world / f"pids.{program}"
        return {int(line) for line in path.read_text().split()} if path.exists() else set()

    # --- healer-node

    def run(self, *words: str, **env: str) -> tuple[int, dict[str, Any]]:
        """(exit status, its document)"""
        done = subprocess.run(
            [str(self.program), "--conf", str(self.conf), "--as", "test", *words],
            env=clean_environ(**env), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.stderr == "", done.stderr
        return done.returncode, json.loads(done.stdout)

    def ask(self, *words: str) -> dict[str, Any]:
        """What it answers; it must have been done."""
        status, answer = self.run(*words)
        assert (status, answer["ok"]) == (0, True), answer
        return answer

    def refused(self, *words: str, code: str, **env: str) -> str:
        """The words of a call that must fail with this code."""
        status, answer = self.run(*words, **env)
        assert (answer["ok"], answer["code"]) == (False, code), answer
        assert status == (126 if code == "refused" else 1)
        return answer["text"]

    def ended(self, verb: str, key: str) -> dict[str, Any]:
        """The record of a task once it does not run any more."""

        def there() -> dict[str, Any] | None:
            answer = self.ask(verb, key)
            return answer if answer["state"] != "running" else None

        found = wait_until(there, 20, what=f"{verb} {key} ends")
        assert found is not None
        return found

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log_file.read_text().splitlines()]

    def process(self, pid: int, command: str, *, cgroup: str = "/", started_s: float = 0) -> None:
        """A process of `USER` in the node's /proc; `started_s` after 1970."""
        folder = self.proc / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "comm").write_text(f"{command}\n")
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        ticks = round(started_s * os.sysconf("SC_CLK_TCK"))
        fields = ["S", *["0"] * 18, str(ticks), "0"]
        (folder / "stat").write_text(f"{pid} ({command}) {' '.join(fields)}\n")
        (folder / "status").write_text(f"Uid:{f' {USER}' * 4}\nGid:{f' {GROUP}' * 4}\n".replace(" ", "\t"))
        (self.proc / "stat").write_text("cpu 0\nbtime 0\n")

    def reachable(self) -> None:
        """Its folder, for programs that run as `USER`: who runs the tests has made it his alone."""
        self.world.chmod(0o777)
        for folder in self.world.parents:
            if folder.owner() == self.world.owner() and not folder.stat().st_mode & 0o001:
                folder.chmod(folder.stat().st_mode | 0o011)

    # --- as `healer.sim.nodes.SimNodes` is driven

    def plant(self, _node: str, fault: str) -> None:
        (self.world / "faults" / fault).touch()

    def faults(self, _node: str) -> list[str]:
        return sorted(os.listdir(self.world / "faults"))

    def restarts(self, _node: str) -> int:
        path = self.world / "restarts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def diagnoses(self, _node: str) -> list[str]:
        return sorted(path.stem for path in (self.state / "diagnose").glob("*.json"))

    def collections(self, _node: str) -> list[str]:
        return sorted(path.stem for path in (self.state / "collect").glob("*.json"))

    def resets(self, _node: str) -> list[str]:
        return sorted(path.stem for path in (self.state / "reset").glob("*.json"))
