"""The pages without a browser: who may see them, and that wrong addresses get clear answers."""

import hashlib
import re
from datetime import timedelta

import msgspec
import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from healer.console.machine_pages import ALERTS_SHOWN
from healer.console.render import CONTENT_SECURITY_POLICY, web_dir
from healer.console.session_pages import local
from healer.model import (
    Breaker,
    BreakerState,
    Bundle,
    EvidenceFile,
    IncidentState,
    LossReason,
    Retest,
    Role,
    RuledOut,
    Severity,
    VerdictAt,
)
from healer.model.grants import Grant
from healer.ports.callers import Granted
from healer.text import say
from tests.support.console_pages import pages
from tests.support.console_site import CSRF, Site, make_sample
from tests.support.routes import routes_of

pytestmark = pytest.mark.heavy

COOKIE = {"Cookie": "healer_session=cookie-good"}


@pytest.fixture(scope="module")
def site() -> Site:
    return Site(make_sample(32, past=120))


@pytest.fixture(scope="module")
def client(site: Site) -> TestClient:
    return TestClient(site.app, base_url="http://healer.test", follow_redirects=False)


def test_every_page_needs_a_session(client: TestClient) -> None:
    for path in ("/", "/incidents", "/incidents/12345678", "/runs", "/runs/x", "/audit", "/fleet.json",
                 "/nodes/pod1/gpu0001", "/incidents/12345678/report.md", "/jobs/pod1/4711", "/rules",
                 "/signals", "/approvals", "/pauses", "/health", "/reports", "/reports/handover",
                 "/tokens", "/people/mara",
                 "/reports/handover.md", "/playbooks", "/playbooks/drain", "/runbooks/drain",
                 "/jobs/pod1/4711/steps.json"):  # fmt: skip
        answer = client.get(path)
        assert answer.status_code == 303, path
        assert answer.headers["location"].startswith("/sign-in")


#: For who has no session; and pages that not every role sees.
OTHERS = {"/sign-in", "/break-glass", "/static/{name:path}", "/favicon.ico"}
FEW = {"/people/{name}": {Role.auditor, Role.admin}}


def test_each_role_at_each_page() -> None:
    """Who may press what on it is the API's to say: tests/integration/api/test_who_may.py."""
    wrong, site = list[str](), Site(make_sample(4))
    routes = [route for route in routes_of(site.app.routes) if isinstance(route, APIRoute)]
    paths = {route.path for route in routes if "GET" in route.methods} - OTHERS
    paths = {path for path in paths if not path.startswith("/api/")}
    assert len(paths) > 20 and FEW.keys() <= paths
    client = TestClient(site.app, headers=COOKIE, follow_redirects=False)
    for role in Role:
        site.role = role
        for path in paths:
            may = role is not Role.signals and role in FEW.get(path, set(Role))
            status = client.get(re.sub(r"{[^}]+}", "nothing", path)).status_code
            if (status == 403) is may or status >= 500:
                wrong.append(f"{role} {path}: {status}")
    assert wrong == []


def test_an_operator_of_another_cluster_sees_this_one_as_a_viewer_does() -> None:
    site = Site(make_sample(32))
    client = TestClient(site.app, headers=COOKIE)
    details = (detail.incident for detail in site.sample.details.values())
    incident = next(one for one in details if one.is_open and not one.acknowledged_by)
    path = f"/incidents/{incident.id}"
    assert "/acknowledge" in client.get(path).text
    grants = (Grant(name="all", role=Role.viewer), Grant(name="lab", role=Role.operator, clusters=("lab*",)))
    site.granted = Granted(subject="s", groups=(), grants=grants)
    assert "/acknowledge" not in client.get(path).text
    site.granted = Granted(subject="s", groups=(), grants=(*grants, Grant(name="pod", role=Role.operator)))
    assert "/acknowledge" in client.get(path).text


def test_buttons_are_those_of_the_role_at_the_cluster_of_the_page() -> None:
    site = Site(make_sample(32), role=Role.admin, others=("lab",))
    client = TestClient(site.app, headers=COOKIE)
    site.sample.standing = msgspec.structs.replace(
        site.sample.standing, breaker=Breaker(cluster="pod1", state=BreakerState.open)
    )
    of_admin = {
        "/nodes/pod1/gpu0007": "/playbooks/drain/runs", "/approvals?cluster=pod1": "/approve",
        "/pauses?cluster=pod1": "/breaker/reset", "/audit?cluster=pod1": "/audit/export",
    }  # fmt: skip
    for path, button in of_admin.items():
        assert button in client.get(path).text, path
    grants = (Grant(name="all", role=Role.viewer), Grant(name="lab", role=Role.admin, clusters=("lab",)))
    site.granted = Granted(subject="s", groups=(), grants=grants)
    for path, button in of_admin.items():
        page = client.get(path)
        assert (page.status_code, button in page.text) == (200, False), path


def test_every_link_stays_at_the_cluster_of_the_page() -> None:
    site = Site(make_sample(32, past=120), others=("lab",))
    client = TestClient(site.app, headers=COOKIE)
    paths = [path for some in pages(site).values() for path in some if not path.startswith(NO_CLUSTER)]
    wrong = dict[str, set[str]]()
    for path in [*paths, "/audit?actor=healer&cursor=50"]:
        page = client.get(f"{path}{'&' if '?' in path else '?'}cluster=pod1").text
        links = {link.replace("&amp;", "&") for link in re.findall(r'href="(/[^"]*)"', page)}
        lost = {link for link in links if not NAMES_ITS_CLUSTER.match(link) and "cluster=pod1" not in link}
        if lost:
            wrong[path] = lost
    assert wrong == {}
    newest = client.get("/audit?actor=healer&cursor=50&cluster=pod1").text
    assert re.search(r'href="/audit\?cluster=pod1&amp;actor=healer">Newest', newest)


#: Pages without a cluster; and addresses of one thing, which is of one cluster.
NO_CLUSTER = ("/sign-in", "/break-glass")
NAMES_ITS_CLUSTER = re.compile(
    r"/(static|api|nodes|jobs|auth)\b|/(incidents|runs|rehearsals)/[^?]|/sign-in|/break-glass"
)


def test_another_cluster_is_selected_from_the_page_of_one_thing() -> None:
    """The thing itself is of its own cluster: the selection leads to the list."""
    site = Site(make_sample(32), others=("lab",))
    client = TestClient(site.app, headers=COOKIE)
    lists = {
        f"/incidents/{next(iter(site.sample.details))}": "/incidents",
        f"/runs/{next(iter(site.sample.runs))}": "/runs", "/nodes/pod1/gpu0001": "/", "/jobs/pod1/4711": "/",
    }  # fmt: skip
    for path, target in lists.items():
        assert f'<form class="cluster" method="get" action="{target}">' in client.get(path).text, path


def test_pages_carry_the_policy_and_no_inline_script_or_style(client: TestClient, site: Site) -> None:
    paths = ["/", "/incidents", "/runs", "/audit", "/sign-in", "/rules", "/rules?show=unknown", "/signals"]
    paths += [
        "/pauses",
        "/health",
        "/reports",
        "/reports/handover",
        "/playbooks",
        "/playbooks/drain",
        "/runbooks/drain",
    ]
    paths += [f"/incidents/{incident}" for incident in site.sample.details]
    paths += ["/jobs/pod1/4711", "/nodes/pod1/gpu0007", "/nodes/pod1/gpu0003"]
    for path in paths:
        answer = client.get(path, headers=COOKIE)
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert answer.headers["cache-control"] == "no-store"
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", answer.text)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/?cluster=nowhere", 404), ("/incidents/0123456789", 404), ("/runs/nothing", 404),
        ("/nodes/pod1/gpu9999", 404), ("/incidents?cursor=garbage", 400), ("/incidents?severity=P9", 200),
        ("/?page=999", 200), ("/jobs/pod1/nothing", 404), ("/jobs/elsewhere/4711", 404),
        ("/jobs/pod1/nothing/steps.json", 404), ("/nodes/pod1/gpu0001?signal=nonsense", 200),
        ("/rules?mode=nonsense&kind=x&state=y", 200), ("/static/../pyproject.toml", 404),
        ("/static/nothing.js", 404),
        ("/reports?from=2026-11-01&to=9999-12-31", 200), ("/reports?from=9999-12-31&to=9999-12-31", 200),
        ("/?at=0001-01-01T00:00%2B23:59", 200),
    ],
)  # fmt: skip
def test_wrong_addresses_get_clear_answers(client: TestClient, path: str, status: int) -> None:
    assert client.get(path, headers=COOKIE).status_code == status


def test_lists_are_paged(client: TestClient) -> None:
    first = client.get("/incidents?show=resolved", headers=COOKIE).text
    assert first.count("<tr data-row=") == 50
    link = re.search(r'href="(/incidents\?[^"]*cursor=[^"]*)" rel="next"', first)
    assert link
    second = client.get(link.group(1).replace("&amp;", "&"), headers=COOKIE).text
    assert second.count("<tr data-row=") == 50
    assert "Newest" in second


def test_the_queue_is_filtered_by_its_address(client: TestClient) -> None:
    def found(query: str) -> list[str]:
        text = client.get(f"/incidents?{query}", headers=COOKIE).text
        return re.findall(r'class="sev (P\d)"', text.partition("<tbody>")[2])

    everything = found("")
    assert everything == sorted(everything) and everything.count("P1") == 3
    assert found("severity=P1&needs=decision") == ["P1", "P1"]
    assert found("needs=me") == ["P1"] and found("state=verifying") == ["P2"]
    assert found("needs=nonsense&state=nonsense") == everything
    assert "No matching open incidents." in client.get("/incidents?needs=me&q=gpu0002", headers=COOKIE).text


def test_the_queue_is_paged_by_urgency() -> None:
    sample = make_sample(32)
    (lost,) = (one for one in sample.details.values() if one.incident.rule == "gpu-lost")
    for number in range(60):
        one = msgspec.structs.replace(lost.incident, id=f"{number:08x}", severity=Severity.P3)
        sample.details[one.id] = msgspec.structs.replace(lost, incident=one, runs=())
    client = TestClient(Site(sample).app, headers=COOKIE)
    first = client.get("/incidents").text
    assert "50 of 71, most urgent first" in first and "cursor=50" in first
    for start in (50, 5000):  # the queue became shorter meanwhile
        second = client.get(f"/incidents?show=open&cursor={start}").text
        assert second.count("<tr data-row=") == 21 and "Most urgent" in second


def test_only_roles_that_may_act_see_the_split_button() -> None:
    sample = make_sample(32)
    (lost,) = (one for one in sample.details.values() if one.incident.rule == "gpu-lost")
    part = msgspec.structs.replace(
        lost.incident, id="a" * 64, state=IncidentState.resolved, merged_into=lost.incident.id
    )
    sample.details[part.id] = msgspec.structs.replace(lost, incident=part)
    pages = {
        role: TestClient(Site(sample, role=role).app)
        .get(f"/incidents/{lost.incident.id}", headers=COOKIE)
        .text
        for role in (Role.responder, Role.viewer)
    }
    assert all(f'href="/incidents/{part.id}"' in page for page in pages.values())
    assert "Split" in pages[Role.responder] and f"incidents&#34;:[&#34;{part.id}" in pages[Role.responder]
    assert "Split" not in pages[Role.viewer]
    queue = TestClient(Site(sample, role=Role.viewer).app).get("/incidents", headers=COOKIE).text
    assert "checkbox" not in queue and "triage.js" not in queue


def test_empty_lists_say_so() -> None:
    client = TestClient(Site(make_sample(8, empty=True)).app)
    assert "No open incidents." in client.get("/incidents", headers=COOKIE).text
    assert "No runs yet." in client.get("/runs", headers=COOKIE).text
    assert "No records yet." in client.get("/audit", headers=COOKIE).text


def test_a_persons_jobs_are_unknown_while_slurm_is_not_read() -> None:
    site = Site(make_sample(8))
    client = TestClient(site.app)
    read = site.sample.standing
    assert read.snapshot is not None
    old = msgspec.structs.replace(read.snapshot, taken_at=read.snapshot.taken_at - timedelta(hours=1))
    for snapshot, unknown in ((read.snapshot, False), (old, True), (None, True)):
        site.sample.standing = msgspec.structs.replace(read, snapshot=snapshot)
        for cookie in ("cookie-good", "cookie-owner"):
            page = client.get("/jobs", headers={"Cookie": f"healer_session={cookie}"}).text
            assert ("is not being read" in page) is unknown, (cookie, snapshot and snapshot.taken_at)
            assert not (unknown and "Slurm shows no job of yours" in page)


def test_the_map_is_sent_once_and_then_what_changed() -> None:
    sample = make_sample(32)
    client = TestClient(Site(sample).app, headers=COOKIE)
    first = client.get("/fleet.json").json()
    assert len(first["nodes"]) == 32 and first["kinds"]["bad_in_service"][2] == "!"
    assert client.get(f"/fleet.json?since={first['tag']}").status_code == 204
    snapshot = sample.standing.snapshot
    assert snapshot is not None
    down = msgspec.structs.replace(snapshot.nodes["gpu0004"], state=("DOWN",))
    shown = msgspec.structs.replace(snapshot, nodes={**snapshot.nodes, "gpu0004": down})
    sample.standing = msgspec.structs.replace(sample.standing, snapshot=shown)
    second = client.get(f"/fleet.json?since={first['tag']}").json()
    ((place, cell),) = second["changed"]
    assert first["nodes"][place][0] == cell[0] == "gpu0004" and cell[2] == "out_slurm"
    # A client with an unknown version, or one of another fleet, gets everything.
    assert len(client.get("/fleet.json?since=nonsense").json()["nodes"]) == 32
    fewer = {name: node for name, node in shown.nodes.items() if name != "gpu0032"}
    fewer_shown = msgspec.structs.replace(shown, nodes=fewer)
    sample.standing = msgspec.structs.replace(sample.standing, snapshot=fewer_shown)
    assert len(client.get(f"/fleet.json?since={second['tag']}").json()["nodes"]) == 31


def test_map_colour_is_in_the_url_and_a_rack_has_its_own_page(client: TestClient) -> None:
    hot = client.get("/?colour=temperature", headers=COOKIE).text
    assert re.search(r'aria-current="true">Temperature', hot)
    assert re.findall(r'data-row="([^"]+)"', hot)[0] == "gpu0007" and "91 °C, GPU 5, 1 unknown" in hot
    assert '<i class="cell unknown" aria-hidden="true"></i>unknown <b>4</b>' in hot
    body = client.get("/fleet.json?colour=temperature", headers=COOKIE).json()
    codes = {cell[0]: cell[8] for cell in body["nodes"]}
    assert codes["gpu0001"] == "--------" and codes["gpu0007"][5:] == "51-"
    rack = client.get("/?place=r005", headers=COOKIE).text
    assert re.findall(r'data-row="([^"]+)"', rack) == ["gpu0017", "gpu0020", "gpu0019", "gpu0018"]
    assert client.get("/?colour=nonsense", headers=COOKIE).status_code == 200


def test_the_fleet_says_what_is_left_under_each_cap(client: TestClient) -> None:
    text = client.get("/", headers=COOKIE).text
    panel = text[text.index('id="caps"') : text.index('id="nodes"')]
    counts = re.findall(r"<span>([^<]+)</span> <b>([^<]+)</b> <small>([^<]+)</small>", panel)
    assert counts[1] == ("Slots", "0 left", "2 of 1")
    full = [name for name, left, _ in counts if left == "0 left" and name.startswith("Rack")]
    assert full == ["Rack r002", "Rack r005"]


def test_steps_json_answers_304_when_nothing_changed(client: TestClient) -> None:
    first = client.get("/jobs/pod1/4711/steps.json", headers=COOKIE)
    assert (first.json()["mode"], len(first.json()["rows"])) == ("compute", 128)
    again = client.get(
        "/jobs/pod1/4711/steps.json", headers={**COOKIE, "If-None-Match": first.headers["etag"]}
    )
    assert again.status_code == 304


def test_rules_are_found_by_their_address(client: TestClient) -> None:
    def found(query: str) -> list[str]:
        return re.findall(r'<tr data-row="([^"]+)"', client.get(f"/rules?{query}", headers=COOKIE).text)

    everything = found("")
    assert found("mode=approve") == [everything[0]]
    assert "gpu-lost" in found("q=xid-79")
    assert set(found("state=open")) < set(everything)
    assert found("q=nothing+like+it") == []
    assert "default" in client.get("/rules", headers=COOKIE).text


def test_names_from_outside_stay_text(client: TestClient) -> None:
    page = client.get("/rules?show=unknown", headers=COOKIE).text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page


def test_broken_rule_files_are_shown_on_the_rules_page() -> None:
    sample = make_sample(4)
    problem = "detection/gpu.yaml:12: when: there is no signal gpu_temp"
    sample.standing = msgspec.structs.replace(sample.standing, rules_error=problem)
    page = TestClient(Site(sample).app).get("/rules", headers=COOKIE).text
    assert page.count(problem) == 2


def test_static_files_may_be_kept_only_under_their_hash(client: TestClient) -> None:
    named = re.search(r'href="(/static/console\.css\?v=\w+)"', client.get("/sign-in").text)
    assert named
    assert "immutable" in client.get(named.group(1)).headers["cache-control"]
    assert client.get("/static/console.css?v=old").headers["cache-control"] == "no-cache"


def test_a_link_never_leads_to_another_site() -> None:
    assert local("/incidents?show=all") == "/incidents?show=all"
    for target in (
        "https://elsewhere.example",
        "//elsewhere.example",
        "/\\elsewhere.example",
        "javascript:x",
        "",
    ):
        assert local(target) == "/"
    assert "\n" not in local("/x\r\nSet-Cookie: a=b")


def test_sign_out_needs_the_page_it_came_from(client: TestClient, site: Site) -> None:
    assert client.post("/sign-out", headers=COOKIE, data={"csrf": "wrong"}).status_code == 403
    assert site.ended == []
    foreign = {**COOKIE, "Sec-Fetch-Site": "cross-site"}
    assert client.post("/sign-out", headers=foreign, data={"csrf": CSRF}).status_code == 403
    assert client.post("/sign-out", headers=COOKIE, data={"csrf": CSRF}).status_code == 303
    assert site.ended == ["cookie-good"]


def test_scripts_stay_small() -> None:
    """Read by people at night on any line, and by reviewers: what grows past this belongs on the server."""
    sizes = {path.name: path.stat().st_size for path in (web_dir() / "static").glob("*.js")}
    assert all(size < 15_000 for size in sizes.values()), sizes


def test_vendored_files_match_their_checksums() -> None:
    vendor = web_dir() / "static" / "vendor"
    lines = [line.split() for line in (vendor / "SHA256SUMS").read_text().splitlines()]
    sums = {name: digest for digest, name in lines}
    assert set(sums) == {path.name for path in vendor.glob("uplot*")}
    for name, digest in sums.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest, name
    assert "MIT License" in (vendor / "uplot-LICENSE.txt").read_text()


def test_a_node_shows_how_it_differs_from_a_good_one(client: TestClient) -> None:
    text = client.get("/nodes/pod1/gpu0001", headers=COOKIE).text
    assert '<td class="mono warn">570.86.15</td><td class="mono">580.65.06</td>' in text
    assert "compared with gpu0002" in text


def test_a_job_shows_the_errors_of_its_own_programs(client: TestClient) -> None:
    text = client.get("/jobs/pod1/4711", headers=COOKIE).text
    assert "Errors from its own programs" in text and "Xid 45: Channel torn down" in text
    assert re.search(r"1.232</td>", text)
    assert '<a href="/nodes/pod1/gpu0007">gpu0007</a> and 2 more nodes' in text


def test_a_node_shows_what_goes_on_there(client: TestClient) -> None:
    assert (
        "<dt>In progress</dt><dd>within minutes of a boot until "
        in client.get("/nodes/pod1/gpu0001", headers=COOKIE).text
    )
    assert "In progress" not in client.get("/nodes/pod1/gpu0003", headers=COOKIE).text


def test_the_node_page_shows_how_unusual_it_is(client: TestClient) -> None:
    text = client.get("/nodes/pod1/gpu0001", headers=COOKIE).text
    panel = text[text.index('id="h-unusual"') :]
    panel = panel[: panel.index("</section>")]
    assert "among 96 busy h100" in panel
    assert '<td class="num warn">0.71</td><td class="num">0.62</td><td class="num">0.41</td>' in panel
    assert panel.count("num warn") == 1
    assert "SM clock, slowest; own past -6.8 (41%); gpu temperature, hottest +2.3 (22%)" in panel
    assert "h-unusual" not in client.get("/nodes/pod1/gpu0003", headers=COOKIE).text


def test_a_node_shows_the_alerts_that_fire_and_what_they_are_to_healer(client: TestClient) -> None:
    text = client.get("/nodes/pod1/gpu0001", headers=COOKIE).text
    assert "Firing alerts" in text
    assert "opens alert-clock" in text and "evidence only" in text
    assert "Home is &lt;nearly&gt; full." in text
    assert "and 29 more of this name" in text and text.count("one of many") < ALERTS_SHOWN
    assert "alerts of other names" in text
    assert "Firing alerts" not in client.get("/nodes/pod1/gpu0003", headers=COOKIE).text


def test_node_figures_are_shown_beside_those_of_its_model(client: TestClient) -> None:
    text = client.get("/nodes/pod1/gpu0001", headers=COOKIE).text
    assert "Test results" in text and "compared with the other nodes with h100" in text
    row = text[text.index("gemm_tflop_per_s") :].partition("</tr>")[0]
    assert [one in row for one in (">612<", ">698<", "-12.3%, too slow", ">40<")] == [True] * 4, row
    assert "too slow" not in text[text.index("memory_gb_per_s") :].partition("</tr>")[0]
    assert "Test results" not in client.get("/nodes/pod1/gpu0003", headers=COOKIE).text


def test_signals_page_says_what_to_do_about_each_loss(client: TestClient) -> None:
    page = client.get("/signals", headers=COOKIE).text
    for reason in LossReason:
        title = say(f"console.loss_{reason}")
        assert f'data-row="{reason.value}"' in page and title.split("'")[0] in page, reason
    assert "<script>alert(1)</script>" not in page
    assert page.count(">silent<") == 1, "one sender has said nothing for 90 min; a job may be over"
    assert 'href="/jobs/pod1/4711"' in page and "16.8 MB" in page
    assert "98%" in page and "/nodes/pod1/gpu0007" in page


def test_incident_page_shows_fault_then_cause_then_impact_then_actions() -> None:
    sample = make_sample(32)
    site = Site(sample)
    (lost,) = (one for one in sample.details.values() if one.incident.rule == "gpu-lost")
    page = TestClient(site.app).get(f"/incidents/{lost.incident.id}", headers=COOKIE).text
    parts = ["h-verdict", "h-why", "h-aside", "h-hit", "h-sim", "h-done", "h-left", "h-time"]
    places = [page.index(f'id="{part}"') for part in parts]
    assert places == sorted(places)
    assert "GPU 3 of gpu0017 fell off the bus (Xid 79, certain)" in page
    assert "126 × Xid 45: teardown of job 4711 after Xid 79" in page
    assert "64 GPU-hours lost since the checkpoint of 20 Nov 02:42 UTC" in page
    assert "xid.yaml, row 79" in page


def test_verdict_escapes_text_of_kernel_lines() -> None:
    sample = make_sample(32)
    (lost,) = (one for one in sample.details.values() if one.incident.rule == "gpu-lost")
    evil = "<script>alert(2)</script>"
    aside = RuledOut(at=lost.incident.opened, what=evil, why=evil)
    verdict = msgspec.structs.replace(
        lost.verdict, sentence=evil, why=(evil,), set_aside=(aside,), retest=Retest(name="x", text=evil)
    )
    for key, one in sample.details.items():
        incident = msgspec.structs.replace(one.incident, title=evil, set_aside=(aside,))
        sample.details[key] = msgspec.structs.replace(one, incident=incident)
    sample.details[lost.incident.id] = msgspec.structs.replace(
        lost, verdicts=(VerdictAt(at=lost.incident.opened, verdict=verdict),)
    )
    answer = TestClient(Site(sample).app).get(f"/incidents/{lost.incident.id}", headers=COOKIE)
    assert evil not in answer.text
    assert answer.text.count("&lt;script&gt;alert(2)") >= 4


@pytest.mark.parametrize(("role", "shown"), [(Role.operator, True), (Role.viewer, False)])
def test_only_roles_that_may_read_evidence_see_the_bundle_link(role: Role, shown: bool) -> None:
    sample = make_sample(32)
    (lost,) = (one for one in sample.details.values() if one.incident.rule == "gpu-lost")
    bundle = Bundle(size_bytes=4_200_000, sha256="0" * 64, parts=("dmesg: 9 lines",))
    file = EvidenceFile(
        id="e1", cluster="pod1", node="gpu0017", run="r1", name="<b>.gz", at=lost.incident.opened,
        bundle=bundle,
    )  # fmt: skip
    sample.details[lost.incident.id] = msgspec.structs.replace(lost, collected=(file,))
    page = TestClient(Site(sample, role=role).app).get(f"/incidents/{lost.incident.id}", headers=COOKIE).text
    assert ('href="/api/v1/evidence/e1"' in page) is shown
    assert ("4.2 MB" in page and "&lt;b&gt;.gz" in page) is shown
