"""Lists, pages, single things, and the stream of events."""

import json
import time
from datetime import UTC, datetime, timedelta

import httpx
import msgspec
import sqlalchemy as sa

from healer.adapters.postgres import audit_rows, outbox
from healer.adapters.postgres.engine import write_docs
from healer.adapters.postgres.node_rows import SAVE_BURSTS, save_inventories
from healer.adapters.postgres.tables import decisions, findings, notes, run_log, verdicts
from healer.incidents.incident_verdict import verdict_of
from healer.model import (
    Component,
    Controller,
    Decision,
    Evidence,
    FaultBurst,
    FaultClass,
    Finding,
    HitBasis,
    Incident,
    IncidentState,
    Inventory,
    JobHit,
    LogEntry,
    Outcome,
    Proposal,
    Review,
    Run,
    RunState,
    Sense,
    SlurmJob,
    StepEvent,
    Trouble,
    Verb,
    audit_record,
)
from healer.ports.service_accounts import id_in
from healer.telling.news import opened_news
from healer.text import quoted
from healer.text.said import to_stored
from tests.support.api import CLUSTER, RULES, Api, incident, save_incident, save_run, snapshot
from tests.support.wait import wait_until

Served = tuple[Api, httpx.Client]


def add(api: Api, *numbers: int, **more: object) -> None:
    with api.engine.begin() as conn:
        for number in numbers:
            save_incident(conn, incident(number, node=f"gpu000{number % 4 + 1}", **more))


def test_an_unknown_cluster_is_an_error_that_names_the_known_ones(served: Served) -> None:
    """An empty list would say that all is well there. A cluster that was removed still has its records."""
    api, client = served
    api.snapshots.put(msgspec.structs.replace(snapshot(), cluster="removed"))
    span = {"since": "2026-11-20T00:00:00Z", "until": "2026-11-21T00:00:00Z"}
    headers, asked = api.headers("viewer"), 0
    for path, methods in api.app.openapi()["paths"].items():
        names = {each["name"] for each in methods.get("get", {}).get("parameters", ())}
        if "cluster" not in names or "{" in path:
            continue
        asked += 1
        query = {name: value for name, value in span.items() if name in names} | {"cluster": "POD1"}
        with client.stream("GET", path, params=query, headers=headers) as answer:
            assert answer.status_code == 404, path
            detail = json.loads(answer.read())["detail"]
        assert detail == "there is no cluster POD1; there are pod1, removed", path
        if "limit" in names:
            query["cluster"] = "removed"
            assert client.get(path, params=query, headers=headers).status_code == 200, path
    assert asked > 15


def test_nodes_of_a_cluster_that_was_removed_are_listed_only_by_its_name(served: Served) -> None:
    """The last picture of them is no word on what they are now: they would stay healthy in the list for
    ever, and count as nodes of the site."""
    api, client = served
    api.snapshots.put(msgspec.structs.replace(snapshot(), cluster="removed"))

    def clusters(**query: str) -> set[str]:
        answer = client.get("/api/v1/nodes", params=query, headers=api.headers("viewer"))
        return {node["cluster"] for node in answer.json()["items"]}

    assert clusters() == {CLUSTER}
    assert clusters(cluster="removed") == {"removed"}


def test_cursors_walk_a_list_without_loss_while_it_grows(served: Served) -> None:
    api, client = served
    add(api, *range(1, 8))
    headers = api.headers("viewer")
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = client.get(
            "/api/v1/incidents", params={"limit": 3} | ({"cursor": cursor} if cursor else {}), headers=headers
        )
        seen += [one["id"] for one in page.json()["items"]]
        cursor = page.json()["next_cursor"]
        if len(seen) == 3:
            add(api, 0)
    assert seen == [incident(number).id for number in range(1, 8)]


def test_filters(served: Served) -> None:
    api, client = served
    add(api, 1, 2)
    headers = api.headers("viewer")

    def ids(**query: str) -> set[str]:
        return {
            one["id"]
            for one in client.get("/api/v1/incidents", params=query, headers=headers).json()["items"]
        }

    assert ids(node="gpu0002") == {incident(1).id}
    assert ids(q="of gpu0003 has") == {incident(2).id}
    assert ids(q="4711") == {incident(1).id, incident(2).id}
    assert ids(q="%") == set()
    assert ids(state="resolved") == set()
    assert ids(severity="P1", state="open") == {incident(1).id, incident(2).id}
    assert client.get("/api/v1/incidents?stat=open", headers=headers).status_code == 422
    assert client.get("/api/v1/incidents?state=opne", headers=headers).status_code == 422
    assert client.get("/api/v1/incidents?limit=501", headers=headers).status_code == 422


def test_an_etag_spares_the_body(served: Served) -> None:
    api, client = served
    add(api, 1)
    headers = api.headers("viewer")
    first = client.get("/api/v1/incidents", headers=headers)
    again = client.get("/api/v1/incidents", headers={**headers, "If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    add(api, 2)
    assert (
        client.get(
            "/api/v1/incidents", headers={**headers, "If-None-Match": first.headers["ETag"]}
        ).status_code
        == 200
    )


def test_nodes_and_their_why(served: Served) -> None:
    api, client = served
    headers = api.headers("viewer")
    with api.engine.begin() as conn:
        save_incident(conn, incident(1, node="gpu0001"))
    page = client.get("/api/v1/nodes?limit=3", headers=headers).json()
    assert [one["name"] for one in page["items"]] == ["gpu0001", "gpu0002", "gpu0003"]
    rest = client.get(f"/api/v1/nodes?cursor={page['next_cursor']}", headers=headers).json()
    assert [one["name"] for one in rest["items"]] == ["gpu0004"]
    one = client.get("/api/v1/nodes/pod1/gpu0001", headers=headers).json()
    assert (one["verdict"], one["may_run_jobs"]) == ("isolate", True)
    assert "fallen off the bus" in one["why"]
    assert [gpu["verdict"] for gpu in one["gpus"]][2:5] == ["healthy", "isolate", "healthy"]
    assert [job["id"] for job in one["jobs"]] == ["4711"]
    assert client.get("/api/v1/nodes/pod1/nosuch", headers=headers).status_code == 404
    assert (
        client.get("/api/v1/nodes?verdict=isolate", headers=headers).json()["items"][0]["name"] == "gpu0001"
    )


def test_a_node_says_what_its_state_comes_to_and_who_keeps_it_out(served: Served) -> None:
    api, client = served
    headers = api.headers("viewer")
    shown = snapshot(4)
    changes = {
        "gpu0001": {"state": ("MIXED", "DRAIN"), "reason": "PSU", "reason_user": "ann"},
        "gpu0002": {
            "state": ("IDLE", "DRAIN", "ODD"),
            "reason": "NHC: check_hw",
            "reason_user": "root",
        },
        "gpu0003": {"state": ("DOWN", "NOT_RESPONDING"), "reason": "Not responding", "reason_user": "slurm"},
    }
    at = shown.taken_at - timedelta(hours=1)
    nodes = {
        name: msgspec.structs.replace(
            node,
            **(changes[name] | {"reason_at": at, "switches": ("leaf1", "spine")} if name in changes else {}),
        )
        for name, node in shown.nodes.items()
    }
    api.snapshots.put(msgspec.structs.replace(shown, nodes=nodes))
    items = {one["name"]: one for one in client.get("/api/v1/nodes", headers=headers).json()["items"]}
    fields = ("status", "out_by", "owner", "reason_age_s", "unknown_flags", "switches")
    assert {name: tuple(one.get(field) for field in fields) for name, one in items.items()} == {
        "gpu0001": ("draining", "person", "ann", 3600.0, [], ["leaf1", "spine"]),
        "gpu0002": ("drained", "program", "NHC", 3600.0, ["ODD"], ["leaf1", "spine"]),
        "gpu0003": ("down", "slurm", "Slurm", 3600.0, [], ["leaf1", "spine"]),
        "gpu0004": ("idle", None, None, None, [], []),
    }
    assert items["gpu0001"]["why"] == "Taken out of service by ann (MIXED+DRAIN): PSU"
    assert items["gpu0002"]["why"] == "Taken out of service by NHC (IDLE+DRAIN+ODD): NHC: check_hw"


def test_a_node_in_a_maintenance_reservation_takes_no_jobs(served: Served) -> None:
    """As the one of healer's own tests: Slurm starts only that reservation's jobs there."""
    api, client = served
    shown = snapshot(2)
    there = msgspec.structs.replace(shown.nodes["gpu0001"], state=("IDLE", "MAINTENANCE", "RESERVED"))
    api.snapshots.put(msgspec.structs.replace(shown, nodes={**shown.nodes, "gpu0001": there}))
    items = client.get("/api/v1/nodes", headers=api.headers("viewer")).json()["items"]
    assert [(one["may_run_jobs"], one.get("out_by")) for one in items] == [(False, "planned"), (True, None)]
    assert items[0]["why"] == "Out of service for planned maintenance (IDLE+MAINTENANCE+RESERVED)."


def test_nodes_say_what_goes_on_there(served: Served) -> None:
    api, client = served
    headers = api.headers("viewer")
    shown = snapshot(3)
    states = {"gpu0001": ("IDLE", "MAINTENANCE"), "gpu0002": ("IDLE",), "gpu0003": ("IDLE",)}
    nodes = {name: msgspec.structs.replace(shown.nodes[name], state=states[name]) for name in states}
    api.snapshots.put(msgspec.structs.replace(shown, nodes=nodes))
    booted = Inventory(node="gpu0002", at=shown.taken_at - timedelta(days=3), facts={"driver": "580.65.06"})
    at = shown.taken_at - timedelta(minutes=1)
    with api.engine.begin() as conn:
        save_inventories(conn, CLUSTER, [msgspec.structs.replace(booted, booted_at=at)])
    items = {one["name"]: one for one in client.get("/api/v1/nodes", headers=headers).json()["items"]}
    for name, kinds in {"gpu0001": ["maintenance"], "gpu0002": ["booted"], "gpu0003": []}.items():
        one = client.get(f"/api/v1/nodes/{CLUSTER}/{name}", headers=headers).json()
        assert [going["kind"] for going in items[name]["context"]] == kinds
        assert one["context"] == items[name]["context"]
    (going,) = items["gpu0002"]["context"]
    assert going["text"] == f"within minutes of a boot until {at + timedelta(minutes=5):%H:%M} UTC"


def test_each_gpu_names_the_job_that_holds_it(served: Served) -> None:
    api, client = served
    shown = snapshot(2)
    job = SlurmJob(id="4711", state="RUNNING", nodes=("gpu0001",), gpus={"gpu0001": (2, 5)})
    api.snapshots.put(msgspec.structs.replace(shown, jobs={"4711": job}))
    one = client.get("/api/v1/nodes/pod1/gpu0001", headers=api.headers("viewer")).json()
    assert [gpu["index"] for gpu in one["gpus"] if gpu["job"] == "4711"] == [2, 5]


def test_a_job_with_what_hit_it(served: Served) -> None:
    api, client = served
    add(api, 1)
    headers = api.headers("viewer")
    job = client.get("/api/v1/jobs/pod1/4711", headers=headers).json()
    assert job["nodes"] == ["gpu0001", "gpu0002"]
    assert [one["id"] for one in job["incidents"]] == [incident(1).id]
    missing = client.get("/api/v1/jobs/pod1/1", headers=headers)
    assert missing.status_code == 404 and "It may be newer than the snapshot" in missing.json()["detail"]


def test_a_job_with_the_errors_of_its_own_programs(served: Served) -> None:
    api, client = served
    at = snapshot(1).taken_at
    burst = FaultBurst(
        cluster=CLUSTER, node="gpu0001", part="0000:9b:00", fault="xid-45",
        fault_class=FaultClass.application, began_at=at, last_at=at, count=20, jobs=("4711",),
    )  # fmt: skip
    with api.engine.begin() as conn:
        write_docs(conn, SAVE_BURSTS, [burst])
    (error,) = client.get(f"/api/v1/jobs/{CLUSTER}/4711", headers=api.headers("viewer")).json()["errors"]
    assert (error["fault"], error["lines"], error["nodes"], error["node"]) == ("xid-45", 20, 1, "gpu0001")


def test_an_incident_keeps_evidence_findings_verdict_and_action_apart(served: Served) -> None:
    api, client = served
    lost = JobHit(job="4711", user="alice", gpus=16, basis=HitBasis.start, lost_gpu_hours=8.0)
    one = incident(5, hit=(lost,), confidence=1.0, counted={"xid-45": 7})
    over = {"state": IncidentState.resolved, "closed": one.opened, "closed_why": "returned by healer"}
    with api.engine.begin() as conn:
        save_incident(conn, one)
        save_incident(conn, incident(50, **over))
        before = msgspec.structs.replace(verdict_of(one, RULES), sentence="As it was first.")
        for number, verdict in enumerate((before, verdict_of(one, RULES))):
            at = one.opened + timedelta(seconds=number)
            row = {"incident": one.id, "at": at, "doc": to_stored(verdict)}
            conn.execute(sa.insert(verdicts).values(row))
    document = client.get(f"/api/v1/incidents/{one.id}", headers=api.headers("viewer")).json()
    assert {"evidence", "findings", "verdict", "verdicts", "decisions", "runs", "timeline"} <= set(document)
    assert document["verdict"]["sentence"].startswith(
        "GPU 3 of gpu0001 has fallen off the bus (Xid 79, certain)"
    )
    assert document["verdict"]["nodes"] == {"gpu0001": "isolate"}
    assert document["verdicts"][0]["verdict"]["sentence"] == "As it was first."
    said = [row["text"] for row in document["timeline"] if row["kind"] == "verdict"]
    assert said == ["As it was first.", document["verdict"]["sentence"]]
    (aside,) = document["verdict"]["set_aside"]
    assert (aside["what"], aside["count"]) == ("Xid 45", 7)
    (hit,) = document["hit"]
    assert (hit["job"], hit["user"], hit["gpus"]) == ("4711", "alice", 16)
    assert (hit["lost_gpu_hours"], hit["basis"]) == (8.0, "start")
    (other,) = document["similar"]
    assert (other["id"], other["same"]) == (incident(50).id, "part")
    assert other["ended"] == "returned by healer"
    job = client.get(f"/api/v1/jobs/{CLUSTER}/4711", headers=api.headers("viewer")).json()
    stats = client.get("/api/v1/stats", headers=api.headers("viewer")).json()
    assert job["gpu_hours_lost"] == stats["gpu_hours_lost"] == stats["gpu_hours_at_most"] == 8.0


def test_a_token_of_one_job_sees_nothing_of_the_others_that_an_incident_hit(served: Served) -> None:
    api, client = served
    one, of_bob = _hit_two_jobs(api)
    path = f"/api/v1/incidents/{one.id}"
    whole = client.get(path, headers=api.headers("viewer")).text
    assert all(word in whole for word in of_bob), "a viewer sees all of it"
    own = api.headers("viewer", job="4711", cluster=CLUSTER)
    answer = client.get(path, headers=own)
    found = answer.json()
    assert (answer.status_code, [word for word in of_bob if word in answer.text]) == (200, [])
    assert (found["jobs_hit"], [job["id"] for job in found["jobs"]]) == (["4711"], ["4711"])
    (run,) = found["runs"]
    steps = {step["id"]: (step["state"], step["text"]) for step in run["steps"]}
    assert steps == {"drain": ("done", ""), "move:4711": ("done", "job 4711 was requeued")}
    acts = api.headers("responder", job="4711", cluster=CLUSTER)
    noted = client.post(f"{path}/note", json={"note": "mine"}, headers=acts)
    assert (noted.status_code, noted.json()["jobs_hit"]) == (200, ["4711"])
    assert not any(word in noted.text for word in of_bob)


def _hit_two_jobs(api: Api) -> tuple[Incident, list[str]]:
    """An incident of a node with jobs 4711 and 4712; and words that all speak of the second."""
    at, node = snapshot().taken_at, Component(cluster=CLUSTER, node="gpu0001", gpu=3)
    line = Evidence(
        digest="d", at=at, component=node, text="pid=7, name=bobs_model", sense=Sense.kernel, job="4712"
    )
    hits = tuple(
        JobHit(job=job, basis=HitBasis.runs_on, user=of) for job, of in (("4711", "ann"), ("4712", "bob"))
    )
    one = msgspec.structs.replace(incident(1), jobs_hit=("4711", "4712"), hit=hits, evidence=(line,))
    told = Finding(
        rule="gpu-lost", fault="xid-79", fault_class=FaultClass.fatal, component=node, at=at, arrived_at=at,
        text=quoted("its bobs_model fell"), confidence=1.0, evidence=(line,), jobs=("4712",),
    )  # fmt: skip
    run = Run(
        id="r" * 32, cluster=CLUSTER, playbook="empty", state=RunState.done, by="healer", reason=quoted("x"),
        created_at=at, node="gpu0001", incident=one.id, input={"restart": {"4712": 0}},
    )  # fmt: skip
    log = [
        LogEntry(run=run.id, at=at, epoch=1, step=step, event=StepEvent.done, text=quoted(text), data=data)
        for step, text, data in (
            ("drain", "jobs 4711 and 4712 run there", {"jobs": ["4712"]}),
            ("move:4711", "job 4711 was requeued", {}),
            ("move:4712", "job 4712 of bob was requeued", {}),
        )
    ]
    shown = snapshot()
    second = msgspec.structs.replace(shown.jobs["4711"], id="4712", user="bob", comment="bobs_secret")
    api.snapshots.put(msgspec.structs.replace(shown, jobs={**shown.jobs, "4712": second}))
    news = opened_news(one)
    with api.engine.begin() as conn:
        save_incident(conn, one)
        save_run(conn, run)
        conn.execute(sa.insert(findings).values(incident=one.id, at=at, doc=to_stored(told)))
        conn.execute(sa.insert(notes).values(incident=one.id, at=at, by="eve", text="bob says 4712 is lost"))
        verdict = {"incident": one.id, "at": at, "doc": to_stored(verdict_of(one, RULES))}
        conn.execute(sa.insert(verdicts).values(verdict))
        outbox.queue(conn, news, at=at, has_sink=False)
        for number, why in enumerate(("4711 may", "4712 of bob may not")):
            job = ("4711", "4712")[number]
            proposal = Proposal(cluster=CLUSTER, verb=Verb.requeue, job=job)
            made = Decision(
                at=at, cluster=CLUSTER, incident=one.id, playbook="empty", outcome=Outcome.act,
                why=quoted(why), proposal=proposal, run=run.id,
            )  # fmt: skip
            row = {"cluster": CLUSTER, "outcome": "act", "incident": one.id, "run": run.id, "at": at}
            conn.execute(sa.insert(decisions).values(**row, doc=to_stored(made)))
        for entry in log:
            values = {"run": run.id, "at": at, "step": entry.step, "event": "done", "doc": to_stored(entry)}
            conn.execute(sa.insert(run_log).values(**values))
        record = audit_record(CLUSTER, at, "eve", "incident.hit", f"incident/{one.id}", jobs=["4712"])
        audit_rows.append(conn, record)
    return one, ["4712", "bob"]


def test_an_incident_of_an_earlier_version_has_a_verdict_too(served: Served) -> None:
    api, client = served
    add(api, 1)
    document = client.get(f"/api/v1/incidents/{incident(1).id}", headers=api.headers("viewer")).json()
    assert document["verdicts"] == []
    assert document["verdict"]["certainty"] == 0.8
    assert "has fallen off the bus" in document["verdict"]["sentence"]


def test_precision_counts_only_decided_reviews(served: Served) -> None:
    api, client = served
    add(api, 1, 2, 3, review=Review.true_fault)
    add(api, 4, review=Review.false_alarm)
    add(api, 5, review=Review.unclear)
    add(api, 6)
    rule = client.get("/api/v1/rules", headers=api.headers("viewer")).json()["items"][0]
    assert (rule["precision"], rule["incidents"]) == (0.75, 6)
    assert rule["reviews"] == {"true_fault": 3, "false_alarm": 1, "unclear": 1}


def test_figures(served: Served) -> None:
    api, client = served
    headers = api.headers("viewer")
    assert client.get("/api/v1/stats", headers=headers).json()["detect"]["p50_s"] is None
    add(api, 1, 2, drained_at=datetime.now(UTC))
    stats = client.get("/api/v1/stats", headers=headers).json()
    assert (stats["incidents"], stats["open"], stats["by_rule"]) == (2, 2, {"gpu-lost": 2})
    assert 60 <= stats["drain"]["p50_s"] <= 130
    text = client.get("/metrics", headers=headers).text
    assert 'healer_incidents_open{cluster="pod1",severity="P1"} 2.0' in text


def test_readiness_says_what_is_missing(served: Served) -> None:
    _, client = served
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert {name: check["ok"] for name, check in answer.json()["checks"].items()} == {
        "database": True,
        "slurm": True,
        "detector": False,
        "spool": False,  # there is none here
        "seal": True,
    }


def test_readiness_reports_slurmctld_but_does_not_depend_on_it(served: Served) -> None:
    api, client = served
    since = datetime.now(UTC) - timedelta(minutes=2)
    seen = Controller(
        cluster="pod1", at=datetime.now(UTC), host="ctl2", role="backup", since={Trouble.backup: since}
    )
    api.snapshots.put_controller(seen)
    check = client.get("/readyz").json()["checks"]["slurm"]
    assert check["ok"] is True
    (trouble,) = check["troubles"]
    assert (trouble["what"], trouble["text"]) == ("backup", "The backup controller ctl2 took over")
    assert datetime.fromisoformat(trouble["since"]) == since


def test_event_stream_resumes_where_it_stopped(served: Served) -> None:
    api, client = served
    headers = api.headers("viewer")
    with client.stream("GET", "/api/v1/events/stream", headers=headers) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "retry: 1000"
        wait_until(api.events.ready)
        add(api, 1)
        first = next(line for line in lines if line.startswith("id: "))
        assert next(lines) == "event: incident"
        assert json.loads(next(lines).removeprefix("data: "))["id"] == incident(1).id
    api.snapshots.put(snapshot(3))
    add(api, 2)
    back = {**headers, "Last-Event-ID": first.removeprefix("id: ")}
    with client.stream("GET", "/api/v1/events/stream", headers=back) as stream:
        kinds = []
        for line in stream.iter_lines():
            if line.startswith("event: "):
                kinds.append(line.removeprefix("event: "))
            if len(kinds) == 2:
                break
    assert kinds == ["fleet", "incident"]


def test_an_unknown_place_in_the_stream_is_a_reset(served: Served) -> None:
    api, client = served
    headers = {**api.headers("viewer"), "Last-Event-ID": "1"}
    with client.stream("GET", "/api/v1/events/stream", headers=headers) as stream:
        assert next(line for line in stream.iter_lines() if line.startswith("event")) == "event: reset"


def test_the_stream_of_a_revoked_token_ends_however_much_happens(served: Served) -> None:
    api, client = served
    token = api.token("viewer")
    with client.stream(
        "GET", "/api/v1/events/stream", headers={"Authorization": f"Bearer {token}"}
    ) as stream:
        lines = stream.iter_lines()
        wait_until(api.events.ready)
        add(api, 1)
        assert incident(1).id in next(line for line in lines if line.startswith("data: "))
        assert api.tokens.revoke(id_in(token), by="root", now=datetime.now(UTC))
        time.sleep(2.1)  # a caller is cached for a second
        add(api, 2)
        assert not any(incident(2).id in line for line in lines)


def test_a_token_that_ended_is_not_answered_as_if_none_was_sent(served: Served) -> None:
    api, client = served
    token = api.token("viewer")
    api.tokens.revoke(id_in(token), by="bob", now=datetime.now(UTC))
    refused = client.get("/api/v1/nodes", headers={"Authorization": f"Bearer {token}"})
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
    assert refused.json()["detail"].startswith(
        "this token or session is not valid: it has expired, was revoked"
    )
    assert 'error="invalid_token"' in refused.headers["WWW-Authenticate"]
    without = client.get("/api/v1/nodes")
    assert "this requires a token" in without.text
    assert "error" not in without.headers["WWW-Authenticate"]
