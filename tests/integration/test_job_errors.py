"""Errors of a job's own programs: counted on its page, with no incident and no node touched."""

import pytest
import sqlalchemy as sa

from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.read_queries import PostgresJobs
from healer.engine.records import job_history
from healer.ports.answers import JobErrors
from tests.support.detector import Place
from tests.support.loop import CLUSTER, LOST, lines, name, shipped

ENDED = "NVRM: Xid (PCI:0000:9b:00): 43, pid=7, name=python, Ch 00000010"
TORN_DOWN = "NVRM: Xid (PCI:{pci}:00): 45, pid=7, name=python, Ch {channel:08x}"


def torn_down(pci: str, count: int) -> list[str]:
    return [TORN_DOWN.format(pci=pci, channel=channel) for channel in range(count)]


@pytest.fixture
def place(fresh_database: sa.Engine) -> Place:
    return Place(fresh_database)


def errors_of(place: Place, job: str) -> tuple[JobErrors, ...]:
    rows = PostgresJobs(place.engine, PostgresSnapshots(place.engine)).rows(CLUSTER, job)
    return job_history(rows, job, shipped()).errors


def test_a_program_that_ended_is_counted_for_its_job_and_touches_no_node(place: Place) -> None:
    job, other = place.slurm.add_job(nodes=2), place.slurm.add_job(nodes=1)
    place.poll()
    detector = place.detector()
    first, second = place.slurm.snapshot().jobs[job].nodes
    at = place.clock.now()
    place.inbox.add(lines(first, ENDED, *torn_down("0000:9b", 20), at=at, boot_id="b1"))
    place.inbox.add(lines(first, *torn_down("0000:3b", 5), at=at, boot_id="b1"))
    place.inbox.add(lines(second, *torn_down("0000:9b", 7), at=at, boot_id="b2"))
    for _ in range(4):
        detector.once()
        place.clock.advance(20)
        place.poll()
    assert place.all_incidents() == []
    assert place.poked == []
    assert not any(node.drain for node in place.slurm.snapshot().nodes.values())
    torn, ended = errors_of(place, job)
    assert (torn.fault, torn.lines, torn.nodes, torn.node) == ("xid-45", 32, 2, min(first, second))
    assert (ended.fault, ended.lines, ended.nodes, ended.node) == ("xid-43", 1, 1, first)
    assert ended.text.startswith("Xid 43: ") and torn.text.startswith("Xid 45: ")
    # Lines of one moment are kept a hair apart.
    assert abs((ended.since - at).total_seconds()) < 0.001
    assert errors_of(place, other) == ()


def test_a_fault_of_the_hardware_is_no_error_of_its_programs(place: Place) -> None:
    job = place.slurm.add_job(nodes=2)
    place.poll()
    (node, _) = place.slurm.snapshot().jobs[job].nodes
    place.inbox.add(lines(node, LOST, at=place.clock.now(), boot_id="b1"))
    place.detector().once()
    assert [one.jobs_hit for one in place.all_incidents()] == [(job,)]
    assert errors_of(place, job) == ()
    assert errors_of(place, name(1)) == ()
