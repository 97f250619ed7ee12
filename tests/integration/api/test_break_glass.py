"""Breaking the glass, against a real API and database: no one can sign in, and no channel answers."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from healer.adapters.postgres.glass_rows import PostgresBreakGlass
from healer.adapters.postgres.tables import audit_records, break_glass, messages
from healer.api.app import create_app
from healer.api.credential_budget import BURST
from healer.engine.emergency import Emergency
from healer.ports.break_glass import LASTS
from healer.ports.callers import SESSION_COOKIE
from tests.support.api import CLUSTER, TOKEN_KEY, Api
from tests.support.persons import with_console
from tests.support.seals import seal_all

Served = tuple[Api, httpx.Client]
OPEN, END = "/api/v1/break-glass/open", "/api/v1/break-glass/end"
PAUSES = "/api/v1/pauses"


class At:
    """A frozen clock."""

    def __init__(self, moment: datetime) -> None:
        self._moment = moment

    def now(self) -> datetime:
        return self._moment


def glass(api: Api, moment: datetime | None = None) -> Emergency:
    store = PostgresBreakGlass(api.engine, CLUSTER, TOKEN_KEY)
    return Emergency(store, CLUSTER, At(moment or datetime.now(UTC)))


def opened(client: httpx.Client, secret: str, person: str = "ada") -> httpx.Response:
    return client.post(OPEN, json={"secret": secret, "person": person, "reason": "the provider is away"})


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def verbs(api: Api) -> list[str]:
    """Of the audit, oldest first, without what tokens of other tests left."""
    with api.engine.connect() as conn:
        mine = audit_records.c.verb.like("break_glass.%")
        return list(conn.scalars(sa.select(audit_records.c.verb).where(mine).order_by(audit_records.c.id)))


def test_break_glass_secret_makes_one_administrator_and_pages_everyone(served: Served) -> None:
    api, client = served
    secret = glass(api).seal(by="root")
    token = opened(client, secret)
    assert token.status_code == 201, token.text
    headers = bearer(token.json()["token"])
    unsealed = client.post(PAUSES, json={"reason": "x"}, headers=headers)
    assert unsealed.json()["code"] == "not_sealed", "it counts once its record is sealed"
    seal_all(api.engine)
    api.app.state.access._cache.clear()
    made = client.post(PAUSES, json={"reason": "x"}, headers=headers)
    assert (made.status_code, made.json()["by"]) == (201, "break-glass (ada)")
    assert verbs(api) == ["break_glass.sealed", "break_glass.used"]
    with api.engine.connect() as conn:
        page = conn.execute(sa.select(messages).where(messages.c.page)).one()
    assert (page.state, page.doc["severity"], page.doc["about"]["everybody"]) == ("due", "P0", True)
    assert "the provider is away" in str(page.doc["text"])
    assert opened(client, secret).status_code == 403, "the seal is broken"
    state = client.get("/api/v1/break-glass", headers=headers).json()
    assert (state["used_by"], state["reason"]) == ("break-glass (ada)", "the provider is away")


def test_it_is_over_after_an_hour(served: Served) -> None:
    api, client = served
    now = datetime.now(UTC)
    begun = now - LASTS + timedelta(minutes=1)
    hour = glass(api, begun)
    first = hour.use(hour.seal(by="root"), person="ada", reason="x")
    over = glass(api, now - LASTS)
    second = over.use(over.seal(by="root"), person="ada", reason="x")
    assert first is not None and second is not None
    seal_all(api.engine)
    for opening, status in ((first, 200), (second, 401)):
        assert client.get("/api/v1/nodes", headers=bearer(opening.token)).status_code == status
        cookies = {"Cookie": f"{SESSION_COOKIE}={opening.cookie}"}
        assert client.get("/api/v1/nodes", headers=cookies).status_code == status


def test_it_ends_at_once_with_its_sessions(served: Served) -> None:
    api, client = served
    hour = glass(api)
    secret = hour.seal(by="root")
    assert client.post(END, json={"reason": "x"}, headers=api.headers("admin")).status_code == 409
    opening = hour.use(secret, person="ada", reason="x")
    assert opening is not None
    seal_all(api.engine)
    token, cookie = bearer(opening.token), {"Cookie": f"{SESSION_COOKIE}={opening.cookie}"}
    assert client.get("/api/v1/nodes", headers=cookie).status_code == 200
    ended = client.post(END, json={"reason": "it is back"}, headers=token)
    assert ended.status_code == 200 and ended.json()["ended_by"] == "break-glass (ada)", ended.text
    api.app.state.access._cache.clear()
    assert client.get("/api/v1/nodes", headers=token).status_code == 401
    assert client.get("/api/v1/nodes", headers=cookie).status_code == 401
    again = client.post(END, json={"reason": "x"}, headers=api.headers("admin"))
    assert (again.status_code, again.json()) == (200, ended.json()), "the first answer may have been lost"
    assert verbs(api).count("break_glass.ended") == 1


def test_a_new_seal_takes_the_place_of_the_one_before(served: Served) -> None:
    api, client = served
    first, second = glass(api).seal(by="root"), glass(api).seal(by="root")
    assert opened(client, first).status_code == 403
    typed = second.lower().replace("-", " ").removeprefix("glass ")
    assert opened(client, typed).status_code == 201


@pytest.mark.parametrize("guess", ["A{wrong}", "THE-SAME-AGAIN"])
def test_wrong_secrets_are_counted_by_address(served: Served, guess: str) -> None:
    api, client = served
    glass(api).seal(by="root")
    answers = list[int]()  # the budget earns one every 2 s while this goes on
    while 429 not in answers and len(answers) < 10 * BURST:
        answers.append(opened(client, f"GLASS-{guess.format(wrong='A' * len(answers))}").status_code)
    assert answers.pop() == 429 and len(answers) >= BURST and set(answers) == {403}
    assert verbs(api) == ["break_glass.sealed"]


@pytest.mark.parametrize("person", ["ada/ci", "root (ops", "", " "])
def test_a_name_that_could_be_another_s_is_refused(served: Served, person: str) -> None:
    api, client = served
    secret = glass(api).seal(by="root")
    assert opened(client, secret, person).status_code == 422
    assert opened(client, secret).status_code == 201, "the seal was not used up"


def test_a_seal_that_was_used_cannot_be_mended(served: Served) -> None:
    api, client = served
    assert opened(client, glass(api).seal(by="root")).status_code == 201
    mended = sa.update(break_glass).values(used_at=None)
    with pytest.raises(sa.exc.DBAPIError, match="stays so"), api.engine.begin() as conn:
        conn.execute(mended)


@pytest.fixture
def browser(served: Served, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """The console; the audit seals at once."""
    api, _ = served
    seal = PostgresBreakGlass.wait_for_seal
    monkeypatch.setattr(
        PostgresBreakGlass, "wait_for_seal", lambda self, secret: seal_all(api.engine) or seal(self, secret)
    )
    app = with_console(create_app(api.services), api.services)
    return TestClient(app, base_url="http://healer", follow_redirects=False)


FORM = {"person": "ada", "reason": "the provider is away", "next": "/runs"}
SAME = {"Sec-Fetch-Site": "same-origin"}


def test_the_page_makes_a_session_of_an_hour(served: Served, browser: TestClient) -> None:
    api, _ = served
    secret = glass(api).seal(by="root")
    assert 'name="secret"' in browser.get("/break-glass?next=/runs").text
    opened = browser.post("/break-glass", data=FORM | {"secret": secret}, headers=SAME)
    assert opened.status_code == 200 and 'href="/runs"' in opened.text
    assert "not sealed" not in opened.text
    assert f"Max-Age={int(LASTS.total_seconds())};" in opened.headers["set-cookie"]
    assert "HttpOnly" in opened.headers["set-cookie"]
    assert browser.get("/api/v1/nodes").status_code == 200
    again = browser.post("/break-glass", data=FORM | {"secret": secret}, headers=SAME)
    assert again.status_code == 403 and 'role="alert"' in again.text
    assert verbs(api) == ["break_glass.sealed", "break_glass.used"]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"secret": "GLASS-AAAA"}, 403),
        ({"reason": " "}, 422),
        ({"person": ""}, 422),
        ({"person": "a/b"}, 422),
    ],
)
def test_the_page_says_what_is_wrong_and_keeps_what_was_typed(
    served: Served, browser: TestClient, changes: dict[str, str], status: int
) -> None:
    api, _ = served
    secret = glass(api).seal(by="root")
    answer = browser.post("/break-glass", data=FORM | {"secret": secret} | changes, headers=SAME)
    assert (answer.status_code, 'role="alert"' in answer.text) == (status, True)
    assert secret not in answer.text and "set-cookie" not in answer.headers
    if "reason" not in changes:
        assert "the provider is away" in answer.text
    assert verbs(api) == ["break_glass.sealed"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://healer"}, 200),
    ],
)
def test_a_form_of_another_site_breaks_nothing(
    served: Served, browser: TestClient, headers: dict[str, str], status: int
) -> None:
    """By http a browser says no Sec-Fetch-Site."""
    api, _ = served
    form = FORM | {"secret": glass(api).seal(by="root")}
    assert browser.post("/break-glass", data=form, headers=headers).status_code == status
    assert verbs(api)[1:] == (["break_glass.used"] if status == 200 else [])


def test_the_page_leads_nowhere_else(served: Served, browser: TestClient) -> None:
    api, _ = served
    form = FORM | {"secret": glass(api).seal(by="root"), "next": "//evil.example"}
    assert "evil.example" not in browser.post("/break-glass", data=form, headers=SAME).text


def test_before_the_record_is_sealed_the_page_says_so(served: Served) -> None:
    api, _ = served
    app = with_console(create_app(api.services), api.services)
    form = FORM | {"secret": glass(api).seal(by="root")}
    answer = TestClient(app, base_url="http://healer").post("/break-glass", data=form, headers=SAME)
    assert answer.status_code == 200 and "has not sealed" in answer.text
