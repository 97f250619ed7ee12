"""A site with an identity provider: users that a test lets arrive from it, and the console in a browser."""

import dataclasses
import hashlib
import itertools
from datetime import timedelta

import httpx
import msgspec
import sqlalchemy as sa
from fastapi import FastAPI
from fastapi.testclient import TestClient

from healer.api.access import Access, csrf_of, digest_of
from healer.api.app import create_app
from healer.api.services import Services
from healer.console.pages import Pages, Sources
from healer.console.router import Console
from healer.model import Role
from healer.model.grants import AccessRules, Grant
from healer.ports.answers import Arriving, SendersHeard
from healer.ports.directory import Arrival
from healer.ports.sign_in import SignIn
from tests.support.api import Api
from tests.support.seals import seal_all

ISSUER = "https://idp.example"


def with_console(app: FastAPI, services: Services) -> FastAPI:
    """The app with the pages of signing in and of sessions."""
    sources = Sources(
        queries=services.queries,
        rules=services.rules,
        clock=services.clock.now,
        unknown=lambda cluster, limit: [],
        arriving=lambda cluster, limit: Arriving([], SendersHeard(), []),
    )
    how = {"people": services.people, "sign_in": services.sign_in, "accounts": services.accounts}
    app.include_router(Console(Pages(sources, app.state.access, **how)))
    return app


def session_headers(cookie: str) -> dict[str, str]:
    """What a browser sends from healer's own pages."""
    headers = {"Cookie": f"healer_session={cookie}", "X-Healer-CSRF": csrf_of(cookie)}
    return headers | {"Sec-Fetch-Site": "same-origin"}


class Site:
    def __init__(self, database: sa.Engine, sign_in: SignIn | None = None) -> None:
        self.api = Api(database)
        self.people = self.api.people
        self.use(sign_in=sign_in or SignIn())
        self._numbers = itertools.count(1)

    def use(self, **services: object) -> None:
        self.api.services = dataclasses.replace(self.api.services, **services)
        self.restart()

    def restart(self) -> None:
        """Another process: nothing is cached."""
        self.api.app = create_app(self.api.services)

    def page(self) -> TestClient:
        """The console, as a browser has it."""
        app = with_console(create_app(self.api.services), self.api.services)
        return TestClient(app, base_url="http://healer", follow_redirects=False)

    @property
    def access(self) -> Access:
        return self.api.app.state.access

    def grant(self, *grants: Grant) -> None:
        self.api.rules = msgspec.structs.replace(self.api.rules, access=AccessRules(grants=grants))

    def arrive(
        self, subject: str, *groups: str, names: tuple[str, ...] = (), once: str = "", age_s: float = 0
    ) -> str:
        """The session's cookie."""
        now = self.api.services.clock.now()
        once = once or f"arrival {next(self._numbers)}"
        token = hashlib.sha256(once.encode()).hexdigest()[:24]
        arrival = Arrival(
            issuer=ISSUER, subject=subject, names=names or (subject,), groups=groups,
            proven_at=now - timedelta(seconds=age_s),
            once=once,
            sid=f"sid-{subject}",
        )  # fmt: skip
        cookie = f"{token}.{once}"
        self.people.arrive(
            arrival, digest_of(cookie), token=token, role=Role.viewer, agent="Firefox", now=now
        )
        seal_all(self.api.engine)
        return cookie

    def ask(self, method: str, path: str, cookie: str, **body: object) -> httpx.Response:
        headers = session_headers(cookie)
        client = TestClient(self.api.app, base_url="http://healer", headers=headers)
        return client.request(method, f"/api/v1{path}", json=body or None)
