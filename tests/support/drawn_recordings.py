"""Recordings drawn by chance, with what is true of them, and laws that each replay has to keep.

A draw is a fleet with jobs, one to three causes at times and places of their own, and senders that report
them late, twice, out of order, in part or never. Written from product.md, contract.md, recordings.md,
signals.md and the catalogue's facts alone. Times are seconds from the start.

    drawn = draw(7)
    document = replay(rules_in(Mode.auto), read(json.dumps(row) for row in drawn.rows))
    assert not broken(drawn, document)

An outage, a dead node or a reboot needs heartbeats. They end with the busy part, for all nodes at once: that
may make one more incident, and no node may be drained for it.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.support import drawn_senders as senders
from tests.support.drawn_fleet import fleet, jobs_on
from tests.support.drawn_laws import (
    QUIET_DAYS,
    QUIET_DAYS_WITH_BEATS,
    QUIET_EVERY,
    Cause,
    Drawn,
    broken,
)
from tests.support.drawn_senders import PCI, Event, Row, body_row, stamp

__all__ = ["Drawn", "broken", "draw"]
#: In every so manieth draw a fault that may wait is left to healer alone; these have their quiet days.
UNREPAIRED_EVERY = 4

# --- one draw -----------------------------------------------------------------------------------------------


class _Drawing:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.drawn = Drawn(seed)
        self.beats = self.rng.random() < 0.2
        if seed % QUIET_EVERY == 0:
            self.drawn.quiet_days = QUIET_DAYS_WITH_BEATS if self.beats else QUIET_DAYS
        self.nodes = fleet(self.rng, 20 if self.beats else 40)
        self.jobs = self.drawn.jobs = jobs_on(self.rng, self.nodes)
        self.events: list[Event] = []
        self.extra: list[tuple[float, Row]] = []
        self.free = list(self.nodes)
        #: Node, from, until; inf: until the repair.
        self.silent: list[tuple[str, float, float]] = []
        self.boot_since: dict[str, float] = {}
        #: Jobs that run on for days, beside a fault that may wait: job -> its end.
        self.late: dict[str, float] = {}
        self.mapped = self.rng.random() < 0.7

    def take(self, wanted: Callable[[str], bool] = lambda _: True) -> str | None:
        """A node that nothing else happens to."""
        choice = [name for name in self.free if wanted(name)]
        if not choice:
            return None
        name = self.rng.choice(choice)
        self.free.remove(name)
        return name

    def jobs_at(self, node: str, gpu: int | None = None) -> list[str]:
        found = [job for job in self.jobs.values() if node in job["nodes"]]
        return [job["id"] for job in found if gpu is None or not self.mapped or gpu in job["gpus"][node]]

    def say(self, node: str, at: float, gpu: int, xid: int, text: str, sure: bool = False) -> None:
        line = f"NVRM: Xid (PCI:{PCI[gpu]}): {xid}, {text}"
        self.events.append(Event(node, round(at, 6), line, f"{node}-b1", xid, gpu, sure))

    def process(self) -> str:
        return self.rng.choice(
            ("pid=81234, name=python3, ", "pid='<unknown>', name=<unknown>, ", "pid=4711, ", "")
        )

    def slurm(self, at: float, node: str, *state: str, **other: str) -> None:
        """Slurm's change of one node; the others stay as they are, with what healer did to them."""
        row = self.nodes[node] | {"state": list(state)} | other
        self.extra.append((at, body_row("slurm/nodes", {"cluster": "pod1", "changed": [row]})))

    def slurm_ends_jobs(self, at: float, node: str) -> None:
        """Slurm itself requeued what ran on a node that it gave up."""
        for name in self.jobs_at(node):
            if self.drawn.ended.get(name) is None:
                row = self.jobs[name] | {"state": "PENDING", "nodes": [], "gpus": {}, "restarts": 1}
                self.extra.append((at, body_row("slurm/jobs", {"cluster": "pod1", "changed": [row]})))
                self.drawn.ended[name] = at

    def job_ends(self, at: float, job: str) -> None:
        """Slurm shows the job's end, so that a requeued one does not wait for ever."""
        if job not in self.drawn.ended:
            row = self.jobs[job] | {"state": "COMPLETED"}
            self.extra.append((at, body_row("slurm/jobs", {"cluster": "pod1", "changed": [row]})))
            self.drawn.ended[job] = at

    # --- causes: each answers what is true, or None where the fleet has no place for it

    def fatal(self, at: float) -> Cause | None:
        """A GPU fault that the catalogue isolates for: 48, 64, 74 or 149, 79, 95, 119, 120."""
        apart = self.rng.random() < 0.5  # half of them where a job's other nodes may see its effects
        node = self.take(lambda name: not apart or bool(self.peers(name))) or self.take()
        if node is None:
            return None
        kind = self.rng.choice(
            ("lost", "lost", "lost_bare", "remap_failed", "uncontained", "dbe", "gsp", "link")
        )
        gpu = self.rng.randrange(self.nodes[node]["gpus"])
        xid = self._fatal_lines(kind, node, at, gpu)
        if self.rng.random() < 0.4:
            want = "0x2 (Node Reboot Required)" if xid == 79 else "0x1 (GPU Reset Required)"
            self.say(node, at + 0.2, gpu, 154, f"GPU recovery action changed from 0x0 (None) to {want}")
        hit = self.jobs_at(node, gpu)
        for job in hit:
            is_at_work = (
                job not in self.drawn.ended
            )  # an earlier cause ended it: nothing of it is left to tear down
            if is_at_work and gpu in self.jobs[job]["gpus"][node] and self.rng.random() < 0.7:
                self.teardown(at, job, xid)
            if is_at_work and xid in {79, 149} and self.nodes[node]["gpu_model"] == "b200":
                self.lost_packets(at, job, node)
            self.job_ends(at + self.rng.uniform(300, 1500), job)
        return Cause(kind, at, (node,), frozenset({node}), hit=frozenset(hit))

    def _fatal_lines(self, kind: str, node: str, at: float, gpu: int) -> int:
        process = self.process()
        match kind:
            case "lost":
                self.say(node, at, gpu, 79, f"{process}GPU has fallen off the bus.", sure=True)
                return 79
            case "lost_bare":
                line = f"NVRM: GPU {PCI[gpu]}.0: GPU has fallen off the bus."
                self.events.append(Event(node, round(at, 6), line, f"{node}-b1", 79, gpu, True))
                return 79
            case "remap_failed":
                self.say(node, at, gpu, 64, f"{process}Row Remapper: Failed to remap row.", sure=True)
                return 64
            case "uncontained":
                self.say(node, at, gpu, 95, f"{process}Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No")
                return 95
            case "dbe":
                where = "in the framebuffer at partition 2, subpartition 0."
                self.say(
                    node,
                    at,
                    gpu,
                    48,
                    f"{process}An uncorrectable double bit error (DBE) has been detected on GPU {where}",
                )
                if self.rng.random() < 0.5:
                    self.say(
                        node,
                        at + 0.1,
                        gpu,
                        63,
                        "Row Remapper: New row marked for remapping, reset gpu to activate.",
                    )
                return 48
            case "gsp":
                for turn in range(self.rng.randint(1, 4)):
                    text = (
                        f"Timeout after 6s of waiting for RPC response from GPU{gpu} GSP! Expected function "
                    )
                    self.say(
                        node,
                        at + 7 * turn,
                        gpu,
                        119,
                        f"{process}{text}76 (GSP_RM_CONTROL) (0x20803032 0x58c).",
                    )
                return 119
            case _ if self.nodes[node]["gpu_model"] == "b200":
                words = " ".join(["0x0215c5c6", *["0x00000000"] * 5])
                self.say(node, at, gpu, 149, f"NETIR_LINK_EVT  Fatal   XC1 i0 Link 14 ({words})")
                return 149
            case _:
                for turn in range(2):
                    text = "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
                    self.say(node, at + turn, gpu, 74, f"{process}{text}")
                return 74

    def teardown(self, at: float, job: str, after: int | None) -> None:
        """Xid 45 on every GPU of the job, soon after the root."""
        named = f" caused by previous Xid {after}" if after and self.rng.random() < 0.5 else ""
        for node in self.jobs[job]["nodes"]:
            for gpu in self.jobs[job]["gpus"][node]:
                later = at + self.rng.uniform(0.05, 20)
                self.say(
                    node,
                    later,
                    gpu,
                    45,
                    f"pid=81234, name=python3, Ch {self.rng.randrange(1, 99):08x}{named}",
                )

    def peers(self, node: str) -> list[str]:
        """The other nodes of the jobs at this one."""
        return [peer for job in self.jobs_at(node) for peer in self.jobs[job]["nodes"] if peer != node]

    def lost_packets(self, at: float, job: str, broken: str) -> None:
        """The other ends of a broken NVLink lose packets, some only when healer has requeued the job."""
        words = " ".join(["0x04082907", "0x00000008", *["0x00000000"] * 4])
        for node in self.jobs[job]["nodes"]:
            if node != broken and self.rng.random() < 0.6:
                later, gpu = at + self.rng.uniform(0.2, 20), self.jobs[job]["gpus"][node][0]
                self.say(node, later, gpu, 145, f"RLW_SRC_TRACK Nonfatal XC1 i0 Link 10 ({words})")

    def waiting(self, at: float) -> Cause | None:
        """A fault that may wait: 63, or 63 with 94. It is reset when idle."""
        unrepaired = self.drawn.seed % UNREPAIRED_EVERY == 0 and not self.beats
        node = self.take(lambda name: not unrepaired or bool(self.jobs_at(name))) or self.take()
        if node is None:
            return None
        gpu, hit = self.rng.randrange(self.nodes[node]["gpus"]), list[str]()
        self.say(
            node,
            at,
            gpu,
            63,
            f"{self.process()}Row Remapper: New row marked for remapping, reset gpu to activate.",
        )
        if self.rng.random() < 0.5:
            hit = self.jobs_at(node, gpu)
            for job in hit:
                self.job_ends(at + self.rng.uniform(300, 1500), job)
            self.say(
                node, at + 0.1, gpu, 94, "pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No"
            )
        if unrepaired:
            self.drawn.left_to_healer.add(node)
            if not hit and self.rng.random() < 0.6:
                self.late |= {job: at + self.rng.uniform(28, 70) * 3600 for job in self.jobs_at(node)}
        return Cause("waiting", at, (node,), frozenset({node}), idle_only=True, hit=frozenset(hit))

    def application(self, at: float) -> Cause | None:
        """13, 31 or 43 once on some GPUs of one job: no node is drained, nothing is requeued without
        consent."""
        job = self.rng.choice(list(self.jobs.values())) if self.jobs else None
        if job is None or not set(job["nodes"]) <= set(self.free):
            return None
        self.free = [name for name in self.free if name not in job["nodes"]]
        xid = self.rng.choice((13, 31, 43))
        for node in self.rng.sample(job["nodes"], self.rng.randint(1, len(job["nodes"]))):
            for gpu in self.rng.sample(job["gpus"][node], self.rng.randint(1, len(job["gpus"][node]))):
                unit, later = self.rng.randrange(7), at + self.rng.uniform(0, 3)
                text = {
                    13: f"Graphics SM Warp Exception on (GPC {unit}, TPC {gpu}, SM 0): Out Of Range Address",
                    31: f"Ch 0000000{gpu}, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_{unit} "
                    "faulted @ 0x7f12_34560000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
                    43: f"Ch 000000{gpu:02}",
                }[xid]
                self.say(node, later, gpu, xid, f"pid=81234, name=python3, {text}")
        if self.rng.random() < 0.5:
            self.teardown(at, job["id"], xid)
        return Cause("application", at, tuple(job["nodes"]))

    def ended_by_user(self, at: float) -> Cause | None:
        """A job is killed: 45 on all its GPUs, and no root."""
        jobs = [job for job in self.jobs.values() if set(job["nodes"]) <= set(self.free)]
        if not jobs:
            return None
        job = self.rng.choice(jobs)
        self.free = [name for name in self.free if name not in job["nodes"]]
        self.teardown(at, job["id"], None)
        return Cause("ended_by_user", at, tuple(job["nodes"]))

    def harmless(self, at: float) -> Cause | None:
        """Lines that say nothing: of the driver's start, of a user's program, of an earlier boot, too old."""
        node = self.take()
        if node is None:
            return None
        kind = self.rng.choice(("identity", "start", "logger", "syslog", "earlier_boot", "too_old"))
        lost = f"NVRM: Xid (PCI:{PCI[0]}): 79, pid=1, name=a, GPU has fallen off the bus."
        body: Any = {"cluster": "pod1", "node": node}
        match kind:
            case "identity":
                line = f"NVRM: GPU at PCI:{PCI[0]}: GPU-0b11d014-1685-04bd-26ed-5fc0bc1c44ae"
                self.events.append(Event(node, round(at, 6), line, f"{node}-b1"))
            case "start":
                line = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65.06"
                self.events.append(Event(node, round(at, 6), line, f"{node}-b1"))
            case "logger":
                text = f"{stamp(at)} {node} python3[81234]: {lost}\n"
                route = f"signals/kernel-log?cluster=pod1&node={node}"
                self.extra.append((at, body_row(route, text)))
            case "syslog":
                record = {
                    "_TRANSPORT": "syslog",
                    "_HOSTNAME": node,
                    "MESSAGE": lost,
                    "_BOOT_ID": f"{node}-b1",
                }
                self.extra.append((at, body_row("signals/logs", [record])))
            case "earlier_boot":
                body |= {
                    "boot_id": f"{node}-b0",
                    "entries": [{"time": stamp(min(at - 9000, -600.0)), "seq": 88, "line": lost}],
                }
                self.extra.append((at, body_row("signals/kernel-log", body)))
            case _:
                body |= {"entries": [{"time": stamp(at - self.rng.uniform(3700, 80000)), "line": lost}]}
                self.extra.append((at, body_row("signals/kernel-log", body)))
        return Cause(f"harmless_{kind}", at, (node,), incidents=0)

    def dead(self, at: float) -> Cause | None:
        """A node falls silent; minutes later Slurm gives it up."""
        node = self.take()
        if node is None:
            return None
        self.silent.append((node, at, float("inf")))
        given_up = at + self.rng.uniform(150, 320)
        self.slurm(given_up, node, "DOWN", "NOT_RESPONDING", reason="Not responding")
        hit = frozenset(self.jobs_at(node))
        self.slurm_ends_jobs(given_up + 1, node)
        return Cause("dead", at, (node,), frozenset({node}), hit=hit)

    def reboot(self, at: float) -> Cause | None:
        """A node reboots: so fast that Slurm says nothing, or "unexpectedly rebooted"."""
        quiet = self.rng.random() < 0.5
        node = self.take(lambda name: not quiet or not self.jobs_at(name))
        if node is None:
            return None
        back = at + (self.rng.uniform(45, 100) if quiet else self.rng.uniform(180, 500))
        self.silent.append((node, at, back))
        self.boot_since[node] = back
        boot = f"{node}-b2"
        if quiet:
            self.slurm(back + 40, node, *self.nodes[node]["state"], boot_id=boot, boot_at=stamp(back))
            return Cause("reboot_quiet", at, (node,))
        why = "Node unexpectedly rebooted"
        self.slurm(back + 40, node, "DOWN", reason=why, boot_id=boot, boot_at=stamp(back))
        hit = frozenset(self.jobs_at(node))
        self.slurm_ends_jobs(back + 41, node)
        return Cause("reboot_seen", at, (node,), frozenset({node}), hit=hit)

    def outage(self, at: float) -> Cause | None:
        """All or some nodes of a rack, switch or PDU are silent for minutes, and all come back."""
        members: dict[str, list[str]] = {}
        for name in self.free:
            for place in ("rack", "switch", "pdu"):
                if place in self.nodes[name]:
                    members.setdefault(self.nodes[name][place], []).append(name)
        choice = [names for names in members.values() if len(names) > 1]
        if not choice:
            return None
        names = self.rng.choice(choice)
        here = len(names)
        names = names if self.rng.random() < 0.5 else self.rng.sample(names, self.rng.randint(2, len(names)))
        lasts, send_odds = self.rng.uniform(90, 900), max(self.rng.random(), self.rng.random())
        for name in names:
            lost = at + self.rng.uniform(0, 45)
            back = at + lasts + self.rng.uniform(0, 120)
            self.silent.append((name, lost, back))
            if self.rng.random() < send_odds and back - lost > 100:
                state = self.nodes[name]["state"]
                self.slurm(lost + self.rng.uniform(60, 99), name, *state, "NOT_RESPONDING")
                if back - lost > 310 and self.rng.random() < 0.7:
                    self.slurm(lost + 305, name, "DOWN", "NOT_RESPONDING", reason="Not responding")
                    self.slurm_ends_jobs(lost + 306, name)
                self.slurm(back + self.rng.uniform(35, 60), name, *state)
        self.free = [name for name in self.free if name not in names]
        # No source says from how many on: a few senders that Slurm reaches may each have ended by itself.
        few = len(names) == 2 or 2 * len(names) < here
        return Cause("outage", at, tuple(names), incidents=len(names) if few else 1)

    def planned(self, at: float) -> Cause | None:
        """Maintenance of idle nodes, with a fault inside; it ends with a new boot."""
        idle = [name for name in self.free if not self.jobs_at(name)]
        if not idle:
            return None
        names, until = (
            self.rng.sample(idle, self.rng.randint(1, min(4, len(idle)))),
            at + self.rng.uniform(900, 2400),
        )
        self.free = [name for name in self.free if name not in names]
        for name in names:
            since = max(1.0, at - self.rng.uniform(5, 600))
            self.drawn.planned.append((name, since, until))
            self.slurm(since, name, "IDLE", "MAINTENANCE")
            self.slurm(until, name, "IDLE", boot_id=f"{name}-b2", boot_at=stamp(until - 60))
            self.boot_since[name] = until
            gpu = self.rng.randrange(self.nodes[name]["gpus"])
            if self.rng.random() < 0.6:
                self.say(
                    name,
                    at + self.rng.uniform(0, 30),
                    gpu,
                    79,
                    f"{self.process()}GPU has fallen off the bus.",
                )
            if self.beats and self.rng.random() < 0.5:
                self.silent.append((name, at, until - 60))
        return Cause("planned", at, tuple(names), incidents=len(names))

    # --- putting it together

    def draw(self) -> Drawn:
        rng, drawn = self.rng, self.drawn
        kernel = (self.fatal, self.fatal, self.waiting, self.application, self.ended_by_user)
        other = (self.harmless, self.planned)
        silence = (self.dead, self.reboot, self.outage, self.outage, self.outage)
        at = rng.uniform(60, 900) if rng.random() < 0.2 and not self.beats else rng.uniform(1000, 3600)
        first = at
        for turn in range(rng.randint(1, 3)):
            kind = rng.choice(silence) if self.beats and turn == 0 else rng.choice(kernel + kernel + other)
            if turn == 0 and drawn.seed % UNREPAIRED_EVERY == 0 and not self.beats:
                kind = self.waiting
            if (cause := kind(at)) is not None:
                drawn.causes.append(cause)
            gaps = ((1, 10), (10, 120), (120, 600)) if self.beats else ((1, 60), (60, 1200), (3600, 10800))
            at += rng.uniform(*rng.choice(gaps))
        rows = list(self.extra) + self._sent(first)
        busy_until = max([at, *(when for when, _ in rows)])
        jobs_end = busy_until + rng.uniform(120, 300 if self.beats else 900)
        repaired = jobs_end + (rng.uniform(300, 700) if self.beats else rng.uniform(3600, 14400))
        drawn.repaired = repaired
        rows += self._slurm(first, jobs_end, repaired) + self._heartbeats(first, repaired)
        rows += [(when, body_row("clock", {})) for when in self._clocks(rows, repaired)]
        rows.sort(key=lambda row: row[0])
        drawn.rows = [{"at": stamp(when), **row} for when, row in rows]
        return drawn

    def _sent(self, first: float) -> list[tuple[float, Row]]:
        """What the senders made of the events; none of a node that is planned away counts as sure."""
        longest = 240.0 if self.beats else 3300.0
        events = [replace(event, seq=100 + 3 * place) for place, event in enumerate(sorted(self.events))]
        sent = senders.send_all(self.rng, events, self.nodes, longest)
        away = {node for node, _, _ in self.drawn.planned}
        for at, node in sent.sure:
            if node not in away:
                self.drawn.sure[node] = min(at, self.drawn.sure.get(node, at))
        return [(max(at, min(first, at) + 0.001), row) for at, row in sent.rows]

    def _slurm(self, first: float, jobs_end: float, repaired: float) -> list[tuple[float, Row]]:
        """Slurm's pictures: before all faults, the jobs' ends, and everything in order again."""
        nodes, jobs = list(self.nodes.values()), list(self.jobs.values())
        started = min([first, *(since for _, since, _ in self.drawn.planned)])
        whole = [
            0.0,
            *(when for when in (60.0, 120.0, 240.0) if when < started - 1 and self.rng.random() < 0.5),
        ]
        rows = [(when, body_row("slurm/nodes", {"cluster": "pod1", "nodes": nodes})) for when in whole]
        rows.append((0.0, body_row("slurm/jobs", {"cluster": "pod1", "jobs": jobs})))
        late = {name for name in self.late if name not in self.drawn.ended}
        ended = [job if job["id"] in late else job | {"state": "COMPLETED"} for job in jobs]
        rows.append((jobs_end, body_row("slurm/jobs", {"cluster": "pod1", "jobs": ended})))
        for name, job in self.jobs.items():
            if name in late:
                change = {"cluster": "pod1", "changed": [job | {"state": "COMPLETED"}]}
                rows.append((self.late[name], body_row("slurm/jobs", change)))
            self.drawn.ended.setdefault(name, self.late[name] if name in late else jobs_end)
        busy = {node for name in late for node in self.jobs[name]["nodes"]}
        renewed = {name for cause in self.drawn.causes for name in cause.may_leave} | set(self.boot_since)
        renewed -= self.drawn.left_to_healer
        well = [
            node
            | {"state": node["state"] if node["name"] in busy else ["IDLE"]}
            | (
                {"boot_id": f"{node['name']}-b3", "boot_at": stamp(repaired - 120)}
                if node["name"] in renewed
                else {}
            )
            for node in nodes
        ]
        rows.append((repaired, body_row("slurm/nodes", {"cluster": "pod1", "nodes": well})))
        idle = [node | {"state": ["IDLE"]} for node in well if node["name"] in busy]
        if idle:
            last = max(self.late[name] for name in late) + 1
            rows.append((last, body_row("slurm/nodes", {"cluster": "pod1", "changed": idle})))
        return rows

    def _heartbeats(self, first: float, repaired: float) -> list[tuple[float, Row]]:
        """All nodes' heartbeats, in three turns, around a silence; else one at most, for the map of GPUs."""
        gpus = [{"index": index, "pci": PCI[index]} for index in range(self.nodes["gpu0001"]["gpus"])]
        known = {"cluster": "pod1"} | ({"gpus": gpus} if self.mapped else {})
        every, rows = self.rng.choice((15, 20, 30)), list[tuple[float, Row]]()
        up = repaired - 90  # a node answers before Slurm shows it well
        for turn in range(3):
            names, at = list(self.nodes)[turn::3], 1.0 + turn * every / 3
            if not self.beats:
                bodies = [known | {"node": name, "boot_id": f"{name}-b1"} for name in names]
                rows += [(at, body_row("signals/heartbeat", bodies))] if self.mapped else []
                continue
            at += max(0.0, first - 400)
            while at < repaired + 300:
                heard = [name for name in names if not self._is_silent(name, at, up)]
                bodies = [known | {"node": name, "boot_id": self._boot(name, at, up)} for name in heard]
                rows.append((at, body_row("signals/heartbeat", bodies)))
                at += every
        self.drawn.telemetry_ends = repaired + 300 if self.beats else None
        return rows

    def _is_silent(self, name: str, at: float, up: float) -> bool:
        return any(node == name and lost < at < min(back, up) for node, lost, back in self.silent)

    def _boot(self, name: str, at: float, up: float) -> str:
        renewed = name in self.boot_since or any(name in cause.may_leave for cause in self.drawn.causes)
        renewed = renewed and name not in self.drawn.left_to_healer
        if at >= up and renewed:
            return f"{name}-b3"
        return f"{name}-b2" if at >= self.boot_since.get(name, float("inf")) else f"{name}-b1"

    def _clocks(self, rows: list[tuple[float, Row]], repaired: float) -> list[float]:
        """Often after each row that reports something, then each 10 minutes, then each 6 hours."""
        moments = [at for at, row in rows if row["route"] != "signals/heartbeat"]
        near = {round((at + later) / 5) * 5.0 for at in moments for later in (10, 59)}
        busy = {float(at) for at in range(600, int(repaired) + 1200, 600)}
        turns = max(1, self.drawn.quiet_days * 4)
        return sorted(near | busy | {repaired + 21600.0 * turn for turn in range(1, turns + 1)})


def draw(seed: int) -> Drawn:
    """The recording of this seed: the same seed gives the same rows."""
    return _Drawing(seed).draw()
