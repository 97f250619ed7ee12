"""The picture of now, by the law: what is history, who is silent, which GPU it is."""

from datetime import datetime, timedelta

import msgspec
import pytest

from healer.detection.readings import gpu_model
from healer.model import Component, Observation, ObservationKind, SlurmNode, SlurmSnapshot, Topology
from healer.observations import GpuMap, NodePicture, Picture
from healer.observations.fault_history import NAMED_KEPT
from healer.observations.node_picture import OLD_BOOTS_KEPT
from tests.support.loop import CLUSTER, LOST, START, beat, later, lines, rules_in

NODE = "gpu0001"
MODELS = rules_in().gpu_models
OLD, NEW = "boot-old", "boot-new"


def picture(**fields: object) -> Picture:
    return Picture(CLUSTER, watching_since=START)


def heard(shown: Picture, *batch: Observation, topology: Topology | None = None) -> list[Observation]:
    return shown.update(batch, topology or Topology())


def line(
    *, at: datetime = START, event_at: datetime | None = None, boot_id: str | None = None
) -> Observation:
    return lines(NODE, LOST, at=at, event_at=event_at, boot_id=boot_id)[0]


def show(shown: Picture, *nodes: SlurmNode, at: datetime = START) -> None:
    shown.show(SlurmSnapshot(cluster=CLUSTER, taken_at=at, nodes={node.name: node for node in nodes}))


def test_after_a_clock_was_set_back_slurm_is_seen_again_at_once() -> None:
    """The pictures of the hour that comes again would else be passed over as older ones."""
    shown = picture()
    for taken_at, state in ((later(3600), ("IDLE",)), (START, ("IDLE", "DRAIN"))):
        nodes = {NODE: SlurmNode(name=NODE, state=state, reason="PSU")}
        shown.show(SlurmSnapshot(cluster=CLUSTER, taken_at=taken_at, nodes=nodes), taken_at)
    assert shown.slurm is not None and shown.slurm.nodes[NODE].drain
    older = SlurmSnapshot(cluster=CLUSTER, taken_at=later(-5), nodes={NODE: SlurmNode(name=NODE)})
    shown.show(older, later(1))
    assert shown.slurm.nodes[NODE].drain


# --- history ------------------------------------------------------------------------------------------------


def test_a_line_of_the_current_boot_acts_at_any_age() -> None:
    shown = picture()
    heard(shown, beat(NODE, START, boot_id=NEW))
    seen = line(at=later(1), event_at=later(-72 * 3600), boot_id=NEW)
    assert heard(shown, seen) == [seen]


def test_a_line_of_an_earlier_boot_is_history_however_late_it_says_it_is() -> None:
    shown = picture()
    heard(shown, beat(NODE, later(-100), boot_id=OLD), beat(NODE, START, boot_id=NEW))
    assert heard(shown, line(at=later(2), event_at=later(1), boot_id=OLD)) == []


@pytest.mark.parametrize(("age", "live"), [(3599, True), (3600, True), (3601, False)])
def test_a_line_of_unknown_boot_is_history_when_it_came_over_an_hour_late(age: int, live: bool) -> None:
    seen = line(at=START, event_at=later(-age))
    assert bool(heard(picture(), seen)) is live


def test_reports_before_a_repair_are_history_regardless_of_boot() -> None:
    shown = picture()
    heard(shown, beat(NODE, later(-600), boot_id=NEW))
    shown.clear(NODE, START)
    assert heard(shown, line(at=later(5), event_at=later(-601), boot_id=NEW)) == []
    assert heard(shown, line(at=later(5), event_at=later(-601))) == []
    assert len(heard(shown, line(at=later(5), event_at=later(1), boot_id=NEW))) == 1


@pytest.mark.parametrize(
    ("reason", "live"),
    [
        ("alice: GPU 3 reset", False),
        ("", False),
        ("healer:gpu-fatal inc:0a1b2c3d GSP time-out", True),  # its return says when its tests began
        ("Kill task failed", True),
    ],
)
def test_reports_before_a_person_resumed_the_node_are_history(reason: str, live: bool) -> None:
    shown = picture()
    heard(shown, beat(NODE, later(-600), boot_id=NEW, event_at=later(-600.1)))
    drained = SlurmNode(name=NODE, state=("IDLE", "DRAIN"), reason=reason)
    show(shown, drained, at=later(-300))
    show(shown, drained, at=later(-10))
    show(shown, SlurmNode(name=NODE, state=("IDLE",)), at=START)
    assert bool(heard(shown, line(at=later(60), event_at=later(-400), boot_id=NEW))) is live
    assert bool(heard(shown, line(at=later(60), event_at=later(-20), boot_id=NEW))) is live
    # It may be from after the resume: Slurm did not show the node since.
    assert heard(shown, line(at=later(60), event_at=later(-5), boot_id=NEW))


@pytest.mark.parametrize(("shown_s", "live"), [(None, True), (-3600, True), (-0.1, False)])
def test_a_resume_hides_no_new_fault_of_a_node_whose_clock_may_be_behind(
    shown_s: float | None, live: bool
) -> None:
    shown = picture()
    if shown_s is not None:
        heard(shown, line(at=later(-900), event_at=later(-900 + shown_s), boot_id=NEW))
    show(shown, SlurmNode(name=NODE, state=("IDLE", "DRAIN"), reason="alice: BIOS"), at=later(-10))
    show(shown, SlurmNode(name=NODE, state=("IDLE",)), at=START)
    assert bool(heard(shown, line(at=later(60), event_at=later(60 - 3600), boot_id=NEW))) is live


def test_an_older_clearing_takes_nothing_back() -> None:
    shown = picture()
    shown.clear(NODE, START)
    shown.clear(NODE, later(-3600))
    assert heard(shown, line(at=later(1), event_at=later(-660))) == []


def test_a_line_without_a_time_is_an_old_one_where_its_stamp_is_older_than_the_repair() -> None:
    """`dmesg` is read again after the repair: Slurm's BootTime and the kernel's stamp say when it was."""
    shown, boot = picture(), later(-10_000)
    show(shown, SlurmNode(name=NODE, boot_at=boot), at=later(-5))
    heard(shown, line(at=START))
    shown.clear(NODE, later(300))
    stamped = [f"[{10_000 + seconds:12.6f}] {LOST}" for seconds in (0, 7, 500)]
    read = [lines(NODE, text, at=later(900), boot_id=NEW)[0] for text in stamped]
    [left] = heard(shown, *read)
    assert (left.digest, left.event_at) == (read[2].digest, later(500)), "only what was written afterwards"


@pytest.mark.parametrize("before", ["", "kern  :err   : ", "\x1b[32m", "kern  :err   : \x1b[32m"])
def test_every_form_of_dmesg_that_is_read_again_after_the_repair_shows_its_old_lines(before: str) -> None:
    shown = picture()
    show(shown, SlurmNode(name=NODE, boot_at=later(-10_000)), at=later(-5))
    heard(shown, line(at=START))
    shown.clear(NODE, later(300))
    after = "\x1b[0m\x1b[33m" if "\x1b" in before else ""
    text = f"{before}[{10_007:12.6f}] {after}{LOST}"
    assert not heard(shown, *lines(NODE, text, at=later(900), boot_id=NEW))


@pytest.mark.parametrize(
    ("known_since", "boot_heard_before", "left"),
    [  # the line was written at START by the boot time that Slurm shows
        (-600, None, 0),  # the boot was known when the node was repaired: the stamp shows the line's age
        (400, None, 1),  # it was heard of only afterwards: Slurm may still show the boot before
        (-600, -5000, 1),  # Slurm's boot time is older than the last word of the boot before: it is stale
    ],
)
def test_stamp_of_a_new_line_counts_only_if_its_boot_is_certainly_slurms(
    known_since: float, boot_heard_before: float | None, left: int
) -> None:
    """A fault of the new boot must act, although Slurm still shows the time of the old one."""
    shown, boot = picture(), later(-10_000)
    show(shown, SlurmNode(name=NODE, boot_at=boot), at=later(-9000))
    if boot_heard_before is not None:
        heard(shown, beat(NODE, later(boot_heard_before), boot_id=OLD))
    if known_since < 0:
        heard(shown, beat(NODE, later(known_since), boot_id=NEW))
    shown.clear(NODE, later(300))
    if known_since > 0:
        heard(shown, beat(NODE, later(known_since), boot_id=NEW))
    [newest] = lines(NODE, f"[{10_000:12.6f}] {LOST}", at=later(900), boot_id=NEW)
    assert len(heard(shown, newest)) == left


# --- history: the hosts' clocks -----------------------------------------------------------------------------


def returned(behind_s: float, *, beats: bool, first: bool = False) -> Picture:
    """A node whose clock is behind by so much was returned at START; it said something `first` before."""
    shown = picture()
    for second in range(-300, 0, 10):
        event_at = later(second - behind_s) if beats else None
        heard(shown, beat(NODE, later(second + 0.2), boot_id=NEW, event_at=event_at))
    if first:
        heard(shown, line(at=later(-199), event_at=later(-200 - behind_s), boot_id=NEW))
    shown.clear(NODE, START)
    return shown


_MEASURED = [(behind, True, first) for behind in (0, 45, 7200, -45) for first in (False, True)]


@pytest.mark.parametrize(
    ("behind_s", "beats", "first"),
    [*_MEASURED, *((behind, False, True) for behind in (0, 45, -45))],  # by lines alone: bounded, see below
)
def test_new_fault_acts_and_an_old_line_does_not_regardless_of_the_host_clock(
    behind_s: float, beats: bool, first: bool
) -> None:
    for event_s, live in ((5.0, True), (1.0, True), (-5.0, False), (-3000.0, False)):
        shown = returned(behind_s, beats=beats, first=first)
        seen = line(at=later(6), event_at=later(event_s - behind_s), boot_id=NEW)
        assert bool(heard(shown, seen)) is live, event_s


@pytest.mark.parametrize(("age_s", "live"), [(30, True), (599, True), (661, False), (7200, False)])
def test_a_line_that_nothing_else_can_judge_acts_if_it_is_young(age_s: float, live: bool) -> None:
    shown = returned(0, beats=False)
    seen = line(at=later(60), event_at=later(60 - age_s), boot_id=NEW)
    assert bool(heard(shown, seen)) is live


def test_resent_lines_do_not_set_the_clock_where_a_heartbeat_does() -> None:
    shown = returned(0, beats=True)
    again = [line(at=later(60), event_at=later(-second), boot_id=NEW) for second in range(1, 60)]
    assert heard(shown, *again) == []


def test_clock_set_at_boot_is_measured_again() -> None:
    shown = returned(7200, beats=True)
    heard(shown, beat(NODE, later(10), boot_id="boot-next", event_at=later(9.9)))
    assert heard(shown, line(at=later(12), event_at=later(-300), boot_id="boot-next")) == []
    assert len(heard(shown, line(at=later(12), event_at=later(11), boot_id="boot-next"))) == 1


def test_a_line_that_came_before_the_return_and_is_walked_after_it_is_history() -> None:
    shown = returned(45, beats=True)
    assert heard(shown, line(at=later(-1), event_at=later(-2), boot_id=NEW)) == []


def test_a_boot_never_heard_of_is_the_next_one_if_its_line_is_newer() -> None:
    shown = picture()
    heard(shown, beat(NODE, START, boot_id=OLD))
    seen = line(at=later(61), event_at=later(60), boot_id=NEW)
    assert heard(shown, seen) == [seen]


def test_a_boot_never_heard_of_is_an_earlier_one_if_its_line_is_older() -> None:
    shown = picture()
    heard(shown, beat(NODE, START, boot_id=NEW))
    assert heard(shown, line(at=later(1), event_at=later(-3600), boot_id="boot-of-yesterday")) == []


def test_lines_without_heartbeats_reveal_a_new_boot() -> None:
    """Not every site sends heartbeats: after a line of the next boot, the one before is over."""
    shown = picture()
    assert len(heard(shown, line(at=START, event_at=START, boot_id=OLD))) == 1
    assert len(heard(shown, line(at=later(300), event_at=later(299), boot_id=NEW))) == 1
    assert heard(shown, line(at=later(301), event_at=later(10), boot_id=OLD)) == []


def test_of_two_boots_in_one_batch_the_earlier_is_history() -> None:
    """A restarted shipper sends the whole journal: the boot of yesterday and that of today."""
    old = line(at=START, event_at=later(-7200), boot_id=OLD)
    new = line(at=START, event_at=later(-60), boot_id=NEW)
    assert heard(picture(), old, new) == [new]
    assert heard(picture(), new, old) == [new]


def by_relay(seen: Observation) -> Observation:
    return msgspec.structs.replace(seen, digest=f"relayed {seen.digest}", relayed_by="rack 3 (r1)")


@pytest.mark.parametrize("through", [beat, None], ids=["a heartbeat", "a line"])
def test_a_relay_s_boot_makes_no_line_of_the_node_itself_history(through: object) -> None:
    """Else one heartbeat by any relay would hide a GPU that the node itself reports as lost."""
    shown, own = picture(), line(at=later(9), boot_id=OLD)
    heard(shown, beat(NODE, START, boot_id=OLD))
    forged = beat(NODE, later(5), boot_id=NEW) if through else line(at=later(5), boot_id=NEW)
    heard(shown, by_relay(forged))
    assert heard(shown, own) == [own]
    assert (shown.node(NODE).boot_id, shown.node(NODE).booted_at) == (OLD, None)


def test_the_node_s_own_boot_replaces_what_relays_said_before() -> None:
    shown, own = picture(), line(at=later(9), event_at=later(1), boot_id=OLD)
    heard(shown, *(by_relay(beat(NODE, later(at), boot_id=boot)) for at, boot in ((0, OLD), (5, NEW))))
    assert heard(shown, own) == [own]
    heard(shown, by_relay(beat(NODE, later(12), boot_id=NEW)))
    later_one = line(at=later(900), event_at=later(899), boot_id=OLD)
    assert heard(shown, later_one) == [later_one]


def test_a_relay_s_old_boot_keeps_no_later_boot_of_the_node_away() -> None:
    shown = picture()
    heard(shown, beat(NODE, START, boot_id=OLD))
    heard(shown, by_relay(beat(NODE, later(60), boot_id=OLD)))
    first = line(at=later(61), event_at=later(59), boot_id=NEW)
    assert heard(shown, first) == [first]


@pytest.mark.parametrize("speaks", [beat, None], ids=["it sends heartbeats", "it sends lines alone"])
def test_a_relay_teaches_nothing_of_the_clock_of_a_node_that_shows_it_itself(speaks: object) -> None:
    """Else heartbeats from the future would make all that the node reports after its return older than it."""
    shown = picture()
    ahead = [by_relay(beat(NODE, later(at), boot_id=OLD, ahead_s=9e4)) for at in range(3)]
    heard(shown, *ahead)
    own = beat(NODE, later(5), boot_id=OLD, event_at=later(4)) if speaks else line(at=later(5), boot_id=OLD)
    heard(shown, own)
    shown.clear(NODE, later(100))
    late = [by_relay(beat(NODE, later(at), boot_id=OLD, ahead_s=9e4)) for at in range(110, 113)]
    heard(shown, *late, by_relay(line(at=later(114), event_at=later(114), boot_id=OLD)))
    again = line(at=later(120), event_at=later(119), boot_id=OLD)
    assert heard(shown, again) == [again]


def test_a_node_that_reports_a_new_boot_with_each_heartbeat_fills_no_memory() -> None:
    shown = picture()
    heard(shown, *(beat(NODE, later(number), boot_id=f"b{number}") for number in range(2000)))
    assert len(shown.node(NODE).old_boots) <= OLD_BOOTS_KEPT
    assert heard(shown, line(at=later(2001), event_at=later(2000), boot_id="b1998")) == []


def test_a_node_that_names_new_gpus_with_each_heartbeat_fills_no_memory() -> None:
    gpus = GpuMap()
    for number in range(2000):
        gpus.hear_itself(
            [{"pci": f"{number:04x}:18:00", "uuid": "GPU-a"}, {"pci": "ffff:9b:00", "uuid": "b"}]
        )
    kept = [number for number in range(2000) if gpus.is_named(f"{number:04x}:18:00")]
    assert len(kept) < NAMED_KEPT and kept[-1] == 1999 and gpus.is_named("ffff:9b:00")


def test_slurm_may_know_the_boot_too() -> None:
    shown = picture()
    show(shown, SlurmNode(name=NODE, boot_id=OLD), at=later(-60))
    show(shown, SlurmNode(name=NODE, boot_id=NEW), at=START)
    assert heard(shown, line(at=later(1), event_at=later(-90), boot_id=OLD)) == []
    assert len(heard(shown, line(at=later(1), event_at=later(-90), boot_id=NEW))) == 1


def test_a_late_heartbeat_of_an_old_boot_does_not_bring_it_back() -> None:
    shown = picture()
    heard(shown, beat(NODE, later(-60), boot_id=OLD), beat(NODE, START, boot_id=NEW))
    heard(shown, beat(NODE, later(5), boot_id=OLD))
    assert heard(shown, line(at=later(6), event_at=later(6), boot_id=OLD)) == []
    assert len(heard(shown, line(at=later(6), event_at=later(6), boot_id=NEW))) == 1


def test_one_nodes_boot_says_nothing_of_anothers() -> None:
    shown = picture()
    heard(shown, beat("gpu0002", START, boot_id=NEW))
    assert len(heard(shown, line(at=later(1), event_at=later(-7200), boot_id=OLD))) == 1


def test_an_older_picture_of_slurm_replaces_no_newer_one() -> None:
    shown = picture()
    show(shown, SlurmNode(name=NODE), at=START)
    show(shown, at=later(-1))
    assert shown.slurm is not None
    assert NODE in shown.slurm.nodes


# --- silence ------------------------------------------------------------------------------------------------


def sender(*seconds: float) -> NodePicture:
    node = NodePicture(NODE)
    for second in seconds:
        node.beat(later(second))
    return node


def test_a_sender_is_silent_after_three_missed_of_its_own_cadence() -> None:
    node = sender(0, 60, 120)
    assert node.silent_since(later(120 + 180)) is None
    assert node.silent_since(later(120 + 181)) == later(120)


def test_a_fast_sender_has_at_least_thirty_seconds() -> None:
    node = sender(0, 1, 2, 3)
    assert node.silent_since(later(33)) is None
    assert node.silent_since(later(33.5)) == later(3)


def test_without_a_cadence_no_node_is_silent() -> None:
    assert sender().silent_since(later(10_000)) is None
    assert sender(0).silent_since(later(10_000)) is None
    assert sender(0, 10).silent_since(later(10_000)) is None


def test_one_long_pause_does_not_change_the_cadence() -> None:
    node = sender(0, 10, 20, 320, 330, 340)
    assert node.silent_since(later(371)) == later(340)


def test_beats_that_arrive_out_of_order_or_twice_are_no_beats() -> None:
    node = sender(0, 10, 20, 20, 15)
    assert list(node.beats) == [later(0), later(10), later(20)]


# --- which GPU ----------------------------------------------------------------------------------------------

PCI = ["0000:18:00", "0000:2a:00", "0000:9b:00"]
INVENTORY = [{"index": 2, "pci": PCI[0], "uuid": "GPU-a"}, {"index": 0, "pci": PCI[1], "uuid": "GPU-b"}]


def test_the_nodes_own_inventory_is_believed_first() -> None:
    gpus = GpuMap()
    for pci in PCI:
        gpus.identity(pci, f"GPU-{pci}", "b1")
    gpus.inventory(INVENTORY)
    assert gpus.index(PCI[0], expected=3, from_topology=PCI) == 2


def test_then_the_sites_topology_file() -> None:
    gpus = GpuMap()
    for pci in PCI:
        gpus.identity(pci, f"GPU-{pci}", "b1")
    assert gpus.index(PCI[0], expected=3, from_topology=[*reversed(PCI)]) == 2


def test_then_the_complete_set_of_identity_lines_in_order_of_address() -> None:
    gpus = GpuMap()
    for pci in reversed(PCI):
        gpus.identity(pci, f"GPU-{pci}", "b1")
    assert [gpus.index(pci, expected=3) for pci in PCI] == [0, 1, 2]


@pytest.mark.parametrize("expected", [0, 2, 4, 8])
def test_an_incomplete_or_surprising_set_says_nothing(expected: int) -> None:
    gpus = GpuMap()
    for pci in PCI:
        gpus.identity(pci, f"GPU-{pci}", "b1")
    assert gpus.index(PCI[1], expected=expected) is None


def test_the_lines_of_two_boots_make_no_complete_set() -> None:
    gpus = GpuMap()
    gpus.identity(PCI[0], "GPU-a", "b1")
    gpus.identity(PCI[1], "GPU-b", "b1")
    gpus.identity(PCI[2], "GPU-c", "b2")
    assert gpus.index(PCI[2], expected=3) is None


def test_gpu_missing_from_the_inventory_may_be_in_the_topology() -> None:
    gpus = GpuMap()
    gpus.inventory(INVENTORY)
    assert gpus.index("0000:ff:00", expected=8) is None
    assert gpus.index(PCI[2], expected=8, from_topology=PCI) == 2


def test_a_list_of_the_same_boot_that_only_lacks_a_gpu_is_not_taken() -> None:
    gpus = GpuMap()
    gpus.inventory([{"index": index, "pci": pci} for index, pci in enumerate(PCI)], "b1")
    gpus.inventory([{"index": 0, "pci": PCI[0]}, {"index": 1, "pci": PCI[2]}], "b1")
    assert [gpus.index(pci, expected=3) for pci in PCI] == [0, 1, 2]
    gpus.inventory([{"index": 0, "pci": PCI[0]}, {"index": 1, "pci": PCI[2]}], "b2")
    assert [gpus.index(pci, expected=3) for pci in PCI] == [0, None, 1]


def test_a_heartbeat_gives_the_index_to_the_lines_after_it() -> None:
    shown = picture()
    show(shown, SlurmNode(name=NODE, gpus=8))
    findings = heard(
        shown, beat(NODE, START, gpus=[{"index": 3, "pci": "0000:9b:00", "uuid": "GPU-x"}]), line()
    )
    assert [one.component for one in findings] == [
        Component(cluster=CLUSTER, node=NODE, gpu=3, pci="0000:9b:00")
    ]


def test_the_topology_gives_the_index_by_gpu_model() -> None:
    shown = picture()
    show(shown, SlurmNode(name=NODE, gpus=8, gpu_model="h100"), SlurmNode(name="gpu0002", gpus=8))
    site = Topology(gpu_pci={"h100": ("0000:18:00", "0000:9b:00")})
    (one,) = heard(shown, line(), topology=site)
    assert one.component.gpu == 1
    (other,) = heard(shown, *lines("gpu0002", LOST, at=START), topology=site)
    assert other.component.gpu is None


def test_identity_lines_give_the_index_once_all_gpus_of_slurm_were_named() -> None:
    shown = picture()
    show(shown, SlurmNode(name=NODE, gpus=3))
    named = [identity(pci, number) for number, pci in enumerate(PCI)]
    heard(shown, *named[:2])
    assert heard(shown, line())[0].component.gpu is None
    heard(shown, named[2])
    assert heard(shown, line())[0].component.gpu == 2


def identity(pci: str, number: int) -> Observation:
    return Observation(
        digest=f"id-{pci}",
        kind=ObservationKind.gpu_identity,
        component=Component(cluster=CLUSTER, node=NODE, pci=pci),
        event_at=later(-600 + number),
        arrived_at=later(-600 + number),
        boot_id=NEW,
        data={"uuid": f"GPU-{number}"},
    )


# --- rebuilding ---------------------------------------------------------------------------------------------


def test_rebuilding_gives_nothing_to_walk_and_knows_what_was_known() -> None:
    observed = [
        beat(NODE, later(-60), boot_id=OLD),
        beat(NODE, later(-40), boot_id=NEW),
        line(at=later(-30), boot_id=NEW),
        *[beat(NODE, later(second), boot_id=NEW) for second in (-30, -20, -10)],
    ]
    shown = picture()
    assert shown.update(observed, Topology(), rebuild=True) == []
    assert heard(shown, line(at=later(1), event_at=later(-50), boot_id=OLD)) == []
    assert [node.name for node in shown.senders()] == [NODE]


def test_the_order_within_a_batch_does_not_matter() -> None:
    batch = [
        *[beat(NODE, later(second), boot_id=OLD) for second in (-50, -40)],
        beat(NODE, later(-30), boot_id=NEW),
        line(at=later(-20), event_at=later(-35), boot_id=OLD),
        line(at=later(-10), event_at=later(-11), boot_id=NEW),
    ]
    forwards, backwards = picture(), picture()
    assert heard(forwards, *batch) == heard(backwards, *reversed(batch)) == [batch[-1]]


def test_commands_and_what_names_no_node_are_passed_over() -> None:
    shown = picture()
    stranger = Observation(
        digest="c",
        kind=ObservationKind.command,
        component=Component(cluster=CLUSTER),
        event_at=START,
        arrived_at=START + timedelta(seconds=1),
    )
    assert heard(shown, stranger) == []
    assert shown.nodes == {}


# --- GPUs in telemetry ----------------------------------------------------------------------------------


def inventory(*gpus: tuple[int, str], at: datetime = START) -> Observation:
    gpus_listed = [{"index": index, "pci": pci, "uuid": ""} for index, pci in gpus]
    return Observation(
        digest=f"{gpus_listed}{at}",
        kind=ObservationKind.gpu_inventory,
        component=Component(cluster=CLUSTER, node=NODE),
        event_at=at,
        arrived_at=at,
        data={"gpus": gpus_listed},
    )


def test_an_inventory_names_the_gpu_and_is_no_beat() -> None:
    shown = picture()
    assert heard(shown, inventory((3, "0000:9b:00"))) == []
    assert [seen.component.gpu for seen in heard(shown, line(at=later(1)))] == [3]
    assert list(shown.senders()) == []


def labels(*addresses: str) -> list[dict[str, object]]:
    """What an exporter says of these GPUs, in the order of its count."""
    return [{"index": index, "pci": pci} for index, pci in enumerate(addresses)]


def indexes(gpus: GpuMap) -> list[int | None]:
    return [gpus.index(pci, expected=8) for pci in PCI]


def test_lists_of_some_gpus_add_up() -> None:
    gpus = GpuMap()
    gpus.heard([{"index": 0, "pci": PCI[0]}])
    gpus.heard([{"index": 1, "pci": PCI[1]}, {"index": 2, "pci": PCI[2]}])
    assert indexes(gpus) == [0, 1, 2]


def test_an_exporter_that_restarts_after_a_lost_gpu_renumbers_nothing() -> None:
    """Slurm's indexes stay: a second fault must not be charged to the job on another GPU."""
    gpus = GpuMap()
    gpus.heard(labels(*PCI))
    gpus.heard(labels(PCI[0], PCI[2]))
    assert indexes(gpus) == [0, 1, 2]


def test_the_first_list_after_a_boot_counts() -> None:
    gpus = GpuMap()
    gpus.heard(labels(*PCI), START)
    gpus.heard(labels(PCI[0], PCI[2]), later(600))
    assert indexes(gpus) == [0, None, 1]
    gpus.heard(labels(*PCI), later(900))
    assert indexes(gpus) == [0, 1, 2]


def test_an_exporter_does_not_correct_the_nodes_own_list() -> None:
    gpus = GpuMap()
    gpus.inventory(labels(*PCI), "b1")
    gpus.heard(labels(PCI[2], PCI[0]))
    assert indexes(gpus) == [0, 1, 2]


# --- what was measured before is over -----------------------------------------------------------------------


def test_a_node_is_renewed_by_another_boot_and_by_a_repair_and_not_by_its_first_word() -> None:
    shown = picture()
    heard(shown, beat(NODE, START, boot_id=OLD))
    assert shown.node(NODE).renewed_at is None
    heard(shown, beat(NODE, later(100), boot_id=NEW, event_at=later(-3600)))
    assert shown.node(NODE).renewed_at == later(100)  # by our clock
    heard(shown, beat(NODE, later(200), boot_id=NEW))
    assert shown.node(NODE).renewed_at == later(100)
    shown.clear(NODE, later(150))
    assert shown.node(NODE).renewed_at == later(150)


def test_slurms_word_of_another_boot_renews_the_node_too() -> None:
    shown = picture()
    for seconds, boot in ((0, OLD), (60, OLD), (120, NEW)):
        show(shown, SlurmNode(name=NODE, boot_id=boot), at=later(seconds))
    assert shown.node(NODE).renewed_at == later(120)


# --- what Slurm does not name -------------------------------------------------------------------------------


def made_of(gpu: str, at: datetime) -> Observation:
    return Observation(
        digest=f"made of {gpu}",
        kind=ObservationKind.inventory,
        component=Component(cluster=CLUSTER, node=NODE),
        event_at=at,
        arrived_at=at,
        data={"facts": {"gpu": gpu}},
    )


def test_gpus_without_a_type_in_slurm_are_named_by_the_node_itself() -> None:
    shown, untyped = picture(), SlurmNode(name=NODE, gpus=8)
    show(shown, untyped)
    assert gpu_model(MODELS, shown.slurm.nodes[NODE]) is None
    heard(shown, made_of("NVIDIA H100 80GB HBM3", later(1)))
    show(shown, untyped, at=later(2))
    assert gpu_model(MODELS, shown.slurm.nodes[NODE]) == "H100"
    show(shown, SlurmNode(name=NODE, gpus=8, gpu_model="a100"), at=later(3))
    assert gpu_model(MODELS, shown.slurm.nodes[NODE]) == "A100"


def test_different_gpus_on_one_node_name_no_model() -> None:
    shown = picture()
    heard(shown, made_of("NVIDIA A100-SXM4-80GB, NVIDIA H100 80GB HBM3", START))
    show(shown, SlurmNode(name=NODE, gpus=8), at=later(1))
    assert gpu_model(MODELS, shown.slurm.nodes[NODE]) is None


def test_a_picture_that_repeats_its_nodes_is_the_same_with_names() -> None:
    shown = picture()
    heard(shown, made_of("NVIDIA H100 80GB HBM3", START))
    snapshot = SlurmSnapshot(cluster=CLUSTER, taken_at=later(1), nodes={NODE: SlurmNode(name=NODE, gpus=8)})
    shown.show(snapshot)
    shown.nodes_changed = False
    shown.show(msgspec.structs.replace(snapshot, taken_at=later(2)))
    assert shown.slurm.taken_at == later(2)
    assert (shown.nodes_changed, shown.slurm.nodes[NODE].gpu_name) == (False, "NVIDIA H100 80GB HBM3")
