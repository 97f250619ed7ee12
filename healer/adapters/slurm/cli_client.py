"""Slurm through its commands, with those that change it: scontrol, scancel and sbatch.

Nothing is retried here: the caller reads back.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.cli_reads import CliReads
from healer.adapters.slurm.commands import Commands, only_reading
from healer.adapters.slurm.slurm_adapter import SlurmAdapter
from healer.model import Reservation, SlurmCall, SlurmJob, Submission
from healer.ports.scheduling import Nodes, SchedulerRefused, SchedulerUnavailable, UnknownNode

_SUBMITTED = re.compile(r"(\d+)(?:;\S+)?\s*")


# Wide: implements `ports.Scheduler`.
class CliScheduler(CliReads, SlurmAdapter):
    """`ports.Scheduler` over the command line. Safe for threads."""

    _Commands = Commands

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
