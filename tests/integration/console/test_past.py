"""The fleet page at a moment of the past."""

import re
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.support.console_sample import NOW
from tests.support.console_site import Site, make_sample

pytestmark = pytest.mark.heavy

COOKIE = {"Cookie": "healer_session=cookie-good"}
THEN = NOW - timedelta(minutes=30)
AT = f"{THEN:%Y-%m-%dT%H:%MZ}"


@pytest.fixture(scope="module")
def client() -> TestClient:
    site = Site(make_sample(32))
    return TestClient(site.app, base_url="http://healer.test", headers=COOKIE, follow_redirects=False)


def main_of(page: str) -> str:
    return page[page.index("<main") : page.index("</main>")]


def test_a_moment_is_shown_with_a_banner_and_a_way_back_and_does_not_update(client: TestClient) -> None:
    page = main_of(client.get(f"/?at={AT}&q=gpu").text)
    assert f"As of {THEN:%Y-%m-%d %H:%M} UTC, not live." in page
    assert 'href="/?q=gpu">Back to live' in page
    assert "data-live" not in page and f'data-past="{AT}"' in page
    assert f"at={AT.replace(':', '%3A')}" in re.findall(r'data-src="([^"]*)"', page)[0]
    assert 'id="colours"' not in page and 'id="caps"' not in page
    row = page[page.index('data-row="gpu0002"') :]
    assert "out_slurm" in row[: row.index("</tr>")]


def test_the_map_of_that_moment_has_its_states(client: TestClient) -> None:
    def cells(address: str) -> dict[str, list[Any]]:
        return {cell[0]: cell for cell in client.get(address).json()["nodes"]}

    live, past = cells("/fleet.json"), cells(f"/fleet.json?at={AT}&colour=lemon")
    assert (past["gpu0002"][2], past["gpu0002"][4], past["gpu0002"][8]) == ("out_slurm", "DRAINED", "")
    assert live["gpu0002"][2] != "out_slurm" and "gone" in past and "gone" not in live


def test_the_live_page_has_a_slider_and_updates(client: TestClient) -> None:
    page = main_of(client.get("/").text)
    slider = re.search(r'<input id="at" type="range" [^>]*>', page)
    assert slider and 'step="300"' in slider[0] and "aria-valuetext" in slider[0]
    assert "not live" not in page and 'data-live="fleet incident"' in page


def test_slider_request_redirects_to_an_address_with_a_time(client: TestClient) -> None:
    sent = client.get(f"/?at={int(THEN.timestamp()) // 60 * 60}&q=gpu&path=x")
    assert (sent.status_code, sent.headers["location"]) == (
        303,
        f"/?at={AT.replace(':', '%3A')}&q=gpu&path=x",
    )
    assert client.get(f"/?at={int(NOW.timestamp())}").headers["location"] == "/"


def test_a_moment_without_data_says_so(client: TestClient) -> None:
    page = main_of(client.get(f"/?at={NOW - timedelta(hours=9):%Y-%m-%dT%H:%MZ}").text)
    assert "No data for this moment" in page and "not live" in page
    assert 'id="map"' not in page and 'type="range"' in page


@pytest.mark.parametrize("at", ["soon", "9" * 4000, "2999-01-01T00:00Z", "-1"])
def test_address_without_a_valid_past_time_shows_the_current_fleet(client: TestClient, at: str) -> None:
    answer = client.get(f"/?at={at}")
    assert answer.status_code == 200 and "The address names no moment" in answer.text
    assert "not live" not in main_of(answer.text)
