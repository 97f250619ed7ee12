"""Whose token of Slurm it is: what a real slurmctld takes and refuses, asked through slurmrestd."""

import base64
import hashlib
import hmac
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from healer.adapters.slurm.rest_link import ReadLink, Request, TokenRefused
from healer.adapters.slurm.rest_token import FileToken, read_token
from healer.adapters.slurm.token_proof import RestTokens, TokensUnchecked
from healer.bootstrap.access_checks import check_slurm_login
from healer.ports.callers import CredentialRefused
from healer.ports.request_errors import Unavailable
from healer.settings import load
from healer.text import say
from tests.support.trixie import PLAIN_USER, REST_UID, ROOT, TrixieSlurm, started
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy
_TIMEOUT_S = 10.0
#: One connection after the other, from the first socket to the second.
_RELAY = """\
import socket, sys, threading
def copy(a, b):
    while data := a.recv(65536):
        b.sendall(data)
    b.shutdown(socket.SHUT_WR)
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
while True:
    near, _ = listening.accept()
    far = socket.socket(socket.AF_UNIX)
    far.connect(sys.argv[2])
    for pair in (near, far), (far, near):
        threading.Thread(target=copy, args=pair, daemon=True).start()
"""


@pytest.fixture(scope="module")
def slurm() -> TrixieSlurm:
    return started()


@pytest.fixture
def proof(slurm: TrixieSlurm) -> RestTokens:
    return RestTokens(slurm.rest_url, cluster=slurm.cluster, timeout_s=_TIMEOUT_S)


def signed(slurm: TrixieSlurm, claims: dict[str, Any], *, key: bytes = b"", alg: str = "HS256") -> str:
    """A token by Slurm's own key, or another one; without a signature for the algorithm `none`."""
    parts = [json.dumps(part).encode() for part in ({"alg": alg, "typ": "JWT"}, claims)]
    text = ".".join(_letters(part) for part in parts)
    made = hmac.new(key or slurm.jwt_key.read_bytes(), text.encode(), hashlib.sha256).digest()
    return f"{text}.{_letters(made) if alg != 'none' else ''}"


def _letters(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    made = {"iat": now, "exp": now + 60, "sun": PLAIN_USER} | changes
    return {name: value for name, value in made.items() if value is not None}


def test_a_token_of_scontrol_is_its_users(slurm: TrixieSlurm, proof: RestTokens) -> None:
    text = slurm.token(PLAIN_USER, 60)
    owner = proof.owner(f"SLURM_JWT={text}")
    assert owner.user == PLAIN_USER
    assert owner.made_at.timestamp() == read_token(text).claims.iat
    assert proof.owner(signed(slurm, claims())).user == PLAIN_USER  # so what the next test changes is all


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({}, {"key": b"another key of 32 bytes".ljust(32)}),
        ({}, {"alg": "none"}),
        ({"iat": int(time.time()) - 90, "exp": int(time.time()) - 30}, {}),
        ({"exp": None}, {}),
        ({"iat": None}, {}),
        ({"sun": None}, {}),
        ({"sun": ""}, {}),
        ({"sun": "user\r\nX-SLURM-USER-TOKEN: x"}, {}),
        ({"iat": 1e300}, {}),
    ],
)
def test_token_rejected_by_slurm_authenticates_no_one(
    slurm: TrixieSlurm, proof: RestTokens, changes: dict[str, Any], how: dict[str, Any]
) -> None:
    with pytest.raises(CredentialRefused):
        proof.owner(signed(slurm, claims(**changes), **how))


@pytest.mark.parametrize("text", ["", "x", "x.y.z", "….….…", "e30.e30.e30"])
def test_malformed_token_authenticates_no_one(proof: RestTokens, text: str) -> None:
    with pytest.raises(CredentialRefused):
        proof.owner(text)


def test_ambiguous_token_belongs_to_the_user_slurm_sees(slurm: TrixieSlurm, proof: RestTokens) -> None:
    head = {"alg": "HS256", "typ": "JWT"}
    now = int(time.time())
    twice = f'{{"iat":{now},"exp":{now + 60},"sun":"{PLAIN_USER}","sun":"nobody"}}'
    text = f"{_letters(json.dumps(head).encode())}.{_letters(twice.encode())}"
    made = hmac.new(slurm.jwt_key.read_bytes(), text.encode(), hashlib.sha256).digest()
    assert proof.owner(f"{text}.{_letters(made)}").user == "nobody"


@pytest.fixture
def local_rest(slurm: TrixieSlurm) -> Iterator[str]:
    """A slurmrestd that takes every client with its own user for itself, at a socket that healer reaches as
    that user: here through a relay that runs as it."""
    guardian = slurm._guardian  # pyright: ignore[reportPrivateUsage]
    assert guardian is not None
    folder = slurm.rest_socket.parent
    inner, outer = folder / "local", folder / "relayed"
    enter = ["nsenter", f"--target={guardian.pid}", "--mount", "chroot"]
    enter += ["--userspec=slurmrestd:slurmrestd", str(ROOT), "env", "SLURM_CONF=/srv/slurm.conf"]
    rest = subprocess.Popen(
        [
            *enter,
            "slurmrestd",
            "-s",
            "slurmctld",
            "-a",
            "rest_auth/local,rest_auth/jwt",
            "unix:/srv/rest/local",
        ]
    )
    wait_until(inner.exists, 20, what="slurmrestd opened its socket")
    relay = subprocess.Popen(
        ["/usr/bin/python3", "-S", "-c", _RELAY, str(outer), str(inner)], user=REST_UID, group=REST_UID
    )
    try:
        wait_until(outer.exists, 20, what="the relay opened its socket")
        yield f"unix://{outer}"
    finally:
        for process in (relay, rest):
            process.kill()
            process.wait()
        for socket in (inner, outer):
            socket.unlink(missing_ok=True)


def test_slurmrestd_that_ignores_tokens_authenticates_no_one(slurm: TrixieSlurm, local_rest: str) -> None:
    blind = RestTokens(local_rest, cluster=slurm.cluster, timeout_s=_TIMEOUT_S)
    for token in (slurm.token(PLAIN_USER), signed(slurm, claims(), key=b"another")):
        with pytest.raises(TokensUnchecked):
            blind.owner(token)


def test_doctor_says_which_slurmrestd_looks_at_tokens(slurm: TrixieSlurm, local_rest: str) -> None:
    def looked(url: str) -> tuple[bool, str]:
        environ = {"HEALER_SLURM_LOGIN": "on", "HEALER_SLURM_REST_URL": url, "HEALER_CLUSTER": slurm.cluster}
        (look,) = check_slurm_login(load(environ))
        return look.ok, look.text

    assert looked(slurm.rest_url) == (True, f"slurmrestd at {slurm.rest_url} refuses a made-up token")
    ok, text = looked(local_rest)
    assert (ok, "proves nothing there" in text) == (False, True), text
    assert not looked("http://127.0.0.1:9")[0]
    assert check_slurm_login(load({"HEALER_CLUSTER": slurm.cluster})) == []


def test_a_slurmrestd_that_is_away_is_no_refusal(slurm: TrixieSlurm) -> None:
    away = RestTokens("http://127.0.0.1:9", cluster=slurm.cluster, timeout_s=_TIMEOUT_S)
    with pytest.raises(Unavailable):
        away.owner(slurm.token(PLAIN_USER))


@pytest.mark.parametrize(
    ("owner", "named", "is_taken"),
    [
        (PLAIN_USER, PLAIN_USER, True),
        (PLAIN_USER, "nobody", False),
        (PLAIN_USER, "root", False),
        ("root", "nobody", True),
    ],
)
def test_slurm_itself_compares_the_name_with_a_token(
    slurm: TrixieSlurm, tmp_path: Path, owner: str, named: str, is_taken: bool
) -> None:
    """What the proof rests on; root may act as any user in Slurm, and makes tokens of any user too."""
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(slurm.token(owner))
    link = ReadLink(slurm.rest_url, user=named, token=FileToken(file), timeout_s=_TIMEOUT_S)
    if is_taken:
        assert link.call(Request("GET", "/licenses"), say("slurm.to_check_token")).status == 200
    else:
        with pytest.raises(TokenRefused):
            link.call(Request("GET", "/licenses"), say("slurm.to_check_token"))
