"""Debian's glewlwyd as an identity provider of a test: a process of its own with a database of its own."""

import gzip
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from joserfc.jwk import RSAKey

from tests.support import ldap_directory
from tests.support.processes import free_port
from tests.support.wait import wait_until

CLIENT, SECRET, REDIRECT = "healer", "a secret of glewlwyd's client", "https://healer.example/auth/callback"
PERSON, PASSWORD, GROUPS = "ann", "a password of tests", ["ops", "hpc"]
_DOCUMENTS = Path("/usr/share/doc/glewlwyd")
#: As the package's own first database has them.
_ADMIN = {"username": "admin", "password": "password"}


class Glewlwyd:
    def __init__(self, url: str) -> None:
        self.url, self.issuer = f"{url}/api", f"{url}/api/oidc"
        self._admin = self._session(_ADMIN)

    def _session(self, who: dict[str, str]) -> httpx.Client:
        """A browser that has signed in. Its cookie is for `localhost`, which no cookie jar takes."""
        answer = httpx.post(f"{self.url}/auth/", json=who).raise_for_status()
        cookie = answer.headers["set-cookie"].partition(";")[0]
        return httpx.Client(headers={"Cookie": cookie}, timeout=20)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._admin.request(method, f"{self.url}{path}", json=body).raise_for_status()
        return answer.json() if answer.content else None

    def set_up(self) -> None:
        """A client, a person with groups, and the plugin that speaks OpenID Connect."""
        self._ask("POST", "/mod/plugin/", {"module": "oidc", "name": "oidc", "display_name": "oidc"} | {
            "parameters": _plugin(self.issuer) | _new_key()
        })  # fmt: skip
        users = self._ask("GET", "/mod/user/database")
        shown = {"multiple": True, "read": True, "write": True, "profile-read": True, "profile-write": False}
        users["parameters"].setdefault("data-format", {})["groups"] = shown
        self._ask("PUT", "/mod/user/database", users)
        self._ask("PUT", "/mod/user/database/reset")
        ann = {"username": PERSON, "name": "Ann", "password": PASSWORD, "enabled": True}
        self._ask("POST", "/user/", ann | {"scope": ["g_profile", "openid"], "groups": GROUPS})
        client = {"client_id": CLIENT, "name": "healer", "enabled": True, "confidential": True, "scope": []}
        client |= {"client_secret": SECRET, "redirect_uri": [REDIRECT]}
        client |= {"authorization_type": ["code", "device_authorization"]}
        self._ask("POST", "/client/", client | {"token_endpoint_auth_method": ["client_secret_basic"]})

    def add_directory(self, url: str) -> None:
        """People of an LDAP directory, as docs/sign-in.md says."""
        found: dict[str, Any] = {
            "uri": url,
            "bind-dn": ldap_directory.MANAGER,
            "bind-password": ldap_directory.SECRET,
        }
        found |= {"base-search": f"ou=people,{ldap_directory.BASE}", "search-scope": "subtree"}
        found |= {"filter": "objectClass=inetOrgPerson", "username-property": "uid", "name-property": "cn"}
        found |= {"email-property": "mail", "scope-property": "employeeType"}
        shown = {"multiple": True, "read": True, "write": False, "profile-read": True, "profile-write": False}
        found["data-format"] = {"groups": shown | {"property": "memberOf"}}
        module = {"module": "ldap", "name": "ldap", "display_name": "LDAP", "readonly": True, "order_rank": 1}
        self._ask("POST", "/mod/user/", module | {"enabled": True, "parameters": found})

    def person(self, name: str = PERSON, password: str = PASSWORD) -> httpx.Client:
        """The browser of the person, who has agreed that healer may know who they are."""
        browser = self._session({"username": name, "password": password})
        agreed = browser.put(f"{self.url}/auth/grant/{CLIENT}/openid", json={"scope": "openid"})
        agreed.raise_for_status()
        return browser

    def notify_of_logouts(self, address: str) -> None:
        """Has the address informed when a session ends."""
        clients = self._ask("GET", "/mod/client/database")
        shown = {"multiple": False, "read": True, "write": True}
        named = ("backchannel_logout_uri", "backchannel_logout_session_required")
        clients["parameters"].setdefault("data-format", {}).update(dict.fromkeys(named, shown))
        self._ask("PUT", "/mod/client/database", clients)
        self._ask("PUT", "/mod/client/database/reset")
        client = self._ask("GET", f"/client/{CLIENT}")
        wanted = {"backchannel_logout_uri": address, "backchannel_logout_session_required": "true"}
        self._ask("PUT", f"/client/{CLIENT}", client | wanted)
        plugin = self._ask("GET", "/mod/plugin/oidc")
        plugin["parameters"] |= {"session-management-allowed": True, "back-channel-logout-allowed": True}
        plugin["parameters"] |= {
            "session-cookie-name": "GLEWLWYD2_OIDC_SID",
            "session-cookie-expiration": 3600,
        }
        self._ask("PUT", "/mod/plugin/oidc", plugin)
        self._ask("PUT", "/mod/plugin/oidc/reset")

    def end_session(self, browser: httpx.Client, sid: str) -> None:
        """As its page does when the person signs out there."""
        browser.delete(f"{self.issuer}/session/{sid}/").raise_for_status()

    def rotate(self) -> None:
        plugin = self._ask("GET", "/mod/plugin/oidc")
        plugin["parameters"] |= _new_key()
        self._ask("PUT", "/mod/plugin/oidc", plugin)
        self._ask("PUT", "/mod/plugin/oidc/reset")


@contextmanager
def glewlwyd(folder: Path) -> Iterator[Glewlwyd]:
    port = free_port()
    database, configured = folder / "glewlwyd.db", folder / "glewlwyd.conf"
    with sqlite3.connect(database) as made:
        made.executescript(
            gzip.decompress((_DOCUMENTS / "database/init.sqlite3.sql.gz").read_bytes()).decode()
        )
    made.close()
    configured.write_text(_CONFIGURATION.format(port=port, database=database))
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(["glewlwyd", "-c", str(configured)], stdout=said, stderr=said)
    try:
        url = f"http://localhost:{port}"
        ended = lambda: process.poll() is not None  # noqa: E731
        wait_until(lambda: ended() or _answers(f"{url}/api/scope/"), 30, what="glewlwyd answers")
        assert not ended(), (folder / "said").read_text()
        provider = Glewlwyd(url)
        provider.set_up()
        yield provider
    finally:
        process.kill()
        process.wait()


def _answers(address: str) -> bool:
    try:
        return httpx.get(address).status_code == 401
    except httpx.HTTPError:
        return False


def _new_key() -> dict[str, str]:
    key = RSAKey.generate_key(2048)
    return {"key": key.as_pem(private=True).decode(), "cert": key.as_pem(private=False).decode()}


def _plugin(issuer: str) -> dict[str, Any]:
    named = {"type": "string", "mandatory": True, "on-demand": False, "scope": []}
    flows = {"code": True, "device": True, "refresh": True, "id-token": True, "none": False, "token": False}
    flows |= {"password": False, "client": False}
    return {
        "iss": issuer, "jwt-type": "rsa", "jwt-key-size": "256", "jwks-show": True, "subject-type": "public",
        "access-token-duration": 3600, "refresh-token-duration": 86400, "code-duration": 600,
        "refresh-token-rolling": True, "refresh-token-one-use": "never", "allow-non-oidc": True,
        **{f"auth-type-{name}-enabled": is_on for name, is_on in flows.items()},
        "device-authorization-expiration": 600, "device-authorization-interval": 1,
        "pkce-allowed": True, "pkce-method-plain-allowed": False, "allowed-scope": ["openid"], "scope": [],
        "claims": [
            {"name": "groups", "user-property": "groups", **named},
            {"name": "preferred_username", "user-property": "username", **named},
        ],
    }  # fmt: skip


_CONFIGURATION = """\
port={port}
bind_address="127.0.0.1"
external_url="http://localhost:{port}"
login_url="login.html"
api_prefix="api"
static_files_path="/usr/share/glewlwyd/webapp/"
log_mode="console"
log_level="WARNING"
cookie_domain="localhost"
cookie_secure=0
session_expiration=3600
session_key="GLEWLWYD2_SESSION_ID"
admin_session_authentication="cookie"
profile_session_authentication="cookie"
login_api_enabled=true
admin_scope="g_admin"
profile_scope="g_profile"
user_module_path="/usr/lib/glewlwyd/user"
user_middleware_module_path="/usr/lib/glewlwyd/user_middleware"
client_module_path="/usr/lib/glewlwyd/client"
user_auth_scheme_module_path="/usr/lib/glewlwyd/scheme"
plugin_module_path="/usr/lib/glewlwyd/plugin"
use_secure_connection=false
secure_connection_key_file="/nonexistent"
secure_connection_pem_file="/nonexistent"
secure_connection_ca_file="/nonexistent"
hash_algorithm="SHA512"
database = {{ type = "sqlite3" path = "{database}" }};
"""
