"""Witnesses of the audit: external places that keep the signed heads of the chain.

`file:///mnt/other/healer.jsonl`: a file, best on another host's mount and append-only there (`chattr +a`).
`syslog://host:601` and `syslog+tls://host:6514`: another host's log, RFC 5424 by TCP (RFC 6587, RFC 5425).
`postgresql://…`: the table `healer_witness` of a second database, into which the role may only insert.
`rfc3161+https://HOST/PATH?keep=FILE&ca=FILE`: a time-stamp authority; its stamps are kept in a file.
"""

import os
import re
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import psycopg

from healer.adapters.webhook import PACKED, read_body
from healer.ports.audit_store import Witness, WitnessAway
from healer.text import said_by, say

#: A witness that does not answer by then is asked again later.
TIMEOUT_S = 10.0
#: A time stamp with its certificates has a few KB.
_STAMP_MAX = 256 * 1024
#: Facility 13 (log audit), severity 6 (informational).
_PRIORITY = 13 * 8 + 6
_INSERT = "INSERT INTO healer_witness (line) VALUES (%s)"
_SELECT = "SELECT line FROM healer_witness ORDER BY id"
#: The start of a checkpoint in a line, after the prefix of a syslog server.
_BEGIN = re.compile(rb'\{"checkpoint":')
_MADE_AT = re.compile(rb'"at":"([^"]+)"')
_STAMPED_AT = re.compile(r"^Time stamp: (\w+ +\d+ [\d:]+)(?:\.\d+)? (\d+) GMT$", re.MULTILINE)
#: A checkpoint counts if it was stamped at most this long after its own time: its authority may have been
#: unreachable for this long.
STAMPED_WITHIN = timedelta(days=1)


def witness_at(address: str) -> Witness:
    """The witness at this address. ValueError: it is of no kind that healer speaks to."""
    parts = urlsplit(address)
    if parts.scheme == "file" and parts.path.startswith("/") and not parts.netloc:
        return FileWitness(Path(parts.path))
    if parts.scheme in ("syslog", "syslog+tls") and parts.hostname and parts.port:
        ca_file = parse_qs(parts.query).get("ca", [None])[0]
        context = ssl.create_default_context(cafile=ca_file) if parts.scheme == "syslog+tls" else None
        return SyslogWitness(parts.hostname, parts.port, context)
    if parts.scheme in ("postgresql", "postgres"):
        return DatabaseWitness(address)
    if parts.scheme in _STAMPED and parts.hostname and {"keep", "ca"} <= parse_qs(parts.query).keys():
        return StampWitness(address)
    raise ValueError(
        "file:///PATH, syslog://HOST:PORT, syslog+tls://HOST:PORT, postgresql://… or "
        "rfc3161+https://HOST/PATH?keep=FILE&ca=FILE"
    )


def witnessed_lines(place: str) -> Iterator[bytes]:
    """The checkpoints' lines that a witness holds: of a file, a syslog server's log, or a second database.

    `place`: a path or an address of `witness_at`. Lines of others are left out. WitnessAway.
    """
    for line in _all_lines(place):
        found = _BEGIN.search(line)
        if found is not None:
            yield line[found.start() :].rstrip() + b"\n"


_STAMPED = ("rfc3161+https", "rfc3161+http")


def _all_lines(place: str) -> Iterator[bytes]:
    parts = urlsplit(place)
    if parts.scheme in ("postgresql", "postgres"):
        yield from DatabaseWitness(place).lines()
        return
    if parts.scheme in _STAMPED:
        yield from StampWitness(place).lines()
        return
    if parts.scheme.startswith("syslog"):
        raise WitnessAway(say("audit.cannot_read_back_give", place=place))
    path = Path(parts.path) if parts.scheme == "file" else Path(place)
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise WitnessAway(say("audit.cannot_read", path=str(path), why=error.strerror)) from None


class FileWitness:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = f"file:{path}"

    def send(self, lines: Sequence[bytes]) -> None:
        try:
            # No O_CREAT: a mount that is missing must not become a local file that looks like a witness.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            with os.fdopen(descriptor, "ab") as file:
                # A crash may have left half a line.
                file.write(b"\n" + b"".join(lines))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise WitnessAway(say("audit.cannot_written", path=str(self._path), why=error.strerror)) from None


class SyslogWitness:
    """A connection for each delivery. It counts when the other side has read up to our end and closed."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        self._host, self._port, self._context = host, port, context
        self.name = f"syslog{'+tls' if context else ''}://{host}:{port}"

    def send(self, lines: Sequence[bytes]) -> None:
        try:
            with socket.create_connection((self._host, self._port), timeout=TIMEOUT_S) as plain:
                if self._context is None:
                    _deliver(plain, lines)
                else:
                    with self._context.wrap_socket(plain, server_hostname=self._host) as secured:
                        secured.sendall(b"".join(map(_framed, lines)))
                        _deliver(secured.unwrap(), ())
        except OSError as error:
            raise WitnessAway(
                say("audit.refused", name=self.name, words=str(error.strerror or error))
            ) from None


def _deliver(connection: socket.socket, lines: Iterable[bytes]) -> None:
    connection.sendall(b"".join(map(_framed, lines)))
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(4096):
        pass


def _framed(line: bytes) -> bytes:
    """RFC 5424 with its length before it. Canonical JSON is ASCII or UTF-8 on one line."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    host = re.sub(r"[^!-~]", "", socket.gethostname()) or "-"
    message = f"<{_PRIORITY}>1 {at} {host} healer - checkpoint - ".encode() + line.rstrip(b"\n")
    return b"%d %b" % (len(message), message)


class DatabaseWitness:
    def __init__(self, address: str) -> None:
        self._address, parts = address, urlsplit(address)
        self.name = f"postgresql://{parts.hostname or ''}{parts.path}"

    def send(self, lines: Sequence[bytes]) -> None:
        with self._connected() as connection, connection.cursor() as cursor:
            cursor.executemany(_INSERT, [(line.decode().rstrip("\n"),) for line in lines])

    def lines(self) -> Iterator[bytes]:
        """What it holds, for a role that may read it."""
        with self._connected() as connection:
            for (line,) in connection.execute(_SELECT):
                yield line.encode() + b"\n"

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        """One transaction; its errors are WitnessAway, without the address, which holds a password."""
        try:
            with psycopg.connect(self._address, connect_timeout=int(TIMEOUT_S)) as connection:
                connection.execute("SELECT set_config('statement_timeout', %s, false)", [f"{TIMEOUT_S:g}s"])
                yield connection
        except psycopg.Error as error:
            words = error.diag.message_primary or type(error).__name__
            raise WitnessAway(say("audit.refused", name=self.name, words=words)) from None


class _Stamp(msgspec.Struct):
    """An RFC 3161 reply for this many lines before it in the file."""

    stamp: bytes
    lines: int


class StampWitness:
    """A file in which each delivery is followed by its time stamp: who may write the file cannot date a line
    back. By `openssl ts`, with the root certificates of the authority in `ca`."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        given = parse_qs(parts.query)
        self.name = f"{parts.scheme}://{parts.hostname}{parts.path}"
        self._url = parts._replace(scheme=parts.scheme.removeprefix("rfc3161+"), query="").geturl()
        self._path, self._ca = Path(given["keep"][0]), given["ca"][0]

    def send(self, lines: Sequence[bytes]) -> None:
        with tempfile.TemporaryDirectory() as name:
            data, query, reply = (Path(name, kind) for kind in ("data", "query", "reply"))
            data.write_bytes(b"".join(lines))
            self._openssl("-query", "-data", data, "-sha256", "-cert", "-out", query)
            try:
                reply.write_bytes(self._answer(query.read_bytes()))
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise WitnessAway(
                    say("audit.gave_no_time_stamp", name=self.name, why=said_by(error))
                ) from None
            self._openssl("-verify", "-queryfile", query, "-in", reply, "-CAfile", self._ca)
            stamp = _Stamp(stamp=reply.read_bytes(), lines=len(lines))
        FileWitness(self._path).send([*lines, msgspec.json.encode(stamp) + b"\n"])

    def _answer(self, query: bytes) -> bytes:
        headers = {"Content-Type": "application/timestamp-query", **PACKED}
        until = time.monotonic() + TIMEOUT_S
        with httpx.stream("POST", self._url, content=query, headers=headers, timeout=TIMEOUT_S) as answer:
            found = read_body(answer.raise_for_status(), _STAMP_MAX, until)
        return found or b""  # no reply for openssl either

    def lines(self) -> Iterator[bytes]:
        """Those that a stamp proves, and that were stamped within `STAMPED_WITHIN` of their own time."""
        before: list[bytes] = []
        for line in _all_lines(str(self._path)):
            if _BEGIN.match(line):
                before.append(line)
            elif line.startswith(b'{"stamp":'):
                yield from self._proven(line, before)
                before = []

    def _proven(self, line: bytes, before: Sequence[bytes]) -> Iterator[bytes]:
        try:
            stamp = msgspec.json.decode(line, type=_Stamp)
            lines = before[-stamp.lines :]
            stamped_at = self._time_of(stamp.stamp, b"".join(lines))
        except (msgspec.MsgspecError, WitnessAway):
            return
        for each in lines:
            found = _MADE_AT.search(each)
            if found and stamped_at - datetime.fromisoformat(found[1].decode()) <= STAMPED_WITHIN:
                yield each

    def _time_of(self, stamp: bytes, stamped: bytes) -> datetime:
        """When the authority stamped it; by then its certificate had to be valid. WitnessAway: it did not."""
        with tempfile.TemporaryDirectory() as name:
            data, reply = Path(name, "data"), Path(name, "reply")
            data.write_bytes(stamped)
            reply.write_bytes(stamp)
            found = _STAMPED_AT.search(self._openssl("-reply", "-in", reply, "-text"))
            if found is None:
                raise WitnessAway(say("audit.openssl_shows_no_time", name=self.name))
            at = datetime.strptime(f"{found[1]} {found[2]}", "%b %d %H:%M:%S %Y").replace(tzinfo=UTC)
            then = str(int(at.timestamp()))
            self._openssl("-verify", "-data", data, "-in", reply, "-CAfile", self._ca, "-attime", then)
        return at

    def _openssl(self, *words: str | Path) -> str:
        command = ["openssl", "ts", *map(str, words)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise WitnessAway(say("audit.openssl_did_run", name=self.name, why=said_by(error))) from None
        if done.returncode:
            raise WitnessAway(
                say("words.labelled", label=self.name, text=done.stderr.strip().rpartition(chr(10))[2][:200])
            )
        return done.stdout
