"""A Redfish service for tests: HTTPS on 127.0.0.1 with BMCs of several nodes, each under its own path.

It checks what a real one checks (method, path, account, media type, body) and fails in the ways that BMCs are
known for. What healer should never send is noted in `complaints`.
"""

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from healer.adapters.bmc.redfish import RedfishSettings
from tests.support.http_stand_in import Quiet, running
from tests.support.sim_bmc import CYCLE_S

USER, PASSWORD = "healer", "never-to-be-told"
_ACCOUNT = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
_SYSTEM = "/redfish/v1/Systems/437XR1138R2"
_RESET = f"{_SYSTEM}/Actions/ComputerSystem.Reset"
_INFO = f"{_SYSTEM}/ResetActionInfo"
_TASK = "/redfish/v1/TaskService/TaskMonitors/7"
KINDS = ["On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart", "PowerCycle"]

Answer = tuple[int, dict[str, str], Any]


def error(name: str, message: str, resolution: str = "None.") -> dict[str, Any]:
    info = {"MessageId": f"Base.1.12.{name}", "Message": message, "Resolution": resolution}
    return {"error": {"code": "Base.1.12.GeneralError", "message": "See @Message.ExtendedInfo.",
                      "@Message.ExtendedInfo": [info]}}  # fmt: skip


class Bmcs:
    """`faults` by node, as `SimBmc` names them; beside those `info` (its kinds are in an ActionInfo),
    `two-systems`, `oem-state`, `broken` (500), `no-redfish` (404), `elsewhere` (its target is another host),
    `endless` (a body without an end), `drops` (breaks the line behind a reset that it took)."""

    def __init__(self, authority: Path) -> None:
        self.authority, self.port = authority, 0
        self.faults: dict[str, set[str]] = {}
        self.resets: list[tuple[str, str]] = []
        self.asked: list[tuple[str, str]] = []
        self.complaints: list[str] = []
        self.closing = threading.Event()
        self._off: dict[str, datetime | None] = {}
        self._now = datetime(2026, 11, 20, 3, tzinfo=UTC)
        self._lock = threading.Lock()

    def settings(self, **fields: Any) -> RedfishSettings:
        url = f"https://127.0.0.1:{self.port}/{{node}}"
        given: dict[str, Any] = {"url": url, "user": USER, "password": PASSWORD, "ca_file": self.authority}
        return RedfishSettings(**(given | fields))

    def plant(self, node: str, fault: str) -> None:
        self.faults.setdefault(node, set()).add(fault)

    def mend(self, node: str, fault: str) -> None:
        self.faults.setdefault(node, set()).discard(fault)

    def advance(self, seconds: float) -> None:
        """Lets power come back: its own clock, so that no test waits."""
        with self._lock:
            self._now += timedelta(seconds=seconds)

    # --- the service ---

    def serve(self, method: str, target: str, headers: dict[str, str], raw: bytes) -> Answer:
        node, _, rest = target.lstrip("/").partition("/")
        path, faults = f"/{rest}", self.faults.get(node, set())
        self.asked.append((method, path))
        if headers.get("authorization") != _ACCOUNT or "refuses" in faults:
            return (
                401,
                {"www-authenticate": "Basic"},
                error("InsufficientPrivilege", "Wrong account.", "Log in."),
            )
        if "no-redfish" in faults:
            return 404, {}, b"<html>not here</html>"
        if "broken" in faults:
            return 500, {}, error("InternalError", "The service had an internal error.")
        with self._lock:
            if method == "GET":
                return self._show(node, path, faults)
            return self._switch(node, path, headers, raw, faults) if method == "POST" else (405, {}, None)

    def _show(self, node: str, path: str, faults: set[str]) -> Answer:
        more = ["/redfish/v1/Systems/HGX_Baseboard_0"] if "two-systems" in faults else []
        match path:
            case "/redfish/v1/Systems":
                return 200, {}, {"Members": [{"@odata.id": one} for one in (_SYSTEM, *more)]}
            case one if one == _SYSTEM:
                return 200, {}, self._system(node, faults)
            case one if one == _INFO:
                kind = {"Name": "ResetType", "Required": True, "AllowableValues": KINDS}
                return 200, {}, {"Id": "ResetActionInfo", "Parameters": [kind]}
            case one if one == _TASK:
                if "task-fails" in faults:
                    return 400, {}, error("PropertyValueConflict", "The power supply said no.")
                return 202, {}, {"TaskState": "Running"}
        return 404, {}, error("ResourceMissingAtURI", f"{path} is not here.")

    def _system(self, node: str, faults: set[str]) -> dict[str, Any]:
        comes_at = self._off.get(node)
        if comes_at is not None and comes_at <= self._now:
            del self._off[node]
        kinds = [kind for kind in KINDS if not (kind == "PowerCycle" and "no-cycle" in faults)]
        listed = (
            {"@Redfish.ActionInfo": _INFO}
            if "info" in faults
            else {"ResetType@Redfish.AllowableValues": kinds}
        )
        state = "Off" if node in self._off else "On"
        target = f"https://evil.example{_RESET.replace('/redfish', '')}" if "elsewhere" in faults else _RESET
        return {
            "Id": "437XR1138R2",
            "SystemType": "Physical",
            "PowerState": "Standby" if "oem-state" in faults else state,
            "Actions": {"#ComputerSystem.Reset": {"target": target, **listed}},
        }

    def _switch(self, node: str, path: str, headers: dict[str, str], raw: bytes, faults: set[str]) -> Answer:
        body = json.loads(raw)
        if not headers.get("content-type", "").startswith("application/json"):
            self.complaints.append(f"{path}: content-type {headers.get('content-type')}")
        if path != _RESET or set(body) != {"ResetType"}:
            self.complaints.append(f"{path}: {body}")
            return 404, {}, error("ActionNotSupported", f"{path} is no action.")
        kind = body["ResetType"]
        if "busy" in faults:
            return 409, {}, error("ResourceInUse", "The resource is in use.", "Try again later.")
        if "later" in faults:
            return 503, {"retry-after": "7"}, error("ServiceTemporarilyUnavailable", "Not now.")
        if kind not in KINDS or (kind == "PowerCycle" and "no-cycle" in faults):
            return 400, {}, error("ActionParameterValueFormatError", f"ResetType cannot be {kind}.")
        self.resets.append((node, kind))
        if "task-fails" in faults:
            return 202, {"location": _TASK}, {"TaskState": "New"}
        stays = "stays-off" in faults
        if kind == "On":
            if node in self._off and not stays:
                self._off[node] = self._now
        else:
            comes = kind == "PowerCycle" and not stays
            self._off[node] = self._now + timedelta(seconds=CYCLE_S) if comes else None
        return 204, {}, None


@contextmanager
def redfish(authority: Path, server_pem: Path) -> Iterator[Bmcs]:
    """BMCs with the certificate of `server_pem` (`tests.support.tls`)."""
    bmcs = Bmcs(authority)

    class Handler(Quiet):
        def _take(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            faults = bmcs.faults.get(self.path.lstrip("/").partition("/")[0], set())
            status, more, body = bmcs.serve(self.command, self.path, headers, raw)
            if self.command == "POST" and status < 300 and "hangs" in faults:
                bmcs.closing.wait(30)
            elif self.command == "POST" and status < 300 and "drops" in faults:
                self.close_connection = True
            elif "endless" in faults:
                self._drip()
            else:
                self._say(status, more, body)

        do_GET = do_POST = _take

        def _say(self, status: int, more: dict[str, str], body: Any) -> None:
            content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
            self.give(status, more, content)

        def _drip(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                while not bmcs.closing.is_set():
                    self.wfile.write(b" " * 64)
                    time.sleep(0.02)
            except OSError:
                return  # the reader has gone

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that does not trust us breaks off."""

    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_pem)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with running(server, bmcs.closing) as port:
        bmcs.port = port
        yield bmcs
