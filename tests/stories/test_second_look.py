"""What a relay says of a node is asked of the node itself, before anything is taken for it (law 2)."""

from datetime import timedelta

import msgspec
import pytest

from healer.engine.second_looks import AT_ONCE
from healer.incidents.second_look import LOOKS_MOST, SECOND_LOOK
from healer.model import Guard, Incident, Message, Mode, NodeLook, Observation, Run, RunState, Sense, Severity
from healer.ports.node_exec import NodeError, NodeUnavailable
from healer.sim.nodes import SimNodes
from tests.stories.test_relayed_text import RELAY, drained, relayed, say
from tests.support.loop import DEGRADED, FATAL, LOST, REMAP, Site, equip, name

OTHER = "relay-4 (ffff0000)"


@pytest.fixture
def site() -> Site:
    made = Site(32)
    for number in range(1, 33):
        made.nodes.keep_log(name(number))
    return made


def looks(site: Site) -> list[Run]:
    return [run for run in site.runs if run.playbook == SECOND_LOOK]


def pages(site: Site) -> list[Message]:
    sent = site.ledger.tables.messages.values()
    return [one for one in sent if isinstance(one, Message) and one.id.startswith("sender:")]


def restarts(site: Site, job: str) -> int:
    shown = site.slurm.job(job)
    assert shown is not None
    return shown.restarts


def incident_of(site: Site, number: int) -> Incident:
    return next(incident for incident in site.open_incidents if incident.root.node == name(number))


# --- the node agrees


@pytest.mark.parametrize("line", [LOST, FATAL])
def test_a_claim_that_the_nodes_log_has_is_its_own_word(site: Site, line: str) -> None:
    job = site.slurm.add_job(nodes=1)
    site.nodes.keep_log(name(1), line)
    site.run_for(20, *say(site, 1, line=line))
    assert drained(site) == [name(1)]
    assert restarts(site, job) == 1
    assert site.ledger.tables.slots[name(1)].unusable == (line is LOST)
    own = [evidence for evidence in site.incident.evidence if not evidence.relayed_by]
    assert [evidence.sense for evidence in own] == [Sense.kernel]
    assert own[0].line == line
    (look,) = looks(site)
    assert look.state is RunState.done
    assert pages(site) == []


def test_confirmed_reports_are_acted_on_beyond_the_caps_without_a_page(site: Site) -> None:
    for number in range(1, 4):
        site.nodes.keep_log(name(number), LOST)
    site.run_for(30, *say(site, 1, 2, 3))
    assert drained(site) == [name(number) for number in (1, 2, 3)]
    assert pages(site) == []


def test_a_lost_gpu_that_nvidia_smi_does_not_reach_is_proof_without_a_record(site: Site) -> None:
    site.nodes.plant(name(1), "gpu-missing")
    site.run_for(20, *say(site, 1))
    assert site.ledger.tables.slots[name(1)].unusable
    assert [evidence.sense for evidence in site.incident.evidence if not evidence.relayed_by] == [Sense.hook]


# --- the node denies it


@pytest.mark.parametrize("line", [LOST, FATAL, REMAP, DEGRADED])
def test_a_claim_that_the_node_denies_is_held_and_its_sender_named(site: Site, line: str) -> None:
    job = site.slurm.add_job(nodes=1, comment="healer:requeue")
    site.run_for(400, *say(site, 1, line=line), step_s=5)
    assert drained(site) == []
    assert restarts(site, job) == 0
    incident = incident_of(site, 1)
    assert incident.held_by is Guard.approval
    assert RELAY in incident.doubt and "denies" in incident.doubt
    (page,) = pages(site)
    assert RELAY in page.title and name(1) in page.text
    assert incident.severity is not Severity.P0
    assert len(looks(site)) == 1


def test_further_reports_of_a_doubted_sender_are_held_until_confirmed(site: Site) -> None:
    site.run_for(10, *say(site, 1))
    site.nodes.keep_log(name(3), LOST)
    site.nodes.mend(name(2))
    site.run_for(20, *say(site, 3))
    assert drained(site) == [name(3)]
    site.nodes.keep_log(name(5), booted_at=site.now)
    site.run_for(20, *say(site, 5))  # indistinguishable: an honest sender's would be believed within the caps
    assert drained(site) == [name(3)]
    assert RELAY in incident_of(site, 5).doubt
    site.run_for(20, *say(site, 6, by=OTHER))
    assert OTHER in incident_of(site, 6).doubt
    assert len(pages(site)) == 2


def test_a_person_may_approve_it(site: Site) -> None:
    site.run_for(20, *say(site, 1))
    (run,) = [run for run in site.runs if run.playbook != SECOND_LOOK]
    assert run.state is RunState.waiting_approval
    site.approve(run.id)
    site.run_for(10)
    assert drained(site) == [name(1)]


def test_the_nodes_own_word_frees_what_was_denied(site: Site) -> None:
    job = site.slurm.add_job(nodes=1)
    site.run_for(20, *say(site, 1))
    site.run_for(20, *site.say(1, LOST))
    assert drained(site) == [name(1)]
    assert restarts(site, job) == 1
    assert incident_of(site, 1).doubt == ""


def test_denied_words_are_asked_about_again_later_and_not_without_end(site: Site) -> None:
    site.run_for(10, *say(site, 1))
    for _ in range(2 * LOOKS_MOST):
        site.run_for(60, *say(site, 1), step_s=5)
    assert len(looks(site)) == 1
    for _ in range(2 * LOOKS_MOST):
        site.run_for(660, *say(site, 1), step_s=30)
    assert len(looks(site)) == LOOKS_MOST
    assert drained(site) == []


def test_a_true_claim_after_a_denied_one_is_found_true(site: Site) -> None:
    site.run_for(10, *say(site, 1))
    site.run_for(660, step_s=10)
    site.nodes.keep_log(name(1), LOST)
    site.run_for(30, *say(site, 1))
    assert drained(site) == [name(1)]


# --- no look is possible


def test_without_a_way_to_ask_it_drains_within_the_caps_as_ever(site: Site) -> None:
    equip(site.driver, nodes=None)
    job = site.slurm.add_job(nodes=1)
    site.run_for(20, *say(site, 1, 2))
    assert len(drained(site)) == 1
    assert restarts(site, job) == 0
    assert not any(slot.unusable for slot in site.ledger.tables.slots.values())


def test_a_node_that_does_not_answer_denies_nothing(site: Site) -> None:
    site.nodes.plant(name(1), "unreachable")
    site.run_for(20, *say(site, 1))
    assert drained(site) == [name(1)]
    assert not site.ledger.tables.slots[name(1)].unusable
    assert pages(site) == []


def test_a_line_from_before_the_boot_is_not_denied_by_an_empty_log(site: Site) -> None:
    site.nodes.keep_log(name(1), booted_at=site.now)
    site.run_for(20, *say(site, 1, event_at=site.now - timedelta(minutes=5)))
    assert pages(site) == []
    assert not any(incident.doubt for incident in site.open_incidents)


def test_without_the_playbook_no_approval_is_requested(site: Site) -> None:
    books = {key: book for key, book in site.rules.playbooks.items() if key != SECOND_LOOK}
    site.rules = msgspec.structs.replace(site.rules, playbooks=books)
    site.run_for(20, *say(site, 1))
    assert looks(site) == []
    assert drained(site) == [name(1)]


def test_no_node_is_asked_while_the_playbook_is_paused(site: Site) -> None:
    site.pause("playbook", SECOND_LOOK)
    site.run_for(20, *say(site, 1))
    assert looks(site) == []
    assert drained(site) == [name(1)]


# --- its time


class Slow(SimNodes):
    """Each look takes so long."""

    takes_s = 0.0
    asked = 0

    def second_look(self, node: str, opening: str, pci: str | None, limit_s: float) -> NodeLook:
        self.asked += 1
        self._clock.advance(min(self.takes_s, limit_s))  # type: ignore[attr-defined]
        if self.takes_s > limit_s:
            raise NodeUnavailable(f"{node} did not answer within {limit_s:.1f} s.")
        return super().second_look(node, opening, pci, limit_s)


def test_a_look_that_is_too_slow_counts_as_none(site: Site) -> None:
    slow = Slow(site.clock)
    slow.takes_s = 60
    slow.keep_log(name(1))
    equip(site.driver, nodes=slow)
    began = site.now
    site.run_for(20, *say(site, 1))
    assert slow.asked == 1
    assert drained(site) == [name(1)]
    decided = site.ledger.tables.slots[name(1)].granted_at
    assert decided - began <= timedelta(seconds=7)


def test_nothing_is_decided_before_the_answer(site: Site) -> None:
    site.walk(*say(site, 1))
    for _ in range(5):
        site.clock.advance(1)
        site.walk()
    assert [run.playbook for run in site.runs] == [SECOND_LOOK]
    site.drive()
    site.run_for(5)
    assert RELAY in incident_of(site, 1).doubt


def test_a_worker_that_dies_in_the_middle_holds_nothing_for_long_and_its_answer_counts_late(
    site: Site,
) -> None:
    job = site.slurm.add_job(nodes=1)
    site.nodes.keep_log(name(1), LOST)
    site.walk(*say(site, 1))
    site.drive_to("started:look")
    (look,) = looks(site)
    for _ in range(8):  # its lease lasts: no other worker takes the run
        site.clock.advance(1)
        site.walk()
    (run,) = [run for run in site.runs if run.playbook != SECOND_LOOK]
    assert run.state is RunState.running
    proposal = site.ledger.tables.decisions[-1].proposal
    assert proposal is not None and not proposal.unusable
    site.clock.advance(15)
    site.run_for(30)
    assert [run.id for run in looks(site)] == [look.id]
    assert looks(site)[0].state is RunState.done
    assert restarts(site, job) == 1


def test_a_node_that_fails_in_a_way_of_its_own_is_no_denial(site: Site) -> None:
    class Broken(SimNodes):
        def second_look(self, node: str, opening: str, pci: str | None, limit_s: float) -> NodeLook:
            raise NodeError("healer-node is too old: it has no such verb.")

    equip(site.driver, nodes=Broken(site.clock))
    site.run_for(20, *say(site, 1))
    assert drained(site) == [name(1)]
    assert looks(site)[0].state is RunState.done


def test_only_a_few_nodes_are_asked_at_once_and_all_in_their_turn(site: Site) -> None:
    site.walk(*say(site, *range(1, 13)))
    assert len(looks(site)) == AT_ONCE
    site.run_for(20)
    assert len(looks(site)) == 12
    assert drained(site) == []


# --- what is proven is not asked about


def test_self_report_of_the_node_needs_no_approval(site: Site) -> None:
    site.walk(*site.say(1, LOST))
    site.run_for(5)
    assert drained(site) == [name(1)]
    assert looks(site) == []


def test_the_nodes_word_during_the_look_is_enough(site: Site) -> None:
    own = site.say(1, LOST, boot_id="b1", first_seq=3)
    site.walk(*relayed(own))
    site.walk(*own)
    site.clock.advance(2)  # the settling time
    site.walk()
    assert looks(site)[0].state is RunState.running
    assert any(run.playbook != SECOND_LOOK and run.state is RunState.running for run in site.runs)


def test_in_shadow_it_is_asked_as_well() -> None:
    made = Site(32, mode=Mode.shadow)
    made.nodes.keep_log(name(1))
    made.run_for(20, *say(made, 1))
    assert len(looks(made)) == 1
    assert RELAY in incident_of(made, 1).doubt


def test_a_repeated_text_asks_once(site: Site) -> None:
    seen: list[Observation] = say(site, 1)
    site.walk(*seen)
    site.walk(*seen)
    site.run_for(30, *say(site, 1))
    assert len(looks(site)) == 1
