"""`healer login` and `healer logout`: commands of a person, by the site's identity provider."""

import os
import subprocess
from time import monotonic, sleep
from typing import Any

import typer

from healer.commands import Failed, Misused, print_line
from healer.commands.kept_logins import KeptLogin, keep_login, kept_login, logins_file
from healer.commands.phrases import moment
from healer.commands.remote import AS_JSON, CLUSTER, Client, ClientError, given, print_json, url_of
from healer.commands.safe_url import check_safe
from healer.text import said_by, say

#: RFC 8628, 3.5: what `slow_down` adds to the interval.
_SLOWER_S = 5
_HOST_S = 5
#: healer's own bound on those without a token.
_TOO_MANY = 429


def login(
    by_munge: bool = typer.Option(
        False,
        "--munge",
        help="Use a munge credential instead, on a host of the cluster, if the site allows it.",
    ),
    by_slurm: bool = typer.Option(
        False,
        "--slurm-token",
        help="Use your Slurm token instead (SLURM_JWT, or a new one), if the site allows it.",
    ),
    cluster: str | None = CLUSTER,
    json: bool = AS_JSON,
) -> None:
    """Sign in through the site's identity provider: prints a code to confirm in a browser on any machine."""
    url = url_of(os.environ)
    check_safe(url, "healer login")
    if by_munge and by_slurm:
        raise Misused(say("commands.login_which"))
    with Client(anonymous=True) as api:
        if by_munge:
            found = api.post("/login/munge", given({"credential": made_by_munge(), "cluster": cluster}))
        elif by_slurm:
            found = api.post("/login/slurm", given({"token": own_slurm_token(), "cluster": cluster}))
        else:
            found = _by_provider(api)
    keep_login(os.environ, url, KeptLogin(found["token"], found["name"], found["expires_at"]))
    if json:
        print_json({name: found[name] for name in ("name", "role", "expires_at")})
    else:
        print_line(
            say(
                "commands.signed_in", name=found["name"], role=found["role"],
                until=moment(found["expires_at"]),
            )
        )  # fmt: skip
        if os.environ.get("HEALER_TOKEN") or os.environ.get("HEALER_TOKEN_FILE"):
            print_line(say("commands.login_shadowed"), err=True)


def logout() -> None:
    """End the session of `healer login`, here and at the server."""
    url = url_of(os.environ)
    try:
        kept = kept_login(os.environ, url)
    except Failed:
        kept = None  # it has expired
    if kept is None and not logins_file(os.environ).exists():
        raise Failed(say("commands.not_signed_in", url=url))
    try:
        if kept is not None:
            with Client({**os.environ, "HEALER_TOKEN": kept.token}) as api:
                api.delete("/sessions/own", {})
    except ClientError as error:
        if error.problem.get("status") not in {401, 403, 404}:
            raise Failed(say("commands.session_stays", why=said_by(error))) from None
    keep_login(os.environ, url, None)
    print_line(say("commands.signed_out", url=url))


def made_by_munge() -> str:
    """A new credential of the user. Raises Failed."""
    socket = os.environ.get("HEALER_MUNGE_SOCKET")
    return _printed(["munge", *([f"--socket={socket}"] if socket else [])], "--munge", b"healer login")


def own_slurm_token() -> str:
    """SLURM_JWT, or a new token of the user, for a minute. Raises Failed."""
    given = os.environ.get("SLURM_JWT")
    return given or _printed(["scontrol", "token", "lifespan=60"], "--slurm-token")


def _printed(command: list[str], option: str, given: bytes = b"") -> str:
    program = command[0]
    try:
        made = subprocess.run(command, input=given, capture_output=True, timeout=_HOST_S, check=False)
    except FileNotFoundError:
        raise Failed(say("commands.login_no_program", program=program, option=option)) from None
    except subprocess.TimeoutExpired:
        raise Failed(say("commands.login_timeout", program=program, count=_HOST_S)) from None
    if made.returncode:
        error = " ".join(made.stderr.decode(errors="replace").split())
        raise Failed(say("commands.login_refused", program=program, why=error))
    return made.stdout.decode("ascii", "replace").strip()


def _by_provider(api: Client) -> dict[str, Any]:
    begun = api.post("/login/device", None)
    print_line(say("commands.login_open", url=begun["link"] or begun["address"]), err=True)
    print_line(say("commands.login_confirm", code=begun["code"]), err=True)
    return _confirmed(api, begun)


def _confirmed(api: Client, begun: dict[str, Any]) -> dict[str, Any]:
    """The session, once the person has confirmed the code."""
    interval_s = begun["interval_s"]
    until = monotonic() + begun["expires_s"]
    while monotonic() + interval_s < until:
        sleep(interval_s)
        try:
            found = api.post("/login/device/finish", {"kept": begun["kept"]})
        except ClientError as error:
            if error.problem and error.problem.get("status") != _TOO_MANY:
                raise
            interval_s *= 2  # no answer in time: RFC 8628 asks for less often from now on
            continue
        if "token" in found:
            return found
        if found["slow_down"]:
            interval_s += _SLOWER_S
    raise Failed(say("commands.login_code_expired"))
