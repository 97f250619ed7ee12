"""A day of a real Slurm with faults, whole: `python -m benchmarks.slurm_day [--nodes 1250] [--minutes 120]`.

    python -m benchmarks.slurm_day [--nodes 1250] [--minutes 120] [--jobs 300] [--rate 10] [--seed N]

Slurm 22.05 with a slurmd for each node and healer's hooks as Prolog, Epilog and HealthCheckProgram; `healer
up` with everything on, in mode auto with the default guards and settling time; a follower of each node
(`_day_nodes.py`); users with `--jobs` jobs at a time (`_day_slurm.py`). Faults are drawn from Llama 3's mix
at `--rate` times its rate, but not in the last third (at most 15 min), so that what began can end. At ten
times the rate two hours of 1,250 nodes bring about four faults: for figures of the stages take more.

What is not as on a site: HealthCheckInterval is 300 s over the whole fleet (CYCLE), as all hooks run on this
machine. A reset of a GPU and a boot end soft faults after 10 and 30 s; other hardware waits 2 to 5 min for a
technician, who boots the node once it is empty and asks for `return-to-service`. Tests of nodes are one test
of the site's own, which takes 5 s and knows what is broken. A fault of a GPU does not end its job: only a
dead node does. No job reports step times: hangs, silent corruption and slow ranks show nothing here.

First comes a window without healer: the same Slurm, jobs and hooks, which find no API to report to. At the
end each stage's time, what has to be 0 (else the exit status is 1), slurmctld's latency and its requests.
"""

import argparse
import heapq
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import msgspec
import psycopg
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import _day_slurm
from benchmarks._day_nodes import Breaking, Followers, Node, NodeFiles, ReachedNodes, serve_nodes
from benchmarks._day_report import Ended, Window, print_report
from benchmarks._load import CLUSTER, cpu_s, processes_of
from healer.adapters.postgres.engine import make_engine, writing
from healer.adapters.postgres.tokens import PostgresTokens
from healer.adapters.system_clock import SystemClock
from healer.embedded import running
from healer.model import Role, SlurmJob
from healer.ports.callers import NewToken
from healer.sim.fleet import scenario
from healer.sim.fleet.schedule import Chance, Fault, base_faults
from tests.support.breakable_slurm import BreakableSlurm
from tests.support.seals import sealed
from tests.support.site import Site
from tests.support.slurm import Hooks
from tests.support.stack import RULES, make_scratch
from tests.support.wait import wait_until

MIX = "llama3-54d"
#: Mean length of a job. Each minute a tenth of them ends and as many come.
JOB_S = 600.0
#: The window without healer; then how long healer may settle after its start.
BASELINE_S, SETTLE_S = (60.0, 300.0), 45.0
BOOT_S, TEST_S = 30.0, 5
#: Seconds until a technician has repaired a node, and until a person has answered a question.
REPAIR_S, ANSWER_S = (120.0, 300.0), 45.0
#: People look at what waits for them so often, and ask again after so long where they were refused.
LOOK_S, AGAIN_S = 5.0, 20.0
_TEST = """\
#!/bin/sh
# In place of NVIDIA's programs: what is broken on the node lies in a file.
sleep {seconds}
[ ! -e {folder}/broken/"$SLURMD_NODENAME" ] || {{ echo "healer-says the part is broken"; exit 1; }}
echo "healer-result gpu_count 8"
"""


class Agenda:
    """Calls that are due at a moment, made by the one who runs it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._numbers), call))

    def run_due(self) -> None:
        while self._heap and self._heap[0][0] <= time.monotonic():
            heapq.heappop(self._heap)[2]()


class People:
    """Those who answer healer's questions, repair nodes and return them, through the API."""

    def __init__(
        self,
        site: Site,
        nodes: dict[str, Node],
        agenda: Agenda,
        breaking: Breaking,
        running: Callable[[], Mapping[str, SlurmJob]],
    ) -> None:
        self._site, self._nodes, self._agenda = site, nodes, agenda
        self._breaking, self._running = breaking, running
        self._seen: dict[str, tuple[str, str]] = {}
        self._chance = random.Random(0)
        self.repairs = self.answers = self.unanswered = 0

    def look(self) -> None:
        waiting = self._site.sql(
            "SELECT id, node, state, coalesce((SELECT step FROM run_log WHERE run = runs.id "
            "ORDER BY seq DESC LIMIT 1), '') FROM runs "
            "WHERE state IN ('waiting', 'waiting_approval', 'proposed') AND node IS NOT NULL"
        )
        for run, node, state, step in waiting:
            if self._seen.get(run) == (state, step):
                continue
            self._seen[run] = state, step
            if state != "waiting":
                self._agenda.after(ANSWER_S, lambda run=run, node=node: self._answer(run, node))
            elif step.endswith("repair"):
                self._agenda.after(self._chance.uniform(*REPAIR_S), lambda node=node: self._repair(node))

    def _answer(self, run: str, node: str) -> None:
        """Yes, where there is something wrong with the node."""
        verb = "approve" if self._nodes[node].broken else "reject"
        answer = self._ask(f"/runs/{run}/{verb}", {"reason": "looked at"})
        self.answers += answer.status_code < 300

    def _repair(self, node: str) -> None:
        if any(node in job.nodes for job in self._running().values()):
            self._agenda.after(AGAIN_S, lambda: self._repair(node))
            return
        self.repairs += 1
        self._breaking.repair(self._nodes[node])
        self._return(node)

    def _return(self, node: str) -> None:
        body = {"cluster": CLUSTER, "node": node, "reason": "board replaced"}
        answer = self._ask("/playbooks/return-to-service/runs", body)
        if answer.status_code >= 300:
            print(f"{node}: its return is refused: {answer.text[:200]}", flush=True)
            self._agenda.after(AGAIN_S, lambda: self._return(node))

    def _ask(self, path: str, body: dict[str, str]) -> httpx.Response:
        """The answer; 504 where none came in time, as from a proxy."""
        try:
            return self._site.api("operator").post(path, json=body)
        except httpx.TimeoutException:
            self.unanswered += 1
            return httpx.Response(504, text="no answer in 20 s")


class Day:
    """Slurm, healer, nodes and people, and the loop that moves them."""

    def __init__(self, slurm: BreakableSlurm, files: NodeFiles, hooks: Hooks, folder: Path) -> None:
        self.slurm, self.files, self.folder = slurm, files, folder
        self.agenda = Agenda()
        self.followers = Followers(files.nodes, folder / "running.json")
        self.reached = ReachedNodes(SystemClock(), files.folder / "broken")
        self.breaking = Breaking(
            self.followers,
            self.reached,
            kill=slurm.kill_node,
            boot=slurm.boot_node,
            after=self.agenda.after,
            person=slurm.run,
        )
        self.site = Site(
            slurm,
            folder,
            HEALER_SETTLE_S="2",
            HEALER_RULES_DIR=str(rules_of(folder, files.folder)),
            HEALER_SIM_NODES_SOCKET=str(folder / "reached" / "nodes.sock"),
        )
        self.people = People(self.site, files.nodes, self.agenda, self.breaking, self.followers.jobs)
        self._hooks = hooks
        self._booting: set[str] = set()
        self._look_at = 0.0

    def start_healer(self) -> None:
        self.site.stack.start()
        tokens = node_tokens(self.site, [*self.files.nodes])
        self.files.keep_tokens(tokens)
        self.files.point_hooks_at(self.site.stack.url)
        self.followers.start(self.site.stack.port, tokens)

    def pass_time(self, seconds: float, faults: list[tuple[float, Fault]]) -> None:
        """`faults`: each with its moment, in seconds from now."""
        for at, fault in faults:
            self.agenda.after(at, lambda fault=fault: self._strike(fault))
        begun, next_line = time.monotonic(), 60.0
        while (passed := time.monotonic() - begun) < seconds:
            self.agenda.run_due()
            self._boot_asked()
            if time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + LOOK_S
                with self._unanswered_counts():
                    self.people.look()
            if passed >= next_line:
                next_line += 60.0
                with self._unanswered_counts():
                    self._print_progress(passed)
            time.sleep(0.1)

    @contextmanager
    def _unanswered_counts(self) -> Iterator[None]:
        """Counts a database time-out and goes on: the same query runs again a few seconds later."""
        try:
            yield
        except psycopg.OperationalError as error:
            self.people.unanswered += 1
            print(f"the database does not answer: {error}", flush=True)

    def _strike(self, fault: Fault) -> None:
        active = "SELECT 1 FROM slots WHERE node = %s AND released_at IS NULL"
        self.breaking.strike(
            self.files.nodes[fault.node], fault, is_out=bool(self.site.sql(active, fault.node))
        )

    def _boot_asked(self) -> None:
        """A node whose RebootProgram was run is back after `BOOT_S`."""
        for mark in self._hooks.folder.glob("reboot-*"):
            node = mark.name.removeprefix("reboot-")
            if node not in self._booting:
                self._booting.add(node)
                self.agenda.after(BOOT_S, lambda node=node: self._boot(node))

    def _boot(self, node: str) -> None:
        self._hooks.clear(node)
        self._booting.discard(node)
        self.breaking.boot(self.files.nodes[node])

    def _print_progress(self, passed: float) -> None:
        states = self.site.sql("SELECT state, count(*) FROM runs GROUP BY 1 ORDER BY 1")
        runs = ", ".join(f"{state} {count}" for state, count in states)
        print(
            f"{passed / 60:4.0f} min: {len(self.breaking.struck)} faults; runs: {runs or 'none'}; "
            f"{self.people.repairs} repairs, {self.people.unanswered} requests unanswered; "
            f"load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


def rules_of(folder: Path, nodes: Path) -> Path:
    """The shipped rules, with one test of the site's own at all depths."""
    rules = shutil.copytree(RULES, folder / "rules")
    (rules / "validation/day.sh").write_text(_TEST.format(seconds=TEST_S, folder=nodes))
    path = rules / "validation/depths.yaml"
    depths = yaml.safe_load(path.read_text())
    for depth in depths["depths"].values():
        depth["tests"] = ["day"]
        depth.pop("pair", None)
    path.write_text(yaml.safe_dump(depths, sort_keys=False))
    return rules


def node_tokens(site: Site, names: list[str]) -> dict[str, str]:
    """A token for each node, as its enrolment makes one; they count once the audit has sealed that."""
    engine = make_engine(running.find(site.stack.data_dir).database_url, pool_size=2)
    tokens, now = PostgresTokens(engine, CLUSTER, site.stack.token_key()), datetime.now(UTC)
    with writing(engine) as conn:
        made = {
            name: tokens.create_in(
                conn, NewToken(role=Role.signals, node=name, cluster=CLUSTER), by="bench", now=now
            )
            for name in names
        }
    wait_until(lambda: not site.sql("SELECT 1 FROM audit_unsealed LIMIT 1"), 60, what="tokens are sealed")
    sealed(tokens, made[names[-1]])
    engine.dispose()
    return made


def drawn_faults(names: list[str], seconds: float, rate: float, seed: int) -> list[tuple[float, Fault]]:
    """Faults of the mix at `rate` times its rate, each with its moment from now on."""
    mix = scenario.load(MIX)
    spec = msgspec.structs.replace(mix.faults, per_node_day=mix.faults.per_node_day * rate)
    of_day = msgspec.structs.replace(mix, nodes=len(names), days=seconds / 86_400, faults=spec)
    faults = base_faults(of_day, Chance(of_day, seed), names, seed)
    return [((fault.at - of_day.start).total_seconds(), fault) for fault in faults]


@contextmanager
def users(slurm: BreakableSlurm, folder: Path, given: argparse.Namespace) -> Iterator[None]:
    """The users, in a process of their own: what they feel is not delayed by what happens in this one."""
    counts = (given.nodes, given.jobs, JOB_S)
    process = multiprocessing.get_context("spawn").Process(
        target=_day_slurm.live, args=(slurm.env, folder, counts, given.seed)
    )
    process.start()
    try:
        wait_until((folder / "running.json").exists, 300, what=f"{given.jobs} jobs are submitted")
        yield
        assert process.is_alive(), "the users' process has ended"
    finally:
        process.terminate()
        process.join(20)


def sdiag(slurm: BreakableSlurm) -> _day_slurm.Counted:
    return _day_slurm.counted(slurm.run("sdiag"))


@contextmanager
def window(slurm: BreakableSlurm) -> Iterator[Window]:
    """What happens meanwhile is counted."""
    found, before = Window(since=time.time()), sdiag(slurm)
    yield found
    found.until, found.counted = time.time(), sdiag(slurm).since(before)


def start(given: argparse.Namespace, folder: Path, stop: ExitStack) -> Day:
    """Slurm with its users; healer is not started yet."""
    names = [f"gpu{number:04d}" for number in range(1, given.nodes + 1)]
    (folder / "n").mkdir()
    files, hooks = NodeFiles(folder / "n", names), Hooks(folder)
    settings = {"RebootProgram": hooks.write()["RebootProgram"], **files.slurm_settings()}
    settings |= {
        "SlurmdTimeout": "300", "ReturnToService": "1", "PrologFlags": "Alloc", "PrologEpilogTimeout": "30",
        "HealthCheckInterval": "300", "HealthCheckNodeState": "ANY,CYCLE",
        "JobCompType": "jobcomp/filetxt", "JobCompLoc": str(folder / "s/log/ended.txt"),
    }  # fmt: skip
    slurm = BreakableSlurm(folder / "s", given.nodes, conf=settings)
    slurm.start(timeout_s=300)
    stop.callback(slurm.stop)
    day = Day(slurm, files, hooks, folder)
    (folder / "reached").mkdir()
    stop.callback(serve_nodes(day.reached, folder / "reached").stop)
    stop.enter_context(users(slurm, folder, given))
    return day


def play(given: argparse.Namespace, folder: Path, stop: ExitStack) -> bool:
    """Whether all is as it has to be."""
    begun = time.monotonic()
    day = start(given, folder, stop)
    print(f"real Slurm of {given.nodes} nodes after {time.monotonic() - begun:.0f} s", flush=True)
    seconds = given.minutes * 60
    rest_s = min(max(BASELINE_S[0], seconds / 8), BASELINE_S[1])
    time.sleep(30)  # the first jobs start
    with window(day.slurm) as without:
        time.sleep(rest_s)
    print(f"without healer: {rest_s:.0f} s; load {os.getloadavg()[0]:.1f}", flush=True)
    stop.callback(day.site.stack.__exit__, None, None, None)
    stop.callback(day.followers.stop)
    day.start_healer()
    day.pass_time(SETTLE_S, [])
    faults_s = seconds - min(900.0, seconds / 3)
    faults = drawn_faults([*day.files.nodes], faults_s, given.rate, given.seed)
    print(f"healer is up; {len(faults)} faults in {faults_s / 60:.0f} min", flush=True)
    processes = processes_of(day.site.stack)
    cpu = {name: cpu_s(pids) for name, pids in processes.items()}
    with window(day.slurm) as healed:
        day.pass_time(seconds, faults)
    day.followers.stop()
    return print_report(
        Ended(
            site=day.site,
            slurm=day.slurm,
            folder=folder,
            without=without,
            healed=healed,
            followers=day.followers,
            breaking=day.breaking,
            nodes=day.files.nodes,
            cpu_before=cpu,
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--rate", type=float, default=10, help="times the published rate of faults")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"seed {given.seed}, load {os.getloadavg()[0]:.1f}", flush=True)
    folder = make_scratch()
    try:
        with ExitStack() as stop:
            return 0 if play(given, folder, stop) else 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
