"""The scraper over real sockets and a real database: good exporters, bad ones, lists that change."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.inbox import PostgresInbox
from healer.adapters.pull.fetch import HttpFetch
from healer.adapters.system_clock import SystemClock
from healer.model import LossReason, Part, ScrapeJob, ScrapeRules
from tests.support.loop import CLUSTER, beat
from tests.support.pulling import Pulled, Server, closed_port, exporter
from tests.support.wait import wait_until

WAIT_S = 40


@pytest.fixture
def server() -> Iterator[Server]:
    with exporter() as made:
        yield made


def job(*targets: str, **more: object) -> ScrapeJob:
    known = {"interval_s": 1.0, "timeout_s": 1.0, "labels": {"node": "gpu0001"}, "node": "node"}
    return msgspec.convert({"name": "node", "targets": targets, **known, **more}, ScrapeJob)


def rules(*jobs: ScrapeJob) -> ScrapeRules:
    return ScrapeRules(jobs=jobs)


def test_scraped_metrics_are_stored_like_pushed_ones(fresh_database: sa.Engine, server: Server) -> None:
    with Pulled(fresh_database, rules(job(server.at))) as pulled:
        wait_until(lambda: pulled.values("gpu0001"), WAIT_S)
        assert pulled.values("gpu0001") == {("load1", Part()): 3.5, ("gpu_temp_c", Part(gpu=2)): 61.0}
        target = wait_until(lambda: (one := pulled.target("/metrics")) and one.up and one, WAIT_S)
        assert (target.job, target.node, target.samples, target.unrecognised) == ("node", "gpu0001", 2, 1)
        assert (target.error, target.failures) == ("", 0)
        names = wait_until(lambda: pulled.unknown.series([CLUSTER], 10), WAIT_S)
        assert [one.name for one in names] == ["node_strange_thing"]


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("/broken", "answered 503", None),
        ("/moved", "answered 302", None),
        ("/nowhere", "answered 404", None),
        ("/stalled", "no complete answer within 1 s", LossReason.stalled),
        ("/endless", "larger than", LossReason.too_large),
        ("/huge", "larger than", LossReason.too_large),
        ("/bomb", "larger than", LossReason.bad_body),
        ("/garbage", "not UTF-8", LossReason.bad_body),
    ],
)
def test_bad_target_is_reported_and_harms_no_other(
    fresh_database: sa.Engine, server: Server, path: str, text: str, reason: LossReason | None
) -> None:
    good, bad = job(server.at), job(server.at, name="bad", path=path)
    small = lambda: HttpFetch(body_max=2**20)  # noqa: E731
    with Pulled(fresh_database, rules(bad, good), fetch=small) as pulled:
        target = wait_until(lambda: (one := pulled.target(path)) and one.up is False and one, WAIT_S)
        assert text in target.error
        assert target.samples == 0
        assert target.failures >= 1
        wait_until(lambda: ("load1", Part()) in pulled.values("gpu0001"), WAIT_S)
        fine = wait_until(lambda: (one := pulled.target("/metrics")) and one.up and one, WAIT_S)
        assert fine.failures == 0
        if reason is not None:
            losses = wait_until(lambda: pulled.losses.losses([CLUSTER], 10), WAIT_S)
            assert {(one.source, one.reason, one.who) for one in losses} == {("scrape", reason, "bad")}
    assert server.sent < 64 * 2**20


def test_target_without_a_listener_is_unknown_and_recovers(fresh_database: sa.Engine, server: Server) -> None:
    with Pulled(fresh_database, rules(job(closed_port()))) as pulled:
        target = wait_until(lambda: (one := pulled.target("/metrics")) and one.up is False and one, WAIT_S)
        assert "cannot be reached" in target.error
        pulled.rules = msgspec.structs.replace(pulled.rules, scrape=rules(job(server.at)))
        wait_until(lambda: (one := pulled.target("/metrics")) and one.up, WAIT_S)
        state_all = pulled.scrape_state()
        assert state_all is not None
        assert len(state_all.targets) == 1


def test_compressed_scrape_is_unpacked(fresh_database: sa.Engine, server: Server) -> None:
    with Pulled(fresh_database, rules(job(server.at, path="/packed"))) as pulled:
        wait_until(lambda: ("load1", Part()) in pulled.values("gpu0001"), WAIT_S)


def test_a_target_of_no_node_is_not_asked(fresh_database: sa.Engine, server: Server) -> None:
    stranger = job(server.at, labels={"node": "gpu0099"})
    with Pulled(fresh_database, rules(stranger)) as pulled:
        target = wait_until(lambda: (one := pulled.target("/metrics")) and one.up is False and one, WAIT_S)
        assert "has no node gpu0099" in target.error
    assert server.asked == []


def test_a_gpu_that_an_exporter_names_by_uuid_alone_is_placed_by_the_nodes_heartbeat(
    fresh_database: sa.Engine, server: Server
) -> None:
    """Equal facts, equal verdicts: the API hears heartbeats itself, the scraper reads them."""
    uuid = "GPU-0b11d014-1685-04bd-26ed-5fc0bc1c44ae"
    seen = beat("gpu0001", SystemClock().now())
    gpus = [{"index": 5, "pci": "0000:9b:00", "uuid": uuid}]
    listed = msgspec.structs.replace(seen, data={**seen.data, "gpus": gpus})
    PostgresInbox(fresh_database, CLUSTER).add([listed])
    server.page = f'DCGM_FI_DEV_GPU_TEMP{{UUID="{uuid}"}} 61\n'
    with Pulled(fresh_database, rules(job(server.at))) as pulled:
        wait_until(lambda: pulled.values("gpu0001"), WAIT_S)
        assert pulled.values("gpu0001") == {("gpu_temp_c", Part(gpu=5)): 61.0}


def test_the_labels_of_each_series_may_say_whose_it_is(fresh_database: sa.Engine, server: Server) -> None:
    server.page = 'node_load1{node="gpu0001"} 1\nnode_load1{node="gpu0002"} 2\nnode_load1{node="x"} 3\n'
    series = job(server.at, node="series", labels={})
    with Pulled(fresh_database, rules(series), nodes=("gpu0001", "gpu0002")) as pulled:
        wait_until(lambda: pulled.values("gpu0002"), WAIT_S)
        assert (pulled.values("gpu0001"), pulled.values("gpu0002")) == (
            {("load1", Part()): 1.0},
            {("load1", Part()): 2.0},
        )


def test_an_inbox_that_takes_nothing_doubles_no_sample(fresh_database: sa.Engine, server: Server) -> None:
    """GPU names go into the inbox: a batch that comes again because of them has stored nothing before."""
    server.page = 'DCGM_FI_DEV_GPU_TEMP{gpu="2",UUID="GPU-0000feed-0000-4000-8000-000000000002",' + (
        'pci_bus_id="00000000:9B:00.0"} 61\n'
    )

    def run(*statements: str) -> None:
        with fresh_database.begin() as conn:
            for one in statements:
                conn.execute(sa.text(one))

    def number(query: str) -> int:
        with fresh_database.connect() as conn:
            return conn.scalar(sa.text(query)) or 0

    run(
        "CREATE SEQUENCE tried",  # it counts also what is rolled back
        "CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM nextval('tried'); "
        "RAISE SQLSTATE '25006'; END$$",
        "CREATE TRIGGER refuses BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION refuses()",
    )
    with Pulled(fresh_database, rules(job(server.at))) as pulled:
        wait_until(lambda: number("SELECT last_value FROM tried") >= 5, WAIT_S, what="it is tried again")
        assert number("SELECT count(*) FROM samples") == 0
        run("DROP TRIGGER refuses ON inbox")
        wait_until(lambda: pulled.values("gpu0001"), WAIT_S)
        assert number("SELECT count(*) FROM inbox WHERE kind = 'gpu_inventory'") == 1


def test_parts_that_make_one_number_are_kept_when_they_come_in_one_scrape(
    fresh_database: sa.Engine, server: Server
) -> None:
    """remote_write may send them apart, so there they are not kept (docs/signals.md)."""
    server.page = (
        'node_edac_correctable_errors_total{controller="0"} 3\n'
        'node_edac_correctable_errors_total{controller="1"} 4\n'
    )
    with Pulled(fresh_database, rules(job(server.at))) as pulled:
        found = wait_until(lambda: pulled.values("gpu0001"), WAIT_S)
        assert list(found.values()) == [7.0]


def test_group_labels_override_job_labels(fresh_database: sa.Engine, server: Server) -> None:
    grouped = job(groups=[{"targets": [server.at], "labels": {"node": "gpu0002"}}])
    with Pulled(fresh_database, rules(grouped), nodes=("gpu0001", "gpu0002")) as pulled:
        wait_until(lambda: pulled.values("gpu0002"), WAIT_S)
        assert pulled.values("gpu0001") == {}


def test_the_bearer_token_is_read_from_its_file(
    fresh_database: sa.Engine, server: Server, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with Pulled(fresh_database, rules(job(server.at, bearer_token_file=str(token)))) as pulled:
        wait_until(lambda: ("/metrics", "Bearer first") in server.asked, WAIT_S)
        token.unlink()
        target = wait_until(lambda: (one := pulled.target("/metrics")) and one.up is False and one, WAIT_S)
        assert "No such file" in target.error
        assert "first" not in target.error


def test_many_targets_that_stall_hold_up_no_other(fresh_database: sa.Engine, server: Server) -> None:
    many = [job(server.at, name=f"bad{number}", path="/stalled") for number in range(150)]
    with Pulled(fresh_database, rules(*many, job(server.at))) as pulled:
        fine = wait_until(lambda: (one := pulled.target("/metrics")) and one.up and one, WAIT_S)
        assert fine.failures == 0
        state = wait_until(
            lambda: (one := pulled.scrape_state()) and sum(x.up is False for x in one.targets) == 150 and one,
            WAIT_S,
        )
        assert "no complete answer within 1 s" in state.targets[0].error
        assert pulled.alive
