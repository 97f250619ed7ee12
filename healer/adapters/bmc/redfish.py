"""BMCs by Redfish (DMTF DSP0266): reads and switches a node's power over HTTPS.

Basic authentication, because a BMC has only few sessions. A new connection for each request, because BMCs
drop idle ones, and the outcome of a reset on a dead connection would be unknown. No redirects and no proxy:
the password is sent only to the configured address. Errors and logs contain neither.
"""

import re
import ssl
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import structlog

from healer import __version__
from healer.adapters.webhook import PACKED, cause_of, decode_json, read_body
from healer.model import Power, ResetKind
from healer.ports.node_exec import BmcError, BmcUnavailable
from healer.text import Said, joined, quoted, say

log = structlog.get_logger()

#: The bounds of all requests of a read, of a reset (which must end within the lease), and of a connection.
LOOK_S, EFFECT_S, CONNECT_S = 6.0, 4.0, 3.0
_MOST_BYTES = 1024 * 1024
_SYSTEMS = "/redfish/v1/Systems"
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
#: Statuses of requests that were not executed: in use, too many requests, not now.
_BUSY = frozenset({409, 429, 503})
_WORDS_MAX = 300
_FAILED = frozenset({"Exception", "Killed", "Cancelled"})
#: Statuses for a task that no longer exists: it has ended, with an unknown result.
_GONE = frozenset({404, 410})


class RedfishSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`url`: `https://{node}-bmc`, with Slurm's name of the node. `system`: the system to use if a BMC has
    several. Without `check_tls` any certificate is accepted."""

    url: str
    user: str
    password: str
    ca_file: Path | None = None
    check_tls: bool = True
    system: str | None = None


class _Reply(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: dict[str, Any]


class Redfish:
    """`ports.Bmc`. Safe for threads. Raises ValueError for unusable settings."""

    name = "redfish"

    def __init__(
        self, settings: RedfishSettings, *, look_s: float = LOOK_S, effect_s: float = EFFECT_S
    ) -> None:
        self._settings, self._look_s, self._effect_s = settings, look_s, effect_s
        self._client = httpx.Client(
            verify=_trust(settings),
            auth=httpx.BasicAuth(settings.user, settings.password),
            trust_env=False,
            follow_redirects=False,
            headers={
                "user-agent": f"healer/{__version__}",
                "accept": "application/json",
                "odata-version": "4.0",
                **PACKED,
            },
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def close(self) -> None:
        self._client.close()

    # --- ports.Bmc ---

    def power(self, node: str) -> Power:
        until = time.monotonic() + self._look_s
        path = self._system_of(node, self._get(node, _SYSTEMS, until))
        system = self._get(node, path, until)
        reset = system.get("Actions", {}).get("#ComputerSystem.Reset", {})
        target = str(reset.get("target") or f"{path}/Actions/ComputerSystem.Reset")
        kinds = reset.get("ResetType@Redfish.AllowableValues")
        info = reset.get("@Redfish.ActionInfo")
        if kinds is None and isinstance(info, str):
            kinds = _reset_kinds(self._get(node, _path_in(node, info), until))
        return Power(
            state=str(system.get("PowerState") or ""),
            system=str(system.get("Id") or path.rpartition("/")[2]),
            target=_path_in(node, target),
            kinds=tuple(str(kind) for kind in kinds or ()),
        )

    def reset(self, node: str, target: str, kind: ResetKind) -> str | None:
        until = time.monotonic() + self._effect_s
        body = msgspec.json.encode({"ResetType": str(kind)})
        log.info("BMC reset sent", node=node, kind=str(kind), target=target)
        reply = self._ask(node, "POST", _path_in(node, target), until, body)
        log.info("BMC answered", node=node, kind=str(kind), status=reply.status)
        if reply.status >= 500 and reply.status not in _BUSY:
            # The reset may have started before the failure.
            raise BmcUnavailable(_answered(node, reply))
        _check(node, reply)
        where = reply.headers.get("location", "")
        return _path_in(node, where) if reply.status == 202 and "/redfish/" in where else None

    def task_failed(self, node: str, task: str) -> Said | None:
        reply = self._ask(node, "GET", _path_in(node, task), time.monotonic() + self._look_s)
        return _task_words(reply.status, reply.body)

    # --- helpers ---

    def _system_of(self, node: str, systems: Mapping[str, Any]) -> str:
        """The path of the only system, or of the configured one: a GPU board may be a system too."""
        members = systems.get("Members")
        found = members if isinstance(members, list) else []
        links = [str(member.get("@odata.id", "")) for member in found if isinstance(member, dict)]
        paths = [_path_in(node, link) for link in links]
        names = {path.rstrip("/").rpartition("/")[2]: path for path in paths}
        wanted = self._settings.system
        if wanted is not None and wanted in names:
            return names[wanted]
        shown = ", ".join(names) or say("nodes.bmc_no_systems")
        if wanted is not None:
            raise BmcError(say("nodes.bmc_no_system", node=node, system=wanted, shown=shown))
        if len(names) != 1:
            raise BmcError(say("nodes.bmc_many_systems", node=node, n=len(names), shown=shown))
        return next(iter(names.values()))

    def _get(self, node: str, path: str, until: float) -> dict[str, Any]:
        reply = self._ask(node, "GET", path, until)
        if reply.status >= 500 and reply.status not in _BUSY:
            raise BmcUnavailable(_answered(node, reply), sent=False)
        _check(node, reply)
        if not reply.body:
            raise BmcError(say("nodes.bmc_no_redfish", node=node, path=path))
        return reply.body

    def _ask(self, node: str, method: str, path: str, until: float, content: bytes | None = None) -> _Reply:
        if not _NODE.fullmatch(node):
            raise BmcError(say("nodes.no_name", node=node))
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise BmcUnavailable(say("nodes.bmc_slow", node=node), sent=False)
        url = self._settings.url.replace("{node}", node).rstrip("/") + path
        headers = {"content-type": "application/json"} if content is not None else {}
        timeout = httpx.Timeout(left_s, connect=min(left_s, CONNECT_S))
        try:
            with self._client.stream(
                method, url, content=content, headers=headers, timeout=timeout
            ) as response:
                return _read(node, response, until)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise _failed_before_answer(node, error, left_s) from None


def _read(node: str, response: httpx.Response, until: float) -> _Reply:
    content = read_body(response, _MOST_BYTES, until)
    if content is None:
        raise BmcUnavailable(say("nodes.bmc_endless", node=node))
    body = decode_json(content)
    return _Reply(response.status_code, dict(response.headers), body if isinstance(body, dict) else {})


def _check(node: str, reply: _Reply) -> None:
    """Raises BmcUnavailable or BmcError unless the status is 2xx."""
    if 200 <= reply.status < 300:
        return
    text = _answered(node, reply)
    if reply.status in _BUSY:
        raise BmcUnavailable(text, sent=False, after_s=_retry_after_s(reply.headers.get("retry-after")))
    if reply.status in (401, 403):
        text = joined([text, say("nodes.bmc_account")], "space")
    if 300 <= reply.status < 400:
        text = joined([text, say("nodes.bmc_moved")], "space")
    raise BmcError(text)


def _answered(node: str, reply: _Reply) -> Said:
    words = _error_text(reply.body).rstrip(".")
    if not words:
        return say("nodes.bmc_answered", node=node, status=reply.status)
    return say("nodes.bmc_answered_words", node=node, status=reply.status, words=words)


def _path_in(node: str, where: str) -> str:
    """The path in a link of the BMC, so that nothing is sent to another host. Raises BmcError."""
    start = where.find("/redfish/")
    if start < 0 or any(char.isspace() for char in where):
        raise BmcError(say("nodes.bmc_no_address", node=node, where=where[:80]))
    return where[start:].rstrip("/")


def _trust(settings: RedfishSettings) -> ssl.SSLContext:
    if not settings.check_tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:
        text = say("nodes.bmc_ca_file", file=str(settings.ca_file), error=str(error))
        raise ValueError(text) from None


def kinds_missing(kinds: Iterable[str]) -> list[str]:
    """The reset types that healer needs and the BMC does not offer; empty if `kinds` is empty (unknown)."""
    offered = set(kinds)
    if not offered or ResetKind.power_cycle in offered:
        return []
    return [str(kind) for kind in (ResetKind.force_off, ResetKind.on) if kind not in offered]


# --- parsers ---


def _error_text(body: Mapping[str, Any]) -> str:
    """The messages of an error (`@Message.ExtendedInfo`, DSP0266 8.6), each with its resolution."""
    error = body.get("error")
    holder = error if isinstance(error, dict) else body
    info = holder.get("@Message.ExtendedInfo")
    messages = info if isinstance(info, list) else [info]
    parts = [_message(message) for message in messages if isinstance(message, dict)]
    text = " ".join(part for part in parts if part) or str(holder.get("message") or "")
    return " ".join(text.split())[:_WORDS_MAX]


def _message(message: Mapping[str, Any]) -> str:
    """Text and resolution; some BMCs only send the id: `Base.1.12.ResourceInUse`."""
    text = str(message.get("Message") or message.get("MessageId") or "")
    resolution = str(message.get("Resolution") or "")
    return f"{text} {resolution}".strip() if resolution.lower() != "none." else text


def _reset_kinds(info: Mapping[str, Any]) -> list[str] | None:
    """The allowed values of `ResetType` in an ActionInfo; None if it has none."""
    parameters = info.get("Parameters")
    for parameter in parameters if isinstance(parameters, list) else []:
        if isinstance(parameter, dict) and parameter.get("Name") == "ResetType":
            values = parameter.get("AllowableValues")
            return [str(value) for value in values] if isinstance(values, list) else None
    return None


def _task_words(status: int, body: Mapping[str, Any]) -> Said | None:
    """Why a task failed; None if it runs, succeeded, or its result is unknown. A task monitor answers 202
    while it runs and then with the result of the request; a Task has a state."""
    if status in _GONE or status >= 500 or status in (401, 403, 429):
        return None
    if status >= 400:
        return quoted(_error_text(body)) or say("nodes.bmc_task_ended", status=status)
    state, health = str(body.get("TaskState") or ""), str(body.get("TaskStatus") or "")
    if state in _FAILED or (state == "Completed" and health == "Critical"):
        messages = {"@Message.ExtendedInfo": body.get("Messages")}
        return quoted(_error_text(messages)) or say("nodes.bmc_task_is", state=state)
    return None


def _retry_after_s(value: str | None) -> float | None:
    """Seconds of Retry-After, a minute at most; dates are ignored, because clocks of BMCs are often wrong."""
    return min(60.0, float(value)) if value and value.strip().isdecimal() else None


def _failed_before_answer(node: str, error: Exception, left_s: float) -> BmcError:
    """The error for a request without an answer, without the address. Not sent if there was no connection."""
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return BmcError(say("nodes.bmc_bad_url", node=node))
    if (why := _certificate(error)) is not None:
        return BmcError(say("nodes.bmc_certificate", node=node, why=why))
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return BmcUnavailable(say("nodes.bmc_unreached", node=node, why=cause_of(error)), sent=False)
    if isinstance(error, httpx.TimeoutException):
        return BmcUnavailable(say("nodes.bmc_late", node=node, seconds=left_s))
    return BmcUnavailable(say("nodes.bmc_broke_off", node=node, why=cause_of(error)))


def _certificate(error: BaseException | None) -> str | None:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message
        error = error.__cause__ or error.__context__
    return None
