"""Each row of the verdicts on docs/concepts.md, played: what a verdict causes, and what it never does."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from healer.incidents.lifecycle import PROBATION
from healer.model import Message, Ticket, Verdict
from tests.support.loop import LOST, Site, name

PAGE = Path(__file__).parents[2] / "docs/concepts.md"
NODE = name(1)


class Row(NamedTuple):
    means: str
    hooks: str
    notified: str
    scheduling: str


def rows() -> dict[str, Row]:
    found = re.findall(
        r"^\| `(\w+)` \|(.*)\|(.*)\|(.*)\|(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    return {word: Row(*(cell.strip() for cell in cells)) for word, *cells in found if word in set(Verdict)}


NOT_LISTED = "NVRM: Xid (PCI:0000:9b:00): 999, pid=1, name=a, what nobody listed"
NO_REMEDY = "NVRM: Xid (PCI:0000:9b:00): 92, pid='<unknown>', name=<unknown>, High single-bit ECC error rate"
MAY_WAIT = "NVRM: Xid (PCI:0000:9b:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked"
NO_NEW_JOB = (
    "NVRM: Xid (PCI:0000:9b:00): 109, pid=1, name=a, Ch 8, errorString CTX SWITCH TIMEOUT, Info 0x5c006"
)


def played(line: str) -> Site:
    """A node with a job, and a minute after the line."""
    site = Site(32)
    site.slurm.add_job(required=[NODE], gpus=4)
    site.run_for(5)
    site.run_for(60, *site.say(1, line)) if line else site.run_for(60)
    return site


def verdict_of(site: Site) -> Verdict:
    said = [one.nodes[NODE] for one in site.open_incidents if NODE in one.nodes]
    return max(said, key=list(Verdict).index, default=Verdict.healthy)


def messages_of(site: Site) -> list[Message | Ticket]:
    return list(site.ledger.tables.messages.values())


def starts_here(site: Site) -> bool:
    job = site.slurm.job(site.slurm.add_job(required=[NODE], gpus=0))
    return job is not None and job.state == "RUNNING"


def test_the_page_has_a_row_for_each_verdict_mildest_first() -> None:
    assert list(rows()) == list(Verdict)


@pytest.mark.parametrize("line", ["", NOT_LISTED, NO_REMEDY])
def test_healthy_and_watch_stop_no_job_and_start_nothing(line: str) -> None:
    site = played(line)
    word = verdict_of(site)
    assert word is (Verdict.watch if line else Verdict.healthy)
    row = rows()[word]
    assert row.scheduling.startswith("none")
    assert not site.node(1).drain and starts_here(site) and site.runs == []
    assert row.notified in {"no one", "no one; only the console shows it"}
    assert messages_of(site) == []


def test_a_suspect_node_has_a_plan_and_its_jobs_go_on_and_start() -> None:
    site = played(MAY_WAIT)
    assert verdict_of(site) is Verdict.suspect
    row = rows()[Verdict.suspect]
    assert "a plan exists" in row.means and row.scheduling.startswith("jobs run and start")
    site.run_for(600, step_s=10)
    (plan,) = site.runs
    assert plan.playbook == "repair-when-idle"
    assert not site.node(1).drain and starts_here(site)


def test_a_suspect_node_that_the_vendor_wants_no_new_job_on_is_drained_and_its_job_goes_on() -> None:
    site = played(NO_NEW_JOB)
    assert verdict_of(site) is Verdict.suspect
    assert "against new jobs on it, healer drains it immediately" in rows()[Verdict.suspect].scheduling
    assert site.node(1).drain and not starts_here(site)
    (job,) = site.slurm.jobs_on(NODE)
    assert (job.state, job.restarts) == ("RUNNING", 0)


def test_a_node_to_isolate_is_drained_by_the_gate_and_takes_no_job() -> None:
    site = played(LOST)
    assert verdict_of(site) is Verdict.isolate
    row = rows()[Verdict.isolate]
    assert row.scheduling.startswith("drained by the gate") and "P1" in row.notified
    assert site.node(1).drain and not starts_here(site)
    assert site.incident.severity == "P1" and messages_of(site)


def test_a_node_to_isolate_that_must_stay_is_known_bad_and_pages() -> None:
    site = Site(32)
    site.run_for(5)
    site.pause()
    site.run_for(60, *site.say(1, LOST))
    row = rows()[Verdict.isolate]
    assert "*faulty, in service*" in row.scheduling and "P0 pages" in row.notified
    assert not site.node(1).drain and site.incident.known_bad_in_service
    assert site.incident.severity == "P0" and site.pages


def test_a_returned_node_is_watched_for_seven_days() -> None:
    assert "7 days after a return" in rows()[Verdict.watch].means
    assert PROBATION.days == 7
