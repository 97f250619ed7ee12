"""Witnesses of the audit: places of others that keep the signed heads of the chain.

`file:///mnt/other/healer.jsonl`: a file, best on another host's mount and append-only there (`chattr +a`).
`syslog://host:601` and `syslog+tls://host:6514`: another host's log, RFC 5424 by TCP (RFC 6587, RFC 5425).
`postgresql://…`: the table `healer_witness` of a second database, into which the role may only insert.
"""

import os
import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg

from healer.ports.audit_store import Witness, WitnessAway

#: A witness that does not answer by then is asked again later.
TIMEOUT_S = 10.0
#: Facility 13 (log audit), severity 6 (informational).
_PRIORITY = 13 * 8 + 6
_INSERT = "INSERT INTO healer_witness (line) VALUES (%s)"
_SELECT = "SELECT line FROM healer_witness ORDER BY id"
#: Where a checkpoint begins in a line, behind what a syslog server puts before it.
_BEGIN = re.compile(rb'\{"checkpoint":')


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
    raise ValueError("file:///PATH, syslog://HOST:PORT, syslog+tls://HOST:PORT or postgresql://…")


def witnessed_lines(place: str) -> Iterator[bytes]:
    """The checkpoints' lines that a witness holds: of a file, a syslog server's log, or a second database.

    `place`: a path or an address of `witness_at`. Lines of others are left out. WitnessAway.
    """
    for line in _all_lines(place):
        found = _BEGIN.search(line)
        if found is not None:
            yield line[found.start() :].rstrip() + b"\n"


def _all_lines(place: str) -> Iterator[bytes]:
    parts = urlsplit(place)
    if parts.scheme in ("postgresql", "postgres"):
        yield from DatabaseWitness(place).lines()
        return
    if parts.scheme.startswith("syslog"):
        raise WitnessAway(f"{place} cannot be read back: give the file in which that host keeps it")
    path = Path(parts.path) if parts.scheme == "file" else Path(place)
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise WitnessAway(f"{path} cannot be read: {error.strerror}") from None


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
            raise WitnessAway(f"{self._path} cannot be written: {error.strerror}") from None


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
            raise WitnessAway(f"{self.name} did not take it: {error.strerror or error}") from None


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
            raise WitnessAway(f"{self.name} did not take it: {words}") from None
