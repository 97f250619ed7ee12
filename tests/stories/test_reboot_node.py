"""A reboot: once, proven by a boot of its own, out of service through it, tested before the return."""

from datetime import timedelta

import msgspec
import pytest

from healer.model import LogEntry, Remedy, RemedyUse, RunState, SlurmNode, StepEvent
from healer.playbooks.advance import UNDO
from healer.ports.scheduling import SchedulerUnavailable
from healer.text import NO_WORDS, quoted
from tests.support.loop import START, Crash, later, name
from tests.support.under_test import TestSite

NODE = name(1)


def asked(**slurm: object) -> tuple[TestSite, str]:
    site = TestSite(**({"boot_s": 30.0} | slurm))  # type: ignore[arg-type]
    return site, site.ask("reboot-validate", 1)


def finish(site: TestSite, seconds: int = 120) -> None:
    """Each test job of ours passes as soon as it runs."""
    for _ in range(seconds):
        site.run_for(1)
        for job in site.test_jobs():
            if job.state == "RUNNING":
                site.slurm.complete(job.id)


def test_it_boots_once_is_tested_and_returns() -> None:
    site, run = asked()
    finish(site)
    assert site.run_named(run).state is RunState.done
    booted = site.node(1).boot_at
    assert booted is not None and booted > later(29)
    assert site.node(1).in_service
    assert site.scheduler.writes.count("reboot") == 1
    assert [one.step for one in site.log(run) if one.event is StepEvent.skipped] == [
        "free",
        "out",
        "ticket",
        "repair",
    ]
    assert site.audited("node.rebooted") == 1


def test_pitfall_07_a_node_that_rebooted_takes_no_job_before_its_tests() -> None:
    """nextstate=DOWN takes its drain away: that is set again, for DOWN may end by itself."""
    site, _ = asked()
    site.run_for(3)
    site.want()
    site.run_for(45)
    assert not site.runs_theirs()
    reboot = site.scheduler.writes.index("reboot")
    assert site.scheduler.writes[reboot + 1 :][:2] == ["drain", "reserve"]
    assert site.ledger.tables.vetoes == []
    finish(site)
    assert site.runs_theirs()


@pytest.mark.parametrize("unanswered", [1, 3])
def test_slurm_that_did_not_answer_the_look_before_it_was_not_asked_for_a_boot(unanswered: int) -> None:
    site, run = asked()
    looks = 0

    def read(node: str) -> SlurmNode:
        nonlocal looks
        looks += bool(at_reboot)
        if 0 < looks <= unanswered:
            raise SchedulerUnavailable(quoted("timed out"))
        return site.slurm.node(node)

    at_reboot: list[str] = []
    site.scheduler.node = read
    site.on_checkpoint = lambda where: at_reboot.append(where) if where == "started:reboot" else None
    finish(site)
    assert looks > unanswered
    assert site.run_named(run).state is RunState.done, site.run_named(run).question
    assert site.scheduler.writes.count("reboot") == 1


def test_our_drain_reason_survives_the_boot() -> None:
    site, run = asked()
    site.run_for(20)
    reason = site.node(1).reason
    assert reason.startswith(f"healer:reboot-validate inc:{run[:8]}")
    assert reason.endswith(" : reboot issued")


def test_a_job_on_the_node_ends_before_it() -> None:
    site = TestSite(boot_s=30.0)
    site.theirs = site.slurm.add_job(required=[NODE])
    site.ask("reboot-validate", 1)
    site.run_for(600, step_s=5)
    assert "reboot" not in site.scheduler.writes
    site.slurm.complete(site.theirs)
    finish(site, 60)
    assert site.scheduler.writes.count("reboot") == 1


def test_a_node_that_does_not_come_back_asks_and_is_rebooted_no_second_time() -> None:
    site, run = asked(boot_s=7200.0)
    site.run_for(3000, step_s=10)
    known = site.run_named(run)
    assert known.state is RunState.stuck
    assert "not confirmed within 1800 s" in (known.question or "")
    assert site.scheduler.writes.count("reboot") == 1


@pytest.mark.parametrize("returns", [False, True], ids=["ReturnToService=1", "ReturnToService=2"])
def test_a_boot_that_takes_longer_than_slurm_waits_keeps_its_drain(returns: bool) -> None:
    """Slurm drops it then, and with ReturnToService=2 the node would return without a test. That looked like
    a person's return, and healer left the node alone for a day."""
    site, run = asked(boot_s=300.0, resume_timeout_s=60.0, returns=returns)
    while not (node := site.node(1)).boot_at or node.boot_at < START:
        site.run_for(1)
        assert not site.node(1).in_service
    finish(site)
    assert site.run_named(run).state is RunState.done, site.run_named(run).question
    assert site.node(1).in_service
    assert site.scheduler.writes.count("reboot") == 1
    assert not site.ledger.tables.vetoes


def test_a_node_that_slurm_gave_up_and_that_never_boots_asks_a_person_and_stays_drained() -> None:
    site, run = asked(boot_s=7200.0, resume_timeout_s=60.0, returns=True)
    site.run_for(3000, step_s=10)
    known = site.run_named(run)
    assert known.state is RunState.stuck and "not confirmed within 1800 s" in (known.question or "")
    assert site.node(1).drain
    assert site.scheduler.writes.count("reboot") == 1


@pytest.mark.parametrize("kept", [True, False], ids=["state saved", "state of a moment ago"])
def test_slurmctld_restarted_during_the_boot_shows_no_boot_time_until_the_node_registers(kept: bool) -> None:
    """Seen on 22.05: BootTime=None until slurmd registers; of a controller that was killed, which had not
    saved the reboot yet, also UNKNOWN+DRAIN."""
    site, run = asked()

    def read(node: str) -> SlurmNode:
        shown = site.slurm.node(node)
        if "REBOOT_ISSUED" not in shown.state:
            return shown
        state = shown.state if kept else ("UNKNOWN", "DRAIN")
        return msgspec.structs.replace(shown, state=state, boot_at=None)

    site.run_for(10)
    site.scheduler.node = read
    finish(site)
    assert site.run_named(run).state is RunState.done, site.run_named(run).question
    assert site.scheduler.writes.count("reboot") == 1 and site.node(1).in_service


class Restarted(TestSite):
    """slurmctld was restarted, and node 1 has not registered yet; `kept`: its state was saved."""

    kept = registered = True

    def shown(self, node: SlurmNode) -> SlurmNode:
        if self.registered or node.name != NODE:
            return node
        state = node.state if self.kept else ("UNKNOWN", *node.state[1:])
        return msgspec.structs.replace(node, state=state, boot_at=None)

    def look(self) -> None:
        super().look()
        seen = self.ledger.snapshot
        assert seen is not None
        nodes = {name: self.shown(node) for name, node in seen.nodes.items()}
        self.ledger.snapshot = msgspec.structs.replace(seen, nodes=nodes)


@pytest.mark.parametrize("kept", [True, False], ids=["state saved", "state of a moment ago"])
def test_slurmctld_restarted_before_the_reboot_lets_it_wait_for_the_node(kept: bool) -> None:
    site = Restarted(boot_s=30.0)
    run = site.ask("reboot-validate", 1)
    site.scheduler.node = lambda node: site.shown(site.slurm.node(node))
    site.kept, site.registered = kept, False
    site.run_for(40)
    assert "reboot" not in site.scheduler.writes
    assert site.run_named(run).state is not RunState.stuck, site.run_named(run).question
    site.registered = True
    finish(site)
    assert site.run_named(run).state is RunState.done, site.run_named(run).question
    assert site.scheduler.writes.count("reboot") == 1 and site.node(1).in_service


def test_a_node_that_boots_with_fewer_gpus_has_booted() -> None:
    """Slurm 22.05 shows REBOOT_ISSUED until it registers as configured: for minutes the run said that it was
    rebooting."""
    site, run = asked()
    site.run_for(10)
    state = ("DOWN", "DRAIN", "INVALID_REG", "REBOOT_ISSUED")
    lacking = msgspec.structs.replace(site.node(1), state=state, boot_at=site.now)
    site.scheduler.node = lambda _: lacking
    site.run_for(20)
    assert site.last(run).text == f"gpu0001 booted and is {'+'.join(state)}"
    del site.scheduler.node
    finish(site)
    assert site.run_named(run).state is RunState.done


def test_a_person_who_drains_the_node_while_it_reboots_has_resumed_nothing() -> None:
    """The boot takes their drain away too: the node is DOWN, with their reason."""
    site, _ = asked()
    site.run_for(10)
    site.slurm.person_drain(NODE, "board swap", "ann")
    site.run_for(120)
    node = site.node(1)
    assert (node.base, node.drain) == ("DOWN", False) and node.reason.startswith("board swap")
    assert not site.ledger.tables.vetoes and site.audited("node.vetoed") == 0
    site.slurm.resume(NODE)
    site.run_for(20)
    assert [veto.node for veto in site.ledger.tables.vetoes] == [NODE]


@pytest.mark.parametrize("moment", ["started:reboot", "done:reboot", "started:reserve"])
def test_a_roll_back_during_or_after_the_boot_returns_the_node(moment: str) -> None:
    """The reboot leaves it DOWN. It stayed so when only the drain was lifted, with healer's reason."""
    site, run = asked()
    site.on_checkpoint = lambda where: site.pause() if where == moment else None
    site.run_for(20 if moment == "done:reboot" else 90)
    assert "reboot" in site.scheduler.writes or moment == "started:reboot"
    entry = LogEntry(run=run, at=site.now, epoch=99, step=UNDO, event=StepEvent.done, text=NO_WORDS)
    site.ledger.tables.log[run].append(entry)
    with site.ledger.transaction() as tx:
        tx.set_run_state(run, RunState.running, why=NO_WORDS, at=site.now)
    site.on_checkpoint = lambda _: None
    site.end_pause()
    site.run_for(120)
    assert site.run_named(run).state is RunState.undone, site.run_named(run).question
    node = site.node(1)
    assert (node.in_service, node.reason, node.extra) == (True, "", "")
    assert site.ledger.tables.slots == {} and site.ledger.tables.vetoes == []


def test_cancelled_reboot_asks_a_person() -> None:
    site, run = asked()
    site.on_checkpoint = lambda where: site.slurm.cancel_reboot(NODE) if where == "done:reboot" else None
    site.run_for(60)
    assert site.run_named(run).state is RunState.stuck
    assert site.scheduler.writes.count("reboot") == 1


@pytest.mark.parametrize(("before", "rebooted"), [(2, 1), (3, 0)])
def test_cap_counts_every_reboot_regardless_of_requester(before: int, rebooted: int) -> None:
    site = TestSite(boot_s=30.0)
    for hours in range(before):
        use = RemedyUse(node=NODE, remedy=Remedy.reboot_node, rule="x", at=START - timedelta(hours=7 + hours))
        site.ledger.tables.remedies.append(use)
    run = site.ask("reboot-validate", 1)
    finish(site, 60)
    assert site.scheduler.writes.count("reboot") == rebooted
    assert len(site.ledger.tables.remedies) == before + rebooted, "one each"
    if rebooted:
        assert site.run_named(run).state is RunState.done
        assert site.node(1).in_service
    else:
        assert site.run_named(run).state is RunState.stuck
        assert "limit 3" in (site.run_named(run).question or "")


def test_a_pause_amid_the_boot_does_not_leave_the_node_without_its_drain() -> None:
    """What is left then only keeps it out. Its tests wait."""
    site, run = asked()
    site.run_for(10)
    site.pause()
    site.run_for(120)
    assert site.node(1).state == ("DOWN", "DRAIN")
    assert site.scheduler.writes == ["drain", "reboot", "drain"]
    assert "Paused" in (site.run_named(run).question or "")
    site.end_pause()
    finish(site)
    assert site.run_named(run).state is RunState.done


def test_node_left_down_by_a_cancelled_reboot_is_reported() -> None:
    site, run = asked()
    site.on_checkpoint = lambda where: site.cancel(run) if where == "performed:reboot" else None
    site.run_for(180, step_s=5)
    assert site.node(1).state == ("DOWN",)
    (one,) = site.open_incidents
    assert (one.fault, one.root.node) == ("healer-drain", NODE)


MOMENTS = [f"{at}:{step}" for step in ("reboot", "reserve") for at in ("started", "done", "performed")]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_death_at_any_moment_reboots_once(moment: str) -> None:
    site = TestSite(boot_s=30.0)
    for hours in range(2):  # so it is the last one of the day
        use = RemedyUse(node=NODE, remedy=Remedy.reboot_node, rule="x", at=START - timedelta(hours=7 + hours))
        site.ledger.tables.remedies.append(use)
    run = site.ask("reboot-validate", 1)
    died: list[str] = []

    def die(where: str) -> None:
        if where == moment and len(died) < 2:
            died.append(where)
            raise Crash(where)

    site.on_checkpoint = die
    for _ in range(150):
        site.clock.advance(1)
        try:
            site.drive()
        except Crash:
            site.ledger._claimed.clear()
        for job in site.test_jobs():
            if job.state == "RUNNING":
                site.slurm.complete(job.id)
        site.walk()
    assert died
    assert site.run_named(run).state is RunState.done
    assert site.scheduler.writes.count("reboot") == 1
    assert len(site.ledger.tables.remedies) == 3
    assert site.node(1).in_service and site.ledger.tables.vetoes == []
