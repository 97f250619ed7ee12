"""The incident at a glance and the life line of a node, on their pages."""

import re
from datetime import timedelta
from xml.etree import ElementTree as ET

import msgspec
import pytest
from fastapi.testclient import TestClient

from healer.model import HitBasis, JobHit, LogEntry, StepEvent
from tests.support.console_pages import incident_of
from tests.support.console_sample import NOW, Sample
from tests.support.console_site import Site, make_sample

pytestmark = pytest.mark.heavy

COOKIE = {"Cookie": "healer_session=cookie-good"}
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def sample() -> Sample:
    return make_sample(32)


def figure_of(site: Site, path: str) -> ET.Element:
    page = TestClient(site.app).get(path, headers=COOKIE)
    assert page.status_code == 200
    found = re.findall(r'<figure class="lanes".*?</figure>', page.text, re.DOTALL)
    assert len(found) == 1
    # Attributes without a value are HTML, not XML.
    return ET.fromstring(re.sub(r" (download|hidden)(?=[ >])", r' \1=""', found[0]))


def words_of(each: ET.Element | None) -> str:
    assert each is not None
    return " ".join(" ".join(each.itertext()).split())


def moments(figure: ET.Element) -> list[str]:
    return [words_of(item) for item in figure.iterfind("ol/li")]


def lanes(figure: ET.Element) -> list[str | None]:
    return [text.text for text in figure.iter("text") if text.get("class") == "lane"]


def returned(sample: Sample, name: str) -> None:
    """The job runs again a minute after it was requeued, and the node is back after three."""
    detail = sample.details[name]
    opened, run = detail.incident.opened, detail.runs[0]
    back = LogEntry(
        run=run.run.id, at=opened + timedelta(minutes=3), epoch=1, step="back", event=StepEvent.done,
        data={"verb": "resume"},
    )  # fmt: skip
    runs = (msgspec.structs.replace(run, log=(*run.log, back)), *detail.runs[1:])
    sample.details[name] = msgspec.structs.replace(detail, runs=runs)
    snapshot = sample.standing.snapshot
    assert snapshot is not None
    again = {"restarts": 1, "start_at": opened + timedelta(minutes=1)}
    jobs = {**snapshot.jobs, "4711": msgspec.structs.replace(snapshot.jobs["4711"], **again)}
    sample.standing = msgspec.structs.replace(
        sample.standing, snapshot=msgspec.structs.replace(snapshot, jobs=jobs)
    )


def test_an_incident_shows_in_order_what_happened_when(sample: Sample) -> None:
    site = Site(sample)
    name = incident_of(site, "gpu-lost")
    returned(sample, name)
    figure = figure_of(site, f"/incidents/{name}")
    assert moments(figure) == [
        "1 First signal −0.004 s",
        "2 Detected +0.000 s",
        "3 Decided +2.003 s",
        "4 Drained +2.016 s",
        "5 Requeued +2.410 s",
        "6 Job runs again +1 min 0 s",
        "7 Returned +3 min 0 s",
    ]
    assert lanes(figure) == [
        "Signals", "Decisions", "Steps", "People and messages", "Out of service", "job 4711",
    ]  # fmt: skip
    picture = figure.find("svg")
    assert picture is not None and picture.get("role") == "img"
    assert picture.get("aria-labelledby") == "glance-t glance-d"
    assert "Decided: 2026-11-20 03:12:30 UTC" in words_of(picture.find("desc"))
    words = words_of(figure.find(".//details"))
    assert "job 4711 64 GPU-hours lost since the checkpoint of 20 Nov 02:42 UTC" in words
    assert "job 4711 steps 12340 to 12519, restart count 0" in words


def test_a_job_that_waits_to_run_again_does_not_run_yet(sample: Sample) -> None:
    site = Site(sample)
    name = incident_of(site, "gpu-lost")
    returned(sample, name)
    snapshot = sample.standing.snapshot
    assert snapshot is not None
    waits = {**snapshot.jobs, "4711": msgspec.structs.replace(snapshot.jobs["4711"], state="PENDING")}
    now = msgspec.structs.replace(snapshot, jobs=waits)
    sample.standing = msgspec.structs.replace(sample.standing, snapshot=now)
    assert "again" not in " ".join(moments(figure_of(site, f"/incidents/{name}")))


def test_a_shadow_run_drained_nothing(sample: Sample) -> None:
    site = Site(sample)
    name = incident_of(site, "gpu-lost")
    detail = sample.details[name]
    runs = tuple(
        msgspec.structs.replace(each, run=msgspec.structs.replace(each.run, shadow=True))
        for each in detail.runs
    )
    sample.details[name] = msgspec.structs.replace(detail, runs=runs)
    figure = figure_of(site, f"/incidents/{name}")
    assert [moment.split(" ")[1] for moment in moments(figure)] == ["First", "Detected", "Decided"]
    assert "Out of service: none" in lanes(figure) and "Steps" in lanes(figure)


def test_an_incident_without_jobs_and_signals_has_its_lanes(sample: Sample) -> None:
    site = Site(sample)
    name = next(key for key, each in sample.details.items() if each.incident.rule == "person-drain")
    figure = figure_of(site, f"/incidents/{name}")
    assert moments(figure)[0].startswith("1 ") and "Steps: none" in lanes(figure)


def test_a_job_whose_work_goes_on_has_no_end(sample: Sample) -> None:
    site = Site(sample)
    name = incident_of(site, "gpu-lost")
    detail = sample.details[name]
    hit = JobHit(job="4711", basis=HitBasis.runs_on, started_at=NOW - timedelta(days=3))
    incident = msgspec.structs.replace(detail.incident, hit=(hit,))
    sample.details[name] = msgspec.structs.replace(detail, incident=incident)
    words = words_of(figure_of(site, f"/incidents/{name}").find(".//details"))
    assert "2026-11-17 03:16:40 UTC lasts job 4711 ran, restart count 0" in words


def test_a_node_has_its_year_with_the_list_behind_it(sample: Sample) -> None:
    figure = figure_of(Site(sample), "/nodes/pod1/gpu0017")
    assert lanes(figure) == [
        "Incidents", "Out of service", "Repairs and returns", "Replaced GPUs", "Versions and boot: none",
    ]  # fmt: skip
    links = [link.get("href", "") for link in figure.iterfind(".//td/a")]
    assert {link.split("/")[1] for link in links} == {"incidents", "runs"}
    assert "out of service by healer" in words_of(figure.find(".//details"))


def test_nothing_in_a_chart_is_a_style_or_a_script(sample: Sample) -> None:
    site = Site(sample)
    name = incident_of(site, "gpu-lost")
    detail = sample.details[name]
    incident = msgspec.structs.replace(detail.incident, title=HOSTILE)
    sample.details[name] = msgspec.structs.replace(detail, incident=incident)
    for path in (f"/incidents/{name}", "/nodes/pod1/gpu0017"):
        figure = figure_of(site, path)
        assert not [
            each for each in figure.iter() if "style" in each.attrib or each.tag in ("style", "script")
        ]
        assert HOSTILE in words_of(figure)
