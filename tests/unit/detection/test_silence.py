"""Silence: Slurm is asked before anyone is blamed, and many at once are one cause."""

from collections.abc import Iterable
from datetime import timedelta

import msgspec
import pytest

from healer.detection import WalkInput
from healer.detection.reported import reboot_findings
from healer.detection.silence import silence_findings
from healer.model import FaultClass, Finding, SlurmJob, SlurmNode, SlurmSnapshot, Topology
from healer.observations import Picture
from tests.support.loop import CLUSTER, START, beat, later, name, shipped

#: All nodes send a beat each 10 s until here.
LAST = 60


def site(
    count: int = 20,
    *,
    stopped: Iterable[int] = (),
    cadence_s: int = 10,
    watching_s: float = -600,
    **special: SlurmNode,
) -> Picture:
    """`count` nodes, eight under each switch; those in `stopped` beat last at 0, all others at 60 s."""
    picture = Picture(CLUSTER, watching_since=later(watching_s))
    nodes = {name(number): node(number) for number in range(1, count + 1)} | special
    picture.show(SlurmSnapshot(cluster=CLUSTER, taken_at=later(LAST), nodes=nodes))
    silent = {name(number) for number in stopped}
    for each in nodes:
        last = 0 if each in silent else LAST
        beats = [beat(each, later(last - cadence_s * back)) for back in range(6)]
        picture.update(beats, Topology())
    return picture


def node(number: int, *state: str, **fields: object) -> SlurmNode:
    given: dict[str, object] = {"switch": f"leaf{(number - 1) // 8}", "gpus": 8}
    return SlurmNode(name=name(number), state=state or ("IDLE",), **{**given, **fields})


def found(picture: Picture, seconds: float = LAST) -> list[Finding]:
    return silence_findings(WalkInput(shipped(), picture, later(seconds)))


def test_node_unreachable_for_slurm_too_is_certainly_unusable() -> None:
    (one,) = found(site(stopped=[3], gpu0003=node(3, "IDLE", "NOT_RESPONDING")))
    assert (one.fault, one.fault_class, one.unusable) == ("node-silent", FaultClass.fatal, True)
    assert one.component.node == "gpu0003"
    assert one.at == START


def test_a_relay_s_heartbeats_do_not_hide_that_the_node_itself_is_silent() -> None:
    picture = site(stopped=[3], gpu0003=node(3, "IDLE", "NOT_RESPONDING"))
    forged = [beat(name(3), later(at)) for at in range(5, LAST, 5)]
    relayed = [msgspec.structs.replace(seen, relayed_by="rack 3 (r1)") for seen in forged]
    picture.update(relayed, Topology())
    (one,) = found(picture)
    assert (one.fault, one.component.node, one.at) == ("node-silent", "gpu0003", START)


def test_a_node_keeps_its_own_cadence_after_a_relay_s() -> None:
    """Else a relay's fast heartbeats would make a node that sends slowly look silent."""
    fast = [beat(name(4), later(-400 + at)) for at in range(9)]
    fresh = Picture(CLUSTER, watching_since=later(-600))
    fresh.update([msgspec.structs.replace(seen, relayed_by="rack 3 (r1)") for seen in fast], Topology())
    fresh.update([beat(name(4), later(-300 + 60 * number)) for number in range(4)], Topology())
    assert fresh.node(name(4)).cadence_s == 60


def test_no_node_is_judged_alone_before_its_neighbours_are_heard_well_after_it() -> None:
    """A place fails node by node: a neighbour's beat just after the loss says nothing of the minute after."""
    gone = node(3, "IDLE", "NOT_RESPONDING")
    assert found(site(stopped=[3], gpu0003=gone)), (
        "its neighbours were heard 60 s after it, at a beat of 10 s"
    )
    shown = site(stopped=[3], cadence_s=20, gpu0003=gone)
    assert found(shown) == [], "at a beat of 20 s they have to be heard 65 s after it"
    shown.update([beat(name(number), later(80)) for number in range(1, 9) if number != 3], Topology())
    assert [one.component.node for one in found(shown, 80)] == ["gpu0003"]


@pytest.mark.parametrize(("missed", "judged"), [(1, ["gpu0003"]), (2, [])])
def test_a_neighbour_that_missed_two_beats_beside_it_shows_that_their_place_was_in_trouble(
    missed: int, judged: list[str]
) -> None:
    """Three beats are missing before it would count as silent itself."""
    picture = site(stopped=[3], cadence_s=20, gpu0003=node(3, "IDLE", "NOT_RESPONDING"))
    others = [number for number in range(1, 21) if number != 3]
    for at in range(80, 161, 20):
        heard_now = others if at > 60 + 20 * missed else [number for number in others if number != 4]
        picture.update([beat(name(number), later(at)) for number in heard_now], Topology())
    assert [one.component.node for one in found(picture, 160)] == judged


def test_down_is_no_answer_either() -> None:
    (one,) = found(site(stopped=[3], gpu0003=node(3, "DOWN", reason="Not responding")))
    assert one.unusable


def test_a_node_that_slurm_reaches_is_not_blamed_for_its_sender() -> None:
    (one,) = found(site(stopped=[3]))
    assert (one.fault, one.fault_class, one.unusable) == ("sender-silent", FaultClass.informational, False)
    rule = shipped().rule_for(one.fault, one.fault_class)
    assert rule is not None
    assert rule.playbook is None


def test_node_that_sends_beats_is_not_silent() -> None:
    assert found(site()) == []


def test_without_slurm_no_node_is_silent() -> None:
    picture = site(stopped=[1, 2, 3])
    picture.slurm = None
    assert found(picture) == []


def test_no_verdict_before_listening_long_enough() -> None:
    assert found(site(stopped=[3], watching_s=LAST - 30)) == []
    assert len(found(site(stopped=[3], watching_s=LAST - 31))) == 1


def test_long_enough_goes_by_the_senders_own_cadence() -> None:
    """After a restart a sender that speaks once a minute has had no chance to speak within 31 s."""
    picture = site(stopped=[3], cadence_s=60, watching_s=200)
    assert found(picture, 200 + 31) == []
    assert [one.component.node for one in found(picture, 200 + 181)][:1] != []


def test_the_fault_names_the_last_word_so_that_it_is_one_incident() -> None:
    picture = site(stopped=[3])
    first, again = found(picture, LAST), found(picture, LAST + 5)
    assert first[0].evidence[0].digest == again[0].evidence[0].digest
    picture.update([beat("gpu0003", later(LAST + 6))], Topology())
    assert found(picture, LAST + 7) == []


REBOOTING = ("DOWN", "NOT_RESPONDING", "REBOOT_ISSUED")


@pytest.mark.parametrize("state", [("IDLE", "MAINTENANCE"), ("DOWN", "POWERED_DOWN"), REBOOTING])
def test_planned_silence_is_nothing(state: tuple[str, ...]) -> None:
    assert found(site(stopped=[3], gpu0003=node(3, *state))) == []


def rebooted(picture: Picture, numbers: range, *, until: float) -> None:
    """Slurm shows these as rebooting, and at `until` as idle again."""
    for seconds, state in ((until - 1, REBOOTING), (until, ("IDLE",))):
        nodes = picture.slurm.nodes if picture.slurm is not None else {}
        shown = {name(number): node(number, *state) for number in numbers}
        picture.show(SlurmSnapshot(cluster=CLUSTER, taken_at=later(seconds), nodes={**nodes, **shown}))


def heard(picture: Picture, numbers: Iterable[int], until: float) -> None:
    """They keep a cadence of 10 s."""
    observed = [
        beat(name(number), later(at)) for at in range(LAST + 10, int(until) + 1, 10) for number in numbers
    ]
    picture.update(observed, Topology())


def test_silence_counts_only_after_a_rebooted_node_should_speak() -> None:
    """They register with Slurm before their senders speak; after that three beats must be missing."""
    picture = site(stopped=range(1, 9))
    rebooted(picture, range(1, 9), until=300)
    heard(picture, range(9, 21), until=330)
    assert found(picture, 325) == []
    assert [one.fault for one in found(picture, 335)] == ["switch-silent"]


def test_a_neighbour_that_was_rebooted_as_asked_is_no_sign_of_an_outage() -> None:
    picture = site(stopped=[3, 4], gpu0003=node(3, "DOWN", "NOT_RESPONDING"))
    heard(picture, [*range(1, 3), *range(5, 21)], until=110)
    picture.update([beat(name(4), later(105))], Topology())
    assert found(picture, 115) == [], "it came back just now: its place may have been away"
    rebooted(picture, range(4, 5), until=112)
    assert [one.component.node for one in found(picture, 115)] == [name(3)]


def test_sender_unknown_to_slurm_is_ignored_and_breaks_nothing() -> None:
    picture = site(stopped=[1, 2, 3])
    picture.update([beat("gone", later(second)) for second in (-30, -20, -10)], Topology())
    assert "gone" not in {one.component.node for one in found(picture)}


# --- many at once -------------------------------------------------------------------------------------------


def test_whole_fleet_at_once_blames_no_node() -> None:
    (one,) = found(site(stopped=range(1, 21)))
    assert one.fault == "fleet-silent"
    assert (one.component.node, one.component.switch, one.unusable) == (None, None, False)


def test_half_the_fleet_is_the_fleet() -> None:
    (one,) = found(site(stopped=range(1, 11)))
    assert one.fault == "fleet-silent"


def test_two_nodes_of_three_are_no_fleet() -> None:
    assert {one.fault for one in found(site(3, stopped=[1, 2]))} == {"sender-silent"}


def test_when_slurm_agrees_it_is_not_our_hearing() -> None:
    special = {name(number): node(number, "DOWN") for number in range(1, 21)}
    faults = {one.fault for one in found(site(stopped=range(1, 21), **special))}
    assert "fleet-silent" not in faults


def test_many_under_one_switch_mean_the_switch() -> None:
    (one,) = found(site(40, stopped=range(1, 9)))
    assert one.fault == "switch-silent"
    assert one.component.switch == "leaf0"
    assert one.component.node is None
    assert [part.node for part in one.affected] == [name(number) for number in range(1, 9)]
    assert not one.unusable


def test_remaining_nodes_are_reported_beside_the_switch() -> None:
    findings = found(site(40, stopped=[*range(1, 9), 20]))
    assert [(one.fault, one.component.node) for one in findings] == [
        ("switch-silent", None),
        ("sender-silent", "gpu0020"),
    ]


def test_two_under_a_switch_or_few_of_many_are_nodes() -> None:
    assert {one.fault for one in found(site(40, stopped=[1, 2]))} == {"sender-silent"}
    assert {one.fault for one in found(site(40, stopped=[1, 2, 3]))} == {"sender-silent"}


def test_no_switch_known_no_switch_blamed() -> None:
    special = {name(number): node(number, switch="") for number in range(1, 41)}
    assert {one.fault for one in found(site(40, stopped=range(1, 9), **special))} == {"sender-silent"}


def test_figure_is_in_the_text() -> None:
    (one,) = found(site(stopped=range(1, 21)))
    assert "20 of 20 senders" in one.text
    assert timedelta(0) == one.at - START


@pytest.mark.parametrize("shows_boot", [False, True], ids=["only the relay says so", "Slurm shows it too"])
def test_a_boot_under_a_job_is_the_claim_of_the_relay_that_reports_it(shows_boot: bool) -> None:
    """Else three heartbeats by one relay would open the breaker, or drain nodes at work."""
    picture = Picture(CLUSTER, watching_since=later(-600))
    job = SlurmJob(id="7", state="RUNNING", nodes=(name(1),), start_at=later(-300))

    def show(at: float, boot_at: float) -> None:
        nodes = {name(1): node(1, "ALLOCATED", boot_at=later(boot_at))}
        picture.show(SlurmSnapshot(cluster=CLUSTER, taken_at=later(at), nodes=nodes, jobs={"7": job}))

    show(0, -9000)
    for at, boot in ((1, "b1"), (20, "b2")):
        seen = beat(name(1), later(at), boot_id=boot)
        picture.update([msgspec.structs.replace(seen, relayed_by="rack 3 (r1)")], Topology())
    show(21, 10 if shows_boot else -9000)
    (one,) = reboot_findings(WalkInput(shipped(), picture, later(22)))
    assert [item.relayed_by for item in one.evidence] == ["" if shows_boot else "rack 3 (r1)"]
