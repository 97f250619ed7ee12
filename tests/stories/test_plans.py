"""A remedy that may wait is a plan: carried out at the end of the jobs or at a limit, and ended by proof.

The loop of a fatal fault is closed: reset or reboot, tests, back on probation, or up the ladder to a person.
"""

from datetime import datetime, timedelta
from typing import Any

import pytest

from healer.decisions.comments import OPT_IN
from healer.model import IncidentState, Mode, RunState, StepEvent
from healer.observations import Picture
from tests.stories.test_replay import Row, clock, job, jobs, kernel, nodes, played, row
from tests.support.loop import CLUSTER, LOST, START, Site, later, name
from tests.support.power import PowerSite

NODE = name(1)
H = 3600.0
RESET = ("drain", "reset_gpu", "reserve", "diagnose", "resume")
BOOT = ("drain", "reboot", "reserve", "diagnose", "resume")


def xid(rest: str) -> str:
    return f"NVRM: Xid (PCI:0000:9b:00): {rest}"


REMAP = xid("63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.")


def asks(before: str, after: str) -> str:
    return xid(f"154, GPU recovery action changed from {before} to {after}")


NONE, P2P, AFTER = "0x0 (None)", "0x3 (Drain P2P)", "0x4 (Drain and Reset)"
NOW, REBOOT = "0x1 (GPU Reset Required)", "0x2 (Node Reboot Required)"


def done(document: dict[str, Any]) -> tuple[str, ...]:
    actions = [one for one in document["actions"] if one["action"] not in {"notify", "ticket"}]
    return tuple(one["action"] for one in actions)


def until(end: float, line: str, *more: Any) -> dict[str, Any]:
    """A job works on the node until `end`."""
    rows = [jobs(0, job("4711", NODE)), kernel(10, 1, line), jobs(end), clock(end + 900), *more]
    return played(nodes(), *sorted(rows, key=lambda one: one["at"]))


@pytest.mark.parametrize(
    "line",
    [
        REMAP,
        xid("94, pid=7, name=python, Contained: DRAM. RST: No, D-RST: No"),
        asks(NONE, P2P),
    ],
)
def test_deferrable_remedy_waits_for_the_end_of_the_job(line: str) -> None:
    """The vendor allows new jobs until then."""
    document = until(40 * H, line)
    assert done(document) == RESET
    assert min(one["at"] for one in document["actions"]) >= "2026-11-21T19:00:00Z"
    (incident,) = document["incidents"]
    assert incident["closed"] is not None and incident["nodes"] == {NODE: "watch"}


@pytest.mark.parametrize(
    ("line", "acts"),
    [
        (xid("156, Resource retirement event"), RESET),
        (xid("151, Key rotation error"), BOOT),
        (asks(NONE, AFTER), RESET),
    ],
)
def test_node_is_drained_until_its_job_ends_when_the_vendor_retires_the_gpu(
    line: str, acts: tuple[str, ...]
) -> None:
    document = until(40 * H, line)
    assert done(document) == acts
    drained, remedy = document["actions"][0]["at"], document["actions"][1]["at"]
    assert drained < "2026-11-20T03:01:00Z" and remedy >= "2026-11-21T19:00:00Z"
    assert document["incidents"][0]["closed"] is not None


def test_a_fault_without_a_remedy_of_healers_takes_no_new_job_and_asks_a_person() -> None:
    document = until(40 * H, xid("58, Unstable video memory interface"))
    assert [one["action"] for one in document["actions"]] == ["drain", "ticket"]
    assert document["incidents"][0]["closed"] is None


@pytest.mark.parametrize(
    "line", ["164, Power smoothing HW low lifetime", "165, Power smoothing HW lifetime zero"]
)
def test_a_worn_circuit_that_spoils_no_work_is_a_ticket_and_takes_no_idle_node(line: str) -> None:
    document = played(nodes(), *[kernel(1, 1, xid(line))], clock(40 * H))
    assert [one["action"] for one in document["actions"]] == ["ticket"]


def test_a_program_with_libraries_of_another_version_takes_no_node_out() -> None:
    """A container may bring a library of its own: the version in the line is whatever the program claims."""
    told = r"NVRM: API mismatch: the client 'python3' (pid 7)\x0aNVRM: has the version 570.148.08, but"
    document = until(H, told + r" this kernel module has\x0aNVRM: the version 570.148.06.")
    assert [one["action"] for one in document["actions"]] == ["ticket"]
    assert document["incidents"][0]["remedy"] == ["ticket"]


CONTAINED = xid("94, pid=7, name=python, Contained: DRAM. RST: No, D-RST: No")


def contained(*more: Row, **fields: Any) -> dict[str, Any]:
    """A contained memory error under one of two jobs of the node, each on half of its GPUs."""
    addresses = ("18", "2a", "3a", "5d", "9b", "ab", "ba", "db")
    gpus = [{"index": index, "pci": f"0000:{bus}:00"} for index, bus in enumerate(addresses)]
    heartbeat = {"cluster": CLUSTER, "node": NODE, "boot_id": "b1", "gpus": gpus}
    halves = [half(number, **fields) for number in range(2)]
    rows = (nodes(), row(1, "signals/heartbeat", heartbeat), jobs(2, *halves), kernel(10, 1, CONTAINED))
    return played(*rows, *more, clock(2 * H))


def half(number: int, **fields: Any) -> Row:
    """The job on that half of the node's GPUs."""
    gpus = list(range(4 * number, 4 * number + 4))
    return job(str(number), NODE, gpus={NODE: gpus}, requeue=True, **fields)


def test_a_job_that_lost_its_data_is_restarted_at_once_and_the_node_goes_on() -> None:
    """Step 3 of the vendor's workflow: requeue that job, keep the node, reset when idle."""
    document = contained(comment=OPT_IN, start_at=START.isoformat())
    acts = [(one["action"], one["job"]) for one in document["actions"]]
    assert acts == [("requeue", "1")], "once, and not the job on the other GPUs"
    assert document["incidents"][0]["remedy"] == ["reset_gpu_when_idle", "requeue_job"]


def test_a_job_that_slurm_shows_after_the_error_is_restarted_too() -> None:
    """A picture of Slurm is seconds old: the job had begun before the error, and shows after it."""
    heartbeat = {
        "cluster": CLUSTER,
        "node": NODE,
        "boot_id": "b1",
        "gpus": [{"index": 0, "pci": "0000:9b:00"}],
    }
    began = job("7", NODE, requeue=True, comment=OPT_IN, start_at=later(5).isoformat())
    rows = (nodes(), jobs(0), row(1, "signals/heartbeat", heartbeat), kernel(10, 1, CONTAINED))
    document = played(*rows, clock(39), jobs(40, began), clock(2 * H))
    assert next((one["action"], one["job"]) for one in document["actions"]) == ("requeue", "7")


def test_restart_of_a_job_without_consent_is_held() -> None:
    document = contained(start_at=START.isoformat())
    assert document["actions"] == []
    assert [(one["action"], one["job"], one["guard"]) for one in document["held"]] == [
        ("requeue", "1", "consent")
    ]


def test_a_job_that_began_after_the_error_has_lost_nothing() -> None:
    document = contained(comment=OPT_IN, start_at=later(60).isoformat())
    assert document["actions"] == []


def test_a_later_error_under_the_other_job_does_not_hit_one_that_was_restarted_since_its_own() -> None:
    began, again = START.isoformat(), later(250).isoformat()
    first, second = (
        half(0, comment=OPT_IN, start_at=began),
        half(1, comment=OPT_IN, restarts=1, start_at=again),
    )
    other = CONTAINED.replace("9b", "18")
    document = contained(
        clock(240), jobs(260, first, second), kernel(300, 1, other), comment=OPT_IN, start_at=began
    )
    assert [(one["action"], one["job"]) for one in document["actions"]] == [
        ("requeue", "1"),
        ("requeue", "0"),
    ]


def test_days_of_silence_forget_nothing() -> None:
    document = played(
        nodes(), jobs(0, job("4711", NODE)), kernel(10, 1, REMAP), clock(60 * H), jobs(61 * H), clock(62 * H)
    )
    assert done(document) == RESET


def test_a_job_that_never_ends_lets_no_other_start_after_the_limit() -> None:
    document = played(nodes(), jobs(0, job("4711", NODE)), kernel(10, 1, REMAP), clock(5 * 24 * H))
    assert done(document) == ("drain",), "and no job is ended for it"
    at = document["actions"][0]["at"]
    assert "2026-11-23T03:00:00Z" <= at <= "2026-11-23T03:30:00Z"
    assert document["incidents"][0]["closed"] is None


def test_an_ask_that_is_withdrawn_ends_its_plan() -> None:
    document = until(40 * H, asks(NONE, P2P), kernel(2 * H, 1, asks(P2P, NONE)))
    assert document["actions"] == []
    (incident,) = document["incidents"]
    assert incident["closed"].startswith("2026-11-20T05:00")


def test_manual_reboot_ends_the_plan_for_a_row_that_it_remapped() -> None:
    booted = nodes(2 * H, gpu0001={"boot_id": "b2"})
    document = until(40 * H, REMAP, booted)
    plan, boot = document["incidents"]
    assert plan["closed"].startswith("2026-11-20T05:00")
    assert [(act["action"], act["incident"]) for act in document["actions"]] == [("ticket", boot["id"])]
    assert boot["rule"] == "rebooted-under-job", "the job was still shown to run"


def without_boot_ids(seconds: float, boot_at: datetime) -> dict[str, Any]:
    """As a site shows its nodes whose senders name no boot: Slurm's BootTime alone."""
    shown = nodes(seconds, gpu0001={"boot_at": boot_at.isoformat()})
    for node in shown["body"]["nodes"]:
        del node["boot_id"]
    return shown


def test_slurms_boot_time_ends_the_plan_where_no_sender_names_its_boot() -> None:
    before, after = (without_boot_ids(at, later(boot)) for at, boot in ((0, -9 * H), (2 * H, 2 * H - 90)))
    line = kernel(10, 1, REMAP, boot_id=None)
    document = played(before, jobs(5, job("4711", NODE)), line, jobs(2 * H), after, clock(3 * H))
    assert document["actions"] == []
    assert document["incidents"][0]["closed"].startswith("2026-11-20T05:00")


def test_a_job_that_goes_on_disproves_a_boot_time_that_moved() -> None:
    """The node's clock was set: the row is still to be remapped."""
    before, after = (without_boot_ids(at, later(boot)) for at, boot in ((0, -9 * H), (2 * H, 2 * H - 90)))
    line = kernel(10, 1, REMAP, boot_id=None)
    began = job("4711", NODE, start_at=later(-H).isoformat())
    document = played(before, jobs(5, began), line, after, clock(3 * H), jobs(4 * H), clock(5 * H))
    assert done(document) == RESET


def test_a_plan_outlives_the_detector() -> None:
    site = PowerSite(test_s=30)
    site.nodes.plant(NODE, "remap-pending")
    work = site.slurm.add_job(required=[NODE], gpus=8)
    site.run_for(300, *site.say(1, REMAP), step_s=10)
    (run,) = site.runs
    assert (run.playbook, site.incident.state) == ("repair-when-idle", IncidentState.open)
    assert site.node(1).in_service
    site.picture = Picture(site.picture.cluster, watching_since=site.now)
    site.clock.advance(30 * H)
    site.run_for(30)
    assert site.incident.run == run.id
    site.slurm.complete(work)
    site.run_for(600, step_s=5)
    assert site.nodes.faults(NODE) == [] and site.node(1).in_service
    assert site.open_incidents == []


def test_a_plan_gives_its_node_to_what_takes_it_at_once() -> None:
    work = jobs(0, job("4711", NODE))
    later = kernel(2 * H, 1, asks(NONE, AFTER))
    document = played(nodes(), work, kernel(10, 1, REMAP), later, clock(3 * H))
    assert done(document) == ("drain",)


# --- the loop of a fatal fault ---


def test_a_gpu_that_asks_for_a_reset_is_reset_tested_and_back() -> None:
    document = until(60, asks(NONE, NOW))
    assert done(document) == ("drain", "requeue", *RESET[1:])
    (incident,) = document["incidents"]
    assert incident["closed"] is not None and incident["nodes"] == {NODE: "watch"}


def test_a_lost_gpu_is_rebooted_tested_and_back() -> None:
    assert done(until(60, LOST)) == ("drain", "requeue", *BOOT[1:])


def test_further_findings_before_the_reset_turn_it_into_a_reboot() -> None:
    document = until(60, asks(NONE, NOW), kernel(100, 1, asks(NOW, REBOOT)))
    assert "reset_gpu" not in done(document) and "reboot" in done(document)


def fatal(*faults: str) -> PowerSite:
    site = PowerSite(test_s=30)
    for fault in faults:
        site.nodes.plant(NODE, fault)
    site.run_for(2000, *site.say(1, asks(NONE, NOW)), step_s=5)
    return site


def test_a_reset_that_fails_climbs_to_a_reboot() -> None:
    site = fatal("reset-fails")
    (run,) = site.runs
    done = {one.step for one in site.log(run.id) if one.event is StepEvent.done}
    assert {"reset", "reboot", "proof", "resume"} <= done and run.state is RunState.done
    assert site.node(1).in_service


def test_node_that_no_remedy_repairs_stays_out_and_asks_a_person() -> None:
    site = fatal("broken-board")
    (run,) = site.runs
    done = {one.step for one in site.log(run.id) if one.event is StepEvent.done}
    assert {"reboot", "person"} <= done and site.log(run.id)[-1].step == "repair"
    assert run.state is RunState.waiting and site.node(1).drain and site.reservations() == {}


def test_a_reset_is_not_tried_twice_within_hours() -> None:
    site = fatal()
    assert len(site.nodes.resets(NODE)) == 1 and site.node(1).in_service
    site.clock.advance(H)
    site.run_for(2000, *site.say(1, asks(NONE, NOW)), step_s=5)
    again = site.runs[-1]
    assert len(site.nodes.resets(NODE)) == 1
    assert any(one.step == "reboot" and one.event is StepEvent.done for one in site.log(again.id))


def test_a_person_takes_over_what_waits_on_the_drained_node() -> None:
    site = Site(10)
    site.run_for(20, *site.say(1, LOST))
    (run,) = site.runs
    assert run.state is RunState.waiting and run.wake_at is not None
    site.ask("resume", 1)
    site.run_for(10)
    assert site.node(1).in_service and site.runs[0].state is RunState.done


def test_a_pause_holds_the_plan_at_its_drain() -> None:
    site = PowerSite(test_s=30)
    site.run_for(10, *site.say(1, REMAP))
    site.pause()
    site.run_for(900, step_s=10)
    assert site.node(1).in_service
    site.end_pause()
    site.run_for(900, step_s=5)
    assert len(site.nodes.resets(NODE)) == 1


def test_in_suggest_a_plan_waits_for_a_person_and_is_not_forgotten() -> None:
    site = Site(10, mode=Mode.suggest)
    site.run_for(300, *site.say(1, REMAP), step_s=10)
    site.clock.advance(timedelta(days=5).total_seconds())
    site.run_for(10)
    assert site.incident.rule == "gpu-degraded"
    assert [one.state for one in site.runs] == [RunState.proposed]
