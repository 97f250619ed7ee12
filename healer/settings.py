"""Settings: `HEALER_*` in the environment and in one TOML file (`HEALER_CONFIG`), same names.

The environment wins. A wrong or unknown setting is a SettingsError of one sentence that names it. An empty
value counts as not set.
Settings marked secret may be given as `NAME_FILE`, the path of a file that holds the value.
One healer for several clusters has a table `[clusters.NAME]` for each in the file; its settings are that
cluster's alone and override all others.
"""

import difflib
import math
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, TypeVar, cast, get_type_hints
from urllib.parse import urlsplit

import msgspec

from healer import data_folder
from healer.model.routes import ChannelKind
from healer.model.vocabulary import Mode
from healer.text import Said, joined, said_by, say

#: ClusterName of Slurm has at most 40 characters; ours is part of file and queue names too.
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,39}")


WEBHOOK, JIRA, GITHUB, SERVICENOW = "webhook", "jira", "github", "servicenow"
TICKET_SYSTEMS = (WEBHOOK, JIRA, GITHUB, SERVICENOW)


class SettingsError(Exception):
    """A setting is wrong or unknown. The text is one sentence that names it."""


_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


# --- what a value may be ---------------------------------------------------------------------------------

ADAPTERS = ("rest", "cli", "pyslurm", "sim")
DEFAULT_LISTEN = "127.0.0.1:8080"
ON = "on"


class Listen(msgspec.Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_text(text: str) -> str:
    return text


def parse_path(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:  # `~ann` of a user whom this machine does not know
        raise ValueError(say("setup.wants_home")) from None


def parse_recording(text: str) -> Path:
    """A folder; the word `on` alone means the data directory's own."""
    folder = Path(ON) if text == ON else parse_path(text)
    if folder.is_file():
        raise ValueError(say("setup.wants_folder", on=ON))
    return folder


def parse_listen(text: str) -> Listen:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(say("setup.wants_listen", example=DEFAULT_LISTEN))
    return Listen(host.removeprefix("[").removesuffix("]"), int(port))


def number_between(low: float, high: float, *, open_low: bool = False) -> Callable[[str], float]:
    def parse(text: str) -> float:
        with suppress(ValueError):
            value = float(text)
            if math.isfinite(value) and low <= value <= high and not (open_low and value == low):
                return value
        bounds = {"low": low, "high": high}
        raise ValueError(
            say("setup.wants_number_above", **bounds) if open_low else say("setup.wants_number", **bounds)
        )

    return parse


def whole_up_to(high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= high:
            raise ValueError(say("setup.wants_whole", low=1, high=high))
        return int(text)

    return parse


def matching(pattern: str, kind: str) -> Callable[[str], str]:
    """Raises where a text does not match as a whole; `setup.pattern_KIND` says what is expected."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(say(f"setup.pattern_{kind}"))
        return text

    return parse


#: As useradd(8) allows it: it becomes a word of a command line.
parse_user = matching(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", "user")


def parse_nodes(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(say("setup.wants_nodes"))
    return int(text)


def parse_mode(text: str) -> Mode:
    try:
        return Mode(text)
    except ValueError:
        raise ValueError(say("setup.wants_one_of", known=joined(Mode, "comma"))) from None


def parse_adapters(text: str) -> tuple[str, ...]:
    names = tuple(word.strip() for word in text.split(","))
    if not set(names) <= set(ADAPTERS) or len(set(names)) != len(names):
        raise ValueError(say("setup.wants_list_of", known=joined(ADAPTERS, "comma")))
    return names


def parse_database(text: str) -> str:
    for scheme in ("postgresql+psycopg://", "postgresql://", "postgres://"):
        if text.startswith(scheme):
            return "postgresql+psycopg://" + _with_hosts_apart(text.removeprefix(scheme))
    raise ValueError(say("setup.wants_database"))


def _with_hosts_apart(rest: str) -> str:
    """Several hosts, as libpq writes them, in words that SQLAlchemy passes on to it. Of several, the one that
    takes writes is meant."""
    place, _, path = rest.partition("/")
    login, _, hosts = place.rpartition("@")
    if "," not in hosts:
        return rest
    pairs = [host.partition(":") for host in hosts.split(",")]
    path, _, query = path.partition("?")
    words = [
        f"host={','.join(pair[0] for pair in pairs)}",
        f"port={','.join(pair[2] or '5432' for pair in pairs)}",
    ]
    if "target_session_attrs=" not in query:
        words.append("target_session_attrs=read-write")
    return f"{login}@/{path}?{'&'.join([*words, query] if query else words)}"


def parse_broker(text: str) -> str:
    """What Celery takes. `unix://` is redis-py's word for a socket, `redis+socket://` Celery's."""
    if text.startswith("unix://"):
        return "redis+socket://" + text.removeprefix("unix://")
    if text.startswith(("redis://", "rediss://", "redis+socket://", "sqla+postgresql+psycopg://")):
        return text
    raise ValueError(say("setup.wants_broker"))


def parse_web(text: str) -> str:
    if not text.startswith(("http://", "https://")) or len(text.split("://", 1)[1]) == 0:
        raise ValueError(say("setup.wants_url"))
    return text


def parse_bmc(text: str) -> str:
    """Where the BMC of a node is, with `{node}` in it. A password never goes over the network in clear."""
    parts = urlsplit(text)
    here = parts.hostname in {"127.0.0.1", "localhost", "::1"}
    secure = parts.scheme == "https" or (parts.scheme == "http" and here)
    plain = not (parts.query or parts.fragment or "@" in parts.netloc)
    if not secure or not plain or text.count("{node}") != 1 or set(text) & set(" \t"):
        raise ValueError(say("setup.wants_bmc"))
    return text


#: What HEALER_BMC_TLS may be: a certificate is checked, or any is believed.
CHECKED, UNCHECKED = "checked", "unchecked"


parse_tls = matching(f"{CHECKED}|{UNCHECKED}", "tls")
#: Matchers of a PromQL selector, without its braces.
parse_matchers = matching(
    r'[A-Za-z_]\w*(?:=|!=|=~|!~)"[^"\\]*"(?:,[A-Za-z_]\w*(?:=|!=|=~|!~)"[^"\\]*")*', "matchers"
)


def parse_origin(text: str) -> str:
    """The site's address, as a browser writes an origin: no path, no port that the scheme has anyway."""
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        raise ValueError(say("setup.wants_origin")) from None
    bare = not (parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc)
    if parts.scheme not in ("http", "https") or not parts.hostname or not bare or set(text) & set(" \t\\"):
        raise ValueError(say("setup.wants_origin"))
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    usual = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}" + (f":{port}" if port not in (None, usual) else "")


def parse_issuer(text: str) -> str:
    parts = urlsplit(text)
    secure = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    if not secure or not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(say("setup.wants_issuer"))
    return text


def parse_proxies(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(ip_network(part.strip()) for part in text.split(","))
    except ValueError:
        raise ValueError(say("setup.wants_networks")) from None


parse_switch = matching(f"{ON}|off", "switch")


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def parse_slurmrestd(text: str) -> str:
    scheme, _, rest = text.partition("://")
    if scheme not in {"http", "https", "unix"} or not rest or (scheme == "unix" and rest[0] != "/"):
        raise ValueError(say("setup.wants_slurmrestd"))
    return text


def parse_witnesses(text: str) -> tuple[str, ...]:
    """Addresses, with commas between them."""
    kinds = ("file:///", "syslog://", "syslog+tls://", "postgresql://", "rfc3161+")
    addresses = tuple(filter(None, (part.strip() for part in text.split(","))))
    if not addresses or not all(address.startswith(kinds) for address in addresses):
        raise ValueError(say("setup.wants_witnesses", kinds=joined(kinds, "comma")))
    return addresses


def parse_command(text: str) -> tuple[str, ...]:
    """A command and its arguments, split as a shell would; no shell ever sees it."""
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        words = ()
    if not words:
        raise ValueError(say("setup.wants_command"))
    return words


parse_tickets = matching("|".join(TICKET_SYSTEMS), "tickets")


# --- the settings ----------------------------------------------------------------------------------------


class Reads(NamedTuple):
    """How a field is read from text. `parse` raises ValueError with the words that follow "must be".

    The value of a secret is never repeated; it may be given as `NAME_FILE`, the file that holds it."""

    parse: Callable[[str], Any]
    secret: bool = False


Text = Annotated[str | None, Reads(parse_text)]
Secret = Annotated[str | None, Reads(parse_text, secret=True)]
#: Signatures that people see can be tested against guessed secrets: a short one would be found.
SigningSecret = Annotated[str | None, Reads(matching(r".{32,}", "signing_secret"), secret=True)]
OptionalPath = Annotated[Path | None, Reads(parse_path)]
Web = Annotated[str | None, Reads(parse_web)]
SecretWeb = Annotated[str | None, Reads(parse_web, secret=True)]
Share = Annotated[float | None, Reads(number_between(0, 1, open_low=True))]


# Wide: one field for each setting that a site may write, with its parser.
class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that every server process reads. None: not set, the default of `docs/settings.md` holds.

    `clusters` are the whole settings of each cluster, by name, where the file has tables of them; Slurm
    settings outside the tables then belong to none. `slurm_conf` is allowed in tables only.

    One object with many fields, as it mirrors a flat list: each field is `HEALER_` and its name, and the
    table of a cluster may replace what belongs to several groups at once.
    """

    # --- this process and its site
    data_dir: Annotated[Path, Reads(parse_path)]
    listen: Annotated[Listen, Reads(parse_listen)]
    slurm_adapters: Annotated[tuple[str, ...], Reads(parse_adapters)]
    # --- how it is reached
    tls_cert: OptionalPath = None
    tls_key: OptionalPath = None
    tls_client_ca: OptionalPath = None
    public_url: Annotated[str | None, Reads(parse_origin)] = None
    proxies: Annotated[tuple[IPv4Network | IPv6Network, ...], Reads(parse_proxies)] = ()
    allow_plain_http: Annotated[str, Reads(parse_switch)] = "off"
    # --- how people sign in
    oidc_issuer: Annotated[str | None, Reads(parse_issuer)] = None
    oidc_client_id: Text = None
    oidc_client_secret: Secret = None
    sign_in_proxy_secret: Secret = None
    # --- what it may do
    mode: Annotated[Mode, Reads(parse_mode)] = Mode.shadow
    read_only: Annotated[str, Reads(parse_switch)] = "off"
    settle_s: Annotated[float, Reads(number_between(0, 60))] = 2.0
    database_url: Annotated[str | None, Reads(parse_database, secret=True)] = None
    redis_url: Annotated[str | None, Reads(parse_broker, secret=True)] = None
    token_key_file: OptionalPath = None
    rules_dir: OptionalPath = None
    cluster: Text = None
    # --- Slurm
    slurm_rest_url: Annotated[str | None, Reads(parse_slurmrestd)] = None
    slurm_token_file: OptionalPath = None
    slurm_read_token_file: OptionalPath = None
    slurm_token_command: Annotated[tuple[str, ...] | None, Reads(parse_command)] = None
    slurm_user: Text = None
    munge_socket: OptionalPath = None
    munge_login: Annotated[str, Reads(parse_switch)] = "off"
    slurm_login: Annotated[str, Reads(parse_switch)] = "off"
    slurm_bin_dir: OptionalPath = None
    slurm_conf: Path | None = None
    sim_socket: OptionalPath = None
    sim_nodes_socket: OptionalPath = None
    # --- recordings
    recording: Annotated[Path | None, Reads(parse_recording)] = None
    recording_max_gb: Annotated[float, Reads(number_between(0.1, 100_000))] = 50.0
    recording_days: Annotated[float, Reads(number_between(0.1, 400))] = 30.0
    # --- what overrides rules/guards.yaml
    guard_max_share: Share = None
    guard_max_nodes: Annotated[int | None, Reads(parse_nodes)] = None
    guard_min_service_share: Annotated[float | None, Reads(number_between(0, 1))] = None
    guard_share_per_hour: Share = None
    guard_rack_share: Share = None
    guard_partition_share: Share = None
    guard_repeat_h: Annotated[float | None, Reads(number_between(0, 24))] = None
    breaker_share: Share = None
    # --- webhooks
    notify_webhook_url: SecretWeb = None
    ticket_webhook_url: SecretWeb = None
    # --- the ticket system
    tickets: Annotated[str | None, Reads(parse_tickets)] = None
    tickets_url: Web = None
    tickets_project: Text = None
    tickets_user: Text = None
    tickets_token: Secret = None
    tickets_type: Text = None
    tickets_close: Text = None
    # --- what goes out, and what proves it
    events_webhook_url: SecretWeb = None
    audit_dir: OptionalPath = None
    audit_witnesses: Annotated[tuple[str, ...] | None, Reads(parse_witnesses, secret=True)] = None
    webhook_secret: Secret = None
    slack_token: Secret = None
    slack_signing_secret: Secret = None
    link_secret: SigningSecret = None
    wecom_url: SecretWeb = None
    dingtalk_url: SecretWeb = None
    dingtalk_secret: Secret = None
    feishu_url: SecretWeb = None
    feishu_secret: Secret = None
    pagerduty_key: Secret = None
    alertmanager_token: Secret = None
    smtp_password: Secret = None
    # --- OpenTelemetry
    traces_url: Web = None
    # --- Prometheus
    prometheus_url: Web = None
    prometheus_token_file: OptionalPath = None
    prometheus_match: Annotated[str, Reads(parse_matchers)] = ""
    clusters: "dict[str, Settings]" = {}

    @property
    def published_audit(self) -> Path:
        """The folder of the audit's public keys and checkpoints, which the worker writes."""
        return self.audit_dir or self.data_dir

    def each(self) -> list[Self]:
        """The settings of every cluster: one where there are no tables."""
        return list(self._tables.values()) or [self]

    @property
    def _tables(self) -> dict[str, Self]:
        return cast(dict[str, Self], self.clusters)

    def of(self, cluster: str | None) -> Self:
        """Those of this cluster; it must be named where there are several. SettingsError lists them."""
        if not self.clusters:
            if cluster is None or self.cluster in (None, cluster):
                return self if cluster is None else msgspec.structs.replace(self, cluster=cluster)
            raise SettingsError(say("setup.looks_after_cluster", cluster=self.cluster, asked=cluster))
        clusters = ", ".join(self.clusters)
        if cluster is None and len(self.clusters) == 1:
            return next(iter(self._tables.values()))
        if cluster is None:
            raise SettingsError(say("setup.cluster_says_cluster_meant", clusters=clusters))
        if cluster not in self.clusters:
            raise SettingsError(say("setup.no_cluster_config_has", cluster=cluster, clusters=clusters))
        return self._tables[cluster]


class ExecutorSettings(Settings, frozen=True, kw_only=True):
    """With those by which the worker acts: no other part's process ever holds them."""

    ssh_key_file: OptionalPath = None
    ssh_signing_key_file: OptionalPath = None
    ssh_known_hosts: OptionalPath = None
    ssh_user: Annotated[str | None, Reads(parse_user)] = None
    ssh_port: Annotated[int | None, Reads(whole_up_to(65535))] = None
    ssh_config: OptionalPath = None
    ssh_diagnose_level: Annotated[int | None, Reads(whole_up_to(4))] = None
    bmc_url: Annotated[str | None, Reads(parse_bmc)] = None
    bmc_user: Text = None
    bmc_password: Secret = None
    bmc_ca_file: OptionalPath = None
    bmc_tls: Annotated[str, Reads(parse_tls)] = CHECKED
    bmc_system: Text = None


S = TypeVar("S", bound=Settings)


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
    """What was set of `model.GuardSettings`, by its field names: it overrides `rules/guards.yaml`."""
    names = {name: name.removeprefix("guard_") for name in Settings.__struct_fields__ if "guard_" in name}
    names["breaker_share"] = "breaker_share"
    return {field: value for name, field in names.items() if (value := getattr(settings, name)) is not None}


def rules_folder(settings: Settings) -> Path:
    """The site's rules, or those that are shipped."""
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
    return _load(Settings, environ, which, overrides)


def load_executor(
    environ: Mapping[str, str] = os.environ, *, which: Callable[[str], str | None] = shutil.which
) -> ExecutorSettings:
    """As `load`, for the worker and for `healer doctor`."""
    return _load(ExecutorSettings, environ, which, {})


def _load(
    kind: type[S],
    environ: Mapping[str, str],
    which: Callable[[str], str | None],
    overrides: Mapping[str, str | None],
) -> S:
    where = environ.get("HEALER_CONFIG", "")
    file, tables = _from_file(where) if where else ({}, {})
    given = file | {n: v for n, v in environ.items() if n.startswith("HEALER_")}
    given |= {f"HEALER_{field.upper()}": value for field, value in overrides.items() if value is not None}
    values = _parsed(given, kind)
    default: tuple[str, ...] = ("cli",) if which("scontrol") else ("sim",)
    values.setdefault("data_dir", default_data_dir(environ))
    values.setdefault("listen", parse_listen(DEFAULT_LISTEN))
    values.setdefault("slurm_adapters", default)
    if tables and "cluster" in values:
        raise SettingsError(say("setup.cluster_tables_clusters_are", where=where))
    clusters = {
        name: _of_table(f"{where} [clusters.{name}]", name, table, values, kind)
        for name, table in tables.items()
    }
    _check_apart(clusters)
    if not clusters:
        _check_ways(values, kind)
    _check_tls(values)
    if (problem := _ticket_problem(values) or _sign_in_problem(values)) is not None:
        raise SettingsError(problem)
    values.setdefault("sim_socket", own_sim_socket(values["data_dir"]))
    _place_recording(values)
    return kind(**values, clusters={**clusters})


def _parsed(given: Mapping[str, str], kind: type[Settings]) -> dict[str, Any]:
    """Values by field. What this kind lacks is not even read from its file."""
    values: dict[str, Any] = {}
    needed = {name: text for name, text in given.items() if text != "" and not _is_elsewhere(name, kind)}
    for name, text in _without_files(needed).items():
        if name in _OF_CLIENTS:
            continue
        reads = _READS[name]
        try:
            values[name.removeprefix("HEALER_").lower()] = reads.parse(text)
        except ValueError as error:
            wanted = {"name": name, "what": said_by(error)}
            raise SettingsError(
                say("setup.must_be", **wanted)
                if reads.secret
                else say("setup.must_be_not", **wanted, given=text)
            ) from None
    return values


def _is_elsewhere(name: str, kind: type[Settings]) -> bool:
    return kind is Settings and name in privileged_names()


def privileged_names() -> frozenset[str]:
    """Names that only the worker's environment may hold, with their `_FILE` forms."""
    names = _READS.keys() - _READS_OF[Settings].keys()
    return frozenset(names | {f"{name}_FILE" for name in names})


# --- several clusters ------------------------------------------------------------------------------------

#: How the settings begin that may differ between clusters.
_OF_A_CLUSTER = tuple(f"HEALER_{way}_" for way in ("SLURM", "MUNGE", "SIM", "SSH", "BMC", "PROMETHEUS"))
#: Two clusters with the same one of these would be one Slurm twice, or write one file over another.
_APART = ("slurm_rest_url", "slurm_conf", "munge_socket", "sim_socket", "sim_nodes_socket", "recording")


def _may_differ(setting: str) -> bool:
    """Whether a cluster's table may hold it."""
    if setting in ("SLURM_CONF", "HEALER_RECORDING", "HEALER_MODE", "HEALER_BMC_PASSWORD_FILE"):
        return True
    return setting in _READS and setting.startswith(_OF_A_CLUSTER)


def _of_table(title: str, name: str, table: object, around: Mapping[str, Any], kind: type[S]) -> S:
    """One cluster's settings: its table overrides the settings around it."""
    if not _CLUSTER_NAME.fullmatch(name):
        raise SettingsError(say("setup.cannot_clustername_slurm", title=title, name=name))
    if not isinstance(table, dict):
        raise SettingsError(say("setup.must_table_clusters", title=title, name=name))
    try:
        for setting in table:
            if not _may_differ(setting):
                raise SettingsError(_elsewhere(setting))
        given = {setting: _as_text(setting, value) for setting, value in table.items()}
        conf = given.pop("SLURM_CONF", "")
        of_cluster = _parsed(given, kind) | _slurm_conf(conf)
        tokens = {"slurm_token_file", "slurm_token_command", "slurm_read_token_file"}
        replaced = tokens if tokens & of_cluster.keys() else set()
        values: dict[str, Any] = {k: value for k, value in around.items() if k not in replaced} | of_cluster
        _check_ways(values, kind)
    except SettingsError as error:
        raise SettingsError(say("words.labelled", label=title, text=said_by(error))) from None
    values.setdefault("sim_socket", own_sim_socket(values["data_dir"], name))
    values["cluster"] = name
    _place_recording(values)
    return kind(**values)


def _slurm_conf(text: str) -> dict[str, Path]:
    try:
        return {"slurm_conf": parse_path(text)} if text else {}
    except ValueError as error:
        wanted = {"name": "SLURM_CONF", "what": said_by(error), "given": text}
        raise SettingsError(say("setup.must_be_not", **wanted)) from None


def _place_recording(values: dict[str, Any]) -> None:
    """`on` is a folder of the data directory, one for each cluster of the tables."""
    if values.get("recording") == Path(ON):
        values["recording"] = Path(values["data_dir"], "recordings", values.get("cluster") or "")


def _elsewhere(setting: str) -> str:
    if setting in setting_names():
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
                    say("setup.clusters_have_same_each", other=seen[value], name=name, setting=setting)
                )
            seen[value] = name


def _check_ways(values: dict[str, Any], kind: type[Settings]) -> None:
    """Checks the ways to Slurm and to BMCs. A part that only reads gives up the token that may write where
    there is one to read."""
    if kind is Settings and "slurm_read_token_file" in values:
        values.pop("slurm_token_file", None)
        values.pop("slurm_token_command", None)
    else:
        _check_rest(values)
    _check_slurm_login(values)
    _check_bmc(values)


def _check_tls(values: Mapping[str, Any]) -> None:
    if ("tls_cert" in values) != ("tls_key" in values):
        raise SettingsError(say("setup.tls_pair"))
    if "tls_client_ca" in values and "tls_cert" not in values:
        raise SettingsError(say("setup.tls_client_ca_set"))


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


def _check_rest(values: Mapping[str, Any]) -> None:
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
    """Who answers in slurmrestd's place could be anybody here."""
    if values.get("slurm_login") != ON:
        return
    parts = urlsplit(values.get("slurm_rest_url") or "http://")
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise SettingsError(say("setup.slurm_login_needs_slurm", on=ON))


def _check_bmc(values: Mapping[str, Any]) -> None:
    if "bmc_url" in values and not {"bmc_user", "bmc_password"} <= values.keys():
        raise SettingsError(say("setup.bmc_url_needs_bmc"))


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


def _from_file(where: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The settings of the file as texts, and its tables of clusters."""
    try:
        document = tomllib.loads(Path(where).read_text())
    except OSError as error:
        raise SettingsError(say("setup.config_names_cannot_read", where=where, why=error.strerror)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(say("setup.config_toml", where=where, why=said_by(error))) from None
    tables = document.pop("clusters", {})
    if not isinstance(tables, dict):
        raise SettingsError(say("setup.clusters_must_tables_like", where=where))
    try:
        return {name: _as_text(name, value) for name, value in document.items()}, tables
    except SettingsError as error:
        raise SettingsError(say("words.labelled", label=where, text=said_by(error))) from None


def _as_text(name: str, value: object) -> str:
    """A value of the file in the form it has in the environment."""
    if (
        name not in setting_names()
        and name.removesuffix("_FILE") not in setting_names()
        and name != "SLURM_CONF"
    ):
        raise SettingsError(_unknown(name))
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    raise SettingsError(say("setup.must_text_number", name=name))


def _without_files(given: Mapping[str, str]) -> dict[str, str]:
    """Replaces every `NAME_FILE` of a secret by the value in its file, and refuses unknown names."""
    values: dict[str, str] = {}
    for name, text in given.items():
        plain = name.removesuffix("_FILE")
        if name in _READS or name in _OF_CLIENTS:
            values[name] = text
        elif name != plain and plain in secret_names():
            if given.get(plain):
                raise SettingsError(say("setup.are_both_set_keep", plain=plain, name=name))
            try:
                values[plain] = Path(text).read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise SettingsError(
                    say("setup.secret_file_unreadable", name=name, text=text, why=said_by(error))
                ) from None
            if not values[plain]:
                raise SettingsError(say("setup.names_empty", name=name, text=text))
        else:
            raise SettingsError(_unknown(name))
    return values


def _unknown(name: str) -> str:
    short = name.upper().removeprefix("HEALER_")
    names = [setting.removeprefix("HEALER_") for setting in setting_names()]
    close = difflib.get_close_matches(short, names, n=1, cutoff=0.7)
    return f"{name} is not a setting of healer" + (f"; did you mean HEALER_{close[0]}?" if close else ".")


# --- the ticket system -----------------------------------------------------------------------------------

#: Settings of each system besides HEALER_TICKETS and the token, and whether they are required.
_TICKETS_TAKE = {
    JIRA: {"url": True, "project": True, "user": False, "type": False, "close": False},
    GITHUB: {"url": False, "project": True},
    SERVICENOW: {"url": True, "project": False, "user": False, "close": False},
}
_TICKETS_PROJECTS = {
    JIRA: (re.compile(r"[A-Za-z][A-Za-z0-9_]*"), "a project's key, like OPS"),
    GITHUB: (re.compile(r"[A-Za-z0-9-]+/[A-Za-z0-9._-]+"), "owner/repository"),
    SERVICENOW: (re.compile(r"[a-z][a-z0-9_]*"), "a table, like incident"),
}
_TICKETS_BESIDE = ("url", "project", "user", "token", "type", "close")


def _ticket_problem(values: Mapping[str, Any]) -> str | None:
    """What is wrong with HEALER_TICKETS and its other settings; `values` by field, those that are set."""
    which = values.get("tickets")
    given = [name for name in _TICKETS_BESIDE if f"tickets_{name}" in values]
    if which in (None, WEBHOOK):
        if given:
            wanted = "one of jira, github, servicenow in HEALER_TICKETS"
            return f"{_ticket_name(given[0])} is set, which needs {wanted}."
        if which == WEBHOOK and "ticket_webhook_url" not in values:
            return "HEALER_TICKETS is webhook, which needs HEALER_TICKET_WEBHOOK_URL."
        return None
    if "ticket_webhook_url" in values:
        return f"HEALER_TICKETS is {which} and HEALER_TICKET_WEBHOOK_URL is set: keep one."
    takes = {**_TICKETS_TAKE[which], "token": True}
    for name, needed in takes.items():
        if needed and name not in given:
            return f"HEALER_TICKETS is {which}, which needs {_ticket_name(name)}."
    for name in given:
        if name not in takes:
            return f"HEALER_TICKETS is {which}, which has no use for {_ticket_name(name)}."
    token = values["tickets_token"]
    if "tickets_user" not in values and not (token.isascii() and token.isprintable()):
        return "HEALER_TICKETS_TOKEN must be printable ASCII on one line."
    return _project_problem(which, values) or _url_problem(values)


def _project_problem(which: str, values: Mapping[str, Any]) -> str | None:
    form, words = _TICKETS_PROJECTS[which]
    project = values.get("tickets_project")
    if project is None or form.fullmatch(project):
        return None
    return f"HEALER_TICKETS_PROJECT must be {words}, not {project!r}."


def _url_problem(values: Mapping[str, Any]) -> str | None:
    """The token goes with each request."""
    url = urlsplit(values.get("tickets_url") or "https://api.github.com")
    if "@" in url.netloc or url.query or url.fragment:
        return "HEALER_TICKETS_URL must be an address alone, without user, query or fragment."
    if url.scheme != "https" and url.hostname not in _LOOPBACK:
        return "HEALER_TICKETS_URL must begin with https://: the token goes with each request."
    return None


def _ticket_name(field: str) -> str:
    return f"HEALER_TICKETS_{field.upper()}"


# --- the identity provider -------------------------------------------------------------------------------

_PROXY_SECRET_LEAST = 24


def _sign_in_problem(values: Mapping[str, Any]) -> str | None:
    """What is wrong with the settings of the identity provider and of a proxy that signs people in."""
    oidc = [name for name in ("oidc_issuer", "oidc_client_id", "oidc_client_secret") if name in values]
    if oidc:
        for name in ("oidc_issuer", "oidc_client_id", "public_url"):
            if name not in values:
                return f"HEALER_{oidc[0].upper()} is set, which needs HEALER_{name.upper()}."
        public = urlsplit(values["public_url"])
        if public.scheme != "https" and not is_loopback(public.hostname or ""):
            return (
                "HEALER_OIDC_ISSUER needs a HEALER_PUBLIC_URL with https: the provider sends the code there."
            )
    secret = values.get("sign_in_proxy_secret")
    if secret is not None and "proxies" not in values:
        return "HEALER_SIGN_IN_PROXY_SECRET is set, which needs HEALER_PROXIES."
    if secret is not None and len(secret) < _PROXY_SECRET_LEAST:
        return f"HEALER_SIGN_IN_PROXY_SECRET must have at least {_PROXY_SECRET_LEAST} characters."
    if secret is not None and oidc:
        return "HEALER_OIDC_ISSUER and HEALER_SIGN_IN_PROXY_SECRET are both set: keep one."
    return None


_READS_OF: dict[type[Settings], dict[str, Reads]] = {
    kind: {
        f"HEALER_{field.upper()}": reads
        for field, hint in get_type_hints(kind, include_extras=True).items()
        for reads in getattr(hint, "__metadata__", ())
    }
    for kind in (Settings, ExecutorSettings)
}
#: Every setting there is.
_READS = _READS_OF[ExecutorSettings]
#: Where settings are read from, and what belongs to clients and hooks: no server reads them as its settings.
_OF_CLIENTS = (
    "HEALER_CONFIG",
    "HEALER_URL",
    "HEALER_TOKEN",
    "HEALER_TOKEN_FILE",
    "HEALER_HOOK_SPOOL",
    "HEALER_CA_FILE",
)


def setting_names() -> tuple[str, ...]:
    """All names that are no error, without the `_FILE` forms."""
    return (*_READS, *_OF_CLIENTS)


def secret_names() -> tuple[str, ...]:
    """The names that may also be given as `NAME_FILE`."""
    return tuple(name for name, reads in _READS.items() if reads.secret)
