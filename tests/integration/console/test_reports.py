"""Figures of a period, and the hand-over of a shift."""

import codecs
import re
from datetime import timedelta

import msgspec
import pytest
from fastapi.testclient import TestClient

from healer.console.views import Shown, fleet_view, reports_view, standing_view
from healer.model import AuditRecord, Role
from healer.ports.answers import Group, Period, RuleFigures, Saved, Spread
from healer.ports.queries import AuditQuery, IncidentQuery, RunQuery
from tests.support import console_desk, console_sample
from tests.support.console_sample import CLUSTER, NOW, Sample
from tests.support.console_site import SampleFigures, Site, make_sample, queries_of, standing_of

pytestmark = pytest.mark.heavy

COOKIE = {"Cookie": "healer_session=cookie-good"}
HOSTILE = "<script>alert(1)</script> [x](javascript:y)"


@pytest.fixture
def sample() -> Sample:
    return make_sample(32)


def shift(sample: Sample, hours: float = 12) -> Shown:
    queries, since = queries_of(sample), NOW - timedelta(hours=hours)
    site = standing_of(sample)
    rows = fleet_view.node_rows(site)
    ended = IncidentQuery(clusters=[CLUSTER], open=False, closed_since=since)
    read = reports_view.Shift(
        since,
        ended=queries.incidents.page(ended, limit=101).items,
        runs=queries.runs.page(RunQuery(clusters=[CLUSTER]), limit=300).items,
        records=queries.audit.page(AuditQuery(people_since=since, but=reports_view.DOORS), limit=101).items,
    )
    return reports_view.handover(site, standing_view.strip(site, rows, NOW), rows, read, NOW)


def empty() -> Period:
    return console_desk.period(NOW, NOW, [])


def test_a_period_without_incidents_has_dashes_and_no_rates() -> None:
    found = reports_view.reports(empty())
    assert {(row.median, row.p90, row.most) for row in found.times} == {("–", "–", "–")}
    facts = {name: (figure, rests) for name, figure, rests in found.facts}
    assert facts["GPU-hours lost"] == ("unknown", "no affected job reported its loss")
    assert facts["Relapses"][0] == "–"
    few = "0 jobs restarted by healer without help; people handled 0 incidents with jobs: too few to compare"
    assert facts["GPU-hours saved"] == ("unknown", few)


def test_one_incident_is_no_incidents() -> None:
    stats = msgspec.structs.replace(empty().stats, saved=Saved(jobs=1, people=1))
    facts = {
        name: rests
        for name, _, rests in reports_view.reports(msgspec.structs.replace(empty(), stats=stats)).facts
    }
    assert facts["GPU-hours saved"] == (
        "1 job restarted by healer without help; people handled 1 incident with jobs: too few to compare"
    )


def test_losses_say_what_they_rest_on() -> None:
    stats = msgspec.structs.replace(
        empty().stats, gpu_hours_lost=1412.4, gpu_hours_at_most=12.25, jobs_unknown=1
    )
    period = msgspec.structs.replace(empty(), stats=stats, returned=3, relapsed=1)
    facts = {name: (figure, rests) for name, figure, rests in reports_view.reports(period).facts}
    assert facts["GPU-hours lost"] == (
        "1,412",
        "counted once per affected job run; 12.2 of them are an upper bound, because no durable checkpoint "
        "is known; unknown for 1 more job",
    )
    assert facts["Relapses"][0] == "33%"
    stats = msgspec.structs.replace(stats, gpu_hours_lost=None)
    found = reports_view.reports(msgspec.structs.replace(period, stats=stats)).facts
    assert ("GPU-hours lost", "unknown", "no affected job reported its loss; unknown for 1 job") in found


def test_groups_show_median_and_p90_and_clocks_that_differ_make_no_time_negative() -> None:
    some, none = Spread(count=2, p50_s=-0.2, p90_s=65.0, max_s=70.0), Spread(count=0)
    group = Group(name="fatal_x", incidents=2, detect=some, decide=none, drain=some, to_return=none)
    (row,) = reports_view.reports(msgspec.structs.replace(empty(), by_class=(group,))).by_class
    assert (row.name, row.detect, row.decide) == ("fatal x", "0 ms / 1 min", "–")


def test_precision_is_of_judged_incidents_alone_and_the_list_is_bounded() -> None:
    rules = tuple(
        RuleFigures(rule=f"r{number}", incidents=9, true_faults=3, false_alarms=1) for number in range(130)
    )
    silent = RuleFigures(rule="silent", incidents=4)
    found = reports_view.reports(msgspec.structs.replace(empty(), by_rule=(silent, *rules)))
    assert (found.rules[0].precision, found.rules[0].tone) == ("not reviewed", "plain")
    assert (found.rules[1].precision, found.rules[1].tone) == ("75% (3 of 4)", "warn")
    assert (len(found.rules), found.rules_more) == (100, 31)


def test_a_shift_holds_what_ended_in_it_and_all_that_is_open(sample: Sample) -> None:
    found = shift(sample)
    details = [one.incident for one in sample.details.values()]
    since = NOW - timedelta(hours=12)
    assert {one.id for one in found.open} == {one.id for one in details if one.is_open}
    assert {one.id for one in found.resolved} == {
        one.id for one in details if one.closed and one.closed >= since
    }
    assert [one.severity for one in found.open] == sorted(one.severity for one in found.open)
    assert [row.name for row in found.known_bad] == ["gpu0009"]
    assert {row.record.actor for row in found.people} == {"mara"}
    assert not shift(sample, hours=0.01).resolved and not shift(sample, hours=0.01).runs


def test_sign_ins_are_left_out_of_the_shift_report(sample: Sample) -> None:
    sample.records += [
        AuditRecord(cluster=CLUSTER, at=NOW, actor="ann", verb=verb, subject="token/x", data={})
        for verb in ("access.refused", "session.opened", "token.created")
    ]
    assert {row.record.actor for row in shift(sample).people} == {"mara"}


def test_long_lists_are_cut_and_say_so(sample: Sample) -> None:
    sample.records += [
        AuditRecord(cluster=CLUSTER, at=NOW, actor="mara", verb="x.y", subject=f"node/n{number}", data={})
        for number in range(150)
    ]
    found = shift(sample)
    assert len(found.people) == 100 and found.cut == ("actions by people",)
    assert "Only the first 100 are listed of: actions by people." in reports_view.markdown(found)


def test_the_markdown_has_every_part_and_leaves_what_others_wrote_inert(sample: Sample) -> None:
    console_sample.storm(sample)
    for key, detail in list(sample.details.items()):
        incident = msgspec.structs.replace(detail.incident, title=HOSTILE)
        sample.details[key] = msgspec.structs.replace(detail, incident=incident)
    answer = TestClient(Site(sample).app).get("/reports/handover.md", headers=COOKIE)
    assert answer.headers["content-type"].startswith("text/markdown")
    text = answer.text
    for part in ("Banners", "Waiting for a person", "Faulty and in service", "Open",
                 "Closed in this shift", "Runs in this shift", "Actions by people"):  # fmt: skip
        assert f"## {part}\n" in text
    assert not re.search(r"(?<!\\)[<\]]", text), "each sign that Markdown acts on is escaped"
    assert "- Circuit breaker open since" in text and "gpu0009: \\<script" in text


@pytest.mark.parametrize("path", ["/reports", "/reports/handover"])
@pytest.mark.parametrize("period", ["12h", "24h", "7d", "30d", "nonsense"])
def test_report_period_is_part_of_the_url(sample: Sample, path: str, period: str) -> None:
    page = TestClient(Site(sample, role=Role.viewer).app).get(f"{path}?period={period}", headers=COOKIE)
    assert page.status_code == 200
    usual = "24h" if path == "/reports" else "12h"
    chosen = usual if period == "nonsense" else period
    assert f'href="{path}?period={chosen}" aria-current="true"' in page.text


def test_a_look_for_news_reads_no_figures(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(SampleFigures, "period")
    page = TestClient(Site(sample).app).get("/reports", headers={**COOKIE, "X-Partial": "1"})
    assert page.status_code == 200 and 'id="strip"' in page.text and 'id="nav"' in page.text


def test_report_pages_escape_text_from_others(sample: Sample) -> None:
    for key, detail in list(sample.details.items()):
        incident = msgspec.structs.replace(detail.incident, title=HOSTILE, closed_why=HOSTILE, rule=HOSTILE)
        sample.details[key] = msgspec.structs.replace(detail, incident=incident)
    client = TestClient(Site(sample).app)
    for path in ("/reports?period=30d", "/reports/handover"):
        page = client.get(path, headers=COOKIE).text
        assert "<script>alert" not in page and "&lt;script&gt;" in page, path


def test_a_quiet_shift_says_so() -> None:
    client = TestClient(Site(make_sample(8, empty=True)).app)
    assert "No incidents in this period." in client.get("/reports", headers=COOKIE).text
    page = client.get("/reports/handover", headers=COOKIE).text
    assert "Nothing is waiting for a person." in page and "No incident is open." in page


def test_capacity_out_of_service_has_a_chart_its_table_and_a_file(sample: Sample) -> None:
    client = TestClient(Site(sample).app)
    page = client.get("/reports?period=7d", headers=COOKIE).text
    assert 'data-pic="out"' in page and 'data-png="out"' in page and "Capacity out of service" in page
    raw = client.get("/reports/out.csv?period=7d", headers=COOKIE).content
    assert raw.startswith(codecs.BOM_UTF8), "without it Excel reads UTF-8 as the letters of its country"
    file = raw.decode("utf-8-sig").splitlines()
    assert file[0] == "Time (UTC),healer,Slurm,people,unknown,planned maintenance"
    assert len(file) == 9 and file[2].endswith(",18.0,4.0,12.0,0.0,0.0")
