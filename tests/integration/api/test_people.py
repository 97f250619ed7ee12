"""People of an identity provider: whose session it is, what their groups grant now, and how it ends."""

from datetime import timedelta

import msgspec
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from healer.adapters.postgres import audit_rows
from healer.adapters.postgres.tables import sessions
from healer.model import Component, Playbook, Role, Step, Verb, audit_record
from healer.model.grants import Grant
from healer.ports.request_errors import Conflict
from healer.ports.service_accounts import id_in
from tests.support.api import CLUSTER, incident, save_incident, snapshot
from tests.support.persons import ISSUER, Site, session_headers
from tests.support.seals import seal_all

GRANTS = (
    Grant(name="ops", role=Role.operator, groups=("ops",), playbooks=("drain",)),
    Grant(name="eyes", role=Role.viewer, groups=("staff",)),
    Grant(name="far", role=Role.admin, groups=("far",), clusters=("pod9",)),
)


@pytest.fixture
def site(fresh_database: sa.Engine) -> Site:
    site = Site(fresh_database)
    site.grant(*GRANTS)
    return site


def test_the_groups_grant_role_playbook_and_cluster(site: Site) -> None:
    ann = site.arrive("ann", "ops")
    run = {"cluster": CLUSTER, "node": "gpu0001", "reason": "noisy fan"}
    assert site.ask("POST", "/playbooks/drain/runs", ann, **run).status_code == 202
    refused = site.ask("POST", "/playbooks/resume/runs", ann, **run)
    assert refused.status_code == 403, "the grant names drain alone"
    eve = site.arrive("eve", "staff")
    assert site.ask("GET", "/nodes", eve).status_code == 200
    assert site.ask("POST", "/playbooks/drain/runs", eve, **run).status_code == 403
    far = site.arrive("far", "far")
    assert site.ask("GET", "/nodes", far).status_code == 403, "its cluster is another one"
    unmapped = site.ask("GET", "/nodes", site.arrive("nob", "guests"))
    assert (unmapped.status_code, "gives your groups a role" in unmapped.json()["detail"]) == (403, True)


def test_a_repair_of_drift_needs_the_grant_of_its_playbook(site: Site) -> None:
    """Each is a run: of `validate` here, which returns a node."""
    shown = snapshot()
    left = msgspec.structs.replace(
        shown.nodes["gpu0001"], state=("IDLE", "DRAIN"), reason="healer:gpu-lost inc:00000001 x",
        reason_at=shown.taken_at - timedelta(hours=1),
    )  # fmt: skip
    site.api.snapshots.put(msgspec.structs.replace(shown, nodes={**shown.nodes, "gpu0001": left}))
    ann = site.arrive("ann", "ops")
    assert [drift["kind"] for drift in site.ask("GET", "/reconcile", ann).json()["items"]] == [
        "forgotten_drain"
    ]
    (answer,) = site.ask("POST", "/reconcile", ann, reason="tidy up").json()["items"]
    refused = "your groups may not use the playbook validate at pod1"
    assert (answer["done"], answer["text"]) == (False, refused)


def test_an_administrator_by_group_is_one_at_the_clusters_and_for_the_playbooks_of_the_entry(
    site: Site,
) -> None:
    site.use(clusters=(CLUSTER, "pod9"))
    site.grant(
        Grant(name="here", role=Role.admin, groups=("pod1",), clusters=("pod1",), playbooks=("drain",)),
        Grant(name="eyes", role=Role.viewer, groups=("staff",)),
    )
    lead, bob = site.arrive("lead", "pod1", "staff"), site.arrive("bob", "staff")
    there = site.api.token(Role.viewer, name="vic", cluster="pod9").split("_")[1]
    here = site.api.token(Role.viewer, name="vic", cluster=CLUSTER).split("_")[1]
    of_bob = site.people.sessions(site.api.services.clock.now(), name="bob")[0].id
    run = {"node": "gpu0001", "reason": "x"}

    def asked(method: str, path: str, **body: object) -> bool:
        """Whether the person may: what comes after that is another question."""
        status = site.ask(method, path, lead, **body).status_code
        assert status not in (401, 500)
        return status not in (403, 404)

    allowed = {
        "drain": asked("POST", "/playbooks/drain/runs", cluster=CLUSTER, **run),
        "breaker": asked("POST", "/breaker/reset", cluster=CLUSTER, reason="x"),
        "pause": asked("POST", "/pauses", scope="cluster", cluster=CLUSTER, reason="x"),
        "token": asked("POST", f"/tokens/{here}/revoke", reason="x"),
    }
    refused = {
        "another playbook": asked("POST", "/playbooks/resume/runs", cluster=CLUSTER, **run),
        "another cluster": asked("POST", "/playbooks/drain/runs", cluster="pod9", **run),
        "its breaker": asked("POST", "/breaker/reset", cluster="pod9", reason="x"),
        "its pause": asked("POST", "/pauses", scope="cluster", cluster="pod9", reason="x"),
        "its token": asked("POST", f"/tokens/{there}/revoke", reason="x"),
        "a mode everywhere": asked("POST", "/rules/gpu-lost/mode", mode="shadow", reason="x"),
        "a person": asked("POST", "/people/bob/end", reason="left"),
        "a session of another": asked("DELETE", f"/sessions/{of_bob}"),
    }
    assert all(allowed.values()), allowed
    assert not any(refused.values()), refused
    assert site.ask("GET", "/nodes", bob).status_code == 200
    listed = site.ask("GET", "/tokens?ended=true", lead).json()["items"]
    assert {(row["name"], row.get("cluster")) for row in listed} == {("vic", CLUSTER), ("lead", None)}
    assert {row["name"] for row in site.ask("GET", "/sessions", lead).json()["items"]} == {"lead"}


def test_grants_for_all_clusters_of_the_settings_show_none_that_was_removed(site: Site) -> None:
    """Its records are still in the database, and are for those whose entries name it."""
    site.use(clusters=(CLUSTER, "pod9"))
    removed = msgspec.structs.replace(
        incident(1), cluster="old", root=Component(cluster="old", node="gpu0001")
    )
    site.api.snapshots.put(msgspec.structs.replace(snapshot(), cluster="old"))
    with site.api.engine.begin() as conn:
        save_incident(conn, removed)
        save_incident(conn, incident(2))
        audit_rows.append(conn, audit_record("old", removed.opened, "bob", "incident.note", "incident/1"))
    site.grant(
        Grant(name="named", role=Role.admin, groups=("named",), clusters=(CLUSTER, "pod*")),
        Grant(name="since", role=Role.viewer, groups=("since",), clusters=(CLUSTER, "old")),
        Grant(name="all", role=Role.admin, groups=("all",)),
    )
    page = site.page()

    def seen(*groups: str) -> tuple[set[str], list[int]]:
        """The clusters in lists, and the answers about the removed one: its incident, all audit, a page."""
        cookie = site.arrive("-".join(groups), *groups)
        lists = [site.ask("GET", path, cookie).json()["items"] for path in ("/incidents", "/audit")]
        paths = (f"/incidents/{removed.id}", "/incidents?cluster=old", "/audit/export")
        answers = [site.ask("GET", path, cookie).status_code for path in paths]
        answers.append(page.get("/incidents?cluster=old", headers=session_headers(cookie)).status_code)
        return {one["cluster"] for one in lists[0] + lists[1]}, answers

    assert seen("named") == ({CLUSTER}, [403, 403, 403, 404])
    assert seen("since") == ({CLUSTER, "old"}, [200, 200, 403, 200])
    assert seen("all") == ({CLUSTER, "old"}, [200, 200, 200, 200])


def test_a_person_with_a_role_at_one_cluster_sees_and_ends_the_own_tokens_of_all(site: Site) -> None:
    """Someone whose token leaked must be able to end it, whatever their groups grant."""
    site.use(clusters=(CLUSTER, "pod9"))
    site.grant(Grant(name="here", role=Role.viewer, groups=("here",), clusters=(CLUSTER,)))
    vic = site.arrive("vic", "here")
    anywhere, there, of_bob = (
        id_in(site.api.token(Role.viewer, name=name, cluster=cluster))
        for name, cluster in (("vic", None), ("vic", "pod9"), ("bob", None))
    )
    listed = {row["id"] for row in site.ask("GET", "/tokens", vic).json()["items"]}
    assert listed >= {anywhere, there} and of_bob not in listed
    assert site.ask("GET", f"/tokens?cluster={CLUSTER}", vic).json()["items"] == []
    ended = [
        site.ask("POST", f"/tokens/{token}/revoke", vic, reason="leaked").status_code
        for token in (anywhere, there, of_bob)
    ]
    assert ended == [200, 200, 404]


def test_a_viewer_of_several_clusters_verifies_the_audit_as_one_of_a_single_cluster_does(site: Site) -> None:
    site.use(clusters=(CLUSTER, "pod8", "pod9"))
    site.grant(
        Grant(name="one", role=Role.viewer, groups=("one",), clusters=(CLUSTER,)),
        Grant(name="two", role=Role.viewer, groups=("two",), clusters=(CLUSTER, "pod9")),
    )
    answers = {name: site.ask("GET", "/audit/verify", site.arrive(name, name)) for name in ("one", "two")}
    assert {name: answer.status_code for name, answer in answers.items()} == {"one": 200, "two": 200}


def test_a_person_is_refused_by_their_groups_and_not_by_a_token(site: Site) -> None:
    """Someone who looks at one cluster and acts at another has no token that could be bound."""
    site.use(clusters=(CLUSTER, "pod8", "pod9"))
    site.grant(
        Grant(name="eyes", role=Role.viewer, groups=("both",)),
        Grant(name="hands", role=Role.operator, groups=("both",), clusters=("pod9",)),
        Grant(name="more", role=Role.operator, groups=("more",), clusters=("pod8", "pod9")),
    )
    run = {"cluster": CLUSTER, "node": "gpu0001", "reason": "x"}
    both, more = site.arrive("ann", "both"), site.arrive("bob", "both", "more")
    why = [
        site.ask("POST", "/playbooks/drain/runs", cookie, **run).json()["detail"] for cookie in (both, more)
    ]
    assert why == ["your groups allow this only at pod9", "your groups allow this only at pod8, pod9"]
    bound = {"Authorization": f"Bearer {site.api.token(Role.operator, name='ann', cluster='pod9')}"}
    refused = TestClient(site.api.app).get("/api/v1/nodes", params={"cluster": CLUSTER}, headers=bound)
    assert refused.json()["detail"] == "this token is bound to the cluster pod9"


def test_a_change_of_the_rules_acts_on_who_is_signed_in(site: Site) -> None:
    ann = site.arrive("ann", "ops")
    assert site.ask("GET", "/nodes", ann).status_code == 200
    site.grant()
    assert site.ask("GET", "/nodes", ann).status_code == 403


def test_groups_that_were_changed_in_the_database_count_for_nothing(site: Site) -> None:
    eve = site.arrive("eve", "staff")
    with site.api.engine.begin() as conn:
        conn.execute(sa.text("UPDATE tokens SET groups = '[\"ops\"]' WHERE name = 'eve'"))
    assert site.ask("GET", "/nodes", eve).status_code == 401


def test_an_arrival_counts_once_and_a_name_is_one_subjects(site: Site) -> None:
    site.arrive("s1", "staff", names=("ann", "ann@example"), once="code 1")
    with pytest.raises(Conflict, match="already used"):
        site.arrive("s1", "staff", names=("ann",), once="code 1")
    site.arrive("s2", "staff", names=("ann", "ann2@example"))
    site.arrive("s1", "ops", names=("other",))
    assert site.people.find("ann2@example").subject == "s2"  # type: ignore[union-attr]
    ann = site.people.find("ann")
    assert ann is not None
    assert (ann.subject, ann.groups) == ("s1", ("ops",)), "the same person, with the groups of today"
    with pytest.raises(Conflict, match="already uses the name"):
        site.arrive("s3", "staff", names=("ann",))


def test_token_without_a_subject_is_read_only(site: Site) -> None:
    client = TestClient(site.api.app, base_url="http://healer")
    pause = {"scope": "all", "reason": "x"}
    site.arrive("ann", "ops")
    for name, status in (("local", 403), ("ann", 201), ("ann/deploy", 201)):
        headers = site.api.headers("operator", name=name)
        assert client.post("/api/v1/pauses", json=pause, headers=headers).status_code == status, name
        assert client.get("/api/v1/nodes", headers=headers).status_code == 200
    assert client.get("/api/v1/nodes", headers=site.api.headers("viewer")).status_code == 200


def test_a_session_ends_when_idle_by_its_person_an_administrator_or_the_provider(site: Site) -> None:
    first, second, bob = site.arrive("ann", "staff"), site.arrive("ann", "staff"), site.arrive("bob", "staff")
    now = site.api.services.clock.now()
    assert [row.name for row in site.people.sessions(now)] == ["bob", "ann", "ann"]
    newest = site.people.sessions(now, name="ann")[0]
    assert not site.people.end(newest.id, by="bob", now=now, name="bob"), "it is not his"
    assert site.people.end(newest.id, by="ann", now=now, name="ann")
    site.restart()
    assert site.ask("GET", "/nodes", second).status_code == 401
    with site.api.engine.begin() as conn:
        old = sa.update(sessions).where(sessions.c.sid == "sid-bob")
        conn.execute(old.values(seen_at=now - timedelta(hours=8, seconds=1)))
    assert site.ask("GET", "/nodes", bob).status_code == 401
    assert site.people.end_by_provider("https://other", subject="ann", sid="", now=now) == 0
    assert site.people.end_by_provider(ISSUER, subject="", sid="sid-ann", now=now) == 1
    assert site.ask("GET", "/nodes", first).status_code == 401


def test_power_needs_a_proof_of_the_last_minutes(site: Site) -> None:
    site.grant(Grant(name="ops", role=Role.operator, groups=("ops",)))
    power = Playbook(name="power", title="Power", target="node", steps=(Step(id="off", do=Verb.power_cycle),))
    site.api.rules = msgspec.structs.replace(
        site.api.rules, playbooks=site.api.rules.playbooks | {"power": power}
    )
    run = {"cluster": CLUSTER, "node": "gpu0001", "reason": "hangs"}
    old, fresh = site.arrive("ann", "ops", age_s=301), site.arrive("ann", "ops", age_s=200)
    refused = site.ask("POST", "/playbooks/power/runs", old, **run)
    assert (refused.status_code, refused.json()["code"]) == (403, "sign_in_again")
    asked = site.ask("POST", "/playbooks/power/runs", fresh, **run)
    assert asked.status_code == 202
    approve = f"/runs/{asked.json()['id']}/approve"
    bob, cid = site.arrive("bob", "ops", age_s=301), site.arrive("cid", "ops")
    assert site.ask("POST", approve, bob, reason="yes").json()["code"] == "sign_in_again"
    assert site.ask("POST", approve, cid, reason="yes").status_code in (200, 202)
    assert site.ask("POST", "/playbooks/drain/runs", old, **run | {"node": "gpu0002"}).status_code == 202


def test_a_person_lists_and_ends_his_own_sessions_and_an_administrator_all(site: Site) -> None:
    site.grant(
        Grant(name="eyes", role=Role.viewer, groups=("staff",)),
        Grant(name="root", role=Role.admin, groups=("root",)),
    )
    ann, bob, root = site.arrive("ann", "staff"), site.arrive("bob", "staff"), site.arrive("root", "root")
    own = site.ask("GET", "/sessions", ann).json()["items"]
    assert [(row["name"], row["agent"]) for row in own] == [("ann", "Firefox")]
    everybody = site.ask("GET", "/sessions", root).json()["items"]
    assert sorted(row["name"] for row in everybody) == ["ann", "bob", "root"]
    of_bob = next(row["id"] for row in everybody if row["name"] == "bob")
    assert site.ask("DELETE", f"/sessions/{of_bob}", ann).status_code == 404
    ended = [site.ask("DELETE", f"/sessions/{of_bob}", root) for _ in range(2)]
    assert [answer.status_code for answer in ended] == [200, 200], "the first answer may have been lost"
    assert site.ask("DELETE", f"/sessions/{of_bob}", ann).status_code == 404
    assert site.ask("DELETE", "/sessions/none", root).status_code == 404
    site.restart()
    assert site.ask("GET", "/nodes", bob).status_code == 401
    assert site.ask("DELETE", f"/sessions/{own[0]['id']}", ann).status_code == 200


def test_break_glass_user_can_act_while_the_provider_is_away(site: Site) -> None:
    """A token whose name is no person cannot act."""
    emergency = site.api.services.emergency
    opening = emergency.use(emergency.seal(by="root"), person="ada", reason="the provider is away")
    assert opening is not None
    seal_all(site.api.engine)
    client = TestClient(site.api.app, base_url="http://healer")
    for token, status in ((opening.token, 201), (site.api.token("admin", name="ann"), 403)):
        headers = {"Authorization": f"Bearer {token}"}
        made = client.post("/api/v1/pauses", json={"reason": "x"}, headers=headers)
        assert made.status_code == status, made.text
    assert site.ask("GET", "/nodes", opening.cookie).status_code == 200
