"""Enrolment by munge credentials, with real munge daemons: who may, who may not, and what is written down."""

import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.munge import Munge
from healer.adapters.postgres.tables import messages, tokens
from healer.adapters.postgres.tokens import ENROLLED_ID, PostgresTokens, enrolled_again
from healer.api.door import REFUSALS_PER_MIN
from healer.api.enroll_routes import named, wrong_host
from healer.model import Role, SlurmJob, SlurmNode, SlurmSnapshot
from healer.ports.request_errors import Unavailable
from healer.ports.service_accounts import id_in
from healer.processes.scheduler import enrolment_watch
from tests.support.api import CLUSTER, XID_79, Api, serving, snapshot
from tests.support.ledgers import PostgresBench
from tests.support.munge import Realm, credential, realm
from tests.support.seals import seal_all
from tests.support.wait import wait_until


class Hand:
    """A clock that a test sets."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at


#: gpu0001 is at 127.0.1.1, and so on.
HOST = "127.0.1."


class Cluster:
    """An API, and a munge realm in which gpu0001 has a machine of its own."""

    def __init__(self, api: Api, client: httpx.Client, munge: Realm, engine: sa.Engine) -> None:
        self.api, self.client, self.munge, self.engine = api, client, munge, engine
        self.first = munge.machine(HOST + "1")
        known = snapshot(4)
        nodes = {
            name: msgspec.structs.replace(node, address=HOST + name[-1], hostname=f"host{name[-1]}")
            for name, node in known.nodes.items()
        }
        api.snapshots.put(msgspec.structs.replace(known, nodes=nodes))

    def claim(self, node: str = "gpu0001", **more: Any) -> str:
        return json.dumps({"for": "healer enroll", "node": node, "nonce": secrets.token_hex(16)} | more)

    def ask(self, credential: str, **more: Any) -> httpx.Response:
        return self._answered({"credential": credential} | more)

    def enroll(
        self, node: str = "gpu0001", *, at: Path | None = None, uid: int = 0, token: str = "", **more: Any
    ) -> httpx.Response:
        """`token`: the one before, which the request shows."""
        made = credential(at or self.first, self.claim(node, **more), uid=uid)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self._answered({"credential": made}, headers)

    def _answered(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
        """Once the worker has sealed what this made."""
        answer = self.client.post("/api/v1/enroll", json=body, headers=headers)
        seal_all(self.engine)
        return answer

    def pass_time(self, by: timedelta) -> None:
        """For all tokens that were made."""
        with self.engine.begin() as conn:
            conn.execute(sa.update(tokens).values(created_at=tokens.c.created_at - by))

    def beat(self, token: str, node: str = "gpu0001") -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return self.client.post("/api/v1/signals/heartbeat", json={"node": node}, headers=headers).status_code

    def audited(self, verb: str) -> list[dict[str, Any]]:
        page = self.client.get("/api/v1/audit", params={"verb": verb}, headers=self.api.headers(Role.viewer))
        return page.json()["items"]


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder that every user may enter, with a path short enough for munge's socket."""
    folder = Path(tempfile.mkdtemp(prefix="hm-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(fresh_database: sa.Engine, short: Path) -> Iterator[Cluster]:
    with realm(short) as munge:
        socket = munge.machine("127.0.0.1")
        with serving(fresh_database, munge_socket=socket) as (api, client):
            yield Cluster(api, client, munge, fresh_database)


def refused(answer: httpx.Response, why: str, status: int = 403) -> None:
    assert answer.status_code == status, answer.text
    assert why in answer.json()["detail"]


def test_a_node_gets_a_token_for_its_own_signals_and_nothing_else(cluster: Cluster) -> None:
    answer = cluster.enroll()
    assert answer.status_code == 201, answer.text
    body = answer.json()
    assert (body["node"], body["cluster"]) == ("gpu0001", CLUSTER)
    assert datetime.fromisoformat(body["expires_at"]) > datetime.now(UTC) + timedelta(days=80)
    assert cluster.beat(body["token"]) == 202
    assert cluster.beat(body["token"], "gpu0002") == 403
    for path in ("nodes", "incidents", "audit"):
        headers = {"Authorization": f"Bearer {body['token']}"}
        assert cluster.client.get(f"/api/v1/{path}", headers=headers).status_code == 403
    (record,) = cluster.audited("token.enrolled")
    assert record["actor"] == f"munge, root at {HOST}1" and record["data"]["node"] == "gpu0001"
    assert body["token"] not in json.dumps(record)


def test_host_name_is_mapped_to_the_slurm_node_name(cluster: Cluster) -> None:
    assert cluster.enroll("host1").json()["node"] == "gpu0001"


def test_the_same_credential_works_once(cluster: Cluster) -> None:
    made = credential(cluster.first, cluster.claim())
    assert cluster.ask(made).status_code == 201
    refused(cluster.ask(made), "it was used before")


def test_another_machine_of_healer_whose_munged_never_saw_it_refuses_the_replay_too(
    cluster: Cluster,
) -> None:
    """munged remembers credentials by machine; the nonce is spent in the database."""
    payload = cluster.claim()
    assert cluster.ask(credential(cluster.first, payload)).status_code == 201
    refused(cluster.ask(credential(cluster.first, payload)), "this credential was used before", 409)


def test_only_root_enrols_a_node(cluster: Cluster) -> None:
    refused(cluster.enroll(uid=65534), "the credential is from user 65534")


def test_a_node_enrols_itself_and_no_other(cluster: Cluster) -> None:
    answer = cluster.enroll("gpu0002")
    refused(answer, f"created at {HOST}1")
    refused(answer, f"Slurm's node gpu0002 is at {HOST}2")
    (record,) = cluster.audited("access.refused")
    assert "gpu0002" in record["data"]["why"] and record["actor"] == "enrolment from 127.0.0.1"


def test_a_munged_that_takes_itself_for_localhost_proves_nothing_from_elsewhere(cluster: Cluster) -> None:
    here = cluster.munge.machine("127.0.0.1")
    refused(cluster.enroll(at=here), "created at 127.0.0.1, but Slurm's node gpu0001 is at")


def test_a_node_that_slurm_does_not_have_is_refused(cluster: Cluster) -> None:
    refused(cluster.enroll("login1"), "Slurm has no node login1")


def test_foreign_munge_realm_is_explained(cluster: Cluster, short: Path) -> None:
    other = short / "other.key"
    other.touch(0o600)
    other.write_bytes(secrets.token_bytes(128))
    refused(cluster.enroll(at=cluster.munge.machine(HOST + "1", key=other)), "another munge realm")


@pytest.mark.parametrize(
    "payload",
    ["", "hello", "[]", '{"node":"gpu0001"}', '{"for":"slurm","node":"gpu0001","nonce":"' + "0" * 32 + '"}'],
)
def test_credential_made_for_another_purpose_enrols_no_one(cluster: Cluster, payload: str) -> None:
    """root makes many: each message of slurmd carries one."""
    refused(cluster.ask(credential(cluster.first, payload)), "was not created to enroll a node or a job")


def test_expired_credential_hints_at_clock_skew(cluster: Cluster) -> None:
    made, at = credential(cluster.first, cluster.claim(), "--ttl=1"), time.time()
    wait_until(lambda: time.time() > at + 2, what="its second is over")
    refused(cluster.ask(made), "the node's clock is behind healer's")


@pytest.mark.parametrize("text", ["", "MUNGE:", "MUNGE:!!!:", "MUNGE:QUJD:\nMUNGE:QUJD:", "x" * 9000])
def test_text_that_is_no_credential_never_reaches_munge(cluster: Cluster, text: str) -> None:
    assert cluster.ask(text).status_code == 422


def test_garbage_in_the_form_of_a_credential_is_refused_and_soon_not_looked_at(cluster: Cluster) -> None:
    for _ in range(REFUSALS_PER_MIN):
        refused(cluster.ask("MUNGE:QUJDRA==:"), "the credential was rejected")
    answer = cluster.ask(credential(cluster.first, cluster.claim()))
    refused(answer, "was refused 20 times within one minute", 429)
    assert int(answer.headers["retry-after"]) > 0


def test_the_wrong_cluster_is_refused(cluster: Cluster) -> None:
    refused(cluster.ask(credential(cluster.first, cluster.claim(cluster="pod9"))), "the cluster pod9")
    made = credential(cluster.first, cluster.claim(cluster=CLUSTER))
    refused(cluster.ask(made, cluster="pod9"), "the cluster pod9")


def test_a_new_token_ends_the_one_before_after_a_grace(cluster: Cluster) -> None:
    first, second = cluster.enroll().json()["token"], cluster.enroll().json()["token"]
    assert cluster.beat(first) == 202 and cluster.beat(second) == 202
    rows = {row.id: row.expires_at for row in cluster.api.tokens.all() if row.node == "gpu0001"}
    assert rows[first.split("_")[1]] < datetime.now(UTC) + timedelta(minutes=11)
    assert rows[second.split("_")[1]] > datetime.now(UTC) + timedelta(days=80)


def test_a_node_that_enrols_without_its_token_is_seen_and_its_renewal_is_not(cluster: Cluster) -> None:
    """Root on any node can make a credential in its name; only the node itself has its token."""
    first = cluster.enroll().json()["token"]
    cluster.pass_time(timedelta(minutes=11))
    renewed = cluster.enroll(token=first).json()["token"]
    assert cluster.beat(first) == 202, "the one before lasts until its grace ends"
    assert cluster.audited("token.enrolled-again") == []
    cluster.pass_time(timedelta(minutes=11))
    stolen = cluster.enroll().json()["token"]
    (record,) = cluster.audited("token.enrolled-again")
    assert record["subject"] == "node/gpu0001" and record["actor"] == f"munge, root at {HOST}1"
    assert record["data"]["ended"] == sorted(one.split("_")[1] for one in (first, renewed))
    wait_until(lambda: cluster.beat(renewed) == 401, 30, what="the token before has ended")
    # The node enrols again in its turn: seen, too.
    cluster.enroll(token=renewed)
    assert len(cluster.audited("token.enrolled-again")) == 2
    assert stolen.split("_")[1] in cluster.audited("token.enrolled-again")[0]["data"]["ended"]


def test_another_nodes_token_proves_nothing(cluster: Cluster) -> None:
    other = cluster.api.token(Role.signals, node="gpu0002", cluster=CLUSTER)
    everybodys = cluster.api.token(Role.signals)
    cluster.enroll()
    cluster.pass_time(timedelta(hours=1))
    for count, token in enumerate((other, everybodys, "heal_nothing"), 1):
        assert cluster.enroll(token=token).status_code == 201
        assert len(cluster.audited("token.enrolled-again")) == count


def test_a_lost_answer_is_no_second_installation(cluster: Cluster) -> None:
    cluster.enroll()
    cluster.enroll()
    assert cluster.audited("token.enrolled-again") == []


def test_nodes_that_enrol_again_page_once_a_day_together(fresh_database: sa.Engine) -> None:
    begun = datetime.now(UTC).replace(hour=9, minute=0, second=0, microsecond=0)
    book = PostgresTokens(fresh_database, CLUSTER, b"k" * 32)

    def enrol(node: str, after: timedelta) -> None:
        now = begun + after
        book.enroll(CLUSTER, node, nonce=secrets.token_hex(16), by="munge, root at x", now=now)

    for node in ("gpu0001", "gpu0002", "gpu0003"):
        enrol(node, -timedelta(days=3))
    enrol("gpu0001", timedelta(minutes=1))
    enrol("gpu0002", timedelta(minutes=3))
    enrol("gpu0001", timedelta(minutes=20))  # no second page of the day
    enrol("gpu0003", timedelta(minutes=21))
    hand = Hand(begun + timedelta(minutes=4))
    ledger = PostgresBench(fresh_database).ledger

    def titles() -> list[str]:
        enrolment_watch(ledger, lambda since: enrolled_again(fresh_database, CLUSTER, since), hand)()
        with fresh_database.connect() as conn:
            doc, page = messages.c.doc["title"]["text"].astext, messages.c.page
            return list(conn.scalars(sa.select(doc).where(page).order_by(messages.c.id)))

    assert titles() == []
    hand.at = begun + timedelta(minutes=6)
    title = f"Nodes of {CLUSTER} enrolled again without their token:"
    assert titles() == titles() == [f"{title} 2"]
    hand.at = begun + timedelta(minutes=40)
    assert titles() == [f"{title} 2", f"{title} 1"]


def test_a_token_made_by_a_person_is_not_replaced(cluster: Cluster) -> None:
    own = cluster.api.token(Role.signals, node="gpu0001", cluster=CLUSTER)
    enrolled = cluster.enroll().json()["token"]
    assert len(id_in(own)) < ENROLLED_ID == len(id_in(enrolled)), "so the follower does not renew it either"
    row = next(row for row in cluster.api.tokens.all() if row.id == own.split("_")[1])
    assert row.expires_at is None


def test_a_persons_revocation_holds_until_a_person_makes_a_new_token(cluster: Cluster) -> None:
    made = cluster.enroll().json()["token"]
    cluster.api.tokens.revoke(made.split("_")[1], by="carol", now=datetime.now(UTC))
    refused(cluster.enroll(), "a person revoked")
    cluster.api.token(Role.signals, node="gpu0001", cluster=CLUSTER)
    assert cluster.enroll().status_code == 201


def test_a_node_that_enrols_again_and_again_is_slowed_down(cluster: Cluster) -> None:
    statuses = [cluster.enroll().status_code for _ in range(11)]
    assert statuses == [201] * 10 + [429]


# --- jobs ------------------------------------------------------------------------------------------------

OWNER, OTHER = 65534, 65533


@pytest.fixture
def job(cluster: Cluster) -> Cluster:
    """Slurm shows the job 4711 of the user OWNER on two nodes, and 4712, which has ended."""
    shown = cluster.api.snapshots.latest(CLUSTER)
    assert shown is not None
    jobs = {
        name: SlurmJob(id=name, state=state, nodes=("gpu0001", "gpu0002"), user="alice", uid=OWNER)
        for name, state in (("4711", "RUNNING"), ("4712", "COMPLETED"))
    } | {"4713": SlurmJob(id="4713", state="RUNNING", nodes=("gpu0003",), user="alice")}
    cluster.api.snapshots.put(
        msgspec.structs.replace(shown, jobs=jobs, taken_at=shown.taken_at + timedelta(seconds=1))
    )
    return cluster


def job_claim(job: str, **more: Any) -> str:
    return json.dumps({"for": "healer enroll job", "job": job, "nonce": secrets.token_hex(16)} | more)


def enroll_job(cluster: Cluster, job: str = "4711", *, uid: int = OWNER, **more: Any) -> httpx.Response:
    return cluster.ask(credential(cluster.first, job_claim(job, **more), uid=uid))


def enrolled(cluster: Cluster) -> dict[str, Any]:
    """The fleet's picture is looked at each second or so."""
    return wait_until(
        lambda: answer.json() if (answer := enroll_job(cluster)).status_code == 201 else None,
        15,
        what="the job is in the picture",
    )


def test_a_jobs_user_gets_a_token_for_its_steps_and_checkpoints_and_nothing_else(job: Cluster) -> None:
    answer = enrolled(job)
    assert (answer["job"], answer["cluster"], "node" in answer) == ("4711", CLUSTER, False)
    ends = datetime.fromisoformat(answer["expires_at"])
    assert timedelta(hours=23) < ends - datetime.now(UTC) <= timedelta(hours=24)
    headers = {"Authorization": f"Bearer {answer['token']}"}

    def status(route: str, body: Any) -> int:
        return job.client.post(f"/api/v1/signals/{route}", json=body, headers=headers).status_code

    saved = {"step": 1, "path": "/ckpt/1", "durable": True}
    assert status("step-times", {"job": "4711", "samples": [{"step_s": 1.0}]}) == 202
    assert status("checkpoints", {"job": "4711"} | saved) == 202
    assert status("step-times", {"job": "4712", "samples": [{"step_s": 1.0}]}) == 403
    assert status("checkpoints", {"job": "4712"} | saved) == 403
    line = {"node": "gpu0001", "entries": [{"line": XID_79, "job": "4711"}]}
    assert status("kernel-log", line) == 403
    assert job.client.get(f"/api/v1/jobs/{CLUSTER}/4711", headers=headers).status_code == 403
    (record,) = job.audited("token.enrolled")
    assert record["actor"] == f"munge, alice at {HOST}1" and record["data"]["job"] == "4711"
    assert answer["token"] not in json.dumps(record)


def test_only_the_user_of_a_job_at_work_gets_one(job: Cluster) -> None:
    enrolled(job)
    refused(enroll_job(job, uid=OTHER), f"from user {OTHER}")
    refused(enroll_job(job, uid=0), "from user 0")
    refused(enroll_job(job, "4712"), "no active job 4712", 409)
    refused(enroll_job(job, "9999"), "no active job 9999", 409)
    refused(enroll_job(job, "4713"), f"from user {OWNER}")  # Slurm does not report the owner


def test_a_credential_for_a_node_gets_no_job_and_the_other_way_round(job: Cluster) -> None:
    node = job_claim("4711").replace("healer enroll job", "healer enroll")
    refused(job.ask(credential(job.first, node)), "not created to enroll")
    mixed = job_claim("4711", node="gpu0001")
    answer = job.ask(credential(job.first, mixed, uid=OWNER))
    assert answer.status_code in {201, 409} and "node" not in answer.json()


def test_the_nonce_of_a_job_is_spent_once(job: Cluster) -> None:
    enrolled(job)
    payload = job_claim("4711")
    assert job.ask(credential(job.first, payload, uid=OWNER)).status_code == 201
    refused(job.ask(credential(job.first, payload, uid=OWNER)), "was used before", 409)


def test_a_job_that_enrols_again_and_again_is_slowed_down(job: Cluster) -> None:
    enrolled(job)
    statuses = [enroll_job(job).status_code for _ in range(10)]
    assert statuses == [201] * 9 + [429]


def test_a_persons_revocation_is_a_no_to_the_job(job: Cluster) -> None:
    made = enrolled(job)["token"]
    job.api.tokens.revoke(made.split("_")[1], by="carol", now=datetime.now(UTC))
    refused(enroll_job(job), "a person revoked")


def test_tokens_of_jobs_that_ended_long_ago_are_deleted(job: Cluster) -> None:
    now = datetime.now(UTC)
    for days, name in ((3, "old"), (1, "young")):
        job.api.tokens.enroll_job(
            CLUSTER, name, nodes=1, nonce=name, by="test", now=now - timedelta(days=days)
        )
    enrolled(job)
    assert {row.job for row in job.api.tokens.all() if row.job} == {"young", "4711"}


def test_without_munge_on_healers_machine_the_answer_is_503(fresh_database: sa.Engine, short: Path) -> None:
    with serving(fresh_database, munge_socket=short / "nobody") as (_, client):
        answer = client.post("/api/v1/enroll", json={"credential": "MUNGE:QUJD:"})
        assert answer.status_code == 503 and "munge does not work on healer's machine" in answer.text
    with pytest.raises(Unavailable, match="nobody"):
        Munge(short / "nobody").decode("MUNGE:QUJD:")


# --- which machine is which node --------------------------------------------------------------------------


def node(name: str, address: str = "", hostname: str = "") -> SlurmNode:
    return SlurmNode(name=name, address=address, hostname=hostname)


def check(
    host: str, nodes: list[SlurmNode], *, peer: str = "10.0.0.99", dns: dict[str, str] | None = None
) -> str | None:
    names = dns or {}
    by_name = {one.name: one for one in nodes}
    return wrong_host(host, peer, nodes[0], by_name, lambda name: [names[name]] if name in names else [])


def test_an_address_or_a_name_that_resolves_to_it_is_a_proof() -> None:
    assert check("10.0.0.1", [node("gpu1", "10.0.0.1")]) is None
    assert check("10.0.0.1", [node("gpu1")], dns={"gpu1": "10.0.0.1"}) is None
    assert check("10.0.0.1", [node("gpu1", "gpu1-ib", "gpu1-eth")], dns={"gpu1-eth": "10.0.0.1"}) is None
    assert check("10.0.0.2", [node("gpu1", "10.0.0.1")], dns={"gpu1": "10.0.0.1"}) is not None


def test_a_loopback_address_counts_only_where_slurm_itself_has_it() -> None:
    """Debian gives a host's own name 127.0.1.1: every node's munged would call itself so."""
    nodes = [node("gpu1")]
    names = {"gpu1": "127.0.1.1"}
    assert check("127.0.1.1", nodes, dns=names) is not None
    assert check("127.0.1.1", [node("gpu1", "127.0.1.1")]) is None


def test_sender_address_counts_where_munge_gives_none() -> None:
    assert check("127.0.1.1", [node("gpu1", "10.0.0.1")], peer="10.0.0.1") is None
    assert check("127.0.1.1", [node("gpu1", "10.0.0.1")], peer="10.0.0.2") is not None
    assert check("10.0.0.2", [node("gpu1", "10.0.0.1")], peer="10.0.0.1") is not None


def test_nodes_sharing_an_address_are_ambiguous() -> None:
    both = [node("gpu1", "127.0.0.1", "localhost"), node("gpu2", "127.0.0.1", "localhost")]
    why = check("127.0.0.1", both)
    assert why is not None and "the same address 127.0.0.1" in why


def test_a_host_name_that_several_nodes_have_names_none_of_them() -> None:
    nodes = {name: node(name, hostname="box") for name in ("a", "b")}
    shown = SlurmSnapshot(cluster="c", taken_at=datetime.now(UTC), nodes=nodes)
    assert named(shown, "box") is None and named(shown, "a") is nodes["a"]
