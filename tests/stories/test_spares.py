"""Hot spares: one node of the site's reservation takes the place of one that is lost."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from healer.decisions.sweeps import hops, nearest_spare
from healer.model import (
    Guard,
    Incident,
    IncidentState,
    Reservation,
    RestartConsent,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Spares,
)
from healer.ports.scheduling import SchedulerRefused
from healer.sim.sim_slurm import SimScheduler, sim_nodes
from tests.support.jobs import NODE, Lacking, Unheard, guards, job_of, lose
from tests.support.loop import APPLICATION, CLUSTER, LOST, START, Crash, Site, later, name, rules_in


def spare_fleet() -> list[SlurmNode]:
    """gpu0001 … gpu0005 and the spare gpu0010 under leaf1, the rest and the spare gpu0009 under leaf2."""
    leafs = {number: "leaf1" if number <= 5 or number == 10 else "leaf2" for number in range(1, 11)}
    return [
        msgspec.structs.replace(node, switch=leafs[number], switches=(leafs[number], "spine"))
        for number, node in enumerate(sim_nodes(10), 1)
    ]


def with_spares(scheduler: Callable[[SimScheduler], Any] | None = None, **settings: Any) -> tuple[Site, str]:
    """A job on the eight nodes that are no spares; (the site, the job)."""
    spares = guards(spares=Spares(reservation="spares"), min_service_share=0.5, **settings)
    site = Site(spare_fleet(), rules=rules_in(guards=spares), scheduler=scheduler)
    site.slurm.reserve(Reservation(name="spares", nodes=(name(9), name(10)), users=("root",)))
    job = site.slurm.add_job(nodes=8)
    assert name(9) not in job_of(site, job).nodes
    return site, job


def reserved(site: Site) -> tuple[str, ...]:
    return site.slurm.snapshot().reservations["spares"].nodes


def test_a_spare_of_the_same_leaf_takes_the_place_of_the_lost_node_until_it_is_a_spare_itself() -> None:
    site, job = with_spares()
    run = lose(site)
    assert reserved(site) == (NODE, name(9))
    assert name(10) in job_of(site, job).nodes
    row = next(one for one in site.log(run.id) if one.data.get("spare"))
    assert row.text == "gpu0010 from reservation spares replaces gpu0001"
    (decision,) = [one for one in site.ledger.tables.decisions if one.proposal and one.proposal.job == job]
    (answer,) = [one for one in decision.answers if one.guard is Guard.reserved]
    assert answer.why == "2 of 2 spares in spares are free; the nearest to gpu0001 is gpu0010."
    site.slurm.resume(NODE)  # repaired
    assert site.node(1).state == ("IDLE", "RESERVED")
    assert len(reserved(site)) == 2


def test_without_a_spare_the_job_waits_like_any_other() -> None:
    site, job = with_spares()
    for number in (9, 10):
        site.slurm.person_drain(name(number), "RMA", "ann")
    run = lose(site)
    assert job_of(site, job).state == "PENDING"
    assert reserved(site) == (name(9), name(10))
    assert any("No spare in spares matches gpu0001" in one.text for one in site.log(run.id))


def test_a_node_that_a_person_resumes_during_the_requeue_is_not_put_among_the_spares() -> None:
    """It would be handed over to the next job, with its dead GPU."""
    site, job = with_spares()

    def resume(where: str) -> None:
        if where == f"performed:requeue:{job}" and site.node(1).drain:
            site.slurm.resume(NODE)

    site.on_checkpoint = resume
    run = lose(site)
    assert reserved(site) == (name(9), name(10))
    assert "gpu0001 is in service again: no spare replaces it" in [one.text for one in site.log(run.id)]
    assert (job_of(site, job).state, job_of(site, job).restarts) == ("RUNNING", 1)


def test_a_spare_that_slurm_does_not_let_go_holds_nothing_up() -> None:
    error = SchedulerRefused("Requested nodes are busy", 2016)
    site, job = with_spares(lambda slurm: Lacking(slurm, error, "change_reservation"))
    run = lose(site)
    assert job_of(site, job).restarts == 1
    assert any("Requested nodes are busy" in one.text for one in site.log(run.id))


def test_a_spare_whose_change_was_never_answered_is_known_as_handed_over() -> None:
    site, _ = with_spares(lambda slurm: Unheard(slurm, "change_reservation"))
    run = lose(site)
    assert reserved(site) == (NODE, name(9))
    (row,) = [one for one in site.log(run.id) if "spare" in one.data]
    assert (row.data["spare"], row.text) == (
        name(10), "gpu0010 from reservation spares replaces gpu0001"
    )  # fmt: skip


class Slow:
    """A Slurm whose first change of a reservation takes a while, in which other workers go on."""

    def __init__(self, slurm: SimScheduler) -> None:
        self.slurm, self.name = slurm, "slow"
        self.meanwhile: list[Callable[[], None]] = []

    def __getattr__(self, call: str) -> Any:
        return getattr(self.slurm, call)

    def change_reservation(self, *given: Any) -> None:
        for others in [self.meanwhile.pop()] if self.meanwhile else []:
            others()
        self.slurm.change_reservation(*given)


def test_two_spares_that_are_handed_over_at_once_are_both_handed_over() -> None:
    """Each change names all nodes of the reservation."""
    spares = guards(spares=Spares(reservation="spares"), min_service_share=0.5)
    site = Site(spare_fleet(), rules=rules_in(guards=spares), scheduler=Slow)
    site.slurm.reserve(Reservation(name="spares", nodes=(name(9), name(10)), users=("root",)))
    jobs = [site.slurm.add_job(nodes=4) for _ in range(2)]
    lost = [job_of(site, job).nodes[0] for job in jobs]

    def others() -> None:
        for _ in range(10):
            site.clock.advance(1)
            site.drive()

    site.scheduler.meanwhile.append(others)
    site.run_for(60, *(line for node in lost for line in site.say(node, LOST)))
    assert sorted(reserved(site)) == sorted(lost)
    assert [job_of(site, job).state for job in jobs] == ["RUNNING", "RUNNING"]
    handed = [entry.data["spare"] for run in site.runs for entry in site.log(run.id) if "spare" in entry.data]
    assert sorted(handed) == [name(9), name(10)]


@pytest.mark.parametrize("others", [1, 2])
def test_a_job_that_lost_several_nodes_at_once_gets_a_spare_for_each(others: int) -> None:
    """Its one requeue is the work of one run; Slurm shows the job without nodes from then on."""
    site, job = with_spares(breaker_share=1.0)
    lost = [NODE, *(name(number) for number in range(2, 2 + others))]
    site.run_for(30, *(line for node in lost for line in site.say(node, LOST)))
    assert len(set(reserved(site)) & set(lost)) == 2
    assert job_of(site, job).restarts == 1
    assert (job_of(site, job).state == "RUNNING") is (others == 1)
    handed = [entry.data for run in site.runs for entry in site.log(run.id) if entry.data.get("spare")]
    assert sorted(one["spare"] for one in handed) == [name(9), name(10)]
    assert sorted(one["lost"] for one in handed) == sorted(set(reserved(site)) & set(lost))


def test_a_job_that_crashed_with_several_nodes_gets_a_spare_for_each_when_it_is_revived() -> None:
    """A crash is faster than any line."""
    site, job = with_spares(breaker_share=1.0, consent=RestartConsent(partitions=("train",)))
    site.walk()
    site.slurm.fail_job(job)
    site.run_for(30, *lines(site, TWO))
    assert reserved(site) == (NODE, name(2))
    assert (job_of(site, job).state, job_of(site, job).restarts) == ("RUNNING", 1)


def test_no_spare_replaces_a_node_of_the_job_that_a_person_holds() -> None:
    site, job = with_spares()
    site.slurm.person_drain(name(2), "RMA", "ann")
    lose(site)
    assert reserved(site) == (NODE, name(9))
    assert (job_of(site, job).state, job_of(site, job).restarts) == ("PENDING", 1)


ONE, TWO = (1,), (1, 2)


def lines(site: Site, lost: tuple[int, ...]) -> list[Any]:
    return [line for number in lost for line in site.say(number, LOST)]


def spare_checkpoints() -> list[tuple[tuple[int, ...], str]]:
    found = []
    for lost in (ONE, TWO):
        site, _ = with_spares()
        site.run_for(30, *lines(site, lost))
        found += [(lost, where) for where in dict.fromkeys(site.checkpoints)]
    return found


@pytest.mark.parametrize(("lost", "where"), spare_checkpoints())
def test_a_crash_at_any_line_takes_one_spare_for_one_node(lost: tuple[int, ...], where: str) -> None:
    site, job = with_spares()
    died = []

    def die(at: str) -> None:
        if at == where and not died:
            died.append(at)
            raise Crash(at)

    site.on_checkpoint = die
    with pytest.raises(Crash):
        site.run_for(30, *lines(site, lost))
    site.run_for(30)
    assert reserved(site) == ((NODE, name(9)) if lost == ONE else (NODE, name(2)))
    assert job_of(site, job).restarts == 1


# --- which one ----------------------------------------------------------------------------------------------

LOST_ONE = SlurmNode(
    name=NODE, gpus=8, gpu_model="h100", partitions=("train", "all"), switches=("leaf1", "spine1", "core")
)
JOB = SlurmJob(id="1", state="PENDING", partition="train", excluded=("gpu0019",))


def spare(number: int, *switches: str, **fields: Any) -> SlurmNode:
    return msgspec.structs.replace(LOST_ONE, name=name(number), switches=switches, **fields)


@pytest.mark.parametrize(
    ("spares", "chosen"),
    [
        ([spare(12, "leaf2", "spine1", "core"), spare(13, "leaf1", "spine1", "core")], 13),
        ([spare(12, "leaf4", "spine2", "core"), spare(13, "leaf2", "spine1", "core")], 13),
        ([spare(12), spare(13, "leaf4", "spine2", "core")], 13),
        ([spare(13), spare(12)], 12),  # nothing is known of any: by name
        ([spare(12, "leaf1", gpu_model="a100"), spare(13, "leaf2")], 13),
        ([spare(12, "leaf1", gpus=4), spare(13, "leaf2")], 13),
        ([spare(12, "leaf1", partitions=("debug",)), spare(13, "leaf2")], 13),
        ([spare(12, "leaf1", partitions=("train",)), spare(13, "leaf2")], 12),
        ([spare(19, "leaf1"), spare(13, "leaf2")], 13),  # the owner does not want that one
        ([LOST_ONE], None),
        ([], None),
    ],
)
def test_the_nearest_that_the_job_can_use(spares: list[SlurmNode], chosen: int | None) -> None:
    found = nearest_spare(LOST_ONE, JOB, spares)
    assert (found.name if found else None) == (name(chosen) if chosen else None)


def test_a_job_that_waits_in_several_partitions_takes_a_spare_of_either() -> None:
    """Slurm shows all that it asked for again, once it was put back."""
    job = msgspec.structs.replace(JOB, partition="debug,train")
    found = nearest_spare(LOST_ONE, job, [spare(12, partitions=("cpu",)), spare(13, partitions=("train",))])
    assert found is not None and found.name == name(13)


def test_a_job_of_a_reservation_can_use_no_spare() -> None:
    job = msgspec.structs.replace(JOB, reservation="team")
    assert nearest_spare(LOST_ONE, job, [spare(12)]) is None


def test_a_job_that_must_have_the_lost_node_can_use_no_spare() -> None:
    """`--nodelist`: it waits for that very node, and would wait for ever if that were among the spares."""
    job = msgspec.structs.replace(JOB, required=(NODE,))
    assert nearest_spare(LOST_ONE, job, [spare(12)]) is None
    assert nearest_spare(LOST_ONE, msgspec.structs.replace(JOB, required=(name(2),)), [spare(12)]) is not None


def test_a_component_that_must_have_the_lost_node_counts_for_the_whole_job() -> None:
    leader = msgspec.structs.replace(JOB, id="7", het_job="7", required=(name(2),))
    other = msgspec.structs.replace(JOB, id="8", het_job="7", required=(NODE,))
    snapshot = SlurmSnapshot(cluster=CLUSTER, taken_at=START, nodes={}, jobs={"7": leader, "8": other})
    assert nearest_spare(LOST_ONE, leader, [spare(12)]) is not None
    assert nearest_spare(LOST_ONE, snapshot.whole("7"), [spare(12)]) is None


def test_the_spares_stay_as_they_are_for_a_job_that_must_have_the_lost_node() -> None:
    site, other = with_spares()
    site.slurm.complete(other)
    job = site.slurm.add_job(nodes=1, required=[NODE])
    lose(site)
    assert reserved(site) == (name(9), name(10))
    assert job_of(site, job).state == "PENDING"
    site.slurm.resume(NODE)  # repaired
    assert job_of(site, job).nodes == (NODE,)


def test_recently_returned_spares_are_chosen_last() -> None:
    near, far, farther = spare(12, "leaf1"), spare(13, "leaf2"), spare(14, "leaf3")
    until = {near.name: later(days=5), far.name: later(days=2)}
    found = []
    for spares in ([near, far, farther], [near, far], [near]):
        chosen = nearest_spare(LOST_ONE, JOB, spares, until)
        found.append(chosen.name if chosen else None)
    assert found == [farther.name, far.name, near.name]


def test_a_node_on_probation_is_handed_over_after_one_that_never_failed() -> None:
    site, job = with_spares()
    back = msgspec.structs.replace(
        site_incident(site), state=IncidentState.resolved, closed=site.now, probation_until=later(days=7)
    )
    site.ledger.tables.incidents[back.id] = back
    lose(site)
    assert reserved(site) == (NODE, name(10))
    assert name(9) in job_of(site, job).nodes


def site_incident(site: Site) -> Incident:
    """An incident of the spare under the leaf of the node that is lost later."""
    site.walk(*site.say(10, APPLICATION))
    (found,) = [one for one in site.incidents if one.root.node == name(10)]
    return found


def test_hops_are_levels_up_to_a_switch_that_both_are_under() -> None:
    assert [hops(LOST_ONE, spare(2, *path)) for path in (("leaf1",), ("leaf9", "spine1"), ("leaf9",))] == [
        0, 1, 99,
    ]  # fmt: skip


def test_a_protected_node_is_no_spare() -> None:
    site, job = with_spares(protected=(name(10),))
    lose(site)
    assert reserved(site) == (NODE, name(10))
    assert name(9) in job_of(site, job).nodes


def test_lost_spare_is_not_replaced() -> None:
    site, job = with_spares()
    run = lose(site, node=9)
    assert reserved(site) == (name(9), name(10))
    assert job_of(site, job).restarts == 0
    assert not any("spare" in one.data for one in site.log(run.id))
