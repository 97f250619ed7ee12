"""Findings -> one incident per cause."""

from collections.abc import ItemsView, Iterator, Sequence, ValuesView

import msgspec
import pytest

from healer.incidents import Book
from healer.incidents.book import incident_id
from healer.incidents.correlate import take_finding
from healer.model import (
    Cause,
    CommandKind,
    Component,
    Evidence,
    FaultClass,
    Finding,
    Incident,
    IncidentState,
    Mode,
    Remedy,
    Sense,
    SlurmJob,
    Verdict,
)
from healer.observations import Picture
from healer.sim.sim_slurm import sim_nodes
from tests.support.loop import (
    APPLICATION,
    CLUSTER,
    DEGRADED,
    FATAL,
    LOST,
    REMAP,
    START,
    TEARDOWN,
    Site,
    beat,
    later,
    name,
    rules_in,
)

pytestmark = pytest.mark.heavy


def watching(nodes: int = 32) -> Site:
    """A site where nothing is done, so that what is understood can be looked at."""
    return Site(nodes, mode=Mode.off)


def job_over(site: Site, *numbers: int, gpus: int = 8) -> str:
    return site.slurm.add_job(nodes=len(numbers), gpus=gpus, required=[name(number) for number in numbers])


# --- teardown and what applications say ---------------------------------------------------------------------


def test_one_root_and_its_job_torn_down_everywhere_is_one_incident() -> None:
    site = watching()
    job = job_over(site, *range(1, 9))
    site.walk(*site.say(1, LOST))
    site.clock.advance(1)
    site.walk(*[seen for number in range(2, 9) for seen in site.say(number, TEARDOWN)])
    (one,) = site.incidents
    assert (one.fault, one.root.node, one.jobs_hit) == ("xid-79", "gpu0001", (job,))
    assert one.counted == {"xid-45": 7}
    assert {part.node for part in one.affected} == {name(number) for number in range(2, 9)}
    assert one.nodes == {"gpu0001": Verdict.isolate}


def test_teardown_may_come_before_its_root() -> None:
    site = watching()
    job_over(site, 1, 2)
    site.walk(*site.say(2, TEARDOWN))
    assert site.incidents == []
    site.clock.advance(20)
    site.walk(*site.say(1, LOST))
    (one,) = site.incidents
    assert (one.fault, one.counted) == ("xid-79", {"xid-45": 1})


def test_teardown_alone_is_nothing() -> None:
    site = watching()
    job_over(site, 1)
    site.walk(*site.say(1, TEARDOWN))
    site.run_for(120)
    assert site.incidents == []


def test_teardown_of_another_job_is_not_counted() -> None:
    site = watching()
    job_over(site, 1)
    job_over(site, 2)
    site.walk(*site.say(1, LOST), *site.say(2, TEARDOWN))
    (one,) = site.incidents
    assert one.counted == {}


def test_teardown_long_before_or_after_is_not_counted() -> None:
    site = watching()
    job_over(site, 1, 2, 3)
    site.walk(*site.say(2, TEARDOWN))
    site.clock.advance(31)
    site.walk(*site.say(1, LOST))
    site.clock.advance(31)
    site.walk(*site.say(3, TEARDOWN))
    (one,) = site.incidents
    assert one.counted == {}


def test_a_job_named_by_the_signal_is_enough() -> None:
    """Slurm's picture may be older than the job."""
    site = watching()
    site.walk(*site.say(1, LOST, job="77"), *site.say(2, TEARDOWN, job="77"))
    (one,) = site.incidents
    assert (one.jobs_hit, one.counted) == (("77",), {"xid-45": 1})


def test_an_application_error_of_a_job_with_a_root_is_counted() -> None:
    site = watching()
    job_over(site, 1, 2)
    site.walk(*site.say(1, LOST))
    site.clock.advance(5)
    site.walk(*site.say(2, APPLICATION))
    (one,) = site.incidents
    assert one.counted == {"xid-31": 1}


def test_an_application_error_before_its_root_is_the_same_incident_with_another_root() -> None:
    site = watching()
    job_over(site, 1, 2)
    site.walk(*site.say(2, APPLICATION))
    incident = site.incident
    assert incident.fault == "xid-31"
    site.clock.advance(5)
    site.walk(*site.say(1, LOST))
    (one,) = site.incidents
    assert (one.id, one.fault, one.root.node) == (incident.id, "xid-79", "gpu0001")
    assert one.settle_until == later(7)
    assert (site.audited("incident.opened"), site.audited("incident.moved")) == (1, 1)
    assert [part.node for part in one.affected] == ["gpu0002"]


def test_an_application_error_long_before_a_root_stays_the_applications() -> None:
    site = watching()
    job_over(site, 1, 2)
    site.walk(*site.say(2, APPLICATION))
    site.clock.advance(31)
    site.walk(*site.say(1, LOST))
    assert {one.fault for one in site.open_incidents} == {"xid-31", "xid-79"}


def test_the_hosts_clocks_may_differ_by_minutes() -> None:
    """Arrival says that both came together; one host's clock is five minutes behind."""
    site = watching()
    job_over(site, 1, 2, 3)
    site.walk(*site.say(1, LOST))
    site.clock.advance(1)
    behind = later(-300)
    site.walk(*site.say(2, TEARDOWN, event_at=behind), *site.say(3, APPLICATION, event_at=behind))
    (one,) = site.incidents
    assert one.counted == {"xid-45": 1, "xid-31": 1}


def test_old_lines_of_one_boot_that_come_together_belong_together() -> None:
    """Lines of the current boot act at any age: the whole story may be hours old."""
    site = watching()
    job_over(site, 1, 2)
    old = {"event_at": later(-7200), "boot_id": "b"}
    site.walk(*site.say(1, LOST, **old), *site.say(2, TEARDOWN, **old))
    (one,) = site.incidents
    assert one.counted == {"xid-45": 1}


def test_an_application_error_alone_is_one_incident_for_its_job() -> None:
    site = watching()
    job = job_over(site, 1, 2, 3)
    site.walk(*[seen for number in (1, 2, 3) for seen in site.say(number, APPLICATION)])
    assert site.incident.jobs_hit == (job,)
    assert site.incident.evidence_count == 3
    assert site.incident.nodes == {}


def test_ten_thousand_teardowns_are_counted_at_one_root() -> None:
    site = Site(sim_nodes(1250), mode=Mode.off)
    job_over(site, *range(1, 1251))
    flood = [
        seen
        for number in range(1, 1251)
        for seen in site.say(number, *[TEARDOWN] * 8, first_seq=number * 8, boot_id=f"b{number}")
    ]
    assert len(flood) == 10_000
    site.walk(*flood[:5000], *site.say(7, LOST))
    site.clock.advance(1)
    site.walk(*flood[5000:])
    (one,) = site.incidents
    assert one.counted == {"xid-45": 10_000}


class CountedJobs(dict[str, SlurmJob]):
    """`reads`: how often all of them were read."""

    reads = 0

    def __iter__(self) -> Iterator[str]:
        self.reads += 1
        return super().__iter__()

    def values(self) -> ValuesView[SlurmJob]:
        self.reads += 1
        return super().values()

    def items(self) -> ItemsView[str, SlurmJob]:
        self.reads += 1
        return super().items()


def test_not_each_of_many_application_errors_reads_all_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each finding was once compared with every incident, and each comparison read every job: 135 s."""
    site = Site(sim_nodes(250), mode=Mode.off)
    for _ in range(300):
        site.slurm.add_job(nodes=1, gpus=1)
    shown = site.slurm.snapshot()
    jobs = CountedJobs(shown.jobs)
    monkeypatch.setattr(site.slurm, "snapshot", lambda: msgspec.structs.replace(shown, jobs=jobs))
    storm = [seen for number in range(1, 201) for seen in site.say(number, APPLICATION)]
    site.look()
    assert jobs.reads > 0
    jobs.reads = 0
    site.walk(*storm)
    assert jobs.reads < 20
    # The jobs are unknown: so many errors at once are one wave, and no hardware is blamed.
    (wave,) = site.open_incidents
    assert (wave.rule, wave.cause, len(wave.affected)) == ("wave", Cause.application, 200)
    assert Verdict.isolate not in wave.nodes.values()


# --- the same node, other nodes -----------------------------------------------------------------------------


def test_a_second_fault_of_the_same_node_joins() -> None:
    site = watching()
    site.walk(*site.say(1, FATAL))
    site.clock.advance(10)
    site.walk(*site.say(1, LOST))
    one = site.incident
    assert one.fault == "xid-95"
    assert one.evidence_count == 2
    assert one.unusable  # the worse of the two counts


def test_evidence_keeps_how_it_began_and_the_newest() -> None:
    site = watching()
    for second in range(60):
        site.walk(*site.say(1, LOST, first_seq=second, boot_id="b"))
        site.clock.advance(1)
    one = site.incident
    assert one.evidence_count == 60
    assert [seen.arrived_at for seen in one.evidence] == [later(s) for s in (*range(10), *range(20, 60))]


def test_a_milder_fault_of_the_same_node_joins() -> None:
    site = watching()
    site.walk(*site.say(1, LOST))
    site.walk(*site.say(1, DEGRADED))
    assert (site.incident.fault, site.incident.evidence_count) == ("xid-79", 2)
    assert site.incident.fault_class is FaultClass.fatal


def test_worse_after_milder_takes_the_milder_in() -> None:
    site = watching()
    site.walk(*site.say(1, DEGRADED))
    milder = site.incident
    site.clock.advance(3600)
    site.walk(*site.say(1, LOST))
    assert site.incident.fault == "xid-79"
    known = site.ledger.tables.incidents[milder.id]
    assert (known.state, known.merged_into) == (IncidentState.resolved, site.incident.id)


def test_worse_before_milder_in_one_batch_is_one_incident_too() -> None:
    site = watching()
    site.walk(*site.say(1, DEGRADED, LOST))
    (one,) = site.incidents
    assert one.fault == "xid-79"


def test_two_nodes_with_hardware_faults_are_two_incidents_even_in_one_job() -> None:
    site = watching()
    job = job_over(site, 1, 2)
    site.walk(*site.say(1, LOST), *site.say(2, LOST))
    assert {one.root.node for one in site.open_incidents} == {"gpu0001", "gpu0002"}
    assert {one.jobs_hit for one in site.open_incidents} == {(job,)}


def test_the_remedy_goes_up_never_down() -> None:
    site = watching()
    site.walk(*site.say(1, REMAP))
    assert site.incident.remedy[0] is Remedy.drain_then_reset
    site.walk(*site.say(1, LOST))
    assert site.incident.remedy[0] is Remedy.reboot_node
    site.walk(*site.say(1, REMAP.replace("1234", "1235")))
    assert site.incident.remedy[0] is Remedy.reboot_node
    assert Remedy.ticket in site.incident.remedy


# --- shared nodes -------------------------------------------------------------------------------------------


def shared() -> tuple[Site, str, str]:
    """Two jobs on one node: GPUs 0-3 and 4-7."""
    site = watching()
    first = job_over(site, 1, gpus=4)
    second = job_over(site, 1, gpus=4)
    return site, first, second


def test_on_a_shared_node_only_the_jobs_on_the_faulty_gpu_are_hit() -> None:
    site, _, second = shared()
    inventory = [{"index": 5, "pci": "0000:9b:00", "uuid": "GPU-x"}]
    site.walk(beat(name(1), START, gpus=inventory), *site.say(1, LOST))
    assert site.incident.root.gpu == 5
    assert site.incident.jobs_hit == (second,)


def test_unidentified_gpu_blames_no_job() -> None:
    site, _, _ = shared()
    site.walk(*site.say(1, LOST))
    assert site.incident.root.gpu is None
    assert site.incident.jobs_hit == ()


def test_job_named_by_the_signal_is_hit_when_the_gpu_is_unidentified() -> None:
    site, first, _ = shared()
    site.walk(*site.say(1, LOST, job=first))
    assert site.incident.jobs_hit == (first,)


# --- identity -----------------------------------------------------------------------------------------------


def test_an_id_is_a_hash_of_cluster_rule_root_and_opening_evidence() -> None:
    root = Component(cluster=CLUSTER, node="gpu0001", pci="0000:9b:00")
    known = incident_id(CLUSTER, "gpu-lost", root, "d1")
    assert known == incident_id(CLUSTER, "gpu-lost", root, "d1")
    others = {
        incident_id("pod2", "gpu-lost", root, "d1"),
        incident_id(CLUSTER, "gpu-fatal", root, "d1"),
        incident_id(CLUSTER, "gpu-lost", Component(cluster=CLUSTER, node="gpu0002"), "d1"),
        incident_id(CLUSTER, "gpu-lost", root, "d2"),
    }
    assert len(others | {known}) == 5
    assert len(known) == 32
    assert int(known, 16) >= 0


def test_the_same_signals_at_other_times_of_day_give_the_same_id() -> None:
    ids = set()
    for pause_s in (0.0, 3.5):
        site = watching()
        seen = site.say(1, LOST, boot_id="b", first_seq=9)
        site.clock.advance(pause_s)
        site.walk(*seen)
        ids.add(site.incident.id)
    assert len(ids) == 1


def test_the_same_batch_twice_changes_nothing() -> None:
    site = watching()
    job_over(site, 1, 2)
    batch = [*site.say(1, LOST, FATAL), *site.say(2, APPLICATION.replace("31", "13"), DEGRADED)]
    site.walk(*batch)
    before = site.incidents
    site.walk(*batch)
    assert site.incidents == before


def test_evidence_of_an_incident_that_is_over_opens_nothing_again() -> None:
    site = watching()
    batch = site.say(1, LOST)
    site.walk(*batch)
    closed = site.incident.id
    site.send_command(CommandKind.resolve, incident=closed)
    site.walk()
    for pause_s in (1, 3600):
        site.clock.advance(pause_s)
        site.walk(*batch)
        assert site.open_incidents == []
        assert "resolved by ann" in (site.ledger.tables.incidents[closed].closed_why or "")


# --- silence meets what it explains -------------------------------------------------------------------------


def fade(site: Site, numbers: Sequence[int], everybody: Sequence[int], seconds: int = 120) -> None:
    """All beat each 10 s, each at a moment of its own; after a minute `numbers` stop one by one."""
    for second in range(seconds):
        batch = []
        for number in everybody:
            stopped = number in numbers and second >= 60
            if second % 10 == number % 10 and not stopped:
                batch.append(beat(name(number), site.now))
        site.walk(*batch)
        site.clock.advance(1)


def test_a_switch_whose_nodes_fall_silent_one_by_one_is_one_open_incident() -> None:
    nodes = [
        type(node)(name=node.name, gpus=8, switch=f"leaf{index // 8}", partitions=("train",))
        for index, node in enumerate(sim_nodes(32))
    ]
    site = Site(nodes, mode=Mode.off)
    fade(site, range(1, 9), range(1, 33))
    assert [one.fault for one in site.open_incidents] == ["switch-silent"]
    assert {part.node for part in site.incident.affected} == {name(number) for number in range(1, 9)}


def test_fleet_going_silent_node_by_node_is_one_open_incident_without_blame() -> None:
    site = watching()
    fade(site, range(1, 33), range(1, 33))
    assert [one.fault for one in site.open_incidents] == ["fleet-silent"]
    assert site.incident.nodes == {}
    fade(site, (), range(1, 33), 15)
    assert [one.fault for one in site.open_incidents] == ["fleet-silent"]
    fade(site, (), range(1, 33), 330)  # until the last one has been back for five minutes
    assert site.open_incidents == []


# --- the owner of a node that is out ------------------------------------------------------------------------


def test_a_persons_drain_is_an_incident_with_an_owner_that_ends_when_it_is_lifted() -> None:
    site = watching()
    site.slurm.person_drain(name(4), "replacing PSU", "ann")
    site.walk()
    one = site.incident
    assert (one.rule, one.owner, one.owner_since) == ("person-drain", "ann", START)
    site.run_for(600)
    assert site.incident.id == one.id
    site.slurm.resume(name(4))
    site.walk()
    assert site.open_incidents == []


def test_resolved_drain_incident_stays_resolved_while_the_node_is_drained() -> None:
    site = watching()
    site.slurm.person_drain(name(4), "replacing PSU", "ann")
    site.walk()
    known = site.incident.id
    site.clock.advance(600)
    site.send_command(CommandKind.resolve, incident=known)
    site.walk()
    site.run_for(3)
    assert site.open_incidents == []
    assert site.ledger.tables.incidents[known].closed_why == "resolved by ann: because"


def test_slurms_own_drain_is_an_incident_that_ends_when_it_is_lifted() -> None:
    site = watching()
    site.slurm.person_drain(name(4), "Kill task failed", "root")
    site.walk()
    assert (site.incident.rule, site.incident.fault) == ("slurm-drain", "slurm-drain:kill-task-failed")
    site.slurm.resume(name(4))
    site.walk()
    assert site.open_incidents == []


def test_a_fault_on_a_node_that_a_person_holds_knows_its_owner_and_that_it_was_out() -> None:
    site = watching()
    site.slurm.person_drain(name(4), "replacing PSU", "ann")
    site.walk(*site.say(4, LOST))
    (fault,) = [one for one in site.open_incidents if one.rule == "gpu-lost"]
    assert (fault.owner, fault.node_was_out) == ("ann", True)


# --- a fault without a rule --------------------------------------------------------------------------------


def test_a_finding_that_no_rule_takes_is_an_error_that_names_it() -> None:
    finding = Finding(
        rule="none",
        fault="new-fault",
        fault_class=FaultClass.fatal,
        component=Component(cluster=CLUSTER, node=name(1)),
        at=START,
        arrived_at=START,
        text="something new",
        confidence=1.0,
        evidence=(
            Evidence(
                digest="d",
                at=START,
                component=Component(cluster=CLUSTER, node=name(1)),
                text="x",
                sense=Sense.kernel,
            ),
        ),
    )
    known: list[Incident] = []
    work = Book(rules_in(), known, Picture(CLUSTER, watching_since=START), START)
    try:
        take_finding(work, finding)
    except LookupError as error:
        assert "new-fault" in str(error)
    else:
        raise AssertionError("it was taken")
