"""Addresses and folders that follow from the settings."""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from healer import data_folder
from healer.settings.fields import Settings, SettingsError
from healer.settings.parsers import ON, Listen, is_loopback
from healer.text import Said, say


def rules_folder(settings: Settings) -> Path:
    """The site's rules, or those that are shipped."""
    return settings.rules_dir or shipped_rules()


def shipped_rules() -> Path:
    """`rules/` of the checkout or of an installed package."""
    return data_folder("rules")


def plain_http_problem(settings: Settings) -> Said | None:
    """Where healer would be reached beyond this machine without TLS; None where it would not."""
    public = urlsplit(settings.public_url or "")
    if public.scheme == "http" and not is_loopback(public.hostname or ""):
        return say("setup.public_plain", url=settings.public_url)
    if settings.tls_cert is None and not is_loopback(settings.listen.host):
        return say("setup.listen_plain", listen=str(settings.listen))
    return None


def check_listener(settings: Settings) -> None:
    """Raises SettingsError where tokens would go over the network in clear and no setting allows it."""
    problem = plain_http_problem(settings)
    if problem is not None and settings.allow_plain_http != ON:
        raise SettingsError(say("setup.set_tls_cert_tls", problem=problem, on=ON))


def site_url(settings: Settings) -> str:
    """Where people and nodes reach healer."""
    return settings.public_url or own_url(settings)


def own_url(settings: Settings) -> str:
    """Where a program on this machine reaches the API."""
    host, port = settings.listen.host, settings.listen.port
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http{'s' if settings.tls_cert else ''}://{Listen(here, port)}"


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """/var/lib/healer for root, else `healer` in the user's state folder (XDG base directories)."""
    if os.geteuid() == 0:
        return Path("/var/lib/healer")
    state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME", "/tmp"), ".local/state")  # noqa: S108
    return Path(state) / "healer"


#: In the data directory: sockets of what `healer up` simulates.
SIM_FOLDER = "sim"


def own_sim_socket(data_dir: Path, cluster: str = "") -> Path:
    """Where `healer up` offers its own simulated Slurm when HEALER_SIM_SOCKET names no other."""
    return data_dir / SIM_FOLDER / (f"sim-slurm-{cluster}.sock" if cluster else "sim-slurm.sock")
