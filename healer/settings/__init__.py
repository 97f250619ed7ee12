"""Settings: `HEALER_*` in the environment and in one TOML file (`HEALER_CONFIG`), same names.

The environment wins. A wrong or unknown setting is a SettingsError of one sentence that names it. An empty
value counts as not set.
Settings marked secret may be given as `NAME_FILE`, the path of a file that holds the value.
One healer for several clusters has a table `[clusters.NAME]` for each in the file; what stands there is that
cluster's alone and wins over all else.
"""

import difflib
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from healer import data_folder
from healer.model.routes import ChannelKind
from healer.model.words import Mode
from healer.settings import tickets as ticket_settings
from healer.settings import values as values_of
from healer.settings.values import Listen

#: ClusterName of Slurm has at most 40 characters; ours stands in names of files and queues too.
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,39}")


class SettingsError(Exception):
    """A setting is wrong or unknown. The text is one sentence that names it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a server process. None: not set, the default of `docs/settings.md` holds.

    `clusters` are the whole settings of each cluster, by name, where the file has tables of them; then what
    stands here of Slurm belongs to none. `slurm_conf` can stand in a table alone.
    """

    data_dir: Path
    listen: Listen
    slurm_adapters: tuple[str, ...]
    mode: Mode = Mode.shadow
    settle_s: float = 2.0
    database_url: str | None = None
    redis_url: str | None = None
    rules_dir: Path | None = None
    cluster: str | None = None
    slurm_rest_url: str | None = None
    slurm_token_file: Path | None = None
    slurm_token_command: tuple[str, ...] | None = None
    slurm_user: str | None = None
    munge_socket: Path | None = None
    slurm_bin_dir: Path | None = None
    slurm_conf: Path | None = None
    sim_socket: Path | None = None
    sim_nodes_socket: Path | None = None
    ssh_key_file: Path | None = None
    ssh_known_hosts: Path | None = None
    ssh_user: str | None = None
    ssh_port: int | None = None
    ssh_config: Path | None = None
    ssh_diagnose_level: int | None = None
    bmc_url: str | None = None
    bmc_user: str | None = None
    bmc_password: str | None = None
    bmc_ca_file: Path | None = None
    bmc_tls: str = values_of.CHECKED
    bmc_system: str | None = None
    recording: Path | None = None
    recording_max_gb: float = 50.0
    recording_days: float = 30.0
    guard_max_share: float | None = None
    guard_max_nodes: int | None = None
    guard_min_service_share: float | None = None
    guard_share_per_hour: float | None = None
    guard_rack_share: float | None = None
    guard_partition_share: float | None = None
    guard_repeat_h: float | None = None
    breaker_share: float | None = None
    notify_webhook_url: str | None = None
    ticket_webhook_url: str | None = None
    tickets: str | None = None
    tickets_url: str | None = None
    tickets_project: str | None = None
    tickets_user: str | None = None
    tickets_token: str | None = None
    tickets_type: str | None = None
    tickets_close: str | None = None
    events_webhook_url: str | None = None
    webhook_secret: str | None = None
    slack_token: str | None = None
    slack_signing_secret: str | None = None
    link_secret: str | None = None
    wecom_url: str | None = None
    dingtalk_url: str | None = None
    dingtalk_secret: str | None = None
    feishu_url: str | None = None
    feishu_secret: str | None = None
    pagerduty_key: str | None = None
    alertmanager_token: str | None = None
    smtp_password: str | None = None
    prometheus_url: str | None = None
    prometheus_token_file: Path | None = None
    prometheus_match: str = ""
    clusters: "dict[str, Settings]" = {}

    def each(self) -> "list[Settings]":
        """The settings of every cluster: one where there are no tables."""
        return list(self.clusters.values()) or [self]

    def of(self, cluster: str | None) -> "Settings":
        """Those of this cluster; it must be named where there are several. SettingsError lists them."""
        if not self.clusters:
            if cluster is None or self.cluster in (None, cluster):
                return self if cluster is None else msgspec.structs.replace(self, cluster=cluster)
            raise SettingsError(f"healer looks after the cluster {self.cluster}, not {cluster}.")
        known = ", ".join(self.clusters)
        if cluster is None and len(self.clusters) == 1:
            return next(iter(self.clusters.values()))
        if cluster is None:
            raise SettingsError(f"--cluster says which cluster is meant: one of {known}.")
        if cluster not in self.clusters:
            raise SettingsError(f"{cluster} is no cluster of HEALER_CONFIG: it has {known}.")
        return self.clusters[cluster]


#: Settings that hold what proves a channel of rules/notifications.yaml, and the addresses that are secrets.
SECRET_OF: dict[ChannelKind, tuple[str, ...]] = {
    ChannelKind.slack: ("HEALER_SLACK_TOKEN",),
    ChannelKind.dingtalk: ("HEALER_DINGTALK_SECRET",),
    ChannelKind.feishu: ("HEALER_FEISHU_SECRET",),
    ChannelKind.pagerduty: ("HEALER_PAGERDUTY_KEY",),
    ChannelKind.alertmanager: ("HEALER_ALERTMANAGER_TOKEN",),
    ChannelKind.email: ("HEALER_SMTP_PASSWORD",),
}
URL_OF: dict[ChannelKind, tuple[str, ...]] = {
    ChannelKind.wecom: ("HEALER_WECOM_URL",),
    ChannelKind.dingtalk: ("HEALER_DINGTALK_URL",),
    ChannelKind.feishu: ("HEALER_FEISHU_URL",),
}


def guard_overrides(settings: Settings) -> dict[str, Any]:
    """What was set of `model.GuardSettings`, by its field names: it stands above `rules/guards.yaml`."""
    names = {name: name.removeprefix("guard_") for name in Settings.__struct_fields__ if "guard_" in name}
    names["breaker_share"] = "breaker_share"
    return {field: value for name, field in names.items() if (value := getattr(settings, name)) is not None}


def rules_folder(settings: Settings) -> Path:
    """The site's rules, or those that ship: `rules/` of the checkout or of an installed package."""
    return settings.rules_dir or shipped_rules()


def shipped_rules() -> Path:
    """`rules/` of the checkout or of an installed package."""
    return data_folder("rules")


def load(
    environ: Mapping[str, str] = os.environ,
    *,
    which: Callable[[str], str | None] = shutil.which,
    **overrides: str | None,
) -> Settings:
    """Reads, checks and completes the settings. `overrides`: options of the command line, by field name."""
    where = environ.get("HEALER_CONFIG", "")
    file, tables = _from_file(where) if where else ({}, {})
    given = file | {n: v for n, v in environ.items() if n.startswith("HEALER_")}
    given |= {f"HEALER_{field.upper()}": value for field, value in overrides.items() if value is not None}
    values = _parsed(given)
    default: tuple[str, ...] = ("cli",) if which("scontrol") else ("sim",)
    values.setdefault("data_dir", default_data_dir(environ))
    values.setdefault("listen", values_of.listen(values_of.DEFAULT_LISTEN))
    values.setdefault("slurm_adapters", default)
    if tables and "cluster" in values:
        raise SettingsError(f"HEALER_CLUSTER and the tables of clusters in {where} are both set: keep one.")
    clusters = {name: _of_table(where, name, table, values) for name, table in tables.items()}
    _check_apart(clusters)
    if not clusters:
        _check_rest(values)
        _check_bmc(values)
    if (problem := ticket_settings.problem(values)) is not None:
        raise SettingsError(problem)
    values.setdefault("sim_socket", own_sim_socket(values["data_dir"]))
    _place_recording(values)
    return Settings(**values, clusters=clusters)


def _parsed(given: Mapping[str, str]) -> dict[str, Any]:
    """Values by field."""
    values: dict[str, Any] = {}
    for name, text in _without_files({n: v for n, v in given.items() if v != ""}).items():
        known = _KNOWN[name]
        if known.parse is None:
            continue
        try:
            values[name.removeprefix("HEALER_").lower()] = known.parse(text)
        except ValueError as error:
            shown = "" if known.secret else f", not {text!r}"
            raise SettingsError(f"{name} must be {error}{shown}.") from None
    return values


# --- several clusters ------------------------------------------------------------------------------------

#: What may stand in a table of a cluster.
PER_CLUSTER = (
    "HEALER_SLURM_ADAPTERS",
    "HEALER_SLURM_REST_URL",
    "HEALER_SLURM_TOKEN_FILE",
    "HEALER_SLURM_TOKEN_COMMAND",
    "HEALER_SLURM_USER",
    "HEALER_SLURM_BIN_DIR",
    "SLURM_CONF",
    "HEALER_MUNGE_SOCKET",
    "HEALER_SIM_SOCKET",
    "HEALER_SIM_NODES_SOCKET",
    "HEALER_SSH_KEY_FILE",
    "HEALER_SSH_KNOWN_HOSTS",
    "HEALER_SSH_USER",
    "HEALER_SSH_PORT",
    "HEALER_SSH_CONFIG",
    "HEALER_SSH_DIAGNOSE_LEVEL",
    "HEALER_BMC_URL",
    "HEALER_BMC_USER",
    "HEALER_BMC_PASSWORD",
    "HEALER_BMC_PASSWORD_FILE",
    "HEALER_BMC_CA_FILE",
    "HEALER_BMC_TLS",
    "HEALER_BMC_SYSTEM",
    "HEALER_RECORDING",
    "HEALER_PROMETHEUS_URL",
    "HEALER_PROMETHEUS_TOKEN_FILE",
    "HEALER_PROMETHEUS_MATCH",
    "HEALER_MODE",
)
#: Two clusters with the same one of these would be one Slurm twice, or write one file over another.
_APART = ("slurm_rest_url", "slurm_conf", "munge_socket", "sim_socket", "sim_nodes_socket", "recording")


def _of_table(where: str, name: str, table: object, around: Mapping[str, Any]) -> Settings:
    """One cluster's settings: its table above all that stands around it."""
    title = f"{where} [clusters.{name}]"
    if not _CLUSTER_NAME.fullmatch(name):
        raise SettingsError(f"{title}: {name!r} cannot be the ClusterName of a Slurm.")
    if not isinstance(table, dict):
        raise SettingsError(f"{where}: clusters.{name} must be a table, [clusters.{name}].")
    try:
        for setting in table:
            if setting not in PER_CLUSTER:
                raise SettingsError(_elsewhere(setting))
        given = {setting: _as_text(setting, value) for setting, value in table.items()}
        conf = given.pop("SLURM_CONF", "")
        own = _parsed(given) | ({"slurm_conf": values_of.path(conf)} if conf else {})
        tokens = {"slurm_token_file", "slurm_token_command"}
        replaced = tokens if tokens & own.keys() else set()
        values: dict[str, Any] = {k: value for k, value in around.items() if k not in replaced} | own
        _check_rest(values)
        _check_bmc(values)
    except SettingsError as error:
        raise SettingsError(f"{title}: {error}") from None
    values.setdefault("sim_socket", own_sim_socket(values["data_dir"], name))
    values["cluster"] = name
    _place_recording(values)
    return Settings(**values)


def _place_recording(values: dict[str, Any]) -> None:
    """`on` is a folder of the data directory, one for each cluster of the tables."""
    if values.get("recording") == Path(values_of.ON):
        values["recording"] = Path(values["data_dir"], "recordings", values.get("cluster") or "")


def _elsewhere(setting: str) -> str:
    if setting in _KNOWN:
        return f"{setting} holds for all clusters: it stands above the tables, or in the environment."
    return _unknown(setting)


def _check_apart(clusters: Mapping[str, Settings]) -> None:
    for field in _APART:
        seen: dict[object, str] = {}
        for name, settings in clusters.items():
            value = getattr(settings, field)
            setting = "SLURM_CONF" if field == "slurm_conf" else f"HEALER_{field.upper()}"
            if value is not None and value in seen:
                raise SettingsError(
                    f"The clusters {seen[value]} and {name} have the same {setting}: each needs its own."
                )
            seen[value] = name


def _check_rest(values: Mapping[str, Any]) -> None:
    if "rest" not in values["slurm_adapters"]:
        return
    needs = "HEALER_SLURM_ADAPTERS names rest, which needs"
    if "slurm_rest_url" not in values:
        raise SettingsError(f"{needs} HEALER_SLURM_REST_URL.")
    tokens = {"slurm_token_file", "slurm_token_command"} & values.keys()
    if not tokens:
        raise SettingsError(f"{needs} HEALER_SLURM_TOKEN_FILE or HEALER_SLURM_TOKEN_COMMAND.")
    if len(tokens) > 1:
        raise SettingsError("HEALER_SLURM_TOKEN_FILE and HEALER_SLURM_TOKEN_COMMAND are both set: keep one.")


def _check_bmc(values: Mapping[str, Any]) -> None:
    if "bmc_url" in values and not {"bmc_user", "bmc_password"} <= values.keys():
        raise SettingsError("HEALER_BMC_URL needs HEALER_BMC_USER and HEALER_BMC_PASSWORD_FILE.")


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """/var/lib/healer for root, else `healer` in the user's state folder (XDG base directories)."""
    if os.geteuid() == 0:
        return Path("/var/lib/healer")
    state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME", "/tmp"), ".local/state")  # noqa: S108
    return Path(state) / "healer"


def own_sim_socket(data_dir: Path, cluster: str = "") -> Path:
    """Where `healer up` offers its own simulated Slurm when HEALER_SIM_SOCKET names no other."""
    return data_dir / (f"sim-slurm-{cluster}.sock" if cluster else "sim-slurm.sock")


def _from_file(where: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The settings of the file as texts, and its tables of clusters."""
    try:
        document = tomllib.loads(Path(where).read_text())
    except OSError as error:
        raise SettingsError(f"HEALER_CONFIG names {where}, which cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"HEALER_CONFIG: {where} is not TOML: {error}.") from None
    tables = document.pop("clusters", {})
    if not isinstance(tables, dict):
        raise SettingsError(f"{where}: clusters must be tables, like [clusters.pod1].")
    try:
        return {name: _as_text(name, value) for name, value in document.items()}, tables
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None


def _as_text(name: str, value: object) -> str:
    """A value of the file in the form it has in the environment."""
    if name not in _KNOWN and name.removesuffix("_FILE") not in _KNOWN and name not in PER_CLUSTER:
        raise SettingsError(_unknown(name))
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    raise SettingsError(f"{name} must be a text or a number.")


def _without_files(given: Mapping[str, str]) -> dict[str, str]:
    """Replaces every `NAME_FILE` of a secret by the value in its file, and refuses unknown names."""
    values: dict[str, str] = {}
    for name, text in given.items():
        plain = name.removesuffix("_FILE")
        if name in _KNOWN:
            values[name] = text
        elif name != plain and plain in _KNOWN and _KNOWN[plain].secret:
            if given.get(plain):
                raise SettingsError(f"{plain} and {name} are both set: keep one.")
            try:
                values[plain] = Path(text).read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise SettingsError(f"{name} names {text}, which cannot be read: {error}.") from None
            if not values[plain]:
                raise SettingsError(f"{name} names {text}, which is empty.")
        else:
            raise SettingsError(_unknown(name))
    return values


def _unknown(name: str) -> str:
    short = name.upper().removeprefix("HEALER_")
    names = [known.removeprefix("HEALER_") for known in setting_names()]
    close = difflib.get_close_matches(short, names, n=1, cutoff=0.7)
    return f"{name} is not a setting of healer" + (f"; did you mean HEALER_{close[0]}?" if close else ".")


class _Known(msgspec.Struct, frozen=True):
    """`parse` None: belongs to clients and hooks, no server reads it."""

    parse: Callable[[str], Any] | None
    secret: bool = False


_SHARE = values_of.number(0, 1, open_low=True)

_KNOWN: dict[str, _Known] = {
    "HEALER_CONFIG": _Known(None),
    "HEALER_DATA_DIR": _Known(values_of.path),
    "HEALER_LISTEN": _Known(values_of.listen),
    "HEALER_DATABASE_URL": _Known(values_of.database, secret=True),
    "HEALER_REDIS_URL": _Known(values_of.broker, secret=True),
    "HEALER_RULES_DIR": _Known(values_of.path),
    "HEALER_CLUSTER": _Known(values_of.text),
    "HEALER_SLURM_ADAPTERS": _Known(values_of.adapters),
    "HEALER_SLURM_REST_URL": _Known(values_of.slurmrestd),
    "HEALER_SLURM_TOKEN_FILE": _Known(values_of.path),
    "HEALER_SLURM_TOKEN_COMMAND": _Known(values_of.command),
    "HEALER_SLURM_USER": _Known(values_of.text),
    "HEALER_SLURM_BIN_DIR": _Known(values_of.path),
    "HEALER_MUNGE_SOCKET": _Known(values_of.path),
    "HEALER_SIM_SOCKET": _Known(values_of.path),
    "HEALER_SIM_NODES_SOCKET": _Known(values_of.path),
    "HEALER_SSH_KEY_FILE": _Known(values_of.path),
    "HEALER_SSH_KNOWN_HOSTS": _Known(values_of.path),
    "HEALER_SSH_USER": _Known(values_of.user),
    "HEALER_SSH_PORT": _Known(values_of.whole(1, 65535)),
    "HEALER_SSH_CONFIG": _Known(values_of.path),
    "HEALER_SSH_DIAGNOSE_LEVEL": _Known(values_of.whole(1, 4)),
    "HEALER_BMC_URL": _Known(values_of.bmc),
    "HEALER_BMC_USER": _Known(values_of.text),
    "HEALER_BMC_PASSWORD": _Known(values_of.text, secret=True),
    "HEALER_BMC_CA_FILE": _Known(values_of.path),
    "HEALER_BMC_TLS": _Known(values_of.tls),
    "HEALER_BMC_SYSTEM": _Known(values_of.text),
    "HEALER_RECORDING": _Known(values_of.recording),
    "HEALER_RECORDING_MAX_GB": _Known(values_of.number(0.1, 100_000)),
    "HEALER_RECORDING_DAYS": _Known(values_of.number(0.1, 400)),
    "HEALER_MODE": _Known(values_of.mode),
    "HEALER_GUARD_MAX_SHARE": _Known(_SHARE),
    "HEALER_GUARD_MAX_NODES": _Known(values_of.nodes),
    "HEALER_GUARD_MIN_SERVICE_SHARE": _Known(values_of.number(0, 1)),
    "HEALER_GUARD_SHARE_PER_HOUR": _Known(_SHARE),
    "HEALER_GUARD_RACK_SHARE": _Known(_SHARE),
    "HEALER_GUARD_PARTITION_SHARE": _Known(_SHARE),
    "HEALER_GUARD_REPEAT_H": _Known(values_of.number(0, 8760)),
    "HEALER_BREAKER_SHARE": _Known(_SHARE),
    "HEALER_SETTLE_S": _Known(values_of.number(0, 60)),
    "HEALER_NOTIFY_WEBHOOK_URL": _Known(values_of.web, secret=True),
    "HEALER_TICKET_WEBHOOK_URL": _Known(values_of.web, secret=True),
    "HEALER_TICKETS": _Known(ticket_settings.system),
    "HEALER_TICKETS_URL": _Known(values_of.web),
    "HEALER_TICKETS_PROJECT": _Known(values_of.text),
    "HEALER_TICKETS_USER": _Known(values_of.text),
    "HEALER_TICKETS_TOKEN": _Known(values_of.text, secret=True),
    "HEALER_TICKETS_TYPE": _Known(values_of.text),
    "HEALER_TICKETS_CLOSE": _Known(values_of.text),
    "HEALER_EVENTS_WEBHOOK_URL": _Known(values_of.web, secret=True),
    "HEALER_WEBHOOK_SECRET": _Known(values_of.text, secret=True),
    "HEALER_SLACK_TOKEN": _Known(values_of.text, secret=True),
    "HEALER_SLACK_SIGNING_SECRET": _Known(values_of.text, secret=True),
    "HEALER_LINK_SECRET": _Known(values_of.text, secret=True),
    "HEALER_WECOM_URL": _Known(values_of.web, secret=True),
    "HEALER_DINGTALK_URL": _Known(values_of.web, secret=True),
    "HEALER_DINGTALK_SECRET": _Known(values_of.text, secret=True),
    "HEALER_FEISHU_URL": _Known(values_of.web, secret=True),
    "HEALER_FEISHU_SECRET": _Known(values_of.text, secret=True),
    "HEALER_PAGERDUTY_KEY": _Known(values_of.text, secret=True),
    "HEALER_ALERTMANAGER_TOKEN": _Known(values_of.text, secret=True),
    "HEALER_SMTP_PASSWORD": _Known(values_of.text, secret=True),
    "HEALER_PROMETHEUS_URL": _Known(values_of.web),
    "HEALER_PROMETHEUS_TOKEN_FILE": _Known(values_of.path),
    "HEALER_PROMETHEUS_MATCH": _Known(values_of.matchers),
    "HEALER_URL": _Known(None),
    "HEALER_TOKEN": _Known(None),
    "HEALER_TOKEN_FILE": _Known(None),
    "HEALER_HOOK_SPOOL": _Known(None),
}


def setting_names() -> tuple[str, ...]:
    """All names that are no error, without the `_FILE` forms."""
    return tuple(_KNOWN)


def secret_names() -> tuple[str, ...]:
    """The names that may also be given as `NAME_FILE`."""
    return tuple(name for name, known in _KNOWN.items() if known.secret)
