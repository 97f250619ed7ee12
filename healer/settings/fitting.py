"""Settings that must fit together. Each check takes the values that are set, by field.

A combination that does not work raises SettingsError.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from healer.settings.fields import Settings, SettingsError, setting_name
from healer.settings.parsers import GITHUB, JIRA, ON, SERVICENOW, WEBHOOK, is_loopback
from healer.text import Said, say

# --- Slurm and BMCs --------------------------------------------------------------------------------------


def check_adapters(values: dict[str, Any], kind: type[Settings]) -> None:
    """Checks how Slurm and BMCs are reached. A process that only reads drops the token that may write if
    there is one to read."""
    if kind is Settings and "slurm_read_token_file" in values:
        values.pop("slurm_token_file", None)
        values.pop("slurm_token_command", None)
    else:
        _check_slurmrestd(values)
    _check_slurm_login(values)
    if "bmc_url" in values and not {"bmc_user", "bmc_password"} <= values.keys():
        raise SettingsError(say("setup.bmc_url_needs_bmc"))


def _check_slurmrestd(values: Mapping[str, Any]) -> None:
    if "rest" not in values["slurm_adapters"]:
        return
    if "slurm_rest_url" not in values:
        raise SettingsError(say("setup.rest_needs_url"))
    tokens = {"slurm_token_file", "slurm_token_command"} & values.keys()
    if not tokens:
        raise SettingsError(say("setup.rest_needs_token"))
    if len(tokens) > 1:
        raise SettingsError(say("setup.slurm_token_twice"))


def _check_slurm_login(values: Mapping[str, Any]) -> None:
    """Over plain HTTP, anyone on the network could answer in slurmrestd's place and collect tokens."""
    if values.get("slurm_login") != ON:
        return
    parts = urlsplit(values.get("slurm_rest_url") or "http://")
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise SettingsError(say("setup.slurm_login_needs_slurm", on=ON))


# --- TLS -------------------------------------------------------------------------------------------------


def check_tls(values: Mapping[str, Any]) -> None:
    if ("tls_cert" in values) != ("tls_key" in values):
        raise SettingsError(say("setup.tls_pair"))
    if "tls_client_ca" in values and "tls_cert" not in values:
        raise SettingsError(say("setup.tls_client_ca_set"))


# --- the ticket system -----------------------------------------------------------------------------------

#: Settings of each system besides HEALER_TICKETS and the token, and whether they are required.
_TICKETS_TAKE = {
    JIRA: {"url": True, "project": True, "user": False, "type": False, "close": False},
    GITHUB: {"url": False, "project": True},
    SERVICENOW: {"url": True, "project": False, "user": False, "close": False},
}
_PROJECT_FORM = {
    JIRA: re.compile(r"[A-Za-z][A-Za-z0-9_]*"),
    GITHUB: re.compile(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+"),
    SERVICENOW: re.compile(r"[a-z][a-z0-9_]*"),
}
_TICKETS_BESIDE = ("url", "project", "user", "token", "type", "close")


def check_tickets(values: Mapping[str, Any]) -> None:
    """HEALER_TICKETS and its other settings."""
    which = values.get("tickets")
    given = [name for name in _TICKETS_BESIDE if f"tickets_{name}" in values]
    if which in (None, WEBHOOK):
        if given:
            _needs(f"tickets_{given[0]}", say("setup.ticket_systems_in", systems=", ".join(_TICKETS_TAKE)))
        if which == WEBHOOK and "ticket_webhook_url" not in values:
            _system_needs(which, "ticket_webhook_url")
        return
    if "ticket_webhook_url" in values:
        raise SettingsError(say("setup.tickets_and_webhook", system=which))
    takes = {**_TICKETS_TAKE[which], "token": True}
    for name, required in takes.items():
        if required and name not in given:
            _system_needs(which, f"tickets_{name}")
    for name in given:
        if name not in takes:
            unused = setting_name(f"tickets_{name}")
            raise SettingsError(say("setup.tickets_ignore", system=which, name=unused))
    token = values["tickets_token"]
    if "tickets_user" not in values and not (token.isascii() and token.isprintable()):
        _must_be("tickets_token", say("setup.wants_ascii"))
    _check_project(which, values.get("tickets_project"))
    _check_address(values.get("tickets_url") or "https://api.github.com")


def _check_project(which: str, project: str | None) -> None:
    if project is not None and not _PROJECT_FORM[which].fullmatch(project):
        what = say(f"setup.wants_project_{which}")
        raise SettingsError(
            say("setup.must_be_not", name=setting_name("tickets_project"), what=what, given=project)
        )


def _check_address(text: str) -> None:
    """The token is sent with each request."""
    url = urlsplit(text)
    if "@" in url.netloc or url.query or url.fragment:
        _must_be("tickets_url", say("setup.wants_address_alone"))
    if url.scheme != "https" and not is_loopback(url.hostname or ""):
        raise SettingsError(say("setup.tickets_url_https"))


# --- signing in ------------------------------------------------------------------------------------------

_PROXY_SECRET_LEAST = 24


def check_sign_in(values: Mapping[str, Any]) -> None:
    """The identity provider, and a proxy that signs people in."""
    oidc = [name for name in ("oidc_issuer", "oidc_client_id", "oidc_client_secret") if name in values]
    if oidc:
        for name in ("oidc_issuer", "oidc_client_id", "public_url"):
            if name not in values:
                _needs(oidc[0], setting_name(name))
        public = urlsplit(values["public_url"])
        if public.scheme != "https" and not is_loopback(public.hostname or ""):
            raise SettingsError(say("setup.oidc_needs_https"))
    secret = values.get("sign_in_proxy_secret")
    if secret is None:
        return
    if "proxies" not in values:
        _needs("sign_in_proxy_secret", setting_name("proxies"))
    if len(secret) < _PROXY_SECRET_LEAST:
        raise SettingsError(say("setup.proxy_secret_short", least=_PROXY_SECRET_LEAST))
    if oidc:
        names = {"plain": setting_name("oidc_issuer"), "name": setting_name("sign_in_proxy_secret")}
        raise SettingsError(say("setup.are_both_set_keep", **names))


# --- what is wrong, in words -----------------------------------------------------------------------------


def _needs(field: str, needed: Said | str) -> None:
    raise SettingsError(say("setup.needs", name=setting_name(field), needed=needed))


def _system_needs(system: str, needed: str) -> None:
    raise SettingsError(say("setup.tickets_need", system=system, needed=setting_name(needed)))


def _must_be(field: str, what: Said) -> None:
    raise SettingsError(say("setup.must_be", name=setting_name(field), what=what))
