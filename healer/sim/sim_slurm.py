"""One simulated Slurm: a scheduler over nodes and jobs in memory, under the contract suite of the real one;
and its server on a unix socket with the client, for several processes (`healer.sim.socket_calls`).

It behaves as Slurm 22.05 was observed to: a flag such as COMPLETING hides a job's base state, a requeued job
waits `cred_expire` + 1 s, a second drain with another reason replaces the first. Time passes only through the
clock: every call first does what is due.

`python -m healer.sim.sim_slurm --socket PATH --nodes 32` serves one until SIGTERM.
"""

import argparse
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from setproctitle import setproctitle

from healer.adapters.system_clock import SystemClock
from healer.model import Controller, Reservation, SlurmCall, SlurmJob, SlurmNode, SlurmSnapshot, Submission
from healer.ports.clock import Clock
from healer.ports.scheduling import (
    Nodes,
    SchedulerError,
    SchedulerRefused,
    SchedulerUnavailable,
    SlurmReads,
    UnknownNode,
)
from healer.sim.slurm_jobs import (
    Job,
    check_access,
    check_names,
    check_reservation,
    find_job,
    number_jobs,
    require_pending,
    require_requeueable,
    require_running,
    require_unfinished,
    show_job,
)
from healer.sim.slurm_world import SlurmTimes, World, sim_nodes
from healer.sim.socket_calls import CallClient, CallFailed, CallServer, Gone
from healer.text import quoted, said_by, say

#: The user that healer runs as.
USER = "root"


# Wide: implements `ports.Scheduler`, and lets tests drive it; server and client offer exactly its methods.
class SimScheduler:
    """`ports.Scheduler` over a cluster in memory, with calls by which a test or a demo drives it.

    `nodes` is a number, or nodes whose names, GPUs, racks, partitions … are taken over. Thread-safe.
    """

    name = "sim"

    def __init__(
        self,
        cluster: str,
        clock: Clock,
        nodes: int | Iterable[SlurmNode] = 32,
        *,
        times: SlurmTimes = SlurmTimes(),
        test_s: float | None = None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        #: Seconds until a job that healer submits completes; None: it runs until `complete`.
        self._test_s = test_s
        self._lock = threading.RLock()
        self._world = World(sim_nodes(nodes) if isinstance(nodes, int) else nodes, clock.now(), times)
        self._last_id = 0

    # --- ports.Scheduler: reading

    def describe(self) -> str:
        return f"sim, {len(self._world.nodes)} simulated nodes"

    def unavailable(self) -> Mapping[SlurmCall, str]:
        return {}

    def cluster_name(self) -> str:
        return self._cluster

    def snapshot(self) -> SlurmSnapshot:
        with self._read() as now:
            nodes, jobs = self._world.show_all(now)
            return SlurmSnapshot(
                cluster=self._cluster,
                taken_at=now,
                nodes=nodes,
                jobs=jobs,
                reservations=dict(self._world.reservations),
            )

    def reserved(self) -> dict[str, Reservation]:
        with self._read():
            return dict(self._world.reservations)

    def node(self, name: str) -> SlurmNode:
        with self._read() as now:
            return self._world.show(self._world.node(name), now)

    def job(self, job: str) -> SlurmJob | None:
        with self._read():
            found = find_job(self._world.jobs, job)
            return show_job(found) if found else None

    def jobs_on(self, node: str) -> list[SlurmJob]:
        with self._read():
            held = self._world.node(node).jobs
            return [show_job(job) for job in self._world.jobs.values() if job.id in held]

    def controller(self) -> Controller:
        with self._read() as now:
            return Controller(
                cluster=self._cluster, at=now, adapter=self.name, host="sim", role="primary",
                version="22.05.8", answer_s=0.0, threads=1, agent_queue=0, dbd_queue=0,
            )  # fmt: skip

    def topology(self) -> Mapping[str, tuple[str, ...]]:
        specs = [node.spec for node in self._world.nodes.values()]
        return {spec.name: spec.switches or (spec.switch,) for spec in specs if spec.switches or spec.switch}

    # --- ports.Scheduler: nodes

    def drain(self, nodes: Nodes, reason: str) -> None:
        self._set_drain(nodes, check_line("a drain's reason", reason), USER)

    def undrain(self, nodes: Nodes) -> None:
        with self._write():
            for node in self._world.named(nodes):
                node.drain = False
                if not (node.down or node.reboot):
                    node.forget_reason()

    def resume(self, nodes: Nodes) -> None:
        with self._write():
            found = self._world.named(nodes)
            for node in found:
                if not (node.drain or node.down or node.reboot):
                    raise SchedulerRefused(
                        quoted(f"Slurm did not resume {node.spec.name}: Invalid node state specified"), 2180
                    )
            for node in found:
                node.drain = node.down = node.reboot = node.reboot_drained = False
                node.boots_at = None
                node.forget_reason()

    def down(self, nodes: Nodes, reason: str) -> None:
        check_line("a reason", reason)
        with self._write() as now:
            for node in self._world.named(nodes):
                self._world.down(node, reason, USER, now)

    def reboot(self, nodes: Nodes, reason: str) -> None:
        check_line("a reason", reason)
        with self._write() as now:
            found = self._world.named(nodes)
            waiting = [node for node in found if node.reboot and not node.reason.startswith(reason)]
            for node in found:
                if not node.reboot:
                    node.reboot_drained = not node.drain
                    node.reboot = node.drain = True
                    node.because(reason, USER, now)
            if waiting:
                names = ", ".join(node.spec.name for node in waiting)
                raise SchedulerRefused(quoted(f"Slurm passed over {names}: a reboot was asked for before"))

    def cancel_reboot(self, nodes: Nodes) -> None:
        with self._write():
            found = self._world.named(nodes)
            for node in found:
                if not node.reboot or node.boots_at:
                    raise SchedulerRefused(quoted(f"{node.spec.name}: Invalid node state specified"), 2180)
            for node in found:
                node.drain = node.drain and not node.reboot_drained
                node.reboot = node.reboot_drained = False
                if not (node.drain or node.down):
                    node.forget_reason()

    def annotate(self, node: str, *, comment: str | None = None, extra: str | None = None) -> None:
        for text in (comment, extra):
            check_line("a note", text or "", empty=True)
        with self._write():
            found = self._world.node(node)
            found.comment = found.comment if comment is None else comment
            found.extra = found.extra if extra is None else extra

    # --- ports.Scheduler: reservations

    def reserve(self, reservation: Reservation) -> None:
        wanted = check_reservation(reservation)
        with self._write() as now:
            nodes = self._world.named(wanted.nodes)
            if wanted.name in self._world.reservations:
                raise SchedulerRefused(quoted(f"{wanted.name}: Duplicate reservation name"), 2082)
            if any(node.jobs for node in nodes) and not wanted.maintenance:
                raise SchedulerRefused(quoted(f"Reservation {wanted.name}: Requested nodes are busy"), 2016)
            planned = ("MAINT", "IGNORE_JOBS") if wanted.maintenance else ()
            flags = tuple(dict.fromkeys((*planned, *wanted.flags, "SPEC_NODES")))
            kept = replace(wanted, since=wanted.since or now, flags=flags)
            self._world.reservations[wanted.name] = kept

    def change_reservation(self, name: str, nodes: Sequence[str]) -> None:
        with self._write():
            self._world.named(nodes)
            reservations = self._world.reservations
            reservations[name] = replace(self._world.reservation(name), nodes=tuple(nodes))

    def unreserve(self, name: str) -> None:
        with self._write():
            del self._world.reservations[self._world.reservation(name).name]

    # --- ports.Scheduler: jobs

    def shrink(self, job: str, node: str) -> None:
        with self._write():
            found, leaves = require_running(self._world.job(job)), self._world.node(node)
            if found.het_job:
                raise SchedulerRefused(say("slurm.shrink_not_running", job=job, state=found.state), 2020)
            if node not in found.nodes:
                return
            if node == found.nodes[0]:
                raise SchedulerRefused(say("slurm.shrink_batch_host", job=job, node=node), 2018)
            self._world.shrink(found, leaves)

    def requeue(self, job: str) -> None:
        with self._write() as now:
            found = self._world.job(job)
            if found.running:
                self._put_back(found, now)

    def revive(self, job: str) -> None:
        with self._write() as now:
            found = self._world.job(job)
            if found.state == "PENDING":
                raise SchedulerRefused(say("slurm.job_pending", job=job), 2024)
            if found.state not in {"FAILED", "NODE_FAIL"}:
                raise SchedulerRefused(quoted(f"Job {job} is {found.state}: it did not fail"))
            self._put_back(found, now)

    def start_now(self, job: str) -> None:
        with self._write() as now:
            found = self._world.job(job)
            if found.completing_until:
                return
            for part in self._reached(require_pending(found)):
                part.begin_at = part.begin_at and min(part.begin_at, now + timedelta(seconds=2))

    def hold(self, job: str) -> None:
        with self._write():
            for part in self._reached(require_unfinished(self._world.job(job))):
                part.hold("admin")

    def release(self, job: str) -> None:
        with self._write():
            for part in self._reached(require_unfinished(self._world.job(job))):
                part.held_by = part.why = part.reason = ""

    def exclude(self, job: str, nodes: Sequence[str]) -> None:
        with self._write():
            names = tuple(self._world.node(name).spec.name for name in nodes)
            require_pending(self._world.job(job)).excluded = names

    def signal(self, job: str, name: str) -> None:
        if not name.isalnum():
            raise ValueError(f"{name!r} is not the name of a signal")
        with self._write() as now:
            found = require_running(self._world.job(job))
            found.heard.append(f"signal {name}")
            if name == found.ends_on:
                self._world.end(found, "COMPLETED", now)

    def notify(self, job: str, text: str) -> None:
        check_line("a notice", text)
        with self._write():
            found = self._world.job(job)
            if found.state == "PENDING":
                raise SchedulerRefused(quoted(f"Job {job}: Requested operation is presently disabled"), 2037)
            require_running(found).heard.append(f"notify {text}")

    def remark(self, job: str, text: str) -> None:
        check_line("a remark", text, empty=True)
        with self._write():
            require_unfinished(self._world.job(job)).admin_comment = text

    def submit(self, submission: Submission) -> str:
        if not submission.script.startswith("#!"):
            raise ValueError("a script begins with #!")
        check_names(submission.partition, submission.qos)
        with self._write():
            self._world.named(submission.nodes)
            return self.add_job(
                name=submission.name,
                user=USER,
                nodes=len(submission.nodes),
                required=submission.nodes,
                gpus=submission.gpus_per_node,
                exclusive=submission.exclusive,
                reservation=submission.reservation,
                comment=submission.comment,
                requeue=False,
                runtime_s=self._test_s,
                nice=submission.nice,
                **{name: value for name in ("partition", "qos") if (value := getattr(submission, name))},
            )

    def cancel(self, job: str) -> None:
        with self._write():
            found = self._world.job(job)
            if not (found.ended_at or found.completing_until):
                self._end_now(job, "CANCELLED", "0:15")

    # --- control: users and their jobs

    def add_job(
        self,
        *,
        nodes: int = 1,
        gpus: int = 8,
        held: bool = False,
        required: Iterable[str] = (),
        array: int = 0,
        het: Sequence[Sequence[str]] = (),
        **job: Any,
    ) -> str:
        """Submits a job of `gpus` GPUs on each of `nodes` nodes and returns its id; without `runtime_s` it
        runs until it is ended.

        `array`: number of tasks; the last one has the returned id, as in Slurm, but pending tasks are shown
        one by one. `het`: nodes of each component, the leader first. The rest of `job` are fields of
        `slurm_jobs.Job`; TypeError for any other name.
        """
        with self._write() as now:
            wanted = [tuple(part) for part in het] or [tuple(required)] * max(1, array)
            first = self._last_id + 1
            self._last_id += len(wanted)
            job |= {name: tuple(job[name]) for name in ("excluded", "siblings") if name in job}
            added = [
                Job(id="", want_nodes=max(nodes, len(names)), want_gpus=gpus, required=names, **job)
                for names in wanted
            ]
            number_jobs(added, first, array=bool(array), het=bool(het))
            for each in added:
                if each.reservation:
                    check_access(each, self._world.reservation(each.reservation))
                each.submit_at = now
                if held:
                    each.hold("user")
                self._world.jobs[each.id] = each
            return str(first)

    def complete(self, job: str) -> None:
        self._end_now(job, "COMPLETED", "0")

    def fail_job(self, job: str, exit_code: str = "1") -> None:
        """The job's program fails."""
        self._end_now(job, "FAILED", exit_code)

    def fail_launch(self, job: str) -> None:
        """The Prolog fails on the job's first node."""
        with self._write() as now:
            found = require_running(self._world.job(job))
            self._world.fail_launch(found, self._world.node(found.nodes[0]), now)

    def delay(self, job: str, until: datetime) -> None:
        """Its owner sets the begin time of a pending job."""
        with self._write():
            require_pending(self._world.job(job)).begin_at = until

    def heard(self, job: str) -> list[str]:
        """Signals and notices that its program got: `signal USR1`, `notify TEXT`."""
        with self._read():
            return list(self._world.job(job).heard)

    # --- control: nodes

    def person_drain(self, name: str, reason: str, user: str) -> None:
        self._set_drain(name, reason, user)

    def set_node_down(self, name: str, reason: str = "Not responding", user: str = "slurm") -> None:
        """Another user sets the node DOWN: its jobs are requeued, or end as NODE_FAIL where requeue is
        forbidden."""
        with self._write() as now:
            self._world.down(self._world.node(name), reason, user, now)

    def silence(self, name: str) -> None:
        """The node stops responding; after SlurmdTimeout it is DOWN."""
        with self._write() as now:
            self._world.node(name).silent_since = now

    def answer(self, name: str) -> None:
        """The node responds again; DOWN for not responding ends (ReturnToService=1), a drain stays."""
        with self._write():
            node = self._world.node(name)
            node.silent_since = None
            if node.down and node.lost:
                node.down = node.lost = False
                if not node.drain:
                    node.forget_reason()

    def stick(self, name: str, stuck: bool = True) -> None:
        """The node's epilog hangs: jobs that end there stay COMPLETING until it is DOWN."""
        with self._write():
            self._world.node(name).stuck = stuck

    def fail_launches(self, name: str, fails: bool = True) -> None:
        """Every job launch on this node fails."""
        with self._write():
            self._world.node(name).launch_fails = fails

    def boot(self, name: str, *, planned: bool = False) -> None:
        """The node reboots and loses its jobs. Slurm sets it DOWN unless the reboot is planned."""
        with self._write() as now:
            node = self._world.node(name)
            if planned:
                self._world.drop_jobs(node, now)
            else:
                self._world.down(node, "Node unexpectedly rebooted", "slurm", now)
            node.boot_at = now
            node.silent_since = None

    def tick(self) -> datetime:
        """Does what is due and starts jobs that can start. Returns the current time."""
        with self._read() as now:
            return now

    def next_due(self) -> datetime | None:
        """Time of the next event, to which a simulation can leap; None if there is none."""
        with self._read():
            return self._world.next_due

    # --- inside

    @contextmanager
    def _read(self) -> Iterator[datetime]:
        """Locks the cluster and first does what is due."""
        with self._lock:
            now = self._clock.now()
            self._world.pass_to(now)
            yield now

    @contextmanager
    def _write(self) -> Iterator[datetime]:
        """As `_read`; jobs that the change lets start are started at once, even after a failure half way."""
        with self._read() as now:
            try:
                yield now
            finally:
                self._world.changed = True
                self._world.pass_to(now)

    def _set_drain(self, nodes: Nodes, reason: str, user: str) -> None:
        with self._write() as now:
            for node in self._world.named(nodes):
                if not (node.drain and node.reason == reason):
                    node.drain = True
                    node.because(reason, user, now)

    def _put_back(self, job: Job, now: datetime) -> None:
        for part in self._reached(require_requeueable(job)):
            self._world.put_back(part, now)

    def _end_now(self, job: str, state: str, exit_code: str) -> None:
        with self._write() as now:
            found = self._world.job(job)
            if found.completing_until or found.ended_at:
                raise SchedulerRefused(quoted(f"Job {job}: Job/step already completing or completed"), 2021)
            # The end of a heterogeneous job's leader is the end of all.
            for part in self._reached(found):
                self._world.end(part, state, now, exit_code)

    def _reached(self, job: Job) -> list[Job]:
        """The jobs that a call on this job reaches: all components for a leader's id."""
        return [job] if job.het_offset else self._world.parts(job)


if TYPE_CHECKING:

    class _Called(SimScheduler, CallClient): ...  # the client has its methods
else:
    _Called = CallClient


def check_line(what: str, text: str, *, empty: bool = False) -> str:
    if not (text.strip() or (empty and not text)) or not text.isprintable():
        raise ValueError(f"{what} is one line of printable characters")
    return text


#: Runtime of healer's own test jobs on a served cluster.
TEST_S = 10.0


def reads_socket(socket_path: Path | str) -> Path:
    """Where a SimServer of this path answers calls that read, and no other."""
    path = Path(socket_path)
    return path.with_name(f"{path.name.removesuffix('.sock')}.reads")


class SimServer(CallServer):
    """Serves a SimScheduler on a unix socket until `stop`, and on another what only reads."""

    def __init__(self, scheduler: SimScheduler, socket_path: Path | str) -> None:
        errors = (SchedulerError,)
        self._reads = CallServer(scheduler, reads_socket(socket_path), errors, served=SlurmReads, mode=0o660)
        super().__init__(scheduler, socket_path, errors)

    def start(self) -> None:
        self._reads.start()
        super().start()

    def stop(self) -> None:
        super().stop()
        self._reads.stop()


class SimReads(CallClient):
    """`ports.scheduling.SlurmReads` over a SimServer's socket, for read-only use."""

    name = "sim"

    def __init__(self, socket_path: Path | str, timeout_s: float = 10) -> None:
        CallClient.__init__(self, SlurmReads, reads_socket(socket_path), timeout_s, _error_of)

    def unavailable(self) -> Mapping[SlurmCall, str]:
        return {}


class SimClient(_Called):
    """`ports.Scheduler`, and the calls that drive a SimScheduler, over the socket of a SimServer."""

    name = "sim"

    def __init__(self, socket_path: Path | str, timeout_s: float = 10) -> None:
        CallClient.__init__(self, SimScheduler, socket_path, timeout_s, _error_of)

    def unavailable(self) -> Mapping[SlurmCall, str]:
        return {}


def _error_of(error: Gone | CallFailed) -> Exception:
    if isinstance(error, Gone):
        return SchedulerUnavailable(say("simulation.slurm_gone", error=said_by(error)), sent=error.sent)
    if error.kind in {"UnknownNode", "SchedulerRefused"}:
        return (UnknownNode if error.kind == "UnknownNode" else SchedulerRefused)(error.text, error.code)
    errors = {"SchedulerUnavailable": SchedulerUnavailable, "ValueError": ValueError}
    return errors.get(error.kind, SchedulerError)(error.text)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="healer.sim.sim_slurm", description="One simulated Slurm on a unix socket."
    )
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--cluster", default="pod1")
    parser.add_argument("--cred-expire-s", type=float, default=SlurmTimes().cred_expire_s)
    parser.add_argument("--slurmd-timeout-s", type=float, default=SlurmTimes().slurmd_timeout_s)
    options = parser.parse_args(arguments)
    setproctitle("healer sim-slurm")
    scheduler = SimScheduler(
        options.cluster,
        SystemClock(),
        options.nodes,
        times=SlurmTimes(cred_expire_s=options.cred_expire_s, slurmd_timeout_s=options.slurmd_timeout_s),
        test_s=TEST_S,
    )
    SimServer(scheduler, options.socket).run()


if __name__ == "__main__":
    main()
