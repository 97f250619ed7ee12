"""The child process that runs pyslurm: one line of JSON in, one line out. Imports only the standard library.

libslurm exits its process if it finds no configuration, and pyslurm holds the GIL while slurmctld does not
answer. So healer never loads it (docs/decisions/0016).

With the option `--reads` it answers only what changes nothing.

First line out: `{"pyslurm": "24.11.0", "libslurm": "24.11.5", "has": [...]}` or an error. Then for each
`{"call": name, "given": {...}}` either `{"answer": ...}` or `{"error": {"kind", "code", "text"}}`.
"""

import importlib
import json
import os
import sys
import tempfile
import time
from typing import Any

#: The attributes that are read of nodes, jobs and reservations; null if a release lacks one.
NODE = (
    "name", "state", "next_state", "reason", "reason_user", "reason_time", "configured_gres", "partitions",
    "active_features", "boot_time", "comment", "extra", "address", "hostname", "total_cpus",
)  # fmt: skip
JOB = (
    "id", "state", "state_reason", "allocated_nodes", "requeue_count", "is_requeueable", "is_batch_job",
    "name", "user_name", "user_id", "partition", "qos", "comment", "extra", "account", "admin_comment",
    "reservation", "dependencies", "submit_line", "priority", "required_nodes", "excluded_nodes",
    "start_time", "submit_time", "eligible_time", "end_time", "exit_code", "exit_code_signal", "array_id",
    "array_task_id", "array_tasks_waiting", "heterogeneous_id", "heterogeneous_offset", "federation_origin",
    "federation_siblings_active", "failed_node",
)  # fmt: skip
JOB_CORE = ("id", "state", "allocated_nodes")
RESERVATION = ("name", "nodes", "users", "accounts", "start_time", "end_time")

#: Parts that only some releases have.
PARTS = ("slurm_requeue", "Reservations", "reservation", "statistics")

#: slurm_requeue's flag JOB_RUNNING of slurm.h, scontrol's Incomplete: only running and suspended jobs.
_INCOMPLETE = 1


def read(thing: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Attributes by name; None if the release lacks it, a user has no name here, or a text is not UTF-8."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = getattr(thing, name)
        except (AttributeError, KeyError, UnicodeDecodeError):
            found[name] = None
    return found


def read_job(job: Any) -> dict[str, Any]:
    """What its owner wrote of a job must not hide the others: of one that pyslurm cannot read, `unread` says
    why, and only what Slurm itself writes is left."""
    try:
        return read(job, JOB) | {"layout": job.get_resource_layout_per_node()}
    except Exception as error:
        return read(job, JOB_CORE) | {"unread": f"{type(error).__name__}: {error}"}


class Reads:
    """The calls that the parent makes, by name: those that change nothing. `slurm` is the module pyslurm."""

    def __init__(self, slurm: Any) -> None:
        self.slurm = slurm

    def cluster(self) -> str:
        return self.slurm.slurmctld.Config.load().cluster

    def nodes(self) -> list[dict[str, Any]]:
        return [read(node, NODE) for node in self.slurm.Nodes.load().values()]

    def node(self, name: str) -> dict[str, Any] | None:
        """Reads all nodes: slurmctld updates the CPUs in use only then. Otherwise a node that was just set
        DOWN under its job reads MIXED."""
        found = (node for node in self.slurm.Nodes.load().values() if node.name == name)
        return next((read(node, NODE) for node in found), None)

    def jobs(self) -> list[dict[str, Any]]:
        return [read_job(job) for job in self.slurm.Jobs.load().values()]

    def job(self, job: int) -> dict[str, Any]:
        return read_job(self.slurm.Job.load(job))

    def reservations(self) -> list[dict[str, Any]]:
        """With flags as one text; pyslurm before 25.05 has them only in its old API."""
        if hasattr(self.slurm, "Reservations"):
            found = self.slurm.Reservations.load().values()
            return [read(item, RESERVATION) | {"flags": flag_names(item)} for item in found]
        older = self.slurm.reservation().get()
        return [record | {"name": name, "nodes": record["node_list"]} for name, record in older.items()]

    def controller(self) -> dict[str, Any]:
        """The server that answers a ping, and figures of sdiag as far as this release has them."""
        hosts = self.slurm.get_controllers()
        answers = [place for place in range(len(hosts)) if self._answers(place)]
        if hasattr(self.slurm, "statistics"):
            figures = self.slurm.statistics().get()
        else:
            names = ("server_thread_count", "agent_queue_size", "dbd_agent_queue_size")
            figures = read(self.slurm.slurmctld.diag(), names)
        return {
            "host": hosts[answers[0]] if answers else "",
            "role": "" if not answers else "backup" if answers[0] else "primary",
            "threads": figures.get("server_thread_count"),
            "agent_queue": figures.get("agent_queue_size"),
            "dbd_queue": figures.get("dbd_agent_queue_size"),
        }

    def _answers(self, place: int) -> bool:
        try:
            if hasattr(self.slurm.slurmctld, "ping"):
                return bool(self.slurm.slurmctld.ping(place).is_responding)
            return self.slurm.slurm_ping(place) == 0
        except (self.slurm.PyslurmError, ValueError):
            return False


class Calls(Reads):
    """With those that change Slurm: for the child of healer's worker."""

    def change_nodes(self, names: str, changes: dict[str, str]) -> None:
        """Changes all in one call, which stops at an unknown name."""
        self.slurm.Node(names).modify(self.slurm.Node(**changes))

    def change_job(self, job: int, changes: dict[str, Any]) -> None:
        self.slurm.Job(job).modify(self.slurm.JobSubmitDescription(**changes))

    def begin_in(self, job: int, seconds: int) -> None:
        self.change_job(job, {"begin_time": int(time.time()) + seconds})

    def requeue_incomplete(self, job: int) -> None:
        self.slurm.slurm_requeue(job, _INCOMPLETE)

    def requeue(self, job: int) -> None:
        self.slurm.Job(job).requeue()

    def hold(self, job: int) -> None:
        self.slurm.Job(job).hold()

    def release(self, job: int) -> None:
        self.slurm.Job(job).release()

    def signal(self, job: int, name: str) -> None:
        self.slurm.Job(job).send_signal(name, steps="all")

    def cancel(self, job: int) -> None:
        self.slurm.Job(job).cancel()

    def notify(self, job: int, text: str) -> None:
        self.slurm.Job(job).notify(text)

    def submit(self, script: str, fields: dict[str, Any]) -> int:
        """By a file: pyslurm first takes a text for a path, for which it may be too long."""
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(script)
            file.flush()
            return self.slurm.JobSubmitDescription(script=file.name, **fields).submit()


def flag_names(reservation: Any) -> str:
    """`ReservationFlags` (25.05 and later) as names with commas; empty if pyslurm does not know one."""
    try:
        flags = reservation.flags
    except ValueError:
        return ""
    every: Any = type(flags)
    return ",".join(flag.name for flag in every if flag in flags)


def problem(kind: str, text: str, code: int | None = None) -> dict[str, Any]:
    return {"error": {"kind": kind, "code": code, "text": text}}


def load() -> tuple[Any, dict[str, Any]]:
    """The module and the first line, which is an error if pyslurm cannot be used."""
    try:
        slurm = importlib.import_module("pyslurm")
    except ModuleNotFoundError as error:
        return None, problem("absent" if error.name == "pyslurm" else "library", str(error))
    except ImportError as error:
        return None, problem("library", str(error))
    release = "{}.{:02}.{}".format(*slurm.slurm_api_version())
    has = [part for part in PARTS if hasattr(slurm, part)]
    return slurm, {"pyslurm": slurm.__version__, "libslurm": release, "has": has}


def answer(calls: Reads, line: str) -> dict[str, Any]:
    request = json.loads(line)
    if request["call"] not in {name for name in dir(type(calls)) if not name.startswith("_")}:
        return problem("pyslurm", f"{request['call']} is no call of this process")
    try:
        return {"answer": getattr(calls, request["call"])(**request["given"])}
    except calls.slurm.RPCError as error:
        return problem("slurm", str(error.msg), error.errno)
    except ValueError as error:
        # The old API of pyslurm raises ValueError(text, number).
        text, code = (*error.args, None)[:2]
        return problem("slurm" if isinstance(code, int) else "pyslurm", str(text), code)
    except Exception as error:
        return problem("pyslurm", f"{type(error).__name__}: {error}")


def main() -> None:
    # libslurm's prints must not mix with the answers.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    slurm, first = load()
    out.write(json.dumps(first) + "\n")
    out.flush()
    if slurm is None:
        return
    calls = Reads(slurm) if "--reads" in sys.argv[1:] else Calls(slurm)
    for line in sys.stdin:
        out.write(json.dumps(answer(calls, line)) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
