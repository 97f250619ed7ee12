"""The ladder over sequences of faults: one rung for each remedy that was carried out and did not last.

Rungs, lemons and ends are listed case by case in `rules/cases/history-*.yaml`; here for all orders of them.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from healer.incidents.part_history import rung_of
from healer.model import (
    REMEDY_LADDER,
    Cause,
    CommandKind,
    Incident,
    Mode,
    Observation,
    ObservationKind,
    Remedy,
    RunState,
    Sense,
)
from tests.support.loop import LOST, Site, beat, name, rules_in

PCI = "NVRM: Xid (PCI:0000:9b:00): "
HUNG = PCI + "119, pid=7, Timeout after 6s of waiting for RPC response from GPU3 GSP!"
UNCONTAINED = PCI + "95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: No, D-RST: No"
DOUBLE_BIT = (
    PCI + "48, pid=7062, An uncorrectable double bit error (DBE) has been detected on GPU (00 02 01)."
)
ASKED = PCI + "154, pid=7, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
NOTHING = PCI + "154, pid=7, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"

#: Each fault, and the rungs of its ladder as rules/ladders.yaml has them.
MEMORY = (Remedy.reset_gpu_when_idle, Remedy.drain_then_reset, Remedy.replace)
FIRMWARE = (Remedy.drain_then_reset, Remedy.reboot_node, Remedy.power_cycle, Remedy.replace)
FAULTS = {
    HUNG: FIRMWARE,
    UNCONTAINED: MEMORY,
    DOUBLE_BIT: MEMORY,
    ASKED: (Remedy.reset_gpu_when_idle, *FIRMWARE),
}
#: What all four ask for at first.
OWN = Remedy.drain_then_reset
REPEAT = timedelta(hours=6)
#: The report on a node that Slurm reaches, and whose sender kept a cadence before.
SILENT = "sender-silent"

#: How an incident may end without an attempt, as Slurm and people do it.
UNTRIED = ("resolved", "vetoed", "cancelled", "rejected", "returned untouched")
#: The same as the ledger sees it (`let go`: drained, and resolved with nothing done), and with an attempt.
ENDS = ("resolved", "let go", "returned untouched", "booted", "taken back", "repaired")


class Ended(NamedTuple):
    rungs: tuple[Remedy, ...]
    at: datetime
    tried: Remedy
    #: Whether it was a failure of its own, and not one that goes on.
    counts: bool


def lower(one: Remedy, other: Remedy) -> Remedy:
    return min(one, other, key=REMEDY_LADDER.index)


def is_lemon(incident: Incident) -> bool:
    return any(one.text.startswith("A lemon") for one in incident.evidence)


class Gpu:
    """One GPU of a site, its faults one after the other, and how each ended."""

    def __init__(self) -> None:
        self.site = Site(4, mode=Mode.shadow)
        self.boot = 1
        self.ended: list[Ended] = []

    def fails(self, line: str, hours: float) -> Incident:
        """The incident that it opens, in shadow: it leaves no run open while the clock leaps.

        The node's sender speaks at its boots alone. Three of them are a cadence, and when it misses three
        more its silence is an incident of its own, which asks for nothing.
        """
        site = self.site
        site.rules = rules_in(Mode.shadow)
        site.clock.advance(hours * 3600)
        known = {one.id for one in site.incidents}
        site.walk(*site.say(1, line, boot_id=f"b{self.boot}"))
        new = [one for one in site.incidents if one.id not in known]
        (found,) = (one for one in new if one.fault != SILENT)
        assert all(rung_of(one.remedy) is Remedy.none for one in new if one is not found)
        return found

    def ends(self, line: str, one: Incident, how: str) -> None:
        site = self.site
        tried = Remedy.none
        asked = rung_of(one.remedy)
        site.clock.advance(5)
        if how == "booted":
            self.boot += 1
            site.walk(beat(name(1), site.now, boot_id=f"b{self.boot}"))
            tried = lower(asked, Remedy.reboot_node)
        elif how == "taken back":
            site.walk(*site.say(1, NOTHING, boot_id=f"b{self.boot}"))
            tried = lower(asked, Remedy.drain_then_reset)
        elif how in {"repaired", "returned untouched"}:
            since = {"since": site.now.isoformat(), "cleared_at": site.now.isoformat()}
            repaired = how == "repaired"
            site.send_command(
                CommandKind.node_returned, incident=one.id, node=name(1), repaired=repaired, **since
            )
            tried = asked if repaired else Remedy.none
        else:
            if how == "let go":
                site.send_command(CommandKind.jobs_hit, incident=one.id, jobs=[])
            site.send_command(CommandKind.resolve, incident=one.id)
        site.walk()
        assert not site.ledger.tables.incidents[one.id].is_open, how
        self.ended.append(Ended(FAULTS[line], site.now, tried, counts=how != "let go"))


class Drained:
    """The same GPU where healer may act: its drain is in Slurm, and a person ends it."""

    def __init__(self) -> None:
        self.gpu = Gpu()

    def fails_and_ends(self, hours: float, how: str) -> Incident:
        """Uncontained memory, decided on, and what a person does about it."""
        site = self.gpu.site
        if how in {"resolved", "returned untouched"}:
            found = self.gpu.fails(UNCONTAINED, hours)
            self.gpu.ends(UNCONTAINED, found, how)
            return found
        site.rules = rules_in(Mode.approve if how == "rejected" else Mode.auto)
        site.clock.advance(hours * 3600)
        site.ledger.tables.vetoes.clear()  # they hold back what is done, not what is found
        known = {one.id for one in site.incidents}
        site.run_for(12, *site.say(1, UNCONTAINED, boot_id="b1"), step_s=3)
        (found,) = (one for one in site.incidents if one.id not in known)
        if how != "vetoed":
            (run,) = (run for run in site.runs if run.incident == found.id)
            site.cancel(run.id, RunState(how))
            site.walk()
            site.send_command(CommandKind.resolve, incident=found.id)
        if how != "rejected":
            assert site.ledger.tables.incidents[found.id].drained_at is not None
            site.clock.advance(60)
            site.slurm.resume(name(1))
        site.run_for(6, step_s=3)
        assert not site.ledger.tables.incidents[found.id].is_open, how
        return found


def test_evidence_from_history_is_not_counted_as_a_kernel_line() -> None:
    gpu = Gpu()
    gpu.ends(HUNG, gpu.fails(HUNG, 0.2), "booted")
    seen = [(one.sense, one.text.partition(",")[0]) for one in gpu.fails(HUNG, 0.2).evidence]
    assert [sense for sense, text in seen if text.endswith(" again")] == [Sense.history]
    assert {sense for sense, text in seen if not text.endswith(" again")} == {Sense.kernel}


_steps = st.lists(
    st.tuples(st.sampled_from(list(FAULTS)), st.sampled_from([0.2, 3.2, 5, 7]), st.sampled_from(ENDS)),
    min_size=2,
    max_size=6,
)


@pytest.mark.heavy
# Draws in which the sender's silence came with the fault: the least one, and longer ones.
@example(steps=[(HUNG, 0.2, "booted")] * 3 + [(HUNG, 3.2, "resolved")])
@example(
    steps=[
        (UNCONTAINED, 3.2, "booted"),
        (UNCONTAINED, 3.2, "taken back"),
        (DOUBLE_BIT, 0.2, "booted"),
        (HUNG, 0.2, "booted"),
        (DOUBLE_BIT, 7, "let go"),
    ]
)
@example(
    steps=[
        (DOUBLE_BIT, 7, "booted"),
        (HUNG, 0.2, "booted"),
        (HUNG, 0.2, "returned untouched"),
        (UNCONTAINED, 0.2, "booted"),
        (HUNG, 3.2, "resolved"),
        (ASKED, 5, "returned untouched"),
    ]
)
@settings(max_examples=100, deadline=None)
@given(steps=_steps)
def test_a_remedy_climbs_one_rung_for_each_that_was_tried_and_for_none_that_was_not(
    steps: list[tuple[str, float, str]],
) -> None:
    gpu = Gpu()
    for line, hours, how in steps:
        found = gpu.fails(line, hours)
        rungs = FAULTS[line]
        said = [one.text for one in found.evidence]
        assert is_lemon(found) == (sum(one.counts for one in gpu.ended) >= 2), (steps, said)
        mates = [one for one in gpu.ended if one.rungs == rungs and found.opened - one.at <= REPEAT]
        tried = max((one.tried for one in mates), key=REMEDY_LADDER.index, default=Remedy.none)
        above = [one for one in rungs if REMEDY_LADDER.index(one) > REMEDY_LADDER.index(tried)]
        wanted = OWN if tried is Remedy.none else max((above or rungs[-1:])[0], OWN, key=REMEDY_LADDER.index)
        if is_lemon(found):
            wanted = Remedy.replace
        assert rung_of(found.remedy) is wanted, (steps, tried, said)
        gpu.ends(line, found, how)


@pytest.mark.parametrize("how", UNTRIED)
def test_uncontained_memory_asks_for_its_reset_again_where_none_was_made(how: str) -> None:
    site = Drained()
    first = site.fails_and_ends(0.1, how)
    second = site.gpu.fails(UNCONTAINED, 1)
    assert rung_of(second.remedy) is Remedy.drain_then_reset
    assert second.cause is not Cause.permanent
    said = [one.text for one in second.evidence]
    wanted = f"after {first.short_id} ended: drain_then_reset is not confirmed as done"
    assert any(wanted in one for one in said)


def test_a_veto_makes_no_lemon() -> None:
    site = Drained()
    for hours in (0.1, 1, 1):
        assert not is_lemon(site.fails_and_ends(hours, "vetoed"))
    for lemon in (False, False, True):
        found = site.gpu.fails(UNCONTAINED, 7)
        site.gpu.ends(UNCONTAINED, found, "repaired")
        assert is_lemon(found) is lemon
        assert rung_of(found.remedy) is (Remedy.replace if lemon else Remedy.drain_then_reset)


def listed(site: Site, gpu: str, pci: str = "0000:9b:00", *, relay: str = "", index: int = 3) -> Observation:
    gpus = [{"index": index, "pci": pci, "uuid": gpu}]
    seen = beat(name(1), site.now, boot_id="b1", gpus=gpus)
    return msgspec.structs.replace(seen, relayed_by=relay, digest=f"{relay} {seen.digest}")


@pytest.mark.parametrize("relay", ["", "rack 3 (r1)"], ids=["the node itself", "a relay"])
def test_a_replaced_gpu_ends_its_fault_by_the_node_s_own_word_alone(relay: str) -> None:
    """Else a relay could end an incident whose drain a guard holds."""
    site = Site(mode=Mode.shadow)
    site.walk(listed(site, "GPU-a"))
    site.clock.advance(5)
    site.run_for(5, *site.say(1, LOST, boot_id="b1"))
    site.run_for(5, listed(site, "GPU-b", relay=relay))
    assert len(site.open_incidents) == (1 if relay else 0)


def test_a_relay_s_list_moves_no_gpu_that_the_node_itself_lists() -> None:
    """Else the job of another GPU would be hit."""
    site = Site()
    site.walk(listed(site, "GPU-a"))
    site.clock.advance(5)
    site.walk(listed(site, "GPU-a", relay="rack 3 (r1)", index=5))
    assert site.picture.node(name(1)).gpus.index("0000:9b:00", expected=8) == 3


@pytest.mark.parametrize("kind", [ObservationKind.gpu_inventory, ObservationKind.gpu_identity])
def test_neither_labels_nor_a_relay_s_lines_replace_a_gpu_that_the_node_itself_names(
    kind: ObservationKind,
) -> None:
    site = Site(mode=Mode.shadow)
    site.walk(listed(site, "GPU-a"))
    site.run_for(5, *site.say(1, LOST, boot_id="b1"))
    other = listed(site, "GPU-b", relay="rack 3 (r1)" if kind is ObservationKind.gpu_identity else "")
    where = msgspec.structs.replace(other.component, pci="0000:9b:00")
    data = other.data | {"uuid": "GPU-b"}
    site.run_for(5, msgspec.structs.replace(other, kind=kind, component=where, data=data))
    assert len(site.open_incidents) == 1
