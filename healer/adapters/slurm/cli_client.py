"""Slurm through its commands: scontrol, sinfo, squeue, scancel, sbatch and sdiag.

A read of one node or job is one short command (3 ms). From 23.02 everything is read as JSON of a pinned
version; for 22.05 single records are text and lists are JSON. Nothing is retried here: the caller reads back.
"""

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from healer.adapters.slurm import parse_json, parse_text, process
from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.commands import Commands, only_reading, parse_errors
from healer.adapters.slurm.slurm_adapter import SlurmAdapter
from healer.model import Controller, Reservation, SlurmCall, SlurmJob, SlurmNode, SlurmSnapshot, Submission
from healer.ports.scheduling import Nodes, SchedulerRefused, SchedulerUnavailable, UnknownNode

#: Calls that need a program other than scontrol, which may not be installed.
_PROGRAMS = {SlurmCall.submit: "sbatch", SlurmCall.cancel: "scancel", SlurmCall.signal: "scancel"}
_SUBMITTED = re.compile(r"(\d+)(?:;\S+)?\s*")
#: If a node has more jobs than this, all jobs are read in one list.
_ONE_BY_ONE = 8
#: The time-out of a complete list, in time-outs of one command.
_PATIENCE = 6
#: Without --all, an unprivileged account does not see hidden partitions and those of other groups, and a full
#: node would look empty.
_SHOW = ("scontrol", "--all", "show")


# Wide: implements `ports.Scheduler`.
class CliScheduler(SlurmAdapter):
    """`ports.Scheduler` over the command line. Safe for threads.

    `bin_dir`: the folder of Slurm's commands, if not on the usual path. `timeout_s` bounds one command.
    """

    name = "cli"

    def __init__(
        self, slurm_conf: str | None = None, timeout_s: float = 10, bin_dir: Path | str | None = None
    ) -> None:
        self._commands = Commands(slurm_conf, bin_dir, timeout_s)
        self._cluster: str | None = None

    # --- about the adapter

    def describe(self) -> str:
        version, shape = self._commands.version()
        return f"cli, Slurm {version}" + (f", JSON {shape}" if shape else "")

    def unavailable(self) -> Mapping[SlurmCall, str]:
        return {
            call: f"{program} is not installed on this machine"
            for call, program in _PROGRAMS.items()
            if self._commands.where(program) is None
        }

    def cluster_name(self) -> str:
        """ClusterName, read once."""
        cluster = self._cluster
        if cluster is None:
            text = self._commands.ask("read the configuration", "scontrol", "show", "config").text
            match = re.search(r"^ClusterName\s*=\s*(\S+)", text, re.MULTILINE)
            if match is None:
                raise SchedulerUnavailable("Slurm's configuration names no ClusterName.")
            cluster = self._cluster = match[1]
        return cluster

    # --- reading

    def snapshot(self) -> SlurmSnapshot:
        cluster, taken_at, pin = self.cluster_name(), datetime.now(UTC), self._commands.pin()
        nodes = self._read_nodes(
            self._commands.ask("read all nodes", *_SHOW, "node", *pin, patience=_PATIENCE)
        )
        if not nodes:
            raise SchedulerUnavailable("Slurm answered with no nodes at all.")
        reserved = self.reserved()
        return SlurmSnapshot(
            cluster=cluster, taken_at=taken_at, nodes=nodes, jobs=self._all_jobs(), reservations=reserved
        )

    def reserved(self) -> dict[str, Reservation]:
        pin = self._commands.pin()
        output = self._commands.ask("read the reservations", *_SHOW, "reservation", *pin, patience=_PATIENCE)
        with parse_errors():
            return parse_json.reservations(output.out) if pin else parse_text.reservations(output.text)

    def node(self, name: str) -> SlurmNode:
        words.checked_node(name)
        output = self._commands.run(*_SHOW, "node", name, *self._commands.pin())
        if f"Node {name} not found" in output.words:
            raise UnknownNode(f"Slurm has no node {name}.", words.NODE_UNKNOWN)
        if output.code:
            raise words.error(f"Slurm did not show node {name}", output.words)
        found = self._read_nodes(output)
        # Slurm also finds a node by its host name.
        if name not in found:
            raise UnknownNode(f"Slurm has no node {name}.", words.NODE_UNKNOWN)
        return found[name]

    def jobs_on(self, node: str) -> list[SlurmJob]:
        words.checked_node(node)
        listed = self._commands.ask(
            f"list the jobs on {node}", "squeue", "--all", "--noheader",
            "--states=RUNNING,SUSPENDED,COMPLETING", "--format=%A", f"--nodelist={node}",
        )  # fmt: skip
        ids = list(dict.fromkeys(listed.text.split()))
        if len(ids) > _ONE_BY_ONE:
            everything = self._all_jobs()
            found = [everything.get(job) for job in ids]
        else:
            found = [self.job(job) for job in ids]
        return [job for job in found if job is not None and job.active and node in job.nodes]

    def controller(self) -> Controller:
        start = time.monotonic()
        # A failure only means that one of the servers is down.
        ping = self._commands.run("scontrol", "ping")
        answer_s = time.monotonic() - start
        with parse_errors():
            answering = parse_json.answering(parse_text.servers(ping.text))
            if answering is None:
                raise SchedulerUnavailable(
                    f"No slurmctld answers: {' '.join(ping.text.split())[:200]}", sent=False
                )
            queues = self._queues()
        at, version = datetime.now(UTC), self._commands.version()[0]
        return self._controller(at, version, answer_s, answering, queues)

    def topology(self) -> Mapping[str, tuple[str, ...]]:
        output = self._commands.ask("show its topology", "scontrol", "show", "topology", patience=_PATIENCE)
        with parse_errors():
            return parse_text.switches(output.text) or parse_text.blocks(output.text)

    def job(self, job: str) -> SlurmJob | None:
        words.checked_job(job)
        pin = self._commands.pin()
        # A component of a heterogeneous job is read by the leader's id: `scontrol show job` does not know
        # `7+1` if the job has only one component left.
        output = self._commands.run("scontrol", "--all", "-d", "show", "job", job.partition("+")[0], *pin)
        if output.code:
            error = words.error(f"Slurm did not show job {job}", output.words)
            if isinstance(error, SchedulerRefused) and error.code == words.JOB_UNKNOWN:
                return None
            raise error
        if pin:
            jobs = self._jobs(output)
        else:
            try:
                found = parse_text.job(output.text)
            except (parse_text.Ambiguous, ValueError, KeyError):
                jobs = self._all_jobs()
            else:
                jobs = {found.id: found}
        return words.job_named(job, jobs)

    # --- nodes

    def reboot(self, nodes: Nodes, reason: str) -> None:
        """Slurm skips a node with a pending reboot, 22.05 silently (d.8, 8), so the nodes are read back."""
        names = words.checked_nodes(nodes)
        because = words.checked_line("a reason", reason)
        self._commands.ask(
            f"reboot {', '.join(names)}", "scontrol", "reboot", "ASAP", "nextstate=DOWN",
            f"reason={because}", ",".join(names),
        )  # fmt: skip
        now = self._nodes_of(names)
        gone = [name for name in names if name not in now]
        if gone:
            raise SchedulerUnavailable(
                f"Whether {', '.join(gone)} will boot is not known: Slurm shows no such node."
            )
        skipped = [
            name
            for name, node in now.items()
            if not (node.after_reboot or {"REBOOT_REQUESTED", "REBOOT_ISSUED"}.intersection(node.state))
            or not node.reason.startswith(because)
        ]
        if skipped:
            raise SchedulerRefused(
                f"Slurm passed over {', '.join(skipped)}: the state of now allows no reboot for this reason."
            )

    def cancel_reboot(self, nodes: Nodes) -> None:
        names = words.checked_nodes(nodes)
        self._commands.ask(
            f"cancel the reboot of {', '.join(names)}", "scontrol", "cancel_reboot", ",".join(names)
        )

    # --- reservations

    def reserve(self, reservation: Reservation) -> None:
        name = words.checked_reservation(reservation.name)
        until = reservation.until
        minutes = max(1, round((until - datetime.now(UTC)).total_seconds() / 60)) if until else "infinite"
        options = [
            f"ReservationName={name}", "StartTime=now", f"Duration={minutes}",
            f"Nodes={','.join(words.checked_nodes(reservation.nodes))}",
        ]  # fmt: skip
        if not (reservation.users or reservation.accounts):
            raise ValueError("a reservation needs users or accounts")
        if reservation.users:
            options.append(f"Users={words.checked_names('a user', reservation.users)}")
        if reservation.accounts:
            options.append(f"Accounts={words.checked_names('an account', reservation.accounts)}")
        if flags := words.reservation_flags(reservation):
            options.append(f"Flags={','.join(flags)}")
        self._commands.ask(f"make the reservation {name}", "scontrol", "create", "reservation", *options)

    def change_reservation(self, name: str, nodes: Sequence[str]) -> None:
        """Checks the nodes first: Slurm 24.11 drops unknown nodes and reports success."""
        words.checked_reservation(name)
        names = words.checked_nodes(nodes)
        with only_reading():
            shown = self._nodes_of(names)
        unknown = [node for node in names if node not in shown]
        if unknown:
            raise UnknownNode(f"Slurm has no node {', '.join(unknown)}.", words.NODE_UNKNOWN)
        self._commands.ask(
            f"change the reservation {name}", "scontrol", "update", f"ReservationName={name}",
            f"Nodes={','.join(names)}",
        )  # fmt: skip

    def unreserve(self, name: str) -> None:
        words.checked_reservation(name)
        self._commands.ask(f"end the reservation {name}", "scontrol", "delete", f"ReservationName={name}")

    # --- jobs

    def requeue(self, job: str) -> None:
        found = self._existing_job(job)
        if not self._is_untouchable(found):
            self._commands.ask(
                f"requeue job {job}", "scontrol", "requeue", "Incomplete", words.command_id(found)
            )

    def revive(self, job: str) -> None:
        """Only for a failed job: Slurm's plain requeue accepts any job that is not pending."""
        found = self._existing_job(job)
        if found.state == "PENDING":
            raise SchedulerRefused(f"Job {job}: Job is pending execution", 2024)
        if found.state not in {"FAILED", "NODE_FAIL"}:
            raise SchedulerRefused(f"Job {job} is {found.state}: it did not fail.")
        self._commands.ask(f"revive job {job}", "scontrol", "requeue", self._target(job, found))

    def start_now(self, job: str) -> None:
        """Sets the begin time to two seconds from now: a node kills a batch job that returns in the same
        second in which its earlier run ended ("Job credential revoked", seen on 22.05)."""
        found = self._existing_job(job)
        if not self._is_untouchable(found):
            self._update_job(job, words.command_id(found), "StartTime=now+2")

    def hold(self, job: str) -> None:
        self._commands.ask(f"hold job {job}", "scontrol", "hold", words.command_id(self._single(job)))

    def release(self, job: str) -> None:
        self._commands.ask(f"release job {job}", "scontrol", "release", words.command_id(self._single(job)))

    def exclude(self, job: str, nodes: Sequence[str]) -> None:
        names = [words.checked_node(name) for name in nodes]
        self._update_job(job, words.command_id(self._single(job)), f"ExcNodeList={','.join(names)}")

    def signal(self, job: str, name: str) -> None:
        """Only for a running job: scancel retries others for minutes (seen on 22.05)."""
        self._must_have(SlurmCall.signal)
        option = f"--signal={words.checked_signal(name)}"
        found = self._existing_job(job)
        if found.state not in {"RUNNING", "SUSPENDED"}:
            raise SchedulerRefused(f"Job {job} is {found.state}: there is nothing to signal.")
        self._commands.ask(f"signal job {job}", "scancel", option, "--full", self._target(job, found))

    def notify(self, job: str, text: str) -> None:
        line = words.checked_line("a notice", text)
        self._commands.ask(
            f"notify job {job}", "scontrol", "notify", words.command_id(self._single(job)), line
        )

    def remark(self, job: str, text: str) -> None:
        line = words.checked_line("a remark", text, empty=True)
        self._update_job(job, words.command_id(self._single(job)), f"AdminComment={line}")

    def _submit(self, submission: Submission, nodes: list[str]) -> str:
        minutes, seconds = divmod(submission.time_limit_s, 60)
        given = {
            "--reservation": submission.reservation,
            "--comment": submission.comment,
            "--gres": f"gpu:{submission.gpus_per_node}" if submission.gpus_per_node else "",
            "--partition": submission.partition,
            "--qos": submission.qos,
            "--nice": submission.nice,
        }
        options = [
            "--parsable", "--no-requeue", "--chdir=/", "--output=/dev/null", f"--job-name={submission.name}",
            f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}", f"--time={minutes}:{seconds:02}",
            *(f"{option}={value}" for option, value in given.items() if value),
            *(["--exclusive"] if submission.exclusive else []),
        ]  # fmt: skip
        action, script = f"take the job {submission.name}", submission.script.encode()
        printed = self._commands.ask(action, "sbatch", *options, stdin=script).text
        match = _SUBMITTED.fullmatch(printed)
        if match is None:
            raise SchedulerUnavailable(f"sbatch said {printed[:80]!r}.")
        return match[1]

    def cancel(self, job: str) -> None:
        self._must_have(SlurmCall.cancel)
        self._commands.ask(f"cancel job {job}", "scancel", words.command_id(self._single(job)))

    # --- helpers

    def _change_nodes(self, verb: str, names: list[str], changes: Mapping[str, str]) -> None:
        texts = [f"{field.capitalize()}={text}" for field, text in changes.items()]
        command = ("scontrol", "update", f"NodeName={','.join(names)}", *texts)
        try:
            self._commands.ask(f"set {texts[0]} on {', '.join(names)}", *command)
        except SchedulerRefused as error:
            if error.no_right:
                text = f"{error}: the account that healer runs as lacks the right. {words.NODE_RIGHT}"
                raise SchedulerRefused(text, error.code) from error
            raise self._partial_refusal(names, error) if len(names) > 1 else error from error

    def _partial_refusal(self, names: Sequence[str], error: SchedulerRefused) -> SchedulerRefused:
        """Slurm changes the nodes of a list one by one without naming the refused ones. It stops at an
        unknown node, but not at a refused one (seen on 22.05 and 24.11)."""
        if isinstance(error, UnknownNode):
            shown = self._nodes_of(names)
            unknown = [name for name in names if name not in shown]
            return UnknownNode(f"{error} Unknown: {', '.join(unknown)}; read the others back.", error.code)
        return SchedulerRefused(f"{error} It may have been done to some of them: read each back.", error.code)

    def _update_job(self, job: str, target: str, change: str) -> None:
        self._commands.ask(
            f"set {change.partition('=')[0]} of job {job}", "scontrol", "update", f"JobId={target}", change
        )

    def _target(self, job: str, found: SlurmJob) -> str:
        """The id for a command on a job that has started, also if its record could not be read."""
        return job if self._is_untouchable(found) else words.command_id(found)

    def _nodes_of(self, names: Sequence[str]) -> dict[str, SlurmNode]:
        """The nodes among these that Slurm knows, read with one command."""
        output = self._commands.run(*_SHOW, "node", ",".join(names), *self._commands.pin())
        shown = self._read_nodes(output) if output.out.strip() else {}
        # Text names unknown nodes; JSON silently omits them.
        if not self._commands.pin() or output.code or not output.out.strip():
            missing = [
                name for name in names if name not in shown and f"Node {name} not found" not in output.words
            ]
            if missing:
                raise _no_answer(f"Slurm did not show {', '.join(missing)}", output)
        return {name: shown[name] for name in names if name in shown}

    def _all_jobs(self) -> dict[str, SlurmJob]:
        pin = self._commands.pin()
        # On 22.05 only squeue prints JSON, also of jobs that have ended.
        command = ("scontrol", "--all", "-d", "show", "job", *pin) if pin else ("squeue", "--all", "--json")
        return self._jobs(self._commands.ask("read all jobs", *command, patience=_PATIENCE))

    def _jobs(self, output: process.Output) -> dict[str, SlurmJob]:
        with parse_errors():
            return parse_json.jobs(output.out)

    def _read_nodes(self, output: process.Output) -> dict[str, SlurmNode]:
        if not self._commands.pin():
            return parse_text.nodes(output.text)
        with parse_errors():
            return parse_json.nodes(output.out)

    def _queues(self) -> parse_json.Queues:
        """slurmctld's queues; unknown without sdiag."""
        if self._commands.where("sdiag") is None:
            return parse_json.Queues()
        pin = self._commands.pin()
        output = self._commands.ask("tell its queues", "sdiag", *pin)
        return parse_json.queues(output.out) if pin else parse_text.queues(output.text)


def _no_answer(action: str, output: process.Output) -> SchedulerUnavailable:
    """The error for a list without the requested nodes: whether they exist is unknown."""
    error = words.error(action, output.err.decode("utf-8", "replace"))
    return error if isinstance(error, SchedulerUnavailable) else SchedulerUnavailable(str(error))
