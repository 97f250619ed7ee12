"""What slurmrestd is sent: numbers, texts, reservations and batch jobs in the forms of v0.0.39 to v0.0.45."""

from datetime import datetime
from typing import Any

from healer.adapters.slurm import slurm_words as words
from healer.model import Reservation, Submission

_ENDLESS = {"set": True, "infinite": True, "number": 0}
#: Of jobs of ours: slurmrestd takes none without an environment.
_ENVIRONMENT = ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"]


def number(value: float) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": int(value)}


def reservation(wanted: Reservation, now: datetime) -> dict[str, Any]:
    """For POST /reservation, from v0.0.43 on."""
    body: dict[str, Any] = {
        "name": words.checked_reservation(wanted.name),
        "node_list": words.checked_nodes(wanted.nodes),
        "start_time": number((wanted.since or now).timestamp()),
        "flags": words.reservation_flags(wanted),
    }
    if wanted.until is None:
        body["duration"] = _ENDLESS
    else:
        body["end_time"] = number(wanted.until.timestamp())
    if wanted.users:
        body["users"] = words.checked_names("a user", wanted.users).split(",")
    if wanted.accounts:
        body["accounts"] = words.checked_names("an account", wanted.accounts).split(",")
    return body


def submission(wanted: Submission, version: int) -> dict[str, Any]:
    """For POST /job/submit of v0.0.`version`. Its output is dropped, as its directory may not exist."""
    if not wanted.script.startswith("#!"):
        # sbatch would refuse it; slurmrestd takes it, and the job then fails on its node.
        raise ValueError("a script begins with #!")
    nodes = words.checked_nodes(wanted.nodes)
    job: dict[str, Any] = {
        "name": words.checked_line("a job name", wanted.name),
        "environment": _ENVIRONMENT,
        "current_working_directory": "/",
        "standard_output": "/dev/null",
        "requeue": False,
        "nodes": str(len(nodes)),
        "required_nodes": nodes,
        # Minutes, rounded up: it is to end by itself, not to be cut off early.
        "time_limit": number(-(-wanted.time_limit_s // 60)),
    }
    if wanted.exclusive:
        job["shared"] = ["none"]
    if wanted.gpus_per_node:
        # Until 23.02 TRES were written as GRES.
        job["tres_per_node"] = f"gres{':' if version < 40 else '/'}gpu:{wanted.gpus_per_node}"
    if wanted.reservation:
        job["reservation"] = words.checked_reservation(wanted.reservation)
    if wanted.partition:
        job["partition"] = words.checked_names("a partition", [wanted.partition])
    if wanted.qos:
        job["qos"] = words.checked_names("a QOS", [wanted.qos])
    if wanted.nice:
        job["nice"] = wanted.nice
    if wanted.comment:
        job["comment"] = words.checked_line("a comment", wanted.comment)
    return {"script": wanted.script, "job": job}
