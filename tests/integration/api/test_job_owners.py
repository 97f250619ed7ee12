"""People without a role see the jobs of the Slurm user who is called as they are, and nothing else."""

import re
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from healer.adapters.postgres.tables import goodput, job_lives, requeues
from healer.api.signing_in import open_session
from healer.model import Component, Evidence, HitBasis, IncidentState, JobHit, Role, Sense
from healer.model.goodput import LifeSeen
from healer.model.grants import AccessRules, Grant
from healer.ports.directory import Arrival
from healer.ports.sign_in import SignInRefused
from healer.text import to_stored
from tests.support.api import CLUSTER, incident, save_incident, snapshot
from tests.support.persons import ISSUER, Site, session_headers
from tests.support.seals import seal_all

JOB = f"/jobs/{CLUSTER}/4711"


@pytest.fixture
def site(fresh_database: sa.Engine) -> Site:
    site = Site(fresh_database)
    let_owners_look(site, allowed=True)
    shown = snapshot()
    of_ann = msgspec.structs.replace(shown.jobs["4711"], user="ann")
    of_bob = msgspec.structs.replace(of_ann, id="4712", user="bob")
    site.api.snapshots.put(msgspec.structs.replace(shown, jobs={"4711": of_ann, "4712": of_bob}))
    return site


def let_owners_look(site: Site, *, allowed: bool) -> None:
    access = AccessRules(
        job_owners=allowed, grants=(Grant(name="eyes", role=Role.viewer, groups=("staff",)),)
    )
    site.api.rules = msgspec.structs.replace(site.api.rules, access=access)


def test_owner_reads_the_own_job_and_no_other(site: Site) -> None:
    ann = site.arrive("s-1", "students", names=("ann",))
    assert site.ask("GET", JOB, ann).json()["nodes"] == ["gpu0001", "gpu0002"]
    for path in (f"/jobs/{CLUSTER}/4712", f"/jobs/{CLUSTER}/9999", "/jobs/pod9/4711"):
        assert site.ask("GET", path, ann).status_code == 403, path


def test_a_job_goes_by_the_name_that_slurms_commands_give_it(site: Site) -> None:
    """`squeue` lists a task of an array as 4700_3, and a component of a heterogeneous job as 4720+1."""
    shown = snapshot()
    task = msgspec.structs.replace(shown.jobs["4711"], user="ann", array_job="4700", array_task=3)
    part = msgspec.structs.replace(task, id="4721", het_job="4720", het_offset=1, array_job="", user="bob")
    site.api.snapshots.put(msgspec.structs.replace(shown, jobs={"4711": task, "4721": part}))
    site.use(rules=lambda: site.api.rules)
    ann = site.arrive("s-1", names=("ann",))
    found = site.ask("GET", f"/jobs/{CLUSTER}/4700_3", ann).json()
    assert (found["id"], found["nodes"]) == ("4711", ["gpu0001", "gpu0002"])
    page = site.page().get(f"/jobs/{CLUSTER}/4700_3", headers=session_headers(ann))
    assert (page.status_code, "gpu0002" in page.text) == (200, True)
    for other in ("4720+1", "4700_4", "+None"):
        assert site.ask("GET", f"/jobs/{CLUSTER}/{other}", ann).status_code == 403, other
    bob = site.arrive("s-2", names=("bob",))
    assert site.ask("GET", f"/jobs/{CLUSTER}/4720+1", bob).json()["id"] == "4721"


def test_an_incident_of_several_jobs_shows_an_owner_the_own_one_alone(site: Site) -> None:
    hits = tuple(
        JobHit(job=job, basis=HitBasis.runs_on, user=of) for job, of in (("4711", "ann"), ("4712", "bob"))
    )
    at, where = datetime(2026, 11, 1, tzinfo=UTC), Component(cluster=CLUSTER, node="gpu0001", gpu=3)
    line = Evidence(
        digest="d", at=at, component=where, text="pid=7, name=bobs_secret", sense=Sense.kernel, job="4712"
    )
    several = msgspec.structs.replace(incident(1), jobs_hit=("4711", "4712"), hit=hits, evidence=(line,))
    with site.api.engine.begin() as conn:
        save_incident(conn, several)
    ann, eyes = site.arrive("s-1", names=("ann",)), site.arrive("s-3", "staff", names=("carol",))
    found, whole = (site.ask("GET", JOB, who).json() for who in (ann, eyes))
    assert [each["jobs_hit"] for each in whole["incidents"]] == [["4711", "4712"]]
    assert [each["jobs_hit"] for each in found["incidents"]] == [["4711"]], found
    assert not re.search("4712|bob", msgspec.json.encode(found).decode())
    site.use(rules=lambda: site.api.rules)
    page = site.page().get(JOB, headers=session_headers(site.arrive("s-1", names=("ann",))))
    assert (page.status_code, "4712" in page.text) == (200, False)


def test_an_incident_of_another_job_on_the_same_node_is_no_owner_s(site: Site) -> None:
    mine = msgspec.structs.replace(incident(1), title="A GPU is hot")
    slow = "Node 18% slower than its peers in job 4712"
    theirs = msgspec.structs.replace(incident(2), title=slow, jobs_hit=("4712",))
    with site.api.engine.begin() as conn:
        for each in (mine, theirs):
            save_incident(conn, each)
    site.use(rules=lambda: site.api.rules)
    ann, eyes = site.arrive("s-1", names=("ann",)), site.arrive("s-3", "staff", names=("carol",))
    page, whole = (site.page().get(JOB, headers=session_headers(who)).text for who in (ann, eyes))
    assert page.count("A GPU is hot") == whole.count("A GPU is hot") == 2
    assert (slow in whole, "4712" in page) == (True, False)


def test_owner_has_no_other_route(site: Site) -> None:
    ann = site.arrive("s-1", "students", names=("ann",))
    for path in (
        "/nodes",
        "/incidents",
        "/runs",
        "/goodput",
        "/stats",
        f"/nodes/{CLUSTER}/gpu0001",
        "/audit",
    ):
        assert site.ask("GET", path, ann).status_code == 403, path
    run = {"cluster": CLUSTER, "node": "gpu0001", "reason": "x"}
    assert site.ask("POST", "/playbooks/drain/runs", ann, **run).status_code == 403
    assert site.ask("GET", f"{JOB}?all=1", ann).status_code == 422


def test_without_the_setting_and_without_a_name_nothing_is_shown(site: Site) -> None:
    eve = site.arrive("s-2", "students", names=("eve",))
    assert site.ask("GET", JOB, eve).status_code == 403
    ann = site.arrive("s-1", "students", names=("ann",))
    let_owners_look(site, allowed=False)
    site.restart()
    refused = site.ask("GET", JOB, ann)
    assert (refused.status_code, "gives your groups a role" in refused.json()["detail"]) == (403, True)


def test_a_name_that_somebody_else_took_first_is_not_the_owner_s(site: Site) -> None:
    site.arrive("s-1", "students", names=("ann",))
    second = site.arrive("s-9", "students", names=("ann", "ann@elsewhere"))
    assert site.ask("GET", JOB, second).status_code == 403


def test_a_job_that_slurm_has_forgotten_is_still_its_user_s(site: Site) -> None:
    row = {
        "cluster": CLUSTER, "job": "4700", "restart": 0, "held": 0, "hour": datetime(2026, 11, 1, tzinfo=UTC),
        "spent": "productive", "cause": "", "incident": "", "user_name": "ann", "account": "",
        "partition": "p", "gpu_s": 3600.0,
    }  # fmt: skip
    with site.api.engine.begin() as conn:
        conn.execute(goodput.insert().values(**row))
    path = f"/jobs/{CLUSTER}/4700"
    ann, eve = site.arrive("s-1", names=("ann",)), site.arrive("s-2", names=("eve",))
    assert site.ask("GET", path, ann).json()["goodput"]["gpu_hours"] == {"productive": 1.0}
    assert site.ask("GET", path, eve).status_code == 403


def test_a_job_whose_number_was_used_before_has_nothing_of_the_earlier_one(site: Site) -> None:
    now = datetime.now(UTC).replace(minute=30)
    ended = now - timedelta(days=2)
    hit = JobHit(job="4711", basis=HitBasis.start, user="zoe", ended_at=ended, lost_gpu_hours=8.0)
    before = {"opened": ended - timedelta(hours=1), "updated": ended, "hit": (hit,)}
    over = {"state": IncidentState.resolved, "closed": ended}
    kept = (
        msgspec.structs.replace(incident(1), title="The earlier one's", **before, **over),
        msgspec.structs.replace(incident(2), title="The earlier one's, still open", **before),
        msgspec.structs.replace(incident(3), title="This one's"),
    )
    hours = [
        {
            "cluster": CLUSTER, "job": "4711", "restart": 0, "held": 0,
            "hour": at.replace(minute=0, second=0, microsecond=0),
            "spent": spent, "cause": "", "incident": "", "user_name": of, "account": "", "partition": "p",
            "gpu_s": 3600.0,
        }
        for at, spent, of in ((ended, "lost", "zoe"), (now, "productive", "ann"))
    ]  # fmt: skip
    with site.api.engine.begin() as conn:
        for each in kept:
            save_incident(conn, each)
        conn.execute(goodput.insert().values(hours))
        conn.execute(requeues.insert().values(cluster=CLUSTER, job="4711", restarts=0, run="r", at=ended))
    shown = snapshot()
    this = msgspec.structs.replace(shown.jobs["4711"], user="ann", submit_at=now - timedelta(hours=1))
    site.api.snapshots.put(msgspec.structs.replace(shown, jobs={"4711": this}))
    ann, eyes = site.arrive("s-1", names=("ann",)), site.arrive("s-3", "staff", names=("carol",))
    for forgotten in (False, True):
        if forgotten:
            life = LifeSeen(job="4711", restart=0, queued_at=this.submit_at, seen_at=now, state="COMPLETED")
            with site.api.engine.begin() as conn:
                row = {"cluster": CLUSTER, "job": "4711", "restart": 0, "doc": to_stored(life)}
                conn.execute(job_lives.insert().values(row))
            site.api.snapshots.put(msgspec.structs.replace(snapshot(), jobs={}))
        for who in (ann, eyes):
            found = site.ask("GET", JOB, who).json()
            assert [each["title"] for each in found["incidents"]] == ["This one's"], (forgotten, found)
            assert found["requeues"] == [] and found["goodput"]["gpu_hours"] == {"productive": 1.0}


def test_pages_of_an_owner(site: Site) -> None:
    site.use(rules=lambda: site.api.rules)
    browser, ann = site.page(), session_headers(site.arrive("s-1", names=("ann",)))
    home = browser.get("/", headers=ann)
    assert (home.status_code, home.headers["location"]) == (303, "/jobs")
    listed = browser.get("/jobs", headers=ann).text
    assert f'href="{JOB}"' in listed
    assert "4712" not in listed
    page = browser.get(JOB, headers=ann)
    assert page.status_code == 200
    assert 'href="/nodes/' not in page.text
    assert 'href="/incidents' not in page.text
    assert browser.get(f"{JOB}/steps.json", headers=ann).status_code == 200
    assert browser.get(f"/jobs/{CLUSTER}/4712", headers=ann).status_code == 404
    for path in ("/incidents", f"/nodes/{CLUSTER}/gpu0001", "/audit", "/runs"):
        assert browser.get(path, headers=ann).status_code == 403, path


def test_viewer_sees_the_list_of_own_jobs_and_every_job(site: Site) -> None:
    browser, bob = site.page(), session_headers(site.arrive("s-3", "staff", names=("bob",)))
    assert f"/jobs/{CLUSTER}/4712" in browser.get("/jobs", headers=bob).text
    assert browser.get(JOB, headers=bob).status_code == 200
    assert browser.get("/", headers=bob).status_code == 200


def test_owner_signs_in_by_browser_alone_and_only_where_the_site_lets_owners_look(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    services, now = site.api.services, site.api.services.clock.now()
    wait = services.people.wait_for_seal

    def sealed(token: str) -> bool:
        seal_all(site.api.engine)
        return wait(token)

    monkeypatch.setattr(services.people, "wait_for_seal", sealed)

    def arrival(once: str) -> Arrival:
        return Arrival(issuer=ISSUER, subject="s-1", names=("ann",), groups=(), proven_at=now, once=once)

    assert open_session(services, site.access, arrival("1"), "Firefox").name == "ann"
    with pytest.raises(SignInRefused, match="gives your groups a role"):
        open_session(services, site.access, arrival("2"), "healer login", make=lambda name: f"heal_{name}_x")
    let_owners_look(site, allowed=False)
    with pytest.raises(SignInRefused, match="gives your groups a role"):
        open_session(services, site.access, arrival("3"), "Firefox")


def test_a_job_token_of_no_person_reads_its_job_and_is_refused_actions_with_a_reason(site: Site) -> None:
    """Its role is one that acts for a person: without one it only reads, as a viewer's token does."""
    let_owners_look(site, allowed=False)
    headers = site.api.headers("operator", name="", job="4711", cluster=CLUSTER)
    client = TestClient(site.api.app, base_url="http://healer/api/v1", headers=headers)
    found = client.get(f"jobs/{CLUSTER}/4711")
    assert (found.status_code, found.json().get("id")) == (200, "4711"), found.text
    other = client.get(f"jobs/{CLUSTER}/4712")
    assert (other.status_code, "bound to the job 4711" in other.text) == (403, True), other.text
    asked = {"job": "4711", "cluster": CLUSTER, "reason": "hangs"}
    refused = client.post("playbooks/requeue/runs", json=asked)
    assert refused.status_code == 403
    assert f"--name PERSON --cluster {CLUSTER} --job 4711`" in refused.text
