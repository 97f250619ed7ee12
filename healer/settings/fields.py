"""The settings, one field each, and their names in the environment."""

from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, cast, get_type_hints

import msgspec

from healer.model.routes import ChannelKind
from healer.model.vocabulary import Mode
from healer.settings.parsers import (
    CHECKED,
    Listen,
    matching,
    number_between,
    parse_adapters,
    parse_bmc,
    parse_broker,
    parse_command,
    parse_database,
    parse_issuer,
    parse_listen,
    parse_matchers,
    parse_mode,
    parse_nodes,
    parse_origin,
    parse_path,
    parse_proxies,
    parse_recording,
    parse_slurmrestd,
    parse_switch,
    parse_text,
    parse_tickets,
    parse_tls,
    parse_user,
    parse_web,
    parse_witnesses,
    whole_up_to,
)
from healer.text import say


class SettingsError(Exception):
    """A setting is wrong or unknown. The text is one sentence that names it."""


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


def setting_name(field: str) -> str:
    """The name of a field in the environment."""
    return f"HEALER_{field.upper()}"


#: How each setting of a kind is read, by its name in the environment.
_READS_OF: dict[type[Settings], dict[str, Reads]] = {
    kind: {
        setting_name(field): reads
        for field, hint in get_type_hints(kind, include_extras=True).items()
        for reads in getattr(hint, "__metadata__", ())
    }
    for kind in (Settings, ExecutorSettings)
}
#: Every setting.
READS = _READS_OF[ExecutorSettings]
#: Read by clients and hooks, or by the loader itself: not a field of any server's settings.
OF_CLIENTS = (
    "HEALER_CONFIG",
    "HEALER_URL",
    "HEALER_TOKEN",
    "HEALER_TOKEN_FILE",
    "HEALER_HOOK_SPOOL",
    "HEALER_CA_FILE",
)


def setting_names() -> tuple[str, ...]:
    """All names that may be set, without the `_FILE` forms."""
    return (*READS, *OF_CLIENTS)


def privileged_names() -> frozenset[str]:
    """Names that only the worker's environment may hold, with their `_FILE` forms."""
    names = READS.keys() - _READS_OF[Settings].keys()
    return frozenset(names | {f"{name}_FILE" for name in names})


def secret_names() -> tuple[str, ...]:
    """The names that may also be given as `NAME_FILE`."""
    return tuple(name for name, reads in READS.items() if reads.secret)
