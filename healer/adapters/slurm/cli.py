"""Slurm through its own commands: scontrol, sinfo and squeue.

Each read of one node or job is one short command (3 ms). Slurm 22.05 answers those in text and lists in JSON;
from 23.02 everything is read as JSON of a pinned version. Nothing is repeated here: who asked reads back.
"""

import os
import re
import shutil
import threading
from datetime import UTC, datetime

from healer.adapters.slurm import parse_json, parse_text, process, words
from healer.model import SlurmJob, SlurmNode, SlurmSnapshot
from healer.ports import SchedulerRefused, SchedulerUnavailable, UnknownNode

_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/opt/slurm/bin"
#: More jobs on one node than this are read in one list instead of one by one.
_ONE_BY_ONE = 8
_LONGEST_REASON = 4096


class CliScheduler:
    """`ports.Scheduler` over the command line. `slurm_conf` is handed on as SLURM_CONF.

    `timeout_s` bounds one command; a snapshot may take six times as long.
    """

    name = "cli"

    def __init__(self, slurm_conf: str | None = None, timeout_s: float = 10) -> None:
        self._timeout_s = timeout_s
        # %s makes Slurm print every time as seconds since 1970: no zone to guess.
        self._env = {"PATH": _PATH, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        conf = slurm_conf or os.environ.get("SLURM_CONF")
        if conf:
            self._env["SLURM_CONF"] = conf
        self._paths: dict[str, str] = {}
        self._lock = threading.Lock()
        self._version: tuple[str, str | None] | None = None
        self._cluster: str | None = None

    # --- what it is

    def describe(self) -> str:
        version, shape = self._found()
        return f"cli, Slurm {version}" + (f", JSON {shape}" if shape else "")

    def cluster_name(self) -> str:
        """ClusterName, asked once."""
        cluster = self._cluster
        if cluster is None:
            text = self._ask("read the configuration", "scontrol", "show", "config").text
            match = re.search(r"^ClusterName\s*=\s*(\S+)", text, re.MULTILINE)
            if match is None:
                raise SchedulerUnavailable("Slurm's configuration names no ClusterName.")
            cluster = self._cluster = match[1]
        return cluster

    # --- reading

    def snapshot(self) -> SlurmSnapshot:
        cluster, shape, taken_at = self.cluster_name(), self._found()[1], datetime.now(UTC)
        long_s = self._timeout_s * 6
        if shape:
            pin = f"--json={shape}"
            nodes = self._json_nodes(
                self._ask("read all nodes", "scontrol", "show", "node", pin, timeout_s=long_s)
            )
            raw = self._ask("read all jobs", "scontrol", "-d", "show", "job", pin, timeout_s=long_s)
        else:
            nodes = parse_text.nodes(
                self._ask("read all nodes", "scontrol", "show", "node", timeout_s=long_s).text
            )
            raw = self._ask("read all jobs", "squeue", "--json", timeout_s=long_s)
        if not nodes:
            raise SchedulerUnavailable("Slurm answered with no nodes at all.")
        return SlurmSnapshot(cluster=cluster, taken_at=taken_at, nodes=nodes, jobs=self._json_jobs(raw))

    def node(self, name: str) -> SlurmNode:
        words.checked_node(name)
        shape = self._found()[1]
        pin = (f"--json={shape}",) if shape else ()
        output = self._run("scontrol", "show", "node", name, *pin)
        if f"Node {name} not found" in output.words:
            raise UnknownNode(f"Slurm has no node {name}.", words.NODE_UNKNOWN)
        if output.code:
            raise words.error(f"Slurm did not show node {name}", output.words)
        found = self._json_nodes(output) if shape else parse_text.nodes(output.text)
        # Slurm also finds a node by its host name; only the node of this very name is meant.
        if name not in found:
            raise UnknownNode(f"Slurm has no node {name}.", words.NODE_UNKNOWN)
        return found[name]

    def job(self, job: str) -> SlurmJob | None:
        found = self._job(job)
        return found[0] if found else None

    def jobs_on(self, node: str) -> list[SlurmJob]:
        words.checked_node(node)
        action = f"list the jobs on {node}"
        listed = self._ask(
            action, "squeue", "--noheader", "--states=RUNNING,SUSPENDED,COMPLETING", "--format=%A",
            f"--nodelist={node}",
        )  # fmt: skip
        ids = list(dict.fromkeys(listed.text.split()))
        if len(ids) > _ONE_BY_ONE:
            everything = self._all_jobs()[0]
            found = [everything.get(job) for job in ids]
        else:
            found = [self.job(job) for job in ids]
        return [job for job in found if job is not None and job.active and node in job.nodes]

    # --- writing

    def drain(self, node: str, reason: str) -> None:
        if not reason.strip():
            raise ValueError("a drain needs a reason")
        if len(reason) > _LONGEST_REASON or not reason.isprintable():
            raise ValueError(f"a reason is one line of at most {_LONGEST_REASON} printable characters")
        self._update_node(node, "State=DRAIN", f"Reason={reason}")

    def resume(self, node: str) -> None:
        self._update_node(node, "State=RESUME")

    def requeue(self, job: str) -> None:
        target = self._command_id(job)
        if target:
            self._ask(f"requeue job {job}", "scontrol", "requeue", "Incomplete", target)

    def start_now(self, job: str) -> None:
        """The begin time becomes two seconds from now. Not "now": a node kills a batch job that comes back in
        the very second in which its earlier run ended there ("Job credential revoked", seen on 22.05)."""
        target = self._command_id(job)
        if target:
            self._ask(
                f"set the start of job {job}", "scontrol", "update", f"JobId={target}", "StartTime=now+2"
            )

    # --- inside

    def _update_node(self, node: str, *changes: str) -> None:
        name = words.checked_node(node)
        self._ask(f"set {changes[0]} on {name}", "scontrol", "update", f"NodeName={name}", *changes)

    def _command_id(self, job: str) -> str | None:
        """The id for a command; None for array tasks that wait together, which no command should touch.

        Slurm takes the plain id of an array's first task for the whole array (d.8, 12)."""
        found = self._job(job)
        if found is None:
            raise SchedulerRefused(f"Slurm no longer knows job {job}.", words.JOB_UNKNOWN)
        return None if "[" in found[1] or "-" in found[1] else words.checked_job(found[1])

    def _job(self, job: str) -> tuple[SlurmJob, str] | None:
        """One job with the id that commands must use for it; None when Slurm does not know it."""
        words.checked_job(job)
        shape = self._found()[1]
        pin = (f"--json={shape}",) if shape else ()
        output = self._run("scontrol", "-d", "show", "job", job, *pin)
        if output.code:
            error = words.error(f"Slurm did not show job {job}", output.words)
            if isinstance(error, SchedulerRefused) and error.code == words.JOB_UNKNOWN:
                return None
            raise error
        if not shape:
            try:
                found, command = parse_text.job(output.text)
            except (parse_text.Ambiguous, ValueError, KeyError):
                jobs, commands = self._all_jobs()
            else:
                return (found, command) if job in (found.id, command) else None
        else:
            jobs, commands = self._json_jobs(output), self._json_commands(output)
        by_command = {command: raw for raw, command in commands.items()}
        raw = job if job in jobs else by_command.get(job)
        return (jobs[raw], commands[raw]) if raw else None

    def _all_jobs(self) -> tuple[dict[str, SlurmJob], dict[str, str]]:
        shape = self._found()[1]
        command = ("scontrol", "-d", "show", "job", f"--json={shape}") if shape else ("squeue", "--json")
        output = self._ask("read all jobs", *command, timeout_s=self._timeout_s * 6)
        return self._json_jobs(output), self._json_commands(output)

    def _found(self) -> tuple[str, str | None]:
        """Slurm's version and, from 23.02, the newest JSON shape that both sides know. Asked once."""
        with self._lock:
            if self._version is None:
                text = self._ask("tell its version", "scontrol", "--version").text
                match = re.search(r"slurm\S*\s+(\d+)\.(\d+)(\S*)", text)
                if match is None:
                    raise SchedulerUnavailable(f"scontrol --version said {text[:80]!r}.")
                version = f"{match[1]}.{match[2]}{match[3]}"
                new = (int(match[1]), int(match[2])) >= (23, 2)
                self._version = (version, self._shape(version) if new else None)
            return self._version

    def _shape(self, version: str) -> str:
        output = self._run("scontrol", "show", "node", "--json=list")
        offered = set(re.findall(r"v0\.0\.\d+", output.text + output.words))
        for shape in parse_json.DATA_PARSERS:
            if shape in offered:
                return shape
        raise SchedulerUnavailable(
            f"Slurm {version} offers no JSON that healer reads ({', '.join(sorted(offered))})."
        )

    def _ask(self, action: str, *command: str, timeout_s: float | None = None) -> process.Output:
        output = self._run(*command, timeout_s=timeout_s)
        if output.code:
            raise words.error(f"Slurm did not {action}", output.words)
        return output

    def _run(self, program: str, *arguments: str, timeout_s: float | None = None) -> process.Output:
        path = self._paths.get(program)
        if path is None:
            path = shutil.which(program, path=_PATH) or shutil.which(program)
            if path is None:
                raise SchedulerUnavailable(f"{program} is not installed on this machine.")
            self._paths[program] = path
        return process.run((path, *arguments), self._env, timeout_s or self._timeout_s)

    def _json_nodes(self, output: process.Output) -> dict[str, SlurmNode]:
        try:
            return parse_json.nodes(output.out)
        except parse_json.NotUnderstood as error:
            raise SchedulerUnavailable(str(error)) from error

    def _json_jobs(self, output: process.Output) -> dict[str, SlurmJob]:
        try:
            return parse_json.jobs(output.out)
        except parse_json.NotUnderstood as error:
            raise SchedulerUnavailable(str(error)) from error

    def _json_commands(self, output: process.Output) -> dict[str, str]:
        try:
            return dict(parse_json.command_ids(output.out))
        except parse_json.NotUnderstood as error:
            raise SchedulerUnavailable(str(error)) from error
