"""munge credentials, read by the machine's own `unmunge`: no shell, a bare environment, bounded in time."""

import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from healer.ports.callers import Credential, CredentialRefused
from healer.ports.request_errors import Unavailable

_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/munge/bin")
#: munged answers within milliseconds.
TIMEOUT_S = 3.0
#: unmunge's exit status is munge's own error number (munge.h of 0.5.13 to 0.5.16).
_EXPIRED, _REWOUND, _REPLAYED = 15, 16, 17
#: The key, the socket, memory and the like: nothing that the credential could be blamed for.
_OURS = range(1, 8)
_WHY = {
    8: "it is no munge credential",
    14: "the munge key of this cluster did not make it: another munge realm, or a damaged credential",
    18: "it was not made for healer's user",
}
_META = re.compile(rb"^([A-Z_]+): +([^\n]*)$", re.MULTILINE)


class Munge:
    """`healer.ports.callers.Credentials`. `socket` is munged's, where it is not the usual one."""

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
        if done.returncode < 0 or done.returncode in _OURS:
            said = " ".join(done.stderr.decode(errors="replace").split())[:300]
            raise Unavailable(f"munge does not work on healer's machine: {said or done.returncode}")
        known = done.returncode in {0, _EXPIRED, _REWOUND, _REPLAYED}
        told = _read(done.stdout) if known else None
        if done.returncode or told is None:
            raise CredentialRefused(_why(done.returncode, told))
        return told


class NoMunge:
    """`healer.ports.callers.Credentials` of a cluster whose munge is not named, where there are several: the
    usual socket's key may be another cluster's, and its root would enrol nodes of this one."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def decode(self, credential: str) -> Credential:
        raise CredentialRefused(
            f"healer opens none for the cluster {self._cluster}: where it looks after several, each needs "
            "HEALER_MUNGE_SOCKET in its own table"
        )


def _read(out: bytes) -> Credential | None:
    """`KEY:   value` lines, an empty line, the payload."""
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
    except (KeyError, ValueError, OverflowError, OSError):  # the last two: a time that no calendar has
        return None


def _why(status: int, told: Credential | None) -> str:
    if status in {_EXPIRED, _REWOUND} and told is not None:
        apart_s = (told.decoded_at - told.encoded_at).total_seconds()
        when, way = ("ago", "behind") if apart_s > 0 else ("from now", "ahead of")
        return (
            f"it was made {abs(apart_s):.0f} s {when}: the node's clock is {way} healer's; synchronise both "
            "by NTP"
        )
    if status == _REPLAYED:
        return "it was used before; each attempt needs a new one"
    return _WHY.get(status, f"munge refuses it (error {status})")
