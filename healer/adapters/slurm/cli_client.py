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
from healer.text import said_by, say

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
            say("slurm.to_reboot", nodes=", ".join(names)), "scontrol", "reboot", "ASAP", "nextstate=DOWN",
            f"reason={because}", ",".join(names),
        )  # fmt: skip
        now = self._nodes_of(names)
        gone = [name for name in names if name not in now]
        if gone:
            raise SchedulerUnavailable(say("slurm.reboot_unknown", nodes=", ".join(gone)))
        skipped = [
            name
            for name, node in now.items()
            if not (node.after_reboot or {"REBOOT_REQUESTED", "REBOOT_ISSUED"}.intersection(node.state))
            or not node.reason.startswith(because)
        ]
        if skipped:
            raise SchedulerRefused(say("slurm.reboot_passed_over", nodes=", ".join(skipped)))

    def cancel_reboot(self, nodes: Nodes) -> None:
        names = words.checked_nodes(nodes)
        action = say("slurm.to_cancel_reboot", nodes=", ".join(names))
        self._commands.ask(action, "scontrol", "cancel_reboot", ",".join(names))

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
        action = say("slurm.to_make_reservation", name=name)
        self._commands.ask(action, "scontrol", "create", "reservation", *options)

    def change_reservation(self, name: str, nodes: Sequence[str]) -> None:
        """Checks the nodes first: Slurm 24.11 drops unknown nodes and reports success."""
        words.checked_reservation(name)
        names = words.checked_nodes(nodes)
        with only_reading():
            shown = self._nodes_of(names)
        unknown = [node for node in names if node not in shown]
        if unknown:
            raise UnknownNode(say("slurm.no_node", node=", ".join(unknown)), words.NODE_UNKNOWN)
        self._commands.ask(
            say("slurm.to_change_reservation", name=name), "scontrol", "update", f"ReservationName={name}",
            f"Nodes={','.join(names)}",
        )  # fmt: skip

    def unreserve(self, name: str) -> None:
        words.checked_reservation(name)
        action = say("slurm.to_end_reservation", name=name)
        self._commands.ask(action, "scontrol", "delete", f"ReservationName={name}")

    # --- jobs

    def shrink(self, job: str, node: str) -> None:
        found, rest = self._rest_without(job, node)
        if rest:
            self._update_job(job, words.command_id(found), f"NodeList={','.join(rest)}")

    def requeue(self, job: str) -> None:
        found = self._existing_job(job)
        if not self._is_untouchable(found):
            action = say("slurm.job_requeue", job=job)
            self._commands.ask(action, "scontrol", "requeue", "Incomplete", words.command_id(found))

    def revive(self, job: str) -> None:
        """Only for a failed job: Slurm's plain requeue accepts any job that is not pending."""
        found = self._existing_job(job)
        if found.state == "PENDING":
            raise SchedulerRefused(say("slurm.job_pending", job=job), 2024)
        if found.state not in {"FAILED", "NODE_FAIL"}:
            raise SchedulerRefused(say("slurm.did_not_fail", job=job, state=found.state))
        action = say("slurm.job_revive", job=job)
        self._commands.ask(action, "scontrol", "requeue", self._target(job, found))

    def start_now(self, job: str) -> None:
        """Sets the begin time to two seconds from now: a node kills a batch job that returns in the same
        second in which its earlier run ended ("Job credential revoked", seen on 22.05)."""
        found = self._existing_job(job)
        if not self._is_untouchable(found):
            self._update_job(job, words.command_id(found), "StartTime=now+2")

    def hold(self, job: str) -> None:
        action = say("slurm.job_hold", job=job)
        self._commands.ask(action, "scontrol", "hold", words.command_id(self._single(job)))

    def release(self, job: str) -> None:
        action = say("slurm.job_release", job=job)
        self._commands.ask(action, "scontrol", "release", words.command_id(self._single(job)))

    def exclude(self, job: str, nodes: Sequence[str]) -> None:
        names = [words.checked_node(name) for name in nodes]
        for part, off in self._exclusions(self._single(job), names):
            # By the leader's plain id, Slurm gives all components the same list.
            target = f"{part.het_job}+0" if part.id == part.het_job else words.command_id(part)
            self._update_job(job, target, f"ExcNodeList={','.join(off)}")

    def signal(self, job: str, name: str) -> None:
        """Only for a running job: scancel retries others for minutes (seen on 22.05)."""
        self._must_have(SlurmCall.signal)
        option = f"--signal={words.checked_signal(name)}"
        found = self._existing_job(job)
        if found.state not in {"RUNNING", "SUSPENDED"}:
            raise SchedulerRefused(say("slurm.nothing_to_signal", job=job, state=found.state))
        action = say("slurm.job_signal", job=job)
        self._commands.ask(action, "scancel", option, "--full", self._target(job, found))

    def notify(self, job: str, text: str) -> None:
        line = words.checked_line("a notice", text)
        action = say("slurm.job_notify", job=job)
        self._commands.ask(action, "scontrol", "notify", words.command_id(self._single(job)), line)

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
        action, script = say("slurm.to_take_job", name=submission.name), submission.script.encode()
        printed = self._commands.ask(action, "sbatch", *options, stdin=script).text
        match = _SUBMITTED.fullmatch(printed)
        if match is None:
            raise SchedulerUnavailable(say("slurm.printed", program="sbatch", words=printed[:80]))
        return match[1]

    def cancel(self, job: str) -> None:
        self._must_have(SlurmCall.cancel)
        action = say("slurm.job_cancel", job=job)
        self._commands.ask(action, "scancel", words.command_id(self._single(job)))

    # --- helpers

    def _change_nodes(self, verb: str, names: list[str], changes: Mapping[str, str]) -> None:
        texts = [f"{field.capitalize()}={text}" for field, text in changes.items()]
        command = ("scontrol", "update", f"NodeName={','.join(names)}", *texts)
        try:
            self._commands.ask(say("slurm.to_set_on", what=texts[0], nodes=", ".join(names)), *command)
        except SchedulerRefused as error:
            if error.no_right:
                right = say(f"slurm.right_{words.NODE_RIGHT}")
                text = say("slurm.no_right_here", error=said_by(error), right=right)
                raise SchedulerRefused(text, error.code) from error
            raise self._partial_refusal(names, error) if len(names) > 1 else error from error

    def _partial_refusal(self, names: Sequence[str], error: SchedulerRefused) -> SchedulerRefused:
        """Slurm changes the nodes of a list one by one without naming the refused ones. It stops at an
        unknown node, but not at a refused one (seen on 22.05 and 24.11)."""
        whole = said_by(error)
        if isinstance(error, UnknownNode):
            shown = self._nodes_of(names)
            unknown = ", ".join(name for name in names if name not in shown)
            return UnknownNode(say("slurm.some_unknown", error=whole, nodes=unknown), error.code)
        return SchedulerRefused(say("slurm.some_done", error=whole), error.code)

    def _update_job(self, job: str, target: str, change: str) -> None:
        action = say("slurm.to_set_of_job", what=change.partition("=")[0], job=job)
        self._commands.ask(action, "scontrol", "update", f"JobId={target}", change)

    def _target(self, job: str, found: SlurmJob) -> str:
        """The id for a command on a job that has started, also if its record could not be read."""
        return job if self._is_untouchable(found) else words.command_id(found)
