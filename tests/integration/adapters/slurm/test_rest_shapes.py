"""The whole port over HTTP in the shapes of five releases, written from the tables d.1 to d.4 of the facts.

Nothing here was captured: the real 24.11 is in tests/integration.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from healer.adapters.slurm.rest import RestScheduler
from healer.model import Reservation, SlurmCall, Submission
from healer.ports.scheduling import NotAvailable, SchedulerRefused, SchedulerUnavailable, UnknownNode
from tests.support.rest_server import TOKEN, RestServer, serve_rest
from tests.support.slurm_shapes import RELEASES

pytestmark = pytest.mark.heavy

AT = 1795165655
REASON = "healer:gpu-lost inc:1a2b3c4d GPU 3 fell off the bus (Xid 79)"


class StandingToken:
    def current(self, now: datetime) -> str:
        return TOKEN

    def refused(self, token: str) -> None:
        """There is no other one."""


@pytest.fixture(params=RELEASES)
def rest(request: pytest.FixtureRequest) -> Iterator[RestServer]:
    with serve_rest(request.param) as server:
        shape = server.shape
        server.set_answer(
            "GET",
            "/nodes",
            shape.answer(
                nodes=[
                    shape.node("n1", "IDLE", "DRAIN", reason="ann: PSU", user="ann", at=AT),
                    shape.node("n2", "MIXED"),
                    shape.node("n3", "IDLE", "SOMETHING_NEW"),
                ]
            ),
        )
        running = shape.job(7, "RUNNING", nodes="n2", gres=["gpu:h100:2(IDX:0,3)"], start=AT)
        task = shape.job(9, "RUNNING", nodes="n2", gres=["gpu:h100:1(IDX:5)"], array=(8, 1))
        waiting = shape.job(8, "PENDING", array=(8, None))
        server.set_answer("GET", "/jobs", shape.answer(jobs=[running, task, waiting]))
        crashed = shape.job(6, "FAILED", exit_code=1, end=AT)
        server.set_answer("GET", "/job/6", shape.answer(jobs=[crashed]))
        server.set_answer("GET", "/job/7", shape.answer(jobs=[running]))
        server.set_answer("GET", "/job/8", shape.answer(jobs=[waiting, task]))
        held = {"name": "t1", "node_list": "n3", "users": "root", "flags": ["MAINT", "IGNORE_JOBS"]}
        server.set_answer("GET", "/reservations", shape.answer(reservations=[held]))
        yield server


@pytest.fixture
def scheduler(rest: RestServer) -> Iterator[RestScheduler]:
    found = RestScheduler(rest.url, user="healer", token=StandingToken())
    yield found
    found.close()


def since(rest: RestServer, parser: str) -> bool:
    return rest.shape.parser >= parser


def test_it_says_what_it_found(rest: RestServer, scheduler: RestScheduler) -> None:
    assert scheduler.describe() == f"rest, Slurm {rest.release}.0, {rest.shape.parser}"
    assert scheduler.cluster_name() == "pod1"


def test_everything_is_read(rest: RestServer, scheduler: RestScheduler) -> None:
    picture = scheduler.snapshot()
    assert picture.cluster == "pod1"
    assert (picture.nodes["n1"].state, picture.nodes["n1"].reason) == (("IDLE", "DRAIN"), "ann: PSU")
    assert picture.nodes["n1"].reason_at == datetime.fromtimestamp(AT, UTC)
    assert picture.jobs["7"].gpus == {"n2": (0, 3)}
    assert (picture.jobs["9"].array_job, picture.jobs["9"].array_task) == ("8", 1)
    assert picture.reservations["t1"].nodes == ("n3",) and picture.reservations["t1"].maintenance
    lists = [each for each in rest.asked if each.path in ("/nodes", "/jobs", "/reservations")]
    assert len(lists) == 3
    for asked in rest.asked:
        assert asked.headers["x-slurm-user-name"] == "healer"
        assert asked.headers["x-slurm-user-token"] == TOKEN


def test_a_task_of_an_array_is_found_by_both_its_names(scheduler: RestScheduler, rest: RestServer) -> None:
    by_name = scheduler.job("8_1")
    assert by_name is not None and by_name.id == "9"
    rest.set_answer("GET", "/job/9", rest.answers["GET", "/job/8"].body)
    assert scheduler.job("9") == by_name


def test_pitfall_20_a_time_that_is_not_set_or_infinite_is_none(
    rest: RestServer, scheduler: RestScheduler
) -> None:
    shape = rest.shape
    job = shape.job(7, "PENDING") | {
        "start_time": shape.number(AT, infinite=True),
        "end_time": shape.number(None),
    }
    rest.set_answer("GET", "/job/7", shape.answer(jobs=[job]))
    found = scheduler.job("7")
    assert found is not None and (found.start_at, found.end_at) == (None, None)


def test_pitfall_22_unknown_flag_is_carried_through(scheduler: RestScheduler) -> None:
    assert scheduler.snapshot().nodes["n3"].state == ("IDLE", "SOMETHING_NEW")


def test_pitfall_24_an_unknown_node_is_http_200_with_an_error_of_number_0(
    rest: RestServer, scheduler: RestScheduler
) -> None:
    rest.refuse("GET", "/node/n9", 0, "No error", status=200)
    with pytest.raises(UnknownNode) as caught:
        scheduler.node("n9")
    assert caught.value.code == 2018
    # Nor is a write done because HTTP says 200.
    rest.refuse("POST", "/node/n1", 2010, "Invalid user id", status=200)
    with pytest.raises(SchedulerRefused):
        scheduler.drain("n1", REASON)


def test_pitfall_21_a_list_that_has_not_changed_is_neither_sent_nor_made_again(
    rest: RestServer, scheduler: RestScheduler
) -> None:
    first = scheduler.snapshot()
    shape = rest.shape
    rest.set_answer("GET", "/nodes", b"", status=304)
    rest.set_answer("GET", "/reservations", b"", status=304)
    nothing_new = {"description": "No job changes since update_time", "source": "_op_handler_jobs"}
    # Slurm answers 200 here, without a job and without a time of the last change.
    body = shape.answer(warnings=[nothing_new], jobs=[]).replace(str(AT).encode(), b"0")
    rest.set_answer("GET", "/jobs", body)
    asked = len(rest.asked)
    second = scheduler.snapshot()
    assert second.nodes is first.nodes
    assert second.jobs is first.jobs
    assert second.reservations is first.reservations
    assert [(each.path, each.query) for each in rest.asked[asked:]] == [
        (path, {"update_time": str(AT)}) for path in ("/nodes", "/jobs", "/reservations")
    ]
    assert second.taken_at > first.taken_at


def test_pitfall_21_a_list_that_is_really_empty_now_is_empty(
    rest: RestServer, scheduler: RestScheduler
) -> None:
    assert scheduler.snapshot().jobs
    rest.set_answer("GET", "/jobs", rest.shape.answer(jobs=[]))
    assert scheduler.snapshot().jobs == {}


def test_pitfall_21_an_error_to_update_time_is_asked_again_whole(
    rest: RestServer, scheduler: RestScheduler
) -> None:
    # 24.11: "Unable to query partitions" where nodes have changed and partitions have not.
    scheduler.snapshot()
    asked = len(rest.asked)
    rest.refuse("GET", "/nodes", -1, "Unspecified error")
    with pytest.raises(Exception, match="Unspecified error"):
        scheduler.snapshot()
    assert [each.query for each in rest.asked[asked:] if each.path == "/nodes"] == [
        {"update_time": str(AT)},
        {},
    ]


def test_a_list_is_asked_for_once_where_slurmrestd_found_no_slurmctld(
    rest: RestServer, scheduler: RestScheduler
) -> None:
    # It has tried for 9 s: a second time would keep the page from saying so for as long again.
    scheduler.snapshot()
    asked = len(rest.asked)
    rest.refuse("GET", "/nodes", 1800, "Unable to contact slurm controller (connect failure)", 502)
    with pytest.raises(SchedulerUnavailable, match="Unable to contact") as raised:
        scheduler.snapshot()
    assert not raised.value.sent
    assert [each.query for each in rest.asked[asked:] if each.path == "/nodes"] == [{"update_time": str(AT)}]


def test_drain_and_what_else_is_done_to_one_node_with_pitfall_3(
    rest: RestServer, scheduler: RestScheduler
) -> None:
    """Slurm records who was authenticated and ignores `reason_uid` (26.11 has none): it is never sent."""
    rest.set_answer("POST", "/node/n1")
    scheduler.drain("n1", REASON)
    scheduler.undrain("n1")
    scheduler.resume("n1")
    scheduler.down("n1", REASON)
    scheduler.annotate("n1", comment="", extra='{"inc":"1a2b3c4d"}')
    scheduler.annotate("n1")
    assert rest.writes == [
        ("POST", "/node/n1", {"state": ["DRAIN"], "reason": REASON}),
        ("POST", "/node/n1", {"state": ["UNDRAIN"]}),
        ("POST", "/node/n1", {"state": ["RESUME"]}),
        ("POST", "/node/n1", {"state": ["DOWN"], "reason": REASON}),
        ("POST", "/node/n1", {"comment": "", "extra": '{"inc":"1a2b3c4d"}'}),
    ]


def test_pitfall_1_a_drain_without_a_reason_is_never_sent(rest: RestServer, scheduler: RestScheduler) -> None:
    """slurmrestd takes it and keeps the reason of before."""
    for reason in ("", "  ", "two\nlines"):
        for write in (scheduler.drain, scheduler.down):
            with pytest.raises(ValueError):
                write("n1", reason)
    assert rest.writes == []


def test_many_nodes_are_one_call_from_24_11_on(rest: RestServer, scheduler: RestScheduler) -> None:
    body = {"state": ["DRAIN"], "reason": REASON}
    for path in ("/nodes", "/node/n1", "/node/n2"):
        rest.set_answer("POST", path)
    scheduler.drain(["n1", "n2"], REASON)
    one_call = [("POST", "/nodes", {"name": ["n1", "n2"], **body})]
    one_by_one = [("POST", "/node/n1", body), ("POST", "/node/n2", body)]
    assert rest.writes == (one_call if since(rest, "v0.0.42") else one_by_one)


@pytest.mark.parametrize("name", ["", "ALL", "n[1-3]", "n1,n2", "../job/7", "n1?x=1", "n1\n", "localhost"])
def test_a_name_that_attacks_the_address_is_refused(
    rest: RestServer, scheduler: RestScheduler, name: str
) -> None:
    for call in (
        lambda: scheduler.node(name),
        lambda: scheduler.drain(name, REASON),
        lambda: scheduler.resume(["n1", name]),
    ):
        with pytest.raises(UnknownNode):
            call()
    with pytest.raises(SchedulerRefused):
        scheduler.hold(name)
    assert rest.asked == []


def test_jobs_are_changed_by_their_own_id(rest: RestServer, scheduler: RestScheduler) -> None:
    """slurmrestd refuses `8_1` in an address; a plain id is the one record that has it."""
    rest.set_answer("POST", "/job/9")
    scheduler.hold("8_1")
    scheduler.release("8_1")
    scheduler.exclude("8_1", ["n1", "n3"])
    scheduler.exclude("8_1", [])
    scheduler.remark("8_1", "healer: n2 lost a GPU")
    bodies = [body for _, _, body in rest.writes]
    assert bodies == [
        {"hold": True},
        {"hold": False},
        {"excluded_nodes": ["n1", "n3"]},
        {"excluded_nodes": [""]},
        {"admin_comment": "healer: n2 lost a GPU"},
    ]
    assert {path for _, path, _ in rest.writes} == {"/job/9"}
    written = len(rest.writes)
    with pytest.raises(SchedulerRefused, match="several pending array tasks"):
        scheduler.hold("8")
    assert len(rest.writes) == written


def test_start_now_moves_the_begin_time_of_one_job(rest: RestServer, scheduler: RestScheduler) -> None:
    rest.set_answer("POST", "/job/7")
    before = int(datetime.now(UTC).timestamp())
    scheduler.start_now("7")
    scheduler.start_now("8")  # pending tasks: no single job
    ((_, path, body),) = rest.writes
    begin = body["begin_time"]
    assert path == "/job/7" and begin["set"] and not begin["infinite"]
    assert 0 < begin["number"] - before <= 10


def test_requeue_begins_with_26_05(rest: RestServer, scheduler: RestScheduler) -> None:
    if not since(rest, "v0.0.45"):
        with pytest.raises(
            NotAvailable, match=r"not available here: requeue over REST requires Slurm 26\.05"
        ):
            scheduler.requeue("7")
        assert rest.asked[-1].path == "/ping", "nothing but the release was asked"
        return
    done = {"job_id": 9, "step_id": "8_1", "error": "No error", "error_code": 0, "why": ""}
    rest.set_answer("POST", "/jobs/requeue", rest.shape.answer(status=[[done]]))
    scheduler.requeue("8_1")
    scheduler.revive("6")
    scheduler.requeue("8")  # pending tasks
    for job in ("7", "8"):
        with pytest.raises(SchedulerRefused):
            scheduler.revive(job)
    assert rest.writes == [
        ("POST", "/jobs/requeue", {"jobs": ["8_1"], "flags": ["Incomplete"]}),
        ("POST", "/jobs/requeue", {"jobs": ["6"], "flags": []}),
    ]


def test_each_job_of_a_requeue_has_an_error_of_its_own() -> None:
    with serve_rest("26.05") as rest:
        rest.set_answer("GET", "/job/7", rest.shape.answer(jobs=[rest.shape.job(7, "RUNNING", nodes="n1")]))
        refused = {"error": "Requested operation is presently disabled", "error_code": 2037, "why": ""}
        rest.set_answer("POST", "/jobs/requeue", rest.shape.answer(status=[[refused]]))
        scheduler = RestScheduler(rest.url, user=None, token=StandingToken())
        with pytest.raises(SchedulerRefused) as caught:
            scheduler.requeue("7")
        assert caught.value.code == 2037
        assert "x-slurm-user-name" not in rest.asked[-1].headers


def test_reservations_begin_with_25_05(rest: RestServer, scheduler: RestScheduler) -> None:
    wanted = Reservation(
        name="healer-test-1", nodes=("n1", "n2"), users=("root",), maintenance=True,
        since=datetime.fromtimestamp(AT, UTC),
    )  # fmt: skip
    if not since(rest, "v0.0.43"):
        for call in (
            lambda: scheduler.reserve(wanted),
            lambda: scheduler.change_reservation("t1", ["n1"]),
            lambda: scheduler.unreserve("t1"),
        ):
            with pytest.raises(NotAvailable, match=r"reservations over REST require Slurm 25\.05"):
                call()
        assert rest.writes == []
        return
    rest.set_answer("POST", "/reservation")
    rest.set_answer("DELETE", "/reservation/t1")
    scheduler.reserve(wanted)
    scheduler.change_reservation("t1", ["n1"])
    scheduler.unreserve("t1")
    set_to = {"set": True, "infinite": False}
    assert rest.writes == [
        (
            "POST",
            "/reservation",
            {
                "name": "healer-test-1",
                "node_list": ["n1", "n2"],
                "users": ["root"],
                "flags": ["IGNORE_JOBS", "MAINT"],
                "start_time": {**set_to, "number": AT},
                "duration": {"set": True, "infinite": True, "number": 0},
            },
        ),
        ("POST", "/reservation", {"name": "t1", "node_list": ["n1"]}),
        ("DELETE", "/reservation/t1", None),
    ]


def test_an_address_that_makes_and_changes_is_used_for_one_of_them() -> None:
    """POST /reservation would change one of the same name, and make one that is gone."""
    with serve_rest("25.11") as rest:
        there = {"name": "t1", "node_list": "n3", "users": "root", "flags": ["MAINT"]}
        rest.set_answer("GET", "/reservations", rest.shape.answer(reservations=[there]))
        scheduler = RestScheduler(rest.url, user=None, token=StandingToken())
        with pytest.raises(SchedulerRefused):
            scheduler.reserve(Reservation(name="t1", nodes=("n1",), users=("root",), maintenance=True))
        with pytest.raises(SchedulerRefused) as caught:
            scheduler.change_reservation("t2", ["n1"])
        assert caught.value.code == 2053
        with pytest.raises(ValueError):
            scheduler.change_reservation("t1", [])
        assert rest.writes == []


def test_one_task_is_ended_and_signalled_by_its_name(rest: RestServer, scheduler: RestScheduler) -> None:
    if not since(rest, "v0.0.40"):
        for call in (lambda: scheduler.cancel("8_1"), lambda: scheduler.signal("8_1", "USR1")):
            with pytest.raises(NotAvailable):
                call()
        assert rest.writes == []
        return
    rest.set_answer("DELETE", "/jobs", rest.shape.answer(status=[]))
    scheduler.signal("8_1", "USR1")
    scheduler.cancel("8_1")
    assert rest.writes == [
        ("DELETE", "/jobs", {"jobs": ["8_1"], "signal": "USR1", "flags": ["FULL_JOB"]}),
        ("DELETE", "/jobs", {"jobs": ["8_1"]}),
    ]
    refused = {
        "error": {"code": 2021, "string": "Job/step already completing or completed"},
        "step_id": "8_1",
    }
    rest.set_answer("DELETE", "/jobs", rest.shape.answer(status=[refused]))
    with pytest.raises(SchedulerRefused) as caught:
        scheduler.signal("8_1", "USR1")
    assert caught.value.code == 2021
    scheduler.cancel("8_1")  # it is as it should be


def test_a_batch_job_is_submitted(rest: RestServer, scheduler: RestScheduler) -> None:
    id_at = rest.shape.answer()[:-1] + (
        b', "job_id": 41}' if since(rest, "v0.0.42") else b', "result": {"job_id": 41}}'
    )
    rest.set_answer("POST", "/job/submit", id_at)
    wanted = Submission(
        name="healer-test", script="#!/bin/sh\nexit 0\n", nodes=("n1", "n2"), time_limit_s=61,
        reservation="t1", comment="inc:1a2b3c4d", gpus_per_node=8,
    )  # fmt: skip
    assert scheduler.submit(wanted) == "41"
    ((_, _, body),) = rest.writes
    job = body["job"]
    assert "#!/bin/sh\nexit 0\n" in (body.get("script"), job.get("script"))
    assert (job["required_nodes"], job["nodes"], job["shared"]) == (["n1", "n2"], "2", ["none"])
    assert (job["time_limit"]["number"], job["reservation"], job["comment"]) == (2, "t1", "inc:1a2b3c4d")
    assert job["tres_per_node"] == ("gres/gpu:8" if since(rest, "v0.0.40") else "gres:gpu:8")
    assert job["environment"] and job["requeue"] is False
    with pytest.raises(ValueError, match="#!"):
        scheduler.submit(Submission(name="x", script="exit 0", nodes=("n1",), time_limit_s=60))


def test_the_controller_answers_with_its_queues(rest: RestServer, scheduler: RestScheduler) -> None:
    figures = b'{"server_thread_count": 3, "agent_queue_size": 7, "dbd_agent_queue_size": 11}'
    rest.set_answer("GET", "/diag", rest.shape.answer()[:-1] + b', "statistics": ' + figures + b"}")
    found = scheduler.controller()
    assert (found.cluster, found.adapter, found.host, found.role) == ("pod1", "rest", "ctl", "primary")
    assert (found.version, found.threads, found.agent_queue, found.dbd_queue) == (
        f"{rest.release}.0",
        3,
        7,
        11,
    )
    assert found.answer_s is not None and found.answer_s >= 0


CALLS: dict[SlurmCall, Callable[[RestScheduler], object]] = {
    SlurmCall.reboot: lambda slurm: slurm.reboot("n1", REASON),
    SlurmCall.cancel_reboot: lambda slurm: slurm.cancel_reboot("n1"),
    SlurmCall.notify: lambda slurm: slurm.notify("7", "a word"),
    SlurmCall.topology: lambda slurm: slurm.topology(),
}


@pytest.mark.parametrize("call", CALLS)
def test_pitfall_25_what_no_release_has_an_address_for_is_never_tried(
    rest: RestServer, scheduler: RestScheduler, call: SlurmCall
) -> None:
    assert call in scheduler.unavailable()
    with pytest.raises(NotAvailable) as caught:
        CALLS[call](scheduler)
    assert caught.value.call is call
    assert {each.path for each in rest.asked} == {"/ping"}


def test_pitfall_25_a_get_changes_nothing(rest: RestServer, scheduler: RestScheduler) -> None:
    """`GET /job/7/requeue` exists from 26.05 on; any proxy or checker of links may send a GET twice."""
    for path in ("/job/7", "/node/n1", "/nodes"):
        rest.set_answer("POST", path)
    rest.set_answer("POST", "/jobs/requeue", rest.shape.answer(status=[]))
    scheduler.snapshot()
    scheduler.drain("n1", REASON)
    scheduler.hold("7")
    if since(rest, "v0.0.45"):
        scheduler.requeue("7")
    read = {each.path for each in rest.asked if each.method == "GET"}
    assert read <= {"/ping", "/nodes", "/jobs", "/reservations", "/job/7"}
