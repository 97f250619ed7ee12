"""Slurm through its commands that read: scontrol, squeue and sdiag.

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
from healer.adapters.slurm.commands import ReadCommands, parse_errors
from healer.adapters.slurm.slurm_reader import SlurmReader
from healer.model import Controller, Reservation, SlurmCall, SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.slurm import job_named
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable, UnknownNode
from healer.text import Said, said_by, say

#: Calls that need a program other than scontrol, which may not be installed.
_PROGRAMS = {SlurmCall.submit: "sbatch", SlurmCall.cancel: "scancel", SlurmCall.signal: "scancel"}
#: If a node has more jobs than this, all jobs are read in one list.
_ONE_BY_ONE = 8
#: The time-out of a complete list, in time-outs of one command.
_PATIENCE = 6
#: Without --all, an unprivileged account does not see hidden partitions and those of other groups, and a full
#: node would look empty.
_SHOW = ("scontrol", "--all", "show")


class CliReads(SlurmReader):
    """`ports.SlurmReads` over the command line. Safe for threads.

    `bin_dir`: the folder of Slurm's commands, if not on the usual path. `timeout_s` bounds one command.
    """

    name = "cli"
    _Commands = ReadCommands

    def __init__(
        self, slurm_conf: str | None = None, timeout_s: float = 10, bin_dir: Path | str | None = None
    ) -> None:
        self._commands = self._Commands(slurm_conf, bin_dir, timeout_s)
        self._cluster: str | None = None

    # --- about the adapter

    def describe(self) -> str:
        version, shape = self._commands.version()
        return f"cli, Slurm {version}" + (f", JSON {shape}" if shape else "")

    def unavailable(self) -> Mapping[SlurmCall, str]:
        return {
            call: say("slurm.lacks_program", program=program)
            for call, program in _PROGRAMS.items()
            if self._commands.where(program) is None
        }

    def cluster_name(self) -> str:
        """ClusterName, read once."""
        cluster = self._cluster
        if cluster is None:
            text = self._commands.ask(say("slurm.to_read_configuration"), "scontrol", "show", "config").text
            match = re.search(r"^ClusterName\s*=\s*(\S+)", text, re.MULTILINE)
            if match is None:
                raise SchedulerUnavailable(say("slurm.no_cluster_name"))
            cluster = self._cluster = match[1]
        return cluster

    # --- reading

    def snapshot(self) -> SlurmSnapshot:
        cluster, taken_at, pin = self.cluster_name(), datetime.now(UTC), self._commands.pin()
        nodes = self._read_nodes(
            self._commands.ask(say("slurm.to_read_nodes"), *_SHOW, "node", *pin, patience=_PATIENCE)
        )
        if not nodes:
            raise SchedulerUnavailable(say("slurm.no_nodes"))
        reserved = self.reserved()
        return SlurmSnapshot(
            cluster=cluster, taken_at=taken_at, nodes=nodes, jobs=self._all_jobs(), reservations=reserved
        )

    def reserved(self) -> dict[str, Reservation]:
        pin = self._commands.pin()
        action = say("slurm.to_read_reservations")
        output = self._commands.ask(action, *_SHOW, "reservation", *pin, patience=_PATIENCE)
        with parse_errors():
            return parse_json.reservations(output.out) if pin else parse_text.reservations(output.text)

    def node(self, name: str) -> SlurmNode:
        words.checked_node(name)
        output = self._commands.run(*_SHOW, "node", name, *self._commands.pin())
        if f"Node {name} not found" in output.words:
            raise UnknownNode(say("slurm.no_node", node=name), words.NODE_UNKNOWN)
        if output.code:
            raise words.error(words.not_done(say("slurm.to_show_node", node=name)), output.words)
        found = self._read_nodes(output)
        return words.node_named(name, found)

    def jobs_on(self, node: str) -> list[SlurmJob]:
        words.checked_node(node)
        # Without --states, which passes over a job with a flag: one that is being configured is not RUNNING.
        action = say("slurm.to_list_jobs_on", node=node)
        command = ("squeue", "--all", "--noheader", "--format=%A", f"--nodelist={node}")
        listed = self._commands.ask(action, *command)
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
                answer = " ".join(ping.text.split())[:200]
                raise SchedulerUnavailable(say("slurm.no_slurmctld", words=answer), sent=False)
            queues = self._queues()
        at, version = datetime.now(UTC), self._commands.version()[0]
        return self._controller(at, version, answer_s, answering, queues)

    def topology(self) -> Mapping[str, tuple[str, ...]]:
        action = say("slurm.to_show_topology")
        output = self._commands.ask(action, "scontrol", "show", "topology", patience=_PATIENCE)
        with parse_errors():
            return parse_text.switches(output.text) or parse_text.blocks(output.text)

    def job(self, job: str) -> SlurmJob | None:
        words.checked_job(job)
        pin = self._commands.pin()
        # A component of a heterogeneous job is read by the leader's id: `scontrol show job` does not know
        # `7+1` if the job has only one component left.
        output = self._commands.run("scontrol", "--all", "-d", "show", "job", job.partition("+")[0], *pin)
        if output.code:
            error = words.error(words.not_done(say("slurm.to_show_job", job=job)), output.words)
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
        return job_named(job, jobs)

    # --- helpers

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
                raise _no_answer(say("slurm.to_show_named", nodes=", ".join(missing)), output)
        return {name: shown[name] for name in names if name in shown}

    def _all_jobs(self) -> dict[str, SlurmJob]:
        pin = self._commands.pin()
        # On 22.05 only squeue prints JSON, also of jobs that have ended.
        command = ("scontrol", "--all", "-d", "show", "job", *pin) if pin else ("squeue", "--all", "--json")
        return self._jobs(self._commands.ask(say("slurm.to_read_jobs"), *command, patience=_PATIENCE))

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
        output = self._commands.ask(say("slurm.to_tell_queues"), "sdiag", *pin)
        return parse_json.queues(output.out) if pin else parse_text.queues(output.text)


def _no_answer(action: Said, output: process.Output) -> SchedulerUnavailable:
    """The error for a list without the requested nodes: whether they exist is unknown."""
    error = words.error(words.not_done(action), output.err.decode("utf-8", "replace"))
    return error if isinstance(error, SchedulerUnavailable) else SchedulerUnavailable(said_by(error))
