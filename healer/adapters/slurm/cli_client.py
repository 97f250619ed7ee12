"""Slurm through its own commands: scontrol, sinfo, squeue, scancel, sbatch and sdiag.

Each read of one node or job is one short command (3 ms). Slurm 22.05 answers those in text and lists in JSON;
from 23.02 everything is read as JSON of a pinned version. Nothing is repeated here: who asked reads back.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.cli_reads import Reads
from healer.adapters.slurm.commands import Commands, looking_first
from healer.model import Controller, Reservation, SlurmCall, SlurmJob, SlurmNode, SlurmSnapshot, Submission
from healer.ports.scheduling import Nodes, NotAvailable, SchedulerRefused, SchedulerUnavailable, UnknownNode

#: Calls that need a program which a machine with scontrol may lack.
_PROGRAMS = {SlurmCall.submit: "sbatch", SlurmCall.cancel: "scancel", SlurmCall.signal: "scancel"}
_SUBMITTED = re.compile(r"(\d+)(?:;\S+)?\s*")


# Wide: implements `ports.Scheduler`.
class CliScheduler:
    """`ports.Scheduler` over the command line.

    `bin_dir`: the folder of all commands, where they are not on the usual path. `timeout_s` bounds one.
    """

    name = "cli"

    def __init__(
        self, slurm_conf: str | None = None, timeout_s: float = 10, bin_dir: Path | str | None = None
    ) -> None:
        self._commands = Commands(slurm_conf, bin_dir, timeout_s)
        self._reads = Reads(self._commands)

    # --- what it is

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
        return self._reads.cluster_name()

    # --- reading

    def snapshot(self) -> SlurmSnapshot:
        return self._reads.snapshot()

    def reserved(self) -> Mapping[str, Reservation]:
        return self._reads.reserved()

    def node(self, name: str) -> SlurmNode:
        return self._reads.node(name)

    def job(self, job: str) -> SlurmJob | None:
        found = self._reads.job(job)
        return found[0] if found else None

    def jobs_on(self, node: str) -> list[SlurmJob]:
        return self._reads.jobs_on(node)

    def controller(self) -> Controller:
        return self._reads.controller()

    def topology(self) -> Mapping[str, tuple[str, ...]]:
        return self._reads.topology()

    # --- nodes

    def drain(self, nodes: Nodes, reason: str) -> None:
        self._update_nodes(nodes, "State=DRAIN", f"Reason={words.checked_line('a reason', reason)}")

    def undrain(self, nodes: Nodes) -> None:
        self._update_nodes(nodes, "State=UNDRAIN")

    def resume(self, nodes: Nodes) -> None:
        self._update_nodes(nodes, "State=RESUME")

    def down(self, nodes: Nodes, reason: str) -> None:
        self._update_nodes(nodes, "State=DOWN", f"Reason={words.checked_line('a reason', reason)}")

    def reboot(self, nodes: Nodes, reason: str) -> None:
        """Slurm passes over a node that already waits for a reboot, 22.05 without a word (d.8, 8)."""
        names = words.checked_nodes(nodes)
        because = words.checked_line("a reason", reason)
        self._commands.ask(
            f"reboot {', '.join(names)}", "scontrol", "reboot", "ASAP", "nextstate=DOWN",
            f"reason={because}", ",".join(names),
        )  # fmt: skip
        now = self._reads.nodes(names)
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

    def annotate(self, node: str, *, comment: str | None = None, extra: str | None = None) -> None:
        texts = {"Comment": comment, "Extra": extra}
        changes = [
            f"{field}={words.checked_line('a note', text, empty=True)}"
            for field, text in texts.items()
            if text is not None
        ]
        if changes:
            self._update_nodes(node, *changes)

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
        """Slurm 24.11 leaves out a node that it does not know and calls that a success: looked up before."""
        words.checked_reservation(name)
        names = words.checked_nodes(nodes)
        with looking_first():
            known = self._reads.nodes(names)
        unknown = [node for node in names if node not in known]
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
        target = self._known(job)[1]
        if target:
            self._commands.ask(f"requeue job {job}", "scontrol", "requeue", "Incomplete", target)

    def revive(self, job: str) -> None:
        """Slurm's plain requeue takes any job that is not pending; here only one that failed is sent."""
        found, target = self._known(job)
        if found.state == "PENDING":
            raise SchedulerRefused(f"Job {job}: Job is pending execution", 2024)
        if found.state not in {"FAILED", "NODE_FAIL"}:
            raise SchedulerRefused(f"Job {job} is {found.state}: it did not fail.")
        self._commands.ask(f"revive job {job}", "scontrol", "requeue", target or job)

    def start_now(self, job: str) -> None:
        """The begin time becomes two seconds from now. Not "now": a node kills a batch job that comes back in
        the very second in which its earlier run ended there ("Job credential revoked", seen on 22.05)."""
        target = self._known(job)[1]
        if target:
            self._update_job(job, target, "StartTime=now+2")

    def hold(self, job: str) -> None:
        self._commands.ask(f"hold job {job}", "scontrol", "hold", self._single(job))

    def release(self, job: str) -> None:
        self._commands.ask(f"release job {job}", "scontrol", "release", self._single(job))

    def exclude(self, job: str, nodes: Sequence[str]) -> None:
        names = [words.checked_node(name) for name in nodes]
        self._update_job(job, self._single(job), f"ExcNodeList={','.join(names)}")

    def signal(self, job: str, name: str) -> None:
        """Only to a job that runs: for another one scancel tries again for minutes (seen on 22.05)."""
        self._needs(SlurmCall.signal)
        option = f"--signal={words.checked_signal(name)}"
        found, target = self._known(job)
        if found.state not in {"RUNNING", "SUSPENDED"}:
            raise SchedulerRefused(f"Job {job} is {found.state}: there is nothing to signal.")
        self._commands.ask(f"signal job {job}", "scancel", option, "--full", target or job)

    def notify(self, job: str, text: str) -> None:
        line = words.checked_line("a notice", text)
        self._commands.ask(f"notify job {job}", "scontrol", "notify", self._single(job), line)

    def remark(self, job: str, text: str) -> None:
        line = words.checked_line("a remark", text, empty=True)
        self._update_job(job, self._single(job), f"AdminComment={line}")

    def submit(self, submission: Submission) -> str:
        self._needs(SlurmCall.submit)
        if not submission.script.startswith("#!"):
            raise ValueError("a script begins with #!")
        nodes = words.checked_nodes(submission.nodes)
        minutes, seconds = divmod(submission.time_limit_s, 60)
        options = [
            "--parsable", "--no-requeue", "--chdir=/", "--output=/dev/null",
            f"--job-name={words.checked_line('a job name', submission.name)}",
            f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}", f"--time={minutes}:{seconds:02}",
        ]  # fmt: skip
        if submission.reservation:
            options.append(f"--reservation={words.checked_reservation(submission.reservation)}")
        if submission.comment:
            options.append(f"--comment={words.checked_line('a comment', submission.comment)}")
        if submission.gpus_per_node:
            options.append(f"--gres=gpu:{submission.gpus_per_node}")
        if submission.exclusive:
            options.append("--exclusive")
        if submission.partition:
            options.append(f"--partition={words.checked_names('a partition', [submission.partition])}")
        if submission.qos:
            options.append(f"--qos={words.checked_names('a QOS', [submission.qos])}")
        if submission.nice:
            options.append(f"--nice={submission.nice}")
        action = f"take the job {submission.name}"
        told = self._commands.ask(action, "sbatch", *options, stdin=submission.script.encode()).text
        match = _SUBMITTED.fullmatch(told)
        if match is None:
            raise SchedulerUnavailable(f"sbatch said {told[:80]!r}.")
        return match[1]

    def cancel(self, job: str) -> None:
        self._needs(SlurmCall.cancel)
        self._commands.ask(f"cancel job {job}", "scancel", self._single(job))

    # --- inside

    def _update_nodes(self, nodes: Nodes, *changes: str) -> None:
        names = words.checked_nodes(nodes)
        command = ("scontrol", "update", f"NodeName={','.join(names)}", *changes)
        try:
            self._commands.ask(f"set {changes[0]} on {', '.join(names)}", *command)
        except SchedulerRefused as error:
            if error.no_right:
                text = f"{error}: the account that healer runs as lacks the right. {words.NODE_RIGHT}"
                raise SchedulerRefused(text, error.code) from error
            raise self._which(names, error) if len(names) > 1 else error from error

    def _which(self, names: Sequence[str], error: SchedulerRefused) -> SchedulerRefused:
        """Slurm goes through a list, does what it can, and names nobody: an unknown node ends its walk, one
        that is refused does not (seen on 22.05 and 24.11)."""
        if isinstance(error, UnknownNode):
            known = self._reads.nodes(list(names))
            unknown = [name for name in names if name not in known]
            return UnknownNode(f"{error} Unknown: {', '.join(unknown)}; read the others back.", error.code)
        return SchedulerRefused(f"{error} It may have been done to some of them: read each back.", error.code)

    def _update_job(self, job: str, target: str, change: str) -> None:
        self._commands.ask(
            f"set {change.partition('=')[0]} of job {job}", "scontrol", "update", f"JobId={target}", change
        )

    def _known(self, job: str) -> tuple[SlurmJob, str | None]:
        """The job, and the id for a command: None for array tasks that wait together, which none may touch.

        Slurm takes the plain id of an array's last task for the whole array (d.8, 12)."""
        with looking_first():
            found = self._reads.job(job)
        if found is None:
            raise SchedulerRefused(f"Slurm no longer knows job {job}.", words.JOB_UNKNOWN)
        waits_together = "[" in found[1] or "-" in found[1]
        return found[0], None if waits_together else words.checked_job(found[1])

    def _single(self, job: str) -> str:
        """The id for a command that would also change tasks that wait."""
        target = self._known(job)[1]
        if target is None:
            raise SchedulerRefused(f"{job} stands for array tasks that wait together: name one of them.")
        return target

    def _needs(self, call: SlurmCall) -> None:
        why = self.unavailable().get(call)
        if why:
            raise NotAvailable(call, why)
