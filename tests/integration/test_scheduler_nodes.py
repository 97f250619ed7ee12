"""What every `ports.Scheduler` does to nodes: drain, resume, down, reboot, notes; read back each time.

"Pitfall N" is number N of the list of Slurm's pitfalls in docs/slurm.md.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from healer.model import SlurmNode
from healer.ports.scheduling import SchedulerRefused, UnknownNode
from tests.integration.benches import PATIENCE_S, Bench, job_of, mark, running, wait_for
from tests.support.wait import wait_until

OURS = "healer:gpu-lost inc:1a2b3c4d GPU 3 fell off the bus (Xid 79)"
JSON = '{"healer":{"incident":"1a2b3c4d","rule":"gpu-lost, xid=79","since":"2026-11-20T09:00:00Z"}}'


def wait_for_node(bench: Bench, name: str, *state: str) -> SlurmNode:
    return _wait_for(bench, name, lambda found: found.state == state, f"{name} {state}")


def wait_for_flags(bench: Bench, name: str, *flags: str) -> SlurmNode:
    return _wait_for(bench, name, lambda found: set(flags) <= set(found.state), f"{name} {flags}")


def _wait_for(bench: Bench, name: str, wanted: Callable[[SlurmNode], bool], what: str) -> SlurmNode:
    found = bench.scheduler.node(name)

    def there() -> bool:
        nonlocal found
        found = bench.scheduler.node(name)
        return wanted(found)

    try:
        wait_until(there, PATIENCE_S, what=what, every_s=0.05)
    except AssertionError as error:
        raise AssertionError(f"{error}; it is {found}") from None
    return found


# --- drain and resume


def test_a_drain_is_read_back_with_reason_user_and_time(bench: Bench) -> None:
    name = bench.free()[0]
    before = datetime.now(UTC).replace(microsecond=0)
    bench.scheduler.drain(name, OURS)
    node = bench.scheduler.node(name)
    assert node.drain and not node.in_service
    assert (node.reason, node.reason_user) == (OURS, "root")
    assert node.reason_at is not None and before <= node.reason_at <= datetime.now(UTC)
    assert mark(bench.scheduler.snapshot().nodes[name]) == mark(node)


def test_pitfall_01_a_drain_without_a_reason_is_never_sent(bench: Bench) -> None:
    name, other = bench.free(2)
    bench.person_drain(name, "alice: PSU")
    for reason in ("", "  "):
        for node in (name, other):
            with pytest.raises(ValueError):
                bench.scheduler.drain(node, reason)
            with pytest.raises(ValueError):
                bench.scheduler.down(node, reason)
    assert bench.scheduler.node(name).reason == "alice: PSU"
    assert not bench.scheduler.node(other).held


def test_pitfall_02_a_second_drain_replaces_reason_and_time_and_the_same_one_is_nothing(bench: Bench) -> None:
    name = bench.free()[0]
    bench.scheduler.drain(name, OURS)
    first = bench.scheduler.node(name)
    assert first.reason_at is not None
    later = first.reason_at + timedelta(seconds=1.2)
    wait_until(lambda: datetime.now(UTC) > later, 5)
    bench.scheduler.drain(name, OURS)
    assert mark(bench.scheduler.node(name)) == mark(first)
    bench.scheduler.drain(name, OURS + " again")
    second = bench.scheduler.node(name)
    assert second.reason == OURS + " again"
    assert second.reason_at is not None and second.reason_at > first.reason_at


def test_pitfall_02_what_a_person_wrote_stays_until_it_is_overwritten(bench: Bench) -> None:
    name, other = bench.free(2)
    text = "alice: PSU [x] State=IDLE [bob@2020-01-01T00:00:00] 50% (rack 3)"
    bench.person_drain(name, text)
    first = bench.scheduler.node(name)
    assert (first.reason, first.reason_user, first.state) == (text, "root", ("IDLE", "DRAIN"))
    bench.scheduler.drain(other, OURS)
    bench.scheduler.resume(other)
    bench.scheduler.jobs_on(name)
    assert mark(bench.scheduler.node(name)) == mark(first)


def test_pitfall_03_a_drain_carries_the_services_own_user(bench: Bench) -> None:
    one, other = bench.free(2)
    bench.person_drain(one, "alice: PSU, set by alice")
    bench.scheduler.drain(other, OURS)
    assert [bench.scheduler.node(name).reason_user for name in (one, other)] == ["root", "root"]


def test_pitfall_04_resume_of_a_healthy_node_is_refused(bench: Bench) -> None:
    name = bench.free()[0]
    with pytest.raises(SchedulerRefused) as caught:
        bench.scheduler.resume(name)
    assert caught.value.code == 2180
    assert not isinstance(caught.value, UnknownNode)


def test_several_nodes_are_drained_and_resumed_in_one_call(bench: Bench) -> None:
    names = bench.free(3)
    bench.scheduler.drain(names, OURS)
    assert {bench.scheduler.node(name).reason for name in names} == {OURS}
    bench.scheduler.drain(names, OURS)
    bench.scheduler.resume(names)
    assert not any(bench.scheduler.node(name).drain for name in names)
    for call in (
        lambda: bench.scheduler.drain([], OURS),
        lambda: bench.scheduler.resume(()),
        lambda: bench.scheduler.reboot([], OURS),
    ):
        with pytest.raises(ValueError):
            call()


def test_a_list_with_an_unknown_node_names_it(bench: Bench) -> None:
    name = bench.free()[0]
    with pytest.raises(UnknownNode, match="gpu9999"):
        bench.scheduler.drain([name, "gpu9999"], OURS)
    with pytest.raises(UnknownNode):
        bench.scheduler.drain([name, "-a"], OURS)


def test_trap_list_of_which_one_is_refused_names_all_of_them(bench: Bench) -> None:
    drained, healthy = bench.free(2)
    bench.scheduler.drain(drained, OURS)
    with pytest.raises(SchedulerRefused) as caught:
        bench.scheduler.resume([drained, healthy])
    assert caught.value.code == 2180
    assert healthy in str(caught.value)


def test_resume_and_undrain_clear_drain_and_reason(bench: Bench) -> None:
    one, other = bench.free(2)
    bench.scheduler.drain([one, other], OURS)
    bench.scheduler.resume(one)
    bench.scheduler.undrain(other)
    bench.scheduler.undrain(other)
    for name in (one, other):
        node = bench.scheduler.node(name)
        assert not node.drain
        assert (node.reason, node.reason_user, node.reason_at) == ("", "", None)
    for name in (one, other):
        # Slurm calls it NOT_RESPONDING until it has answered once more.
        wait_for_node(bench, name, "IDLE")


def test_undrain_leaves_down_as_it_is_and_resume_ends_it(bench: Bench) -> None:
    name = bench.free()[0]
    bench.down(name)
    bench.scheduler.drain(name, OURS)
    node = bench.scheduler.node(name)
    # A node that is down and drained is not taken for a drained one.
    assert node.base == "DOWN" and node.drain and not node.responding
    bench.scheduler.undrain(name)
    node = bench.scheduler.node(name)
    assert (node.base, node.drain, node.reason) == ("DOWN", False, OURS)
    bench.scheduler.resume(name)
    wait_for_node(bench, name, "IDLE")


def test_drain_lets_the_job_run_and_draining_differs_from_drained(bench: Bench) -> None:
    name = bench.free()[0]
    job = running(bench, name)
    bench.scheduler.drain(name, OURS)
    draining = bench.scheduler.node(name)
    assert draining.drain and draining.busy
    assert job_of(bench, job).state == "RUNNING"
    stuck, free = bench.submit(name), bench.submit()
    assert name not in wait_for(bench, free, "RUNNING").nodes, "a drained node is never chosen"
    assert job_of(bench, stuck).state == "PENDING"
    bench.finish(job)
    wait_for_node(bench, name, "IDLE", "DRAIN")


def test_pitfall_06_drain_is_harmless_and_down_takes_the_jobs_at_once(bench: Bench) -> None:
    name = bench.free()[0]
    kept, lost = running(bench, name), running(bench, name, requeue=False)
    bench.scheduler.drain(name, OURS)
    assert [job_of(bench, job).state for job in (kept, lost)] == ["RUNNING", "RUNNING"]
    bench.scheduler.down(name, OURS)
    assert wait_for(bench, kept, "PENDING").restarts == 1
    assert wait_for(bench, lost, "NODE_FAIL").restarts == 0
    node = bench.scheduler.node(name)
    assert (node.base, node.drain, node.reason) == ("DOWN", True, OURS)
    bench.scheduler.down(name, OURS)
    assert job_of(bench, kept).restarts == 1


def test_a_silent_node_is_seen_as_such_and_comes_back(bench: Bench) -> None:
    name = bench.free()[0]
    bench.silence(name)
    wait_until(lambda: not bench.scheduler.node(name).responding, 40, what="not responding", every_s=0.2)
    assert bench.scheduler.snapshot().nodes[name].responding is False
    bench.answer(name)
    wait_until(lambda: bench.scheduler.node(name).in_service, 40, what="back", every_s=0.2)


def test_trap_epilog_a_drained_node_with_a_stuck_one_is_freed_by_down(bench: Bench) -> None:
    """The job would stay COMPLETING for ever."""
    name = bench.free()[0]
    bench.epilog_sticks(name)
    job = running(bench, name)
    bench.scheduler.drain(name, OURS)
    bench.scheduler.requeue(job)
    wait_for_flags(bench, name, "COMPLETING", "DRAIN")
    assert job_of(bench, job).flags == ("COMPLETING",)
    bench.scheduler.down(name, OURS)
    waiting = wait_for(bench, job, "PENDING")
    assert (waiting.restarts, waiting.active) == (1, False)


# --- reboot


def test_pitfall_07_after_a_reboot_with_nextstate_down_the_node_is_out_and_its_drain_is_gone(
    bench: Bench,
) -> None:
    drained, idle = bench.free(2)
    asked_at = datetime.now(UTC) - timedelta(seconds=2)
    bench.scheduler.drain(drained, OURS)
    bench.scheduler.reboot([drained, idle], OURS)
    for name in (drained, idle):
        asked = bench.scheduler.node(name)
        assert "DOWN" in asked.after_reboot and not asked.in_service
        bench.let_boot(name)
    for name in (drained, idle):
        node = wait_for_node(bench, name, "DOWN")
        assert node.reason.startswith(f"{OURS} : ") and node.reason.endswith(" : reboot complete")
        assert node.boot_at is not None and node.boot_at > asked_at
        assert node.after_reboot == ()
    bench.scheduler.resume([drained, idle])
    _wait_for(bench, drained, lambda node: back_from_boot(bench, node), f"{drained} IDLE")


def back_from_boot(bench: Bench, node: SlurmNode) -> bool:
    """Whether the node is idle; resumes it once more where Slurm counted its boot twice.

    slurmctld takes the boot from an uptime in whole seconds. A slurmd that registered within a second of its
    boot (no machine boots so fast) can register again with a boot one second later. Slurm then takes it for
    another boot, asked for (24.11) or not (22.05), and the node is DOWN again."""
    if "DOWN" in node.state:
        bench.scheduler.resume(node.name)
    return node.state == ("IDLE",)


def test_pitfall_08_a_reboot_that_slurm_passed_over_is_no_success(bench: Bench) -> None:
    busy, other = bench.free(2)
    running(bench, busy)
    bench.scheduler.reboot(busy, OURS)
    bench.scheduler.reboot(busy, OURS)
    with pytest.raises(SchedulerRefused, match=busy) as caught:
        bench.scheduler.reboot([busy, other], "healer:other inc:5e6f7a8b")
    assert other not in str(caught.value)
    waiting = bench.scheduler.node(busy)
    assert waiting.busy and "REBOOT_REQUESTED" in waiting.state and waiting.reason == OURS
    assert "DOWN" in bench.scheduler.node(other).after_reboot


def test_a_reboot_that_waits_can_be_cancelled_once(bench: Bench) -> None:
    drained, idle = bench.free(2)
    for name in (drained, idle):
        running(bench, name)
    bench.scheduler.drain(drained, OURS)
    bench.scheduler.reboot([drained, idle], OURS)
    bench.scheduler.cancel_reboot([drained, idle])
    assert [bench.scheduler.node(name).drain for name in (drained, idle)] == [True, False]
    assert not any(bench.scheduler.node(name).after_reboot for name in (drained, idle))
    with pytest.raises(SchedulerRefused) as caught:
        bench.scheduler.cancel_reboot(drained)
    assert caught.value.code == 2180


def test_pitfall_05_a_resume_in_the_middle_of_a_reboot_puts_the_node_in_service(bench: Bench) -> None:
    """Why healer resumes nothing that is being rebooted: Slurm takes it and forgets the reboot."""
    name = bench.free()[0]
    bench.scheduler.drain(name, OURS)
    bench.scheduler.reboot(name, OURS)
    wait_for_flags(bench, name, "REBOOT_ISSUED")
    bench.scheduler.resume(name)
    node = bench.scheduler.node(name)
    assert not {"REBOOT_ISSUED", "REBOOT_REQUESTED", "DRAIN"}.intersection(node.state)
    assert node.base != "DOWN"


# --- notes


def test_a_nodes_comment_and_extra_are_set_kept_and_cleared(bench: Bench) -> None:
    name = bench.free()[0]
    bench.scheduler.annotate(name, comment="rack 3, PSU = old", extra=JSON)
    bench.scheduler.annotate(name, extra=JSON)
    node = bench.scheduler.node(name)
    assert (node.comment, node.extra) == ("rack 3, PSU = old", JSON)
    assert bench.scheduler.snapshot().nodes[name].extra == JSON
    assert node.state == ("IDLE",) and not node.reason
    bench.scheduler.annotate(name, extra="")
    bench.scheduler.annotate(name)
    node = bench.scheduler.node(name)
    assert (node.comment, node.extra) == ("rack 3, PSU = old", "")
