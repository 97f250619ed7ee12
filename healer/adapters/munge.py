"""Decodes munge credentials with `unmunge`: no shell, an empty environment, bounded in time."""

import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from healer.ports.callers import Credential, CredentialRefused
from healer.ports.request_errors import Unavailable

_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/munge/bin")
#: munged answers within milliseconds.
TIMEOUT_S = 3.0
#: unmunge's exit status is munge's error number (munge.h of 0.5.13 to 0.5.16).
_EXPIRED, _REWOUND, _REPLAYED = 15, 16, 17
#: Local problems such as the key, the socket or memory; not the credential's fault.
_LOCAL_ERRORS = range(1, 8)
_WHY = {
    8: "it is no munge credential",
    14: "the munge key of this cluster did not make it: another munge realm, or a damaged credential",
    18: "it was not made for healer's user",
}
_META = re.compile(rb"^([A-Z_]+): +([^\n]*)$", re.MULTILINE)


class Munge:
    """`healer.ports.callers.Credentials`. `socket`: munged's socket, if not the default."""

    def __init__(self, socket: Path | None = None) -> None:
        self._socket = socket

    def decode(self, credential: str) -> Credential:
        program = next((path for folder in _FOLDERS if (path := Path(folder, "unmunge")).exists()), None)
        if program is None:
            raise Unavailable("unmunge was not found on healer's machine, so no node can enrol itself")
        command = [str(program), "--numeric"] + ([f"--socket={self._socket}"] if self._socket else [])
        try:
            done = subprocess.run(
                command,
                input=credential.encode(),
                capture_output=True,
                env={},
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"unmunge did not end well: {error}") from None
        if done.returncode < 0 or done.returncode in _LOCAL_ERRORS:
            message = " ".join(done.stderr.decode(errors="replace").split())[:300]
            raise Unavailable(f"munge does not work on healer's machine: {message or done.returncode}")
        is_decoded = done.returncode in {0, _EXPIRED, _REWOUND, _REPLAYED}
        decoded = _read(done.stdout) if is_decoded else None
        if done.returncode or decoded is None:
            raise CredentialRefused(_why(done.returncode, decoded))
        return decoded


class NoMunge:
    """`healer.ports.callers.Credentials` for one of several clusters without a munge socket of its own. The
    default socket may have another cluster's key, whose root could enrol nodes of this cluster."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def decode(self, credential: str) -> Credential:
        raise CredentialRefused(
            f"healer opens none for the cluster {self._cluster}: where it looks after several, each needs "
            "HEALER_MUNGE_SOCKET in its own table"
        )


def _read(out: bytes) -> Credential | None:
    """Parses `KEY:   value` lines, an empty line, and the payload."""
    head, _, payload = out.partition(b"\n\n")
    meta = {key.decode(): value.decode("ascii", "replace").strip() for key, value in _META.findall(head)}
    try:
        return Credential(
            uid=int(meta["UID"]),
            host=meta["ENCODE_HOST"],
            encoded_at=datetime.fromtimestamp(int(meta["ENCODE_TIME"]), UTC),
            decoded_at=datetime.fromtimestamp(int(meta["DECODE_TIME"]), UTC),
            payload=payload,
        )
    except (KeyError, ValueError, OverflowError, OSError):  # the last two: a time out of range
        return None


def _why(status: int, credential: Credential | None) -> str:
    if status in {_EXPIRED, _REWOUND} and credential is not None:
        apart_s = (credential.decoded_at - credential.encoded_at).total_seconds()
        when, way = ("ago", "behind") if apart_s > 0 else ("from now", "ahead of")
        return (
            f"it was made {abs(apart_s):.0f} s {when}: the node's clock is {way} healer's; synchronise both "
            "by NTP"
        )
    if status == _REPLAYED:
        return "it was used before; each attempt needs a new one"
    return _WHY.get(status, f"munge refuses it (error {status})")
