"""healer-node over OpenSSH's client: key authentication, checked host keys, bounded in time and number."""

import contextlib
import json
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from healer.adapters.nodes.request_signing import Request, Signer
from healer.adapters.slurm import process
from healer.ports.node_exec import NodeError, NodeUnavailable
from healer.ports.scheduling import SchedulerUnavailable
from healer.text import said_by, say

log = structlog.get_logger()

#: Concurrent calls of this process: fewer than its threads, so that hanging nodes leave some for Slurm.
AT_ONCE = 5
#: The part of a call's time for waiting until the node and a place are free.
PLACE_S = 2.0
#: A node that timed out is not called for this long, then twice as long, up to the maximum.
PAUSE_S, PAUSE_MOST_S = 2.0, 60.0
MOST_BYTES = 8 * 1024 * 1024
_PATH = "/usr/local/bin:/usr/bin:/bin"
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
#: ssh's exit status for its own failures.
_SSH_FAILED = 255

OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "CheckHostIP=no",
    "UpdateHostKeys=no",
    "PreferredAuthentications=publickey",
    "PubkeyAuthentication=yes",
    "PasswordAuthentication=no",
    "KbdInteractiveAuthentication=no",
    "GSSAPIAuthentication=no",
    "HostbasedAuthentication=no",
    "IdentitiesOnly=yes",
    "IdentityAgent=none",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "ControlMaster=no",
    "ControlPath=none",
    "ConnectionAttempts=1",
    "ServerAliveInterval=2",
    "ServerAliveCountMax=2",
    "EscapeChar=none",
    "RequestTTY=no",
    "LogLevel=ERROR",
)


class SshSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`config`: a file of ssh_config(5) with addresses or jump hosts of nodes; these settings override it."""

    key_file: Path
    known_hosts: Path
    user: str = "root"
    port: int | None = None
    config: Path | None = None
    #: Signs each request; and Slurm's name of the cluster, which a node may insist on.
    signing_key_file: Path | None = None
    cluster: str = ""


class Ssh:
    """`verbs.Channel`. Safe for threads. One call per node at a time."""

    name = "ssh"

    def __init__(self, settings: SshSettings, *, pause_s: float = PAUSE_S) -> None:
        self.settings = settings
        self._program = shutil.which("ssh", path=_PATH)
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._pauses = Pauses(pause_s)
        self._busy: set[str] = set()
        self._free = threading.Condition()

    def ask(self, node: str, words: tuple[str, ...], timeout_s: float, run: str = "") -> Mapping[str, Any]:
        if not _NODE.fullmatch(node):
            raise NodeError(say("nodes.no_name", node=node))
        if self._program is None:
            raise NodeError(say("nodes.ssh_missing"))
        self._check_files()
        signer = self._signer()
        call_id = secrets.token_hex(8)
        began = time.monotonic()
        try:
            with self._place(node, began + min(PLACE_S, timeout_s / 2)):
                # Including the wait: the call has to end while the lease lasts.
                left_s = began + timeout_s - time.monotonic()
                until = time.time() + left_s
                about = Request(self.settings.cluster, node, run, until=until, call_id=call_id)
                answer = self._call(node, signer.signed(about, words), left_s)
        except NodeError as error:
            self._log(node, words, call_id, began, run=run, error=str(error))
            raise
        self._log(node, words, call_id, began, run=run, ok=answer.get("ok"), code=answer.get("code"))
        return answer

    def _signer(self) -> Signer:
        """Reads its key at each call: a new one takes effect at once."""
        if self.settings.signing_key_file is None:
            raise NodeError(say("nodes.signing_key_not_set"))
        return Signer(self.settings.signing_key_file)

    def _check_files(self) -> None:
        """ssh ignores a missing key or missing known hosts, and then fails with a misleading message."""
        settings = self.settings
        files = {
            "KEY_FILE": settings.key_file, "KNOWN_HOSTS": settings.known_hosts, "CONFIG": settings.config,
        }  # fmt: skip
        for setting, path in files.items():
            if path is not None and not os.access(path, os.R_OK):
                raise NodeError(say("nodes.ssh_file_unread", setting=setting, path=str(path)))

    def _log(self, node: str, words: tuple[str, ...], call_id: str, began: float, **result: object) -> None:
        """Logs the call on healer's side; the node's log has the same id."""
        took_s = round(time.monotonic() - began, 3)
        log.info("node call", node=node, verb=words[0], words=words[1:], id=call_id, took_s=took_s, **result)

    @contextlib.contextmanager
    def _place(self, node: str, until: float) -> Iterator[None]:
        """Reserves the node and one of the few places. Raises NodeUnavailable after `until`."""
        self._pauses.check(node)
        with self._free:
            if not self._free.wait_for(lambda: node not in self._busy, max(0.0, until - time.monotonic())):
                raise NodeUnavailable(say("nodes.ssh_busy", node=node), sent=False)
            self._busy.add(node)
        try:
            if not self._places.acquire(timeout=max(0.0, until - time.monotonic())):
                raise NodeUnavailable(say("nodes.ssh_no_place", node=node, n=AT_ONCE), sent=False)
            try:
                yield
            finally:
                self._places.release()
        finally:
            with self._free:
                self._busy.discard(node)
                self._free.notify_all()

    def _call(self, node: str, words: tuple[str, ...], timeout_s: float) -> Mapping[str, Any]:
        try:
            env = {"PATH": _PATH, "LC_ALL": "C"}
            output = process.run(self.command(node, words, timeout_s), env, timeout_s, most_bytes=MOST_BYTES)
        except SchedulerUnavailable as error:
            self._pauses.hung(node)
            text = say("nodes.ssh_no_answer", node=node, error=said_by(error))
            raise NodeUnavailable(text, sent=error.sent) from error
        if output.code == _SSH_FAILED:
            if "timed out" in output.words:
                self._pauses.hung(node)
            raise failure(node, self.settings, output.err.decode("utf-8", "replace"))
        self._pauses.well(node)
        return document(node, output)

    def command(self, node: str, words: tuple[str, ...], timeout_s: float) -> tuple[str, ...]:
        """The ssh command. The host key is looked up by the node's name, not by its address."""
        settings = self.settings
        options = [
            *OPTIONS,
            f"HostKeyAlias={node}",
            f"UserKnownHostsFile={_quoted(settings.known_hosts)}",
            "GlobalKnownHostsFile=/dev/null",
            f"IdentityFile={_quoted(settings.key_file)}",
            f"ConnectTimeout={max(1, int(timeout_s) - 1)}",
        ]
        port = ("-p", str(settings.port)) if settings.port is not None else ()
        file = ("-F", str(settings.config) if settings.config is not None else "none")
        flags = [word for option in options for word in ("-o", option)]
        return (self._program or "ssh", *file, "-T", *flags, *port, "-l", settings.user, "--", node, *words)


class Pauses:
    """Pauses after time-outs, by node."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._until: dict[str, tuple[float, float]] = {}  # node -> (end on the monotonic clock, length)
        self._lock = threading.Lock()

    def check(self, node: str) -> None:
        with self._lock:
            end, _ = self._until.get(node, (0.0, 0.0))
        left_s = end - time.monotonic()
        if left_s > 0:
            text = say("nodes.ssh_pause", node=node, seconds=left_s)
            raise NodeUnavailable(text, sent=False)

    def hung(self, node: str) -> None:
        with self._lock:
            _, length_s = self._until.get(node, (0.0, 0.0))
            length_s = min(length_s * 2 or self._first_s, PAUSE_MOST_S)
            self._until[node] = (time.monotonic() + length_s, length_s)

    def well(self, node: str) -> None:
        with self._lock:
            self._until.pop(node, None)


def document(node: str, output: process.Output) -> Mapping[str, Any]:
    """healer-node's answer. Raises NodeError if something else answered."""
    with contextlib.suppress(ValueError):
        answer = json.loads(output.out)
        if isinstance(answer, dict) and isinstance(answer.get("ok"), bool):
            return answer
    message = " ".join(output.words.split())[:200]
    if output.code == 127:
        raise NodeError(say("nodes.ssh_no_program", node=node, said=message))
    words = message or say("nodes.ssh_no_words")
    raise NodeError(say("nodes.ssh_other_program", node=node, code=output.code, said=words))


#: ssh's messages if it could not connect.
_UNREACHED = re.compile(
    r"Could not resolve hostname|Connection refused|Connection timed out|No route to host|Operation timed out"
    r"|Network is unreachable|Host is down|Connection to \S+ port \S+ timed out"
)
_BEFORE_LOGIN = re.compile(
    r"kex_exchange_identification|banner exchange|Connection (?:closed|reset) by \S+ port"
)
_BAD_KEY = re.compile(
    r"Load key .*|UNPROTECTED PRIVATE KEY FILE|Identity file .* not accessible|bad permissions"
)


def failure(node: str, settings: SshSettings, words: str) -> NodeError:
    """The error for ssh's message, with a remedy."""
    message = " ".join(line.strip() for line in words.splitlines() if line.strip(" @\r"))
    if "IDENTIFICATION HAS CHANGED" in words:
        return NodeError(say("nodes.ssh_host_key_changed", node=node, file=str(settings.known_hosts)))
    if "Host key verification failed" in words or "host key is known for" in words:
        return NodeError(say("nodes.ssh_host_key_unknown", node=node, file=str(settings.known_hosts)))
    if _BAD_KEY.search(words) and "Permission denied" in words:
        return NodeError(say("nodes.ssh_key_unusable", file=str(settings.key_file), said=message[:200]))
    if "Permission denied" in words:
        return NodeError(say("nodes.ssh_key_refused", node=node, user=settings.user))
    if _UNREACHED.search(words) or _BEFORE_LOGIN.search(words):
        return NodeUnavailable(say("nodes.ssh_unreached", node=node, said=message[:200]), sent=False)
    reason = message[:200] or say("nodes.ssh_no_reason")
    return NodeUnavailable(say("nodes.ssh_broke", node=node, said=reason))


def _quoted(path: Path) -> str:
    """A file name in the syntax of ssh_config(5), where `%` begins a token."""
    text = str(path).replace("%", "%%")
    return f'"{text}"' if " " in text else text
