"""What the commands of Slurm tell, as nouns: nodes, jobs, reservations, slurmctld itself, switches."""

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from healer.adapters.slurm import (
    parse_diag,
    parse_json,
    parse_reservations,
    parse_text,
    parse_topology,
    process,
)
from healer.adapters.slurm import (
    slurm_words as words,
)
from healer.adapters.slurm.commands import Commands, understanding
from healer.model import Controller, Reservation, SlurmJob, SlurmNode, SlurmSnapshot
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable, UnknownNode

#: More jobs on one node than this are read in one list instead of one by one.
_ONE_BY_ONE = 8
#: A list of everything may take this many times the time-out of one command.
_PATIENCE = 6
#: Without --all an account that is neither root nor SlurmUser sees nothing of hidden partitions, nor of those
#: of other groups, and a node would look empty that is full.
_SHOW = ("scontrol", "--all", "show")


class Reads:
    """The reading half of `cli.CliScheduler`. Safe for threads."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._cluster: str | None = None

    def cluster_name(self) -> str:
        """ClusterName, asked once."""
        cluster = self._cluster
        if cluster is None:
            text = self._commands.ask("read the configuration", "scontrol", "show", "config").text
            match = re.search(r"^ClusterName\s*=\s*(\S+)", text, re.MULTILINE)
            if match is None:
                raise SchedulerUnavailable("Slurm's configuration names no ClusterName.")
            cluster = self._cluster = match[1]
        return cluster

    def snapshot(self) -> SlurmSnapshot:
        cluster, taken_at, pin = self.cluster_name(), datetime.now(UTC), self._commands.pin()
        nodes = self._nodes(self._commands.ask("read all nodes", *_SHOW, "node", *pin, patience=_PATIENCE))
        if not nodes:
            raise SchedulerUnavailable("Slurm answered with no nodes at all.")
        reserved = self.reserved()
        with understanding():
            jobs = parse_json.jobs(self._ask_all_jobs().out)
        return SlurmSnapshot(
            cluster=cluster, taken_at=taken_at, nodes=nodes, jobs=jobs, reservations=reserved
        )

    def reserved(self) -> dict[str, Reservation]:
        pin = self._commands.pin()
        told = self._commands.ask("read the reservations", *_SHOW, "reservation", *pin, patience=_PATIENCE)
        with understanding():
            if pin:
                return parse_reservations.from_json(told.out)
            return parse_reservations.from_text(told.text)

    def node(self, name: str) -> SlurmNode:
        words.checked_node(name)
        output = self._commands.run(*_SHOW, "node", name, *self._commands.pin())
        if f"Node {name} not found" in output.words:
            raise UnknownNode(f"Slurm has no node {name}.", words.NODE_UNKNOWN)
        if output.code:
            raise words.error(f"Slurm did not show node {name}", output.words)
        found = self._nodes(output)
        # Slurm also finds a node by its host name; only the node of this very name is meant.
        if name not in found:
            raise UnknownNode(f"Slurm has no node {name}.", words.NODE_UNKNOWN)
        return found[name]

    def nodes(self, names: list[str]) -> dict[str, SlurmNode]:
        """Those of them that Slurm knows, in one command."""
        output = self._commands.run(*_SHOW, "node", ",".join(names), *self._commands.pin())
        told = self._nodes(output) if output.out.strip() else {}
        # JSON leaves out what Slurm does not know, without a word; text names it.
        if not self._commands.pin() or output.code or not output.out.strip():
            unsaid = [name for name in names if f"Node {name} not found" not in output.words]
            silent = [name for name in unsaid if name not in told]
            if silent:
                raise _silence(f"Slurm did not show {', '.join(silent)}", output)
        return {name: told[name] for name in names if name in told}

    def jobs_on(self, node: str) -> list[SlurmJob]:
        words.checked_node(node)
        listed = self._commands.ask(
            f"list the jobs on {node}", "squeue", "--all", "--noheader",
            "--states=RUNNING,SUSPENDED,COMPLETING", "--format=%A", f"--nodelist={node}",
        )  # fmt: skip
        ids = list(dict.fromkeys(listed.text.split()))
        if len(ids) > _ONE_BY_ONE:
            everything = self._all_jobs()[0]
            found = [everything.get(job) for job in ids]
        else:
            told = [self.job(job) for job in ids]
            found = [job[0] if job else None for job in told]
        return [job for job in found if job is not None and job.active and node in job.nodes]

    def controller(self) -> Controller:
        start = time.monotonic()
        # Its exit status only says that one of them is down.
        ping = self._commands.run("scontrol", "ping")
        answer_s = time.monotonic() - start
        with understanding():
            answering = parse_diag.answering(parse_diag.servers_from_text(ping.text))
            if answering is None:
                raise SchedulerUnavailable(
                    f"No slurmctld answers: {' '.join(ping.text.split())[:200]}", sent=False
                )
            queues = self._queues()
        return Controller(
            cluster=self.cluster_name(),
            at=datetime.now(UTC),
            adapter="cli",
            host=answering.host,
            role=answering.role,
            version=self._commands.version()[0],
            answer_s=answer_s,
            threads=queues.threads,
            agent_queue=queues.agent,
            dbd_queue=queues.dbd,
        )

    def topology(self) -> Mapping[str, tuple[str, ...]]:
        output = self._commands.ask("show its topology", "scontrol", "show", "topology", patience=_PATIENCE)
        with understanding():
            return parse_topology.switches(output.text) or parse_topology.blocks(output.text)

    def job(self, job: str) -> tuple[SlurmJob, str] | None:
        """One job with the id that commands must use for it; None when Slurm does not know it."""
        words.checked_job(job)
        pin = self._commands.pin()
        # Asked by the leader's id for a part of a heterogeneous job: `7+1` is no id to `scontrol show job`
        # where the job has only one part left.
        output = self._commands.run("scontrol", "--all", "-d", "show", "job", job.partition("+")[0], *pin)
        if output.code:
            error = words.error(f"Slurm did not show job {job}", output.words)
            if isinstance(error, SchedulerRefused) and error.code == words.JOB_UNKNOWN:
                return None
            raise error
        if not pin:
            try:
                found, command = parse_text.job(output.text)
            except (parse_text.Ambiguous, ValueError, KeyError):
                jobs, commands = self._all_jobs()
            else:
                jobs, commands = {found.id: found}, {found.id: command}
        else:
            jobs, commands = self._jobs(output)
        names = {f"{each.het_job}+{each.het_offset}": raw for raw, each in jobs.items() if each.het_job}
        names |= {command: raw for raw, command in commands.items()}
        raw = job if job in jobs else names.get(job)
        return (jobs[raw], commands[raw]) if raw else None

    def _all_jobs(self) -> tuple[dict[str, SlurmJob], dict[str, str]]:
        return self._jobs(self._ask_all_jobs())

    def _ask_all_jobs(self) -> process.Output:
        pin = self._commands.pin()
        # On 22.05 squeue alone prints JSON, also of jobs that have ended.
        command = ("scontrol", "--all", "-d", "show", "job", *pin) if pin else ("squeue", "--all", "--json")
        return self._commands.ask("read all jobs", *command, patience=_PATIENCE)

    def _jobs(self, output: process.Output) -> tuple[dict[str, SlurmJob], dict[str, str]]:
        with understanding():
            return parse_json.jobs(output.out), dict(parse_json.command_ids(output.out))

    def _nodes(self, output: process.Output) -> dict[str, SlurmNode]:
        if not self._commands.pin():
            return parse_text.nodes(output.text)
        with understanding():
            return parse_json.nodes(output.out)

    def _queues(self) -> parse_diag.Queues:
        """What waits in slurmctld; unknown where this machine has no sdiag."""
        if self._commands.where("sdiag") is None:
            return parse_diag.Queues()
        pin = self._commands.pin()
        output = self._commands.ask("tell its queues", "sdiag", *pin)
        return parse_diag.queues_from_json(output.out) if pin else parse_diag.queues_from_text(output.text)


def _silence(action: str, output: process.Output) -> SchedulerUnavailable:
    """A list without what was asked for says nothing of it, whatever the command called that."""
    error = words.error(action, output.err.decode("utf-8", "replace"))
    return error if isinstance(error, SchedulerUnavailable) else SchedulerUnavailable(str(error))
