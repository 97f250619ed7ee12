"""The queue of incidents: its order, its filters, and what a row says."""

from datetime import timedelta

import msgspec
import pytest

from healer.console.views.queue_view import Needs, Wanted, asking_ids, queue, queue_row
from healer.model import Component, Guard, Incident, IncidentState, Run, RunState, Severity
from healer.ports.answers import OpenIncident
from tests.support.console_sample import CLUSTER, NOW, Sample
from tests.support.console_site import make_sample, standing_of


@pytest.fixture(scope="module")
def sample() -> Sample:
    return make_sample(32)


def one(name: str, minutes: int = 0, severity: Severity = Severity.P2, **fields: object) -> OpenIncident:
    return OpenIncident(
        id=name, severity=severity, state=IncidentState.open, rule="gpu-lost", title="gone",
        root=Component(cluster=CLUSTER, node=f"n-{name}"), opened=NOW - timedelta(minutes=minutes),
        **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def names(found: list[OpenIncident]) -> list[str]:
    return [incident.id for incident in found]


def test_the_most_urgent_comes_first() -> None:
    found = [
        one("old", 9), one("new", 1), one("taken", 0, acknowledged_by="ann"), one("asks", 8),
        one("mild", 0, Severity.P3), one("severe", 60, Severity.P1, acknowledged_by="ann"),
        one("serves", 7, known_bad_in_service=True),
    ]  # fmt: skip
    assert names(queue(found, {"asks"}, Wanted())) == [
        "severe", "asks", "serves", "new", "old", "taken", "mild",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(severity=Severity.P1), ["severe"]),
        (Wanted(state=IncidentState.mitigating), ["works"]),
        (Wanted(needs=Needs.decision), ["asks"]),
        (Wanted(needs=Needs.nobody), ["severe", "asks"]),
        (Wanted(needs=Needs.me, me="ann"), ["works"]),
        (Wanted(text="XID-79"), ["asks"]),
        (Wanted(text="n-sev"), ["severe"]),
        (Wanted(text="4711"), ["works"]),
        (Wanted(text="work"), ["works"]),
    ],
)
def test_filters_leave_what_fits(wanted: Wanted, expected: list[str]) -> None:
    taken = one("works", acknowledged_by="ann", jobs_hit=("4711",))
    found = [
        one("severe", severity=Severity.P1),
        one("asks", fault="xid-79"),
        msgspec.structs.replace(taken, state=IncidentState.mitigating),
    ]
    assert names(queue(found, {"asks"}, wanted)) == expected


def test_only_a_run_that_wants_a_person_asks(sample: Sample) -> None:
    standing = standing_of(sample)
    states = {run.state for run in standing.asking if run.incident in asking_ids(standing.asking)}
    assert states == {RunState.proposed, RunState.waiting_approval, RunState.stuck}


def row_of(sample: Sample, rule: str, **change: object) -> tuple[str, str, str]:
    detail = next(one for one in sample.details.values() if one.incident.rule == rule)
    incident: Incident = msgspec.structs.replace(detail.incident, **change)
    runs: list[Run] = [run.run for run in detail.runs] if "run" not in change else []
    row = queue_row(incident, runs[-1] if runs else None, NOW)
    return row.doing, row.waits, row.who


def test_a_row_says_what_healer_does_and_what_it_waits_for(sample: Sample) -> None:
    doing, waits, who = row_of(sample, "nvswitch-fatal")
    assert (doing, who) == ("drain-reboot-verify: waits for approval", "")
    assert waits.startswith("Can be approved until ")
    assert row_of(sample, "gpu-lost") == ("drain-reset-verify: running", "", "mara")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"held_by": Guard.slots}, ("held back", "Guard slots.")),
        ({"known_bad_in_service": True}, ("cannot drain it", "Faulty and in service.")),
        ({"owner": "jonas"}, ("leaves the node to its owner", "Drained by jonas, and stays drained.")),
        ({"settle_until": NOW + timedelta(seconds=2)}, ("gathers what belongs to it", "Decides in 2 s.")),
        ({"state": IncidentState.verifying}, ("watches the node", "")),
        ({"settle_until": NOW, "state": IncidentState.open}, ("no action", "")),
        ({"state": IncidentState.resolved, "closed_why": "Mended."}, ("", "Mended.")),
    ],
)
def test_a_row_without_a_run_says_why(
    sample: Sample, change: dict[str, object], expected: tuple[str, str]
) -> None:
    assert row_of(sample, "gpu-lost", run=None, **change)[:2] == expected


def test_resolved_incident_is_shown_for_review_or_as_merged(sample: Sample) -> None:
    over = {"state": IncidentState.resolved, "run": None}
    assert row_of(sample, "gpu-lost", **over)[2] == "to review"
    assert row_of(sample, "gpu-lost", **over, merged_into="0123456789ab")[2] == "part of 01234567"
