"""`GET /api/v1/goodput`: sums, money, CSV, and what is refused."""

from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.tables import goodput
from healer.model.goodput import Prices
from tests.integration.api.test_reading import Served
from tests.support.api import CLUSTER

HOUR = (datetime.now(UTC) - timedelta(hours=3)).replace(minute=0, second=0, microsecond=0)
PATH = "/api/v1/goodput"


def add(served: Served, job: str, spent: str, hours: float, **fields: object) -> None:
    row: dict[str, object] = {
        "cluster": CLUSTER, "job": job, "restart": 0, "held": 0, "hour": HOUR, "spent": spent, "cause": "",
        "incident": "", "user_name": "ann", "account": "lab", "partition": "train", "gpu_s": hours * 3600,
    }  # fmt: skip
    with served[0].engine.begin() as conn:
        conn.execute(sa.insert(goodput).values(row | fields))


@pytest.fixture
def counted(served: Served) -> Served:
    add(served, "1", "productive", 90.0)
    add(served, "1", "lost", 6.0, cause="xid-79")
    add(served, "1", "queued", 4.0)
    add(served, "2", "unknown", 10.0, user_name="bob", partition="debug")
    return served


def test_hours_are_summed_by_what_was_asked(counted: Served) -> None:
    api, client = counted
    found = client.get(PATH, params={"by": "user"}, headers=api.headers("viewer")).json()
    ann, bob = found["items"]
    assert (ann["name"], ann["gpu_hours"]) == ("ann", {"productive": 90.0, "lost": 6.0, "queued": 4.0})
    assert (ann["effective"], bob["effective"]) == (0.9, None)
    assert (found["sum"]["total"], found["sum"]["effective"]) == (110.0, pytest.approx(90 / 110))
    assert (ann["cost"], found["currency"]) == (None, "")


def test_a_price_turns_hours_into_money_without_the_queue(
    counted: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, client = counted
    priced = msgspec.structs.replace(
        api.services.rules(), prices=Prices(currency="EUR", partitions={"train": 2.0})
    )
    monkeypatch.setitem(api.services.__dict__, "rules", lambda: priced)
    found = client.get(PATH, params={"by": "partition"}, headers=api.headers("viewer")).json()
    train, debug = found["items"]
    assert (train["cost"], train["wasted"], debug["cost"], found["sum"]["cost"]) == (192.0, 12.0, None, None)


def test_a_table_for_a_spreadsheet(counted: Served) -> None:
    api, client = counted
    add(counted, "=cmd()", "lost", 1.0)
    answer = client.get(PATH, params={"by": "job", "format": "csv"}, headers=api.headers("viewer"))
    head, *rows = answer.text.splitlines()
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert head.startswith("job,productive_gpu_hours,unsaved_gpu_hours,lost_gpu_hours")
    assert rows[0].startswith("1,90.0,0.0,6.0")
    assert rows[-1].startswith("'=cmd(),")


def test_only_hours_of_the_period_count(counted: Served) -> None:
    api, client = counted
    asked = {"from": (HOUR + timedelta(hours=1)).isoformat()}
    found = client.get(PATH, params=asked, headers=api.headers("viewer")).json()
    assert (found["items"], found["sum"]["total"]) == ([], 0.0)


def test_whole_hours_are_those_of_utc_where_the_zone_of_the_caller_has_half_ones(counted: Served) -> None:
    api, client = counted
    half = timezone(timedelta(hours=5, minutes=30))
    asked = {"from": (HOUR + timedelta(minutes=30)).astimezone(half).isoformat()}
    found = client.get(PATH, params=asked, headers=api.headers("viewer")).json()
    assert (found["sum"]["total"], datetime.fromisoformat(found["since"])) == (110.0, HOUR)


@pytest.mark.parametrize("name", ["from", "to"])
@pytest.mark.parametrize("moment", ["2026-11-01T00:00:00", "2026-11-01", "9999-12-31T23:59:59-12:00"])
def test_a_moment_that_cannot_be_read_is_named_by_its_parameter(
    counted: Served, name: str, moment: str
) -> None:
    """`healer goodput --from 2026-11-01` was answered that `since` needs a time zone."""
    api, client = counted
    refused = client.get(PATH, params={name: moment}, headers=api.headers("viewer"))
    assert refused.status_code == 422 and refused.json()["detail"].startswith(f"{name}: ")
    assert [error["field"] for error in refused.json()["errors"]] == [name]


@pytest.mark.parametrize(
    "asked",
    [
        {"from": "2026-11-02T00:00:00Z", "to": "2026-11-01T00:00:00Z"},
        {"from": "2020-11-01T00:00:00Z"},
        {"to": "0001-01-01T00:00:00Z"},
        {"from": "9999-12-01T00:00:00Z", "to": "9999-12-31T00:00:00Z"},
        {"by": "colour"},
    ],
)
def test_a_wrong_period_or_grouping_is_refused(counted: Served, asked: dict[str, str]) -> None:
    api, client = counted
    assert client.get(PATH, params=asked, headers=api.headers("viewer")).status_code == 422


def test_the_job_shows_its_own_hours(counted: Served) -> None:
    api, client = counted
    job = client.get(f"/api/v1/jobs/{CLUSTER}/1", headers=api.headers("viewer")).json()
    assert job["goodput"]["gpu_hours"] == {"productive": 90.0, "lost": 6.0, "queued": 4.0}


def test_metrics_have_the_last_day(counted: Served) -> None:
    api, client = counted
    text = client.get("/metrics", headers=api.headers("viewer")).text
    assert f'healer_gpu_time_last_day_seconds{{cluster="{CLUSTER}",spent="lost"}} 21600.0' in text
