"""Jobs, as pyslurm shows, changes and submits them."""

import signal as signals
import time
from pathlib import Path
from typing import Any

from healer.model import SlurmJob, Submission
from pyslurm._base import INFINITE, RELEASE, RPCError, integer, rpc, seconds, sim


class JobSubmitDescription:
    """What of a job may be set. Whatever counts as empty is not sent."""

    __slots__ = (
        "admin_comment", "begin_time", "comment", "environment", "excluded_nodes", "gres_per_node",
        "is_requeueable", "name", "nice", "nodes", "partitions", "priority", "qos", "required_nodes",
        "reservations", "resource_sharing", "script", "standard_output", "time_limit", "working_directory",
    )  # fmt: skip

    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(self, name, value)

    def get(self, name: str) -> Any:
        return getattr(self, name, None)

    def submit(self) -> int:
        script = Path(self.get("script")).read_text()
        if not script.startswith("#!"):
            raise ValueError("Not a valid Batch script. First line must start with '#!'")
        limit = self.get("time_limit")
        if str(limit).isdigit():
            raise TypeError("an integer is required")
        minutes, seconds = str(limit).split(":")
        submission = Submission(
            name=self.get("name"),
            script=script,
            nodes=tuple(self.get("required_nodes")),
            time_limit_s=60 * int(minutes) + int(seconds),
            reservation=(self.get("reservations") or [""])[0],
            comment=self.get("comment") or "",
            partition=(self.get("partitions") or [""])[0],
            qos=self.get("qos") or "",
            nice=self.get("nice") or 0,
            gpus_per_node=(self.get("gres_per_node") or {}).get("gpu", 0),
            exclusive=self.get("resource_sharing") in {"no", "exclusive"},
        )
        return int(rpc(lambda: sim.submit(submission)))


class Job:
    def __init__(self, job_id: int) -> None:
        self.id = integer(job_id)

    @staticmethod
    def load(job_id: int) -> "Job":
        found = rpc(lambda: sim.job(str(integer(job_id))))
        if found is None:
            raise RPCError(2017)
        return _job(found)

    def get_resource_layout_per_node(self) -> dict[str, Any]:
        """Nothing: so does pyslurm 24.11.0, whatever the job holds."""
        return {}

    def modify(self, changes: JobSubmitDescription) -> None:
        if not isinstance(changes, JobSubmitDescription):
            raise TypeError(f"Argument 'changes' has incorrect type (got {type(changes).__name__})")
        job, shown = str(self.id), Job.load(self.id)
        excluded, begin = changes.get("excluded_nodes"), changes.get("begin_time")
        if shown.__dict__["state"] != "PENDING" and (excluded or begin):
            raise RPCError(2073)
        if excluded:
            rpc(lambda: sim.exclude(job, excluded))
        if begin:
            if not 0 <= begin - time.time() <= 3:
                raise RPCError(2052)  # the simulated Slurm starts jobs at once, and at no other time
            rpc(lambda: sim.start_now(job))
        if changes.get("admin_comment"):
            rpc(lambda: sim.remark(job, changes.get("admin_comment")))
        if changes.get("priority") is not None:
            rpc(lambda: (sim.release if changes.get("priority") == INFINITE else sim.hold)(job))

    def hold(self, mode: str | None = None) -> None:
        self.modify(JobSubmitDescription(priority=0))

    def release(self) -> None:
        self.modify(JobSubmitDescription(priority=INFINITE))

    def requeue(self, hold: bool = False) -> None:
        rpc(lambda: sim.revive(str(self.id)))

    def notify(self, msg: str) -> None:
        rpc(lambda: sim.notify(str(self.id), msg))

    def send_signal(self, signal: str | int, steps: str = "children", hurry: bool = False) -> None:
        try:
            number = signals.Signals(signal) if isinstance(signal, int) else signals.Signals[signal]
        except (KeyError, ValueError):
            raise ValueError(f"Invalid Signal: {signal}.") from None
        try:
            if number == signals.SIGKILL:
                rpc(lambda: sim.cancel(str(self.id)))
            else:
                rpc(lambda: sim.signal(str(self.id), number.name.removeprefix("SIG")))
        except RPCError as error:
            # A job that has ended is no error to it, and with SIGKILL neither is one that never was.
            if error.errno != 2021 and not (error.errno == 2017 and number == signals.SIGKILL):
                raise

    def cancel(self) -> None:
        self.send_signal(9)


class Jobs(dict[int, Job]):
    @staticmethod
    def load() -> "Jobs":
        return Jobs({int(job.id): _job(job) for job in rpc(sim.snapshot).jobs.values()})


def _job(job: SlurmJob) -> Job:
    shown = Job(int(job.id))
    code, _, signal = (job.exit_code or "0").partition(":")
    newer = {"submit_line": job.submit_line or None, "failed_node": job.failed_node or None, "extra": None}
    shown.__dict__.update(
        # One word: a flag hides the base state.
        state=job.flags[0] if job.flags else job.state,
        state_reason=job.why or job.reason or None,
        allocated_nodes=",".join(job.nodes) or None,
        requeue_count=job.restarts,
        is_requeueable=job.requeue,
        is_batch_job=job.batch,
        name=job.name or None,
        user_name=job.user or None,
        user_id=0,
        partition=job.partition or None,
        qos=job.qos or None,
        comment=job.comment or None,
        account=job.account or None,
        admin_comment=job.admin_comment or None,
        reservation=job.reservation or None,
        dependencies=_dependencies(job.dependency) if job.dependency else None,
        priority=job.priority,
        required_nodes=",".join(job.required) or None,
        excluded_nodes=",".join(job.excluded) or None,
        start_time=seconds(job.start_at),
        submit_time=seconds(job.submit_at),
        eligible_time=seconds(job.eligible_at),
        end_time=seconds(job.end_at),
        exit_code=int(code),
        exit_code_signal=int(signal or 0),
        array_id=int(job.array_job) if job.array_job else None,
        # 0 counts as "no value" to pyslurm.
        array_task_id=job.array_task or None,
        array_tasks_waiting=None,
        heterogeneous_id=int(job.het_job) if job.het_job else None,
        heterogeneous_offset=job.het_offset or None,
        federation_origin=job.origin or None,
        federation_siblings_active=list(job.siblings) if RELEASE >= (25, 11) else 0,
        **(newer if RELEASE >= (25, 11) else {}),
    )
    return shown


def _dependencies(text: str) -> dict[str, Any]:
    """Slurm shows `afterok:5(unfulfilled)` and `singleton(unfulfilled)`; the second is no word to pyslurm."""
    found = {"after": [], "afterany": [], "afterok": [], "singleton": False, "satisfy": "all"}
    kind, _, number = text.partition(":")
    return found | ({kind: [f"{number}(unfulfilled)"]} if number else {})
