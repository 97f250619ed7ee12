"""Decodes munge credentials with `unmunge`: no shell, an empty environment, bounded in time."""

import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from healer.ports.callers import Credential, CredentialRefused
from healer.ports.request_errors import Unavailable
from healer.text import Said, say

DEFAULT_SOCKET = Path("/run/munge/munge.socket.2")
_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/munge/bin")
#: munged answers within milliseconds.
TIMEOUT_S = 3.0
#: unmunge's exit status is munge's error number (munge.h of 0.5.13 to 0.5.16).
_EXPIRED, _REWOUND, _REPLAYED = 15, 16, 17
#: Local problems such as the key, the socket or memory; not the credential's fault.
_LOCAL_ERRORS = range(1, 8)
_WHY = {8: say("adapters.munge_none"), 14: say("adapters.munge_key"), 18: say("adapters.munge_user")}
_META = re.compile(rb"^([A-Z_]+): +([^\n]*)$", re.MULTILINE)


class Munge:
    """`healer.ports.callers.Credentials`. `socket`: munged's socket, if not the default."""

    def __init__(self, socket: Path | None = None) -> None:
        self._socket = socket

    def encode(self) -> str:
        """A credential of this process, without a payload."""
        done = self._run("munge", "--no-input")
        if done.returncode:
            raise _not_working(done)
        return done.stdout.decode("ascii", "replace").strip()

    def decode(self, credential: str) -> Credential:
        done = self._run("unmunge", "--numeric", text=credential)
        if done.returncode < 0 or done.returncode in _LOCAL_ERRORS:
            raise _not_working(done)
        is_decoded = done.returncode in {0, _EXPIRED, _REWOUND, _REPLAYED}
        decoded = _read(done.stdout) if is_decoded else None
        if done.returncode or decoded is None:
            raise CredentialRefused(_why(done.returncode, decoded))
        return decoded

    def _run(self, name: str, option: str, *, text: str = "") -> subprocess.CompletedProcess[bytes]:
        program = next((path for folder in _FOLDERS if (path := Path(folder, name)).exists()), None)
        if program is None:
            raise Unavailable(say("adapters.munge_missing", name=name))
        command = [str(program), option] + ([f"--socket={self._socket}"] if self._socket else [])
        try:
            return subprocess.run(
                command, input=text.encode(), capture_output=True, env={}, timeout=TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(say("adapters.munge_failed", name=name, error=str(error))) from None


def _not_working(done: subprocess.CompletedProcess[bytes]) -> Unavailable:
    message = " ".join(done.stderr.decode(errors="replace").split())[:300]
    return Unavailable(say("adapters.munge_broken", error=message or str(done.returncode)))


class NoMunge:
    """`healer.ports.callers.Credentials` for one of several clusters without a munge socket of its own. The
    default socket may have another cluster's key, whose root could enrol nodes of this cluster."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def decode(self, credential: str) -> Credential:
        raise CredentialRefused(say("adapters.munge_no_socket", cluster=self._cluster))


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


def _why(status: int, credential: Credential | None) -> Said:
    if status in {_EXPIRED, _REWOUND} and credential is not None:
        apart_s = (credential.decoded_at - credential.encoded_at).total_seconds()
        return say("adapters.munge_behind" if apart_s > 0 else "adapters.munge_ahead", seconds=abs(apart_s))
    if status == _REPLAYED:
        return say("adapters.munge_replayed")
    return _WHY.get(status, say("adapters.munge_error", status=status))
