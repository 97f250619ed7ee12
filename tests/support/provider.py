"""An identity provider over HTTP, whose every answer a test can bend: claims, keys, status."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey

CLIENT = "healer"
LOGOUT = "http://schemas.openid.net/event/backchannel-logout"


class Provider:
    """`claims` are put over those of the next ID tokens; None leaves one out."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.claims: dict[str, Any] = {}
        self.user: dict[str, Any] = {"sub": "42", "preferred_username": "ann", "groups": ["ops"]}
        self.key = self.published = RSAKey.generate_key(2048, {"kid": "k1", "use": "sig", "alg": "RS256"})
        self.status = 200
        #: Path -> the gzip that it answers there instead.
        self.packed: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.nonces: dict[str, str] = {}
        #: What it answers to who asks whether a code was confirmed, before it is; and what its document says
        #: differently; and where people type the code.
        self.devices: list[str] = []
        self.document: dict[str, str] = {}
        self.page = f"{url}/device"
        self._device_codes: list[str] = []

    def rotate(self, *, publish: bool = True) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": f"k{time.monotonic_ns()}", "use": "sig", "alg": "RS256"})
        if publish:
            self.published = self.key

    def authorize(self, url: str) -> dict[str, str]:
        """What the browser brings back from this address, once the person has signed in."""
        asked = dict(parse_qsl(urlsplit(url).query))
        code = f"code-{len(self.nonces)}"
        self.nonces[code] = asked["nonce"]
        return {"state": asked["state"], "code": code, "issuer": self.url}

    def sign(self, claims: dict[str, Any], *, header: dict[str, str] | None = None, key: Any = None) -> str:
        made = {"alg": "RS256", "kid": str(self.key.kid)} if header is None else header
        return jwt.encode(made, claims, key or self.key, algorithms=["RS256", "HS256"])

    def id_token(self, nonce: str | None) -> str:
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": nonce} | self.user
        return self.sign({name: value for name, value in (claims | self.claims).items() if value is not None})

    def logout_token(self, **changes: Any) -> str:
        claims = {"iss": self.url, "aud": CLIENT, "iat": int(time.time()), "jti": "j1", "sub": "42"}
        claims |= {"events": {LOGOUT: {}}} | changes
        return self.sign({name: value for name, value in claims.items() if value is not None})

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, Any]:
        self.asked.append(path)
        if self.status != 200:
            return self.status, {}
        if path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/keys",
                "scopes_supported": ["openid", "profile"],
                "device_authorization_endpoint": f"{self.url}/device_authorization",
            } | self.document
        if path == "/keys":
            return 200, KeySet([self.published]).as_dict(private=False)
        if path == "/device_authorization":
            self._device_codes.append(f"device-{time.monotonic_ns()}")
            made = {"device_code": self._device_codes[-1], "user_code": "WDJB-MJHT", "expires_in": 1800}
            return 200, made | {"verification_uri": self.page}
        if "device_code" in form:
            return self._answer_device(form["device_code"])
        nonce = self.nonces.pop(form.get("code", ""), None)
        if nonce is None or not form.get("code_verifier"):
            return 400, {"error": "invalid_grant"}
        return 200, {"id_token": self.id_token(nonce), "access_token": "a", "token_type": "Bearer"}

    def _answer_device(self, code: str) -> tuple[int, Any]:
        if self.devices:
            return 400, {"error": self.devices.pop(0)}
        if code not in self._device_codes:
            return 400, {"error": "invalid_grant"}
        self._device_codes.remove(code)
        return 200, {"id_token": self.id_token(None), "access_token": "a", "token_type": "Bearer"}


@contextmanager
def provider() -> Iterator[Provider]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            form = dict(parse_qsl(self.rfile.read(length).decode()))
            path = urlsplit(self.path).path
            status, body = served.answer(path, form)
            packed = served.packed.get(path)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if packed is not None:
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            # The client may have hung up amid an answer that is too long.
            with suppress(ConnectionError):
                self.wfile.write(json.dumps(body).encode() if packed is None else packed)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = Provider(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def shared_secret() -> OctKey:
    return OctKey.import_key(b"the client's secret, which others know".ljust(32))
