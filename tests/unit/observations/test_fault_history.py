"""Faults over time: what a restart keeps, what a walk that failed leaves, storms, and what a test decides.

Repeats, combinations, rungs and recoveries are in `rules/cases/history-*.yaml`.
"""

import sys
from collections import Counter
from datetime import timedelta

import pytest

from healer.model import (
    Cause,
    CommandKind,
    Component,
    FaultClass,
    Incident,
    Mode,
    Observation,
)
from healer.model.faults import REPLACED
from healer.observations import Picture
from healer.observations.fault_history import (
    BURSTS_KEPT,
    JOBS_KEPT,
    NAMED_KEPT,
    NODE_KEPT,
    GpuMap,
    History,
    Noted,
)
from tests.support.loop import CLUSTER, FATAL, REMAP, START, Site, beat, later, name

HUNG = "NVRM: Xid (PCI:0000:9b:00): 119, pid=7, Timeout after 6s of waiting for RPC response from GPU3 GSP!"
CONTAINED = "NVRM: Xid (PCI:0000:9b:00): 94, pid=7, Contained: CE User Channel (0x9). RST: No, D-RST: No"
_CHANGED = "NVRM: Xid (PCI:0000:9b:00): 154, pid=7, name=a, GPU recovery action changed from"
ASKED = f"{_CHANGED} 0x0 (None) to 0x1 (GPU Reset Required)"
NOTHING = f"{_CHANGED} 0x1 (GPU Reset Required) to 0x0 (None)"


def restarted(site: Site) -> None:
    """The detector restarts: all it knows of the past is in the ledger."""
    site.picture = Picture(CLUSTER, watching_since=site.now)
    site.picture.history.load(site.ledger.bursts(site.now - timedelta(days=7)))


def said(site: Site, *steps: tuple[float, str], restarts: bool) -> list[tuple[str, str, tuple[str, ...]]]:
    """(rule, fault, remedy) of all incidents, with a restart before each step or none."""
    for hours, line in steps:
        site.clock.advance(hours * 3600)
        if restarts:
            restarted(site)
        site.run_for(3, *site.say(1, line, boot_id="b1"))
    found = site.ledger.tables.incidents.values()
    return [(one.rule, one.fault, tuple(map(str, one.remedy))) for one in found]


@pytest.mark.parametrize(
    "steps",
    [
        ((0.1, CONTAINED), (3, CONTAINED)),
        ((0.1, ASKED), (0.2, NOTHING), (2, ASKED)),
        ((0.1, HUNG), (1, NOTHING), (1, HUNG)),
    ],
)
def test_a_restart_of_the_detector_changes_no_verdict(steps: tuple[tuple[float, str], ...]) -> None:
    kept = said(Site(4, mode=Mode.shadow), *steps, restarts=False)
    assert said(Site(4, mode=Mode.shadow), *steps, restarts=True) == kept
    assert len(kept) > 1


def test_a_walk_that_failed_leaves_no_burst() -> None:
    site = Site(4, mode=Mode.shadow)
    batch = site.say(1, CONTAINED)
    consume = site.ledger.__class__.transaction

    class Down(Exception):
        pass

    def fails(*_: object) -> None:
        raise Down

    site.ledger.transaction = fails  # type: ignore[method-assign]
    with pytest.raises(Down):
        site.walk(*batch)
    site.ledger.transaction = consume.__get__(site.ledger)  # type: ignore[method-assign]
    site.walk(*batch)
    (burst,) = site.ledger.bursts(START - timedelta(days=1))
    assert burst.count == 1


# --- the history itself -------------------------------------------------------------------------------------


def noted(fault: str, minutes: float, part: str = "0000:9b:00", **fields: object) -> Noted:
    where = Component(cluster=CLUSTER, node=name(1), pci="0000:9b:00")
    given = {"node": name(1), "part": part, "fault": fault, "fault_class": FaultClass.degraded}
    return Noted(**{"component": where, "at": later(minutes * 60)} | given | fields)  # type: ignore[arg-type]


def test_lines_that_come_close_together_are_one_event() -> None:
    history = History(CLUSTER)
    for minutes in (0, 2.9, 5.8, 8.9, 20):
        history.note(noted("xid-31", minutes))
    bursts = history.of(name(1), "0000:9b:00", "xid-31")
    assert [one.count for one in bursts] == [3, 1, 1]


def test_a_gpu_that_hangs_repeats_itself_for_hours() -> None:
    history = History(CLUSTER)
    for minutes in (0, 170, 340, 530):
        history.note(noted("xid-119", minutes))
    assert [one.count for one in history.of(name(1), "0000:9b:00", "xid-119")] == [3, 1]


def test_a_late_line_belongs_to_the_burst_of_its_time() -> None:
    history = History(CLUSTER)
    for minutes in (0, 60, 1):
        history.note(noted("xid-31", minutes))
    assert [one.count for one in history.of(name(1), "0000:9b:00", "xid-31")] == [2, 1]


def test_another_boot_is_another_event() -> None:
    history = History(CLUSTER)
    history.note(noted("xid-31", 0, boot_id="b1"))
    history.note(noted("xid-31", 1, boot_id="b2"))
    assert len(history.of(name(1), "0000:9b:00", "xid-31")) == 2


def test_fault_noted_by_pci_address_belongs_to_the_first_gpu_named_there() -> None:
    history = History(CLUSTER)
    history.note(noted("xid-63", 0))
    history.keep()
    history.identify(name(1), "0000:9b:00", "GPU-a", later(60))
    assert len(history.of(name(1), "GPU-a", "xid-63")) == 1
    history.identify(name(1), "0000:9b:00", "GPU-b", later(120))
    assert history.part(Component(cluster=CLUSTER, node=name(1), pci="0000:9b:00")) == "GPU-b"
    assert history.of(name(1), "GPU-b", "xid-63") == ()


PCI = "0000:9b:00"
HERE = Component(cluster=CLUSTER, node=name(1), pci=PCI)
WHOLE = "GPU-0b11d014-1685-04bd-26ed-5fc0bc1c44ae"
S1, S2 = "1650522005114", "1650522005115"


@pytest.mark.parametrize(
    ("words", "part", "replaced"),
    [
        ([("", S1), ("", S2)], f"SN-{S2}", 1),
        ([("", S1), ("", S1)], f"SN-{S1}", 0),
        ([("", S1), ("GPU-a", "")], "GPU-a", 0),
        ([("GPU-a", S1), ("", S2)], f"SN-{S2}", 1),
        ([("GPU-a", S1), ("", S2), ("GPU-b", S2)], "GPU-b", 1),
        ([("GPU-a", S1), ("GPU-b", ""), ("", S2)], "GPU-b", 1),
        # Two GPUs of one board have its number; a UUID is one GPU's.
        ([("GPU-a", S1), ("GPU-b", S1)], "GPU-b", 1),
        ([("GPU-a", S1), ("GPU-a", S2)], "GPU-a", 0),
        ([("GPU-a", ""), ("", S1)], "GPU-a", 0),
        ([("GPU-a", ""), ("[N/A]", ""), ("", "")], "GPU-a", 0),
        ([(WHOLE.removeprefix("GPU-").upper(), ""), (WHOLE, "")], WHOLE, 0),
    ],
)
def test_part_at_an_address(words: list[tuple[str, str]], part: str, replaced: int) -> None:
    history = History(CLUSTER)
    for number, (uuid, serial) in enumerate(words):
        history.identify(name(1), PCI, uuid, later(60 * number), serial=serial)
    assert history.part(HERE) == part
    assert len(history.of(name(1), part, REPLACED)) == replaced
    history.keep()
    assert len(history.of(name(1), part, REPLACED)) == replaced


def test_a_part_known_by_its_serial_number_outlives_a_restart() -> None:
    history = History(CLUSTER)
    history.identify(name(1), PCI, "", later(0), serial=S1)
    history.note(noted("xid-64", 1, part=history.part(HERE)))
    again = History(CLUSTER)
    again.load(history.changed)
    assert again.part(HERE) == f"SN-{S1}"
    again.identify(name(1), PCI, "", later(3600), serial=S2)
    assert again.of(name(1), f"SN-{S2}", REPLACED)


def test_a_new_gpu_inherits_nothing_of_an_old_one_that_was_named_late_across_a_restart() -> None:
    """A fault came before the node's list of GPUs: it is kept under the address alone."""
    history, rows = History(CLUSTER), []
    history.note(noted("xid-63", 0))
    for minutes, uuid in ((1, "GPU-a"), (2, "GPU-b")):
        rows += history.changed
        history.keep()
        history.identify(name(1), PCI, uuid, later(60 * minutes))
    again = History(CLUSTER)
    again.load([*rows, *history.changed])
    assert again.part(HERE) == "GPU-b"
    assert not [burst for _, burst in again.of_part(name(1), "GPU-b") if burst.fault == "xid-63"]


@pytest.mark.parametrize(("back", "count"), [("b1", 0), ("b2", 1)])
def test_no_node_speaks_of_a_gpu_that_is_in_another(back: str, count: int) -> None:
    """Within one boot no GPU leaves its node. By the UUID of a neighbour's GPU a node's token made the first
    error there one that a reset had not ended: the GPU was to be replaced."""
    history, gpu = History(CLUSTER), "GPU-a"
    history.identify(name(1), PCI, gpu, later(0), "b1")
    history.identify(name(2), PCI, gpu, later(600), "c1")
    history.note(noted("xid-94", 11, node=name(2), part=gpu))
    for number in range(JOBS_KEPT + 1):  # so many names of its own make it forget no other node's
        history.identify(name(2), f"{number:08x}:00:00", f"GPU-{number}", later(700), "c1")
    history.identify(name(1), PCI, gpu, later(1200), back)
    found = [burst.node for _, burst in history.of_part(name(1), gpu)]
    assert found == [name(2)] * count


def test_invented_addresses_of_a_node_are_not_kept_without_end() -> None:
    """Each kernel line of a stolen token may name another one. The node's own GPUs stay known."""
    history, gpus = History(CLUSTER), GpuMap()
    for number in range(10 * NAMED_KEPT):
        pci = f"{number:08x}:00:00"
        history.identify(name(1), pci, f"GPU-{number}", later(0), "b1")
        gpus.identity(pci, f"GPU-{number}", "b1")
        if number % 100 == 0:
            history.keep()
    known = [f"{number:08x}:00:00" for number in range(NAMED_KEPT)]
    assert [pci for _, pci, _ in history.gpus()] == known
    assert [
        pci for pci in (f"{number:08x}:00:00" for number in range(99)) if gpus.is_seen(pci, "b1")
    ] == known
    assert history.gpu_at(name(1), known[0]) == "GPU-0"


@pytest.mark.parametrize("named", [{"uuid": "GPU-a"}, {"uuid": "", "serial": S1}])
def test_a_gpu_keeps_its_faults_on_another_node(named: dict[str, str]) -> None:
    history = History(CLUSTER)
    history.identify(name(1), PCI, at=later(0), **named)
    history.note(noted("xid-64", 1, part=history.part(HERE)))
    history.identify(name(2), PCI, at=later(3600), **named)
    moved = history.part(Component(cluster=CLUSTER, node=name(2), pci=PCI))
    assert [burst.node for _, burst in history.of_part(name(2), moved)] == [name(1)]


def test_the_name_of_a_part_for_trends_changes_with_the_part_alone() -> None:
    history = History(CLUSTER)
    gpus_lost = []
    for uuid, serial in (("", S1), ("GPU-a", S1), ("GPU-a", ""), ("GPU-b", "")):
        history.identify(name(1), PCI, uuid, later(0), serial=serial)
        history.keep()
        gpus_lost += history.gpus()
    assert [part for _, _, part in gpus_lost] == [f"SN-{S1}"] * 3 + ["GPU-b"]


def test_a_part_keeps_a_bound_of_bursts() -> None:
    history = History(CLUSTER)
    for number in range(BURSTS_KEPT + 9):
        history.note(noted("xid-31", number * 10))
    bursts = history.of(name(1), "0000:9b:00", "xid-31")
    assert len(bursts) == BURSTS_KEPT
    assert bursts[-1].began_at == later((BURSTS_KEPT + 8) * 600)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_node_keeps_a_bound_of_bursts_and_the_newest_stay(restarted: bool) -> None:
    """A node that reports another GPU with each line; loaded at a restart they were bounded one by one, with
    a look at all for each: minutes of the detector's time."""
    history, count = History(CLUSTER), 20 * NODE_KEPT
    for number in range(count):
        history.note(noted("xid-31", number / 60, part=f"{number:08x}:00:00"))
    if restarted:
        rows, history = history.changed, History(CLUSTER)
        history.load(rows)
    history.keep()
    parts = [key[0] for key, _ in history.on(name(1))]
    assert parts == [f"{number:08x}:00:00" for number in range(count - NODE_KEPT, count)]


def test_a_flood_of_one_node_costs_in_proportion_to_its_lines() -> None:
    """A walk asks the history about each fault that it noted. When each answer listed the whole node, 5,000
    lines of one node held up the faults of all others for a minute."""

    def cost(count: int) -> int:
        history, calls = History(CLUSTER), Counter[str]()
        for number in range(count):
            history.note(noted("xid-79" if number % 2 else "xid-31", 0, part=f"{number:08x}:00:00"))
        asked = history.touched
        sys.setprofile(lambda frame, event, _: calls.update([event]))
        try:
            for key, burst in asked:
                history.is_explained(burst)
                next(iter(history.of_part(burst.node, key[0])))
        finally:
            sys.setprofile(None)
        return calls.total()

    assert cost(1200) <= 4 * cost(400)


def test_a_week_is_looked_back_and_no_longer() -> None:
    history = History(CLUSTER)
    for number, minutes in enumerate((0, 60, 7 * 24 * 60 + 1)):
        history.note(noted("xid-31", minutes, part=f"{number:08x}:00:00"))
    history.keep()
    assert len(list(history.on(name(1)))) == 2


def test_a_storm_of_teardowns_is_one_row_for_each_gpu() -> None:
    site = Site(4, mode=Mode.shadow)
    line = "NVRM: Xid (PCI:0000:9b:00): 45, pid={}, name=python, Ch 00000008"
    batch = [one for node in (1, 2) for one in site.say(node, *(line.format(pid) for pid in range(1000)))]
    site.walk(*batch)
    bursts = site.ledger.bursts(START - timedelta(days=1))
    assert [(one.node, one.count) for one in bursts] == [(name(1), 1000), (name(2), 1000)]


# --- what a test decides ------------------------------------------------------------------------------------


def the_one(site: Site) -> Incident:
    (incident,) = site.ledger.tables.incidents.values()
    return incident


def opened(site: Site) -> Incident:
    site.run_for(3, *site.say(1, FATAL, boot_id="b1"))
    return the_one(site)


@pytest.mark.parametrize(("tests", "cause"), [("passed", Cause.transient), (None, Cause.unclear)])
def test_a_node_that_returns_after_its_tests_had_a_transient_fault(tests: str | None, cause: Cause) -> None:
    site = Site(4, mode=Mode.shadow)
    incident = opened(site)
    assert incident.cause is Cause.unclear
    data = {"node": name(1), **({"tests": tests} if tests else {})}
    site.send_command(CommandKind.node_returned, incident=incident.id, **data)
    site.walk()
    assert the_one(site).cause is cause


def test_a_fault_that_outlives_its_remedy_is_permanent() -> None:
    site = Site(4, mode=Mode.shadow)
    incident = opened(site)
    site.send_command(
        CommandKind.run_changed, incident=incident.id, state="waiting", run="r1", tests="failed"
    )
    site.walk()
    assert the_one(site).cause is Cause.permanent


def test_recovery_during_a_run_is_noted_and_the_incident_stays_open() -> None:
    site = Site(10)
    site.run_for(5, *site.say(1, ASKED, boot_id="b1"))
    assert the_one(site).drained_at is not None
    site.clock.advance(600)
    site.run_for(3, *site.say(1, NOTHING, boot_id="b1"))
    incident = the_one(site)
    assert incident.is_open
    assert [one.what for one in incident.set_aside] == ["the driver no longer asks for anything"]


def test_a_run_that_only_waits_goes_with_its_cause() -> None:
    site = Site(10, mode=Mode.approve)
    site.run_for(5, *site.say(1, ASKED, boot_id="b1"))
    assert [str(run.state) for run in site.runs] == ["waiting_approval"]
    site.clock.advance(600)
    site.run_for(3, *site.say(1, NOTHING, boot_id="b1"))
    assert not the_one(site).is_open
    assert [str(run.state) for run in site.runs] == ["rejected"]


@pytest.mark.parametrize(("replaced_first", "counts"), [(True, True), (False, False)])
def test_a_gpu_that_was_taken_out_is_not_cleared_by_the_return_of_its_node(
    replaced_first: bool, counts: bool
) -> None:
    """Where it was still there, it was tested with the node."""
    site = Site(4, mode=Mode.shadow)

    def show(number: int, uuid: str) -> None:
        gpus = [{"index": 3, "pci": PCI, "uuid": uuid, "serial": ""}]
        site.walk(beat(name(number), site.now, boot_id=f"b{uuid}", gpus=gpus))
        site.clock.advance(1800)

    show(1, "GPU-a")
    site.run_for(3, *site.say(1, CONTAINED, boot_id="bGPU-a"))
    site.clock.advance(1800)
    if replaced_first:
        show(1, "GPU-b")
    site.picture.clear(name(1), site.now)
    site.clock.advance(1800)
    show(1, "GPU-b")
    show(2, "GPU-a")
    site.run_for(3, *site.say(2, CONTAINED, boot_id="bGPU-a"))
    found = {one.fault for one in site.ledger.tables.incidents.values() if one.root.node == name(2)}
    assert any(fault.startswith("repeats:") for fault in found) is counts


@pytest.mark.parametrize(("elsewhere", "is_open"), [("GPU-b", True), ("GPU-c", False)])
def test_a_faulty_gpu_in_another_slot_of_its_node_is_not_replaced(elsewhere: str, is_open: bool) -> None:
    site = Site(4, mode=Mode.shadow)

    def show(boot: str, *uuids: str) -> None:
        gpus = [
            {"index": index, "pci": pci, "uuid": uuid, "serial": ""}
            for index, pci, uuid in zip((0, 3), ("0000:18:00", PCI), uuids, strict=True)
        ]
        site.run_for(3, beat(name(1), site.now, boot_id=boot, gpus=gpus))

    show("b1", "GPU-a", "GPU-b")
    site.run_for(3, *site.say(1, REMAP, boot_id="b1"))
    site.clock.advance(3600)
    show("b2", elsewhere, "GPU-a")
    one = the_one(site)
    assert one.is_open is is_open
    if is_open:
        assert [(aside.what, aside.why) for aside in one.set_aside] == [
            (
                f"a different GPU is now at {PCI} (GPU-a)",
                "the fault may have survived that: a test must confirm",
            )
        ]


def test_a_list_of_gpus_of_an_earlier_boot_that_comes_late_is_no_exchange() -> None:
    site = Site(4, mode=Mode.shadow)

    def listed(boot: str, uuid: str, index: int) -> Observation:
        gpus = [{"index": index, "pci": PCI, "uuid": uuid, "serial": ""}]
        return beat(name(1), site.now, boot_id=boot, gpus=gpus)

    site.walk(listed("b1", "GPU-a", 3))
    spooled = listed("b1", "GPU-a", 3)
    site.clock.advance(600)
    site.walk(listed("b2", "GPU-b", 2))
    site.walk(spooled)
    assert site.picture.history.gpu_at(name(1), PCI) == "GPU-b"
    assert site.picture.node(name(1)).gpus.address(2) == PCI


def test_a_new_serial_number_on_a_drained_node_is_noted_and_its_tests_decide() -> None:
    site = Site(4, mode=Mode.auto)
    inventory = {"index": 3, "pci": PCI, "uuid": ""}
    site.walk(beat(name(1), site.now, boot_id="b1", gpus=[inventory | {"serial": S1}]))
    site.run_for(12, *site.say(1, REMAP, boot_id="b1"), step_s=3)
    assert site.node(1).drain
    site.clock.advance(3600)
    site.walk(beat(name(1), site.now, boot_id="b2", gpus=[inventory | {"serial": S2}]))
    one = site.incident
    assert one.fault == "xid-64"
    assert [(aside.what, aside.why) for aside in one.set_aside] == [
        (f"a different GPU is now at {PCI} (SN-{S2})", "healer's tests on the node decide")
    ]
    # The old GPU's line comes late, by a shipper that knows no boots.
    late = site.say(1, REMAP + " again", event_at=site.now - timedelta(minutes=50))
    site.walk(*late)
    assert site.incident == one
