"""Settings: names, forms, defaults, and the one sentence that names what is wrong."""

from pathlib import Path

import msgspec
import pytest

from healer.model import GuardSettings, Mode
from healer.settings import (
    ExecutorSettings,
    Settings,
    SettingsError,
    check_listener,
    guard_overrides,
    load,
    load_executor,
    own_url,
    rules_folder,
    secret_names,
    setting_names,
    site_url,
)

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"


def loaded(**environ: str) -> ExecutorSettings:
    return load_executor(environ, which=lambda _: None)


def test_defaults_are_those_of_the_contract() -> None:
    settings = loaded(HOME="/home/ada")
    assert str(settings.listen) == "127.0.0.1:8080"
    assert settings.mode is Mode.shadow
    assert settings.settle_s == 2
    assert guard_overrides(settings) == {}


def test_the_command_line_of_slurm_is_chosen_where_scontrol_is_found() -> None:
    assert load({}, which=lambda name: f"/usr/bin/{name}").slurm_adapters == ("cli",)
    assert loaded().slurm_adapters == ("sim",)


def test_guard_settings_are_named_as_the_gate_names_them() -> None:
    numbers = {
        "HEALER_GUARD_MAX_SHARE": "0.1",
        "HEALER_GUARD_MAX_NODES": "4",
        "HEALER_GUARD_MIN_SERVICE_SHARE": "0.8",
        "HEALER_GUARD_SHARE_PER_HOUR": "0.05",
        "HEALER_GUARD_RACK_SHARE": "0.5",
        "HEALER_GUARD_PARTITION_SHARE": "0.5",
        "HEALER_GUARD_REPEAT_H": "12",
        "HEALER_BREAKER_SHARE": "1.0",
    }
    overrides = guard_overrides(loaded(**numbers))
    assert sorted(overrides.values()) == sorted(float(text) for text in numbers.values())
    assert msgspec.structs.replace(GuardSettings(), **overrides).max_nodes == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEALER_GUARD_MAX_SHARE", "5%"),
        ("HEALER_GUARD_MAX_SHARE", "nan"),
        ("HEALER_GUARD_MAX_SHARE", "0"),
        ("HEALER_GUARD_MAX_SHARE", "1.5"),
        ("HEALER_GUARD_MAX_NODES", "0"),
        ("HEALER_GUARD_MAX_NODES", "2.5"),
        ("HEALER_MODE", "automatic"),
        ("HEALER_PROMETHEUS_MATCH", "pod1"),
        ("HEALER_PROMETHEUS_MATCH", 'a="b"} or {c="d"'),
        ("HEALER_LISTEN", "8080"),
        ("HEALER_LISTEN", "127.0.0.1:99999"),
        ("HEALER_SLURM_ADAPTERS", "cli,rset"),
        ("HEALER_SLURM_ADAPTERS", "cli,cli"),
        ("HEALER_SLURM_REST_URL", "slurm.example:6820"),
        ("HEALER_SLURM_REST_URL", "unix://run/slurmrestd"),
        ("HEALER_SLURM_TOKEN_COMMAND", "scontrol token 'username=healer"),
        ("HEALER_SLURM_TOKEN_COMMAND", " "),
        ("HEALER_DATABASE_URL", "mysql://db/healer"),
        ("HEALER_REDIS_URL", "amqp://mq"),
        ("HEALER_SETTLE_S", "-1"),
        ("HEALER_GUARD_REPEAT_H", "72"),
        ("HEALER_NOTIFY_WEBHOOK_URL", "ftp://x"),
        ("HEALER_BMC_URL", "https://bmc.example"),
        ("HEALER_BMC_URL", "http://{node}-bmc"),
        ("HEALER_BMC_URL", "https://root:calvin@{node}-bmc"),
        ("HEALER_BMC_TLS", "off"),
        ("HEALER_DATA_DIR", "~nosuchuser/healer"),
        ("HEALER_SSH_KEY_FILE", "~nosuchuser/key"),
        ("HEALER_RECORDING", "true"),
        ("HEALER_RECORDING", "off"),
        ("HEALER_LINK_SECRET", "of-31-characters-and-no-more-xx"),
    ],
)
def test_a_wrong_value_is_one_sentence_that_names_the_setting(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{name} must be [^\n]+\.$"):
        loaded(**{name: value})


def test_the_value_of_a_secret_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as error:
        loaded(HEALER_DATABASE_URL="mysql://u:hunter2@db/healer")
    assert "hunter2" not in str(error.value)


def test_a_bmc_needs_an_account() -> None:
    url = "https://{node}-bmc"
    with pytest.raises(SettingsError, match=r"^HEALER_BMC_URL needs HEALER_BMC_USER and [^\n]+\.$"):
        loaded(HEALER_BMC_URL=url, HEALER_BMC_USER="healer")
    found = loaded(HEALER_BMC_URL=url, HEALER_BMC_USER="healer", HEALER_BMC_PASSWORD="x")
    assert (found.bmc_url, found.bmc_tls) == (url, "checked")


def test_an_unknown_setting_is_named_with_the_likely_one() -> None:
    with pytest.raises(
        SettingsError, match=r"HEALER_GUARD_MAX_SHRE .* did you mean HEALER_GUARD_MAX_SHARE\?"
    ):
        loaded(HEALER_GUARD_MAX_SHRE="0.05")
    with pytest.raises(SettingsError, match=r"^HEALER_ZZZ is not a setting of healer\.$"):
        loaded(HEALER_ZZZ="1")


def test_names_that_belong_to_clients_and_hooks_are_no_error() -> None:
    loaded(HEALER_URL="http://x", HEALER_TOKEN_FILE="/nowhere-needed", HEALER_HOOK_SPOOL="/s")


def test_an_empty_value_counts_as_not_set() -> None:
    assert loaded(HEALER_MODE="").mode is Mode.shadow


def test_the_file_has_the_same_names_and_the_environment_wins(tmp_path: Path) -> None:
    file = tmp_path / "healer.toml"
    file.write_text(
        'HEALER_MODE = "approve"\nHEALER_GUARD_MAX_NODES = 3\nHEALER_SLURM_ADAPTERS = ["sim", "cli"]\n'
    )
    settings = loaded(HEALER_CONFIG=str(file), HEALER_MODE="auto")
    assert settings.mode is Mode.auto
    assert settings.guard_max_nodes == 3
    assert settings.slurm_adapters == ("sim", "cli")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('mode = "auto"', "did you mean HEALER_MODE"),
        ("HEALER_MODE = true", "HEALER_MODE must be a string"),
        ("HEALER_MODE = ", "not TOML"),
        ("[HEALER_MODE]", "HEALER_MODE must be"),
    ],
)
def test_a_wrong_file_is_named_with_the_setting(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "healer.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=words) as error:
        loaded(HEALER_CONFIG=str(file))
    assert "healer.toml" in str(error.value)


def test_a_config_that_is_not_there_is_an_error() -> None:
    with pytest.raises(SettingsError, match="HEALER_CONFIG names /no/such"):
        loaded(HEALER_CONFIG="/no/such")


def test_secrets_may_come_from_files(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("postgresql://u:p@db/healer\n")
    settings = loaded(HEALER_DATABASE_URL_FILE=str(file))
    assert settings.database_url == "postgresql+psycopg://u:p@db/healer"


def test_a_secret_twice_or_from_a_missing_or_empty_file_is_an_error(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for value in (str(empty), str(tmp_path / "missing")):
        with pytest.raises(SettingsError, match="HEALER_WEBHOOK_SECRET_FILE"):
            loaded(HEALER_WEBHOOK_SECRET_FILE=value)
    with pytest.raises(SettingsError, match="both set"):
        loaded(HEALER_WEBHOOK_SECRET="a", HEALER_WEBHOOK_SECRET_FILE=str(empty))


def test_a_setting_that_is_no_secret_has_no_file_form() -> None:
    with pytest.raises(SettingsError, match="HEALER_MODE_FILE is not a setting"):
        loaded(HEALER_MODE_FILE="/etc/hostname")


def test_rest_needs_its_address_and_one_way_to_a_token() -> None:
    rest = {"HEALER_SLURM_ADAPTERS": "rest,cli"}
    with pytest.raises(SettingsError, match=r"rest, which needs HEALER_SLURM_REST_URL\."):
        loaded(**rest)
    rest["HEALER_SLURM_REST_URL"] = "unix:///run/slurmrestd/socket"
    with pytest.raises(SettingsError, match=r"needs HEALER_SLURM_TOKEN_FILE or HEALER_SLURM_TOKEN_COMMAND\."):
        loaded(**rest)
    rest["HEALER_SLURM_TOKEN_COMMAND"] = "/usr/bin/scontrol token 'username=healer' lifespan=1800"
    settings = loaded(**rest)
    assert settings.slurm_rest_url == "unix:///run/slurmrestd/socket"
    assert settings.slurm_token_command == ("/usr/bin/scontrol", "token", "username=healer", "lifespan=1800")
    with pytest.raises(SettingsError, match="are both set: keep one"):
        loaded(HEALER_SLURM_TOKEN_FILE="/etc/healer/slurm.jwt", **rest)


JIRA = {
    "HEALER_TICKETS": "jira",
    "HEALER_TICKETS_URL": "https://jira.example/base",
    "HEALER_TICKETS_PROJECT": "OPS",
    "HEALER_TICKETS_TOKEN": "t",
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"HEALER_TICKETS": "bugzilla"}, "HEALER_TICKETS must be one of webhook, jira, github, servicenow"),
        ({"HEALER_TICKETS": ""}, "HEALER_TICKETS_URL is set, which needs one of jira, github, servicenow"),
        ({"HEALER_TICKETS": "webhook"}, "HEALER_TICKETS_URL is set, which needs one of"),
        ({"HEALER_TICKETS_URL": ""}, "is jira, which needs HEALER_TICKETS_URL"),
        ({"HEALER_TICKETS_PROJECT": ""}, "is jira, which needs HEALER_TICKETS_PROJECT"),
        ({"HEALER_TICKETS_TOKEN": ""}, "is jira, which needs HEALER_TICKETS_TOKEN"),
        ({"HEALER_TICKETS_TOKEN": "t\u00e9"}, "HEALER_TICKETS_TOKEN must be printable ASCII"),
        ({"HEALER_TICKETS_PROJECT": 'OPS" OR'}, "HEALER_TICKETS_PROJECT must be a project's key"),
        ({"HEALER_TICKETS": "github"}, "HEALER_TICKETS_PROJECT must be owner/repository, not 'OPS'"),
        ({"HEALER_TICKETS": "servicenow"}, "HEALER_TICKETS_PROJECT must be a table"),
        (
            {"HEALER_TICKETS": "github", "HEALER_TICKETS_USER": "ann"},
            "is github, which has no use for HEALER_TICKETS_USER",
        ),
        ({"HEALER_TICKETS_URL": "http://jira.example"}, "must begin with https://"),
        ({"HEALER_TICKETS_URL": "https://ann:pw@jira.example"}, "an address alone"),
        ({"HEALER_TICKETS_URL": "https://jira.example/?os=1"}, "an address alone"),
        ({"HEALER_TICKET_WEBHOOK_URL": "https://x.example"}, "HEALER_TICKET_WEBHOOK_URL is set: keep one"),
    ],
)
def test_a_ticket_system_that_is_half_set_stops_the_start(change: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words) as error:
        loaded(**JIRA | change)
    assert str(error.value).count(". ") == 0


@pytest.mark.parametrize("url", [None, "http://slurm.example:6820"])
def test_slurm_tokens_are_sent_to_no_address_that_others_could_answer_for(url: str | None) -> None:
    given = {"HEALER_SLURM_LOGIN": "on"} | ({"HEALER_SLURM_REST_URL": url} if url else {})
    with pytest.raises(SettingsError, match="tokens are sent to slurmrestd"):
        loaded(**given)


@pytest.mark.parametrize("url", ["http://127.0.0.1:6820", "https://slurm.example", "unix:///run/s"])
def test_slurm_tokens_may_go_to_a_socket_to_loopback_or_by_https(url: str) -> None:
    assert loaded(HEALER_SLURM_LOGIN="on", HEALER_SLURM_REST_URL=url).slurm_login == "on"


def test_ticket_systems_as_they_should_be() -> None:
    assert loaded(**JIRA).tickets == "jira"
    assert loaded(**JIRA, HEALER_TICKETS_USER="ann@x.example", HEALER_TICKETS_CLOSE="Resolve").tickets_user
    github = JIRA | {"HEALER_TICKETS": "github", "HEALER_TICKETS_PROJECT": "site/repairs"}
    assert loaded(**github | {"HEALER_TICKETS_URL": ""}).tickets_url is None
    assert loaded(**JIRA | {"HEALER_TICKETS_URL": "http://127.0.0.1:8081"}).tickets
    webhook = loaded(HEALER_TICKETS="webhook", HEALER_TICKET_WEBHOOK_URL="https://x.example")
    assert webhook.tickets == "webhook"
    with pytest.raises(SettingsError, match="is webhook, which needs HEALER_TICKET_WEBHOOK_URL"):
        loaded(HEALER_TICKETS="webhook")


def test_options_of_the_command_line_win(tmp_path: Path) -> None:
    settings = load({"HEALER_LISTEN": "127.0.0.1:1"}, listen="[::1]:9000", data_dir=str(tmp_path))
    assert (str(settings.listen), settings.data_dir) == ("[::1]:9000", tmp_path)


def test_the_rules_that_ship_are_found() -> None:
    assert rules_folder(loaded()).is_dir()


def test_every_setting_is_described() -> None:
    text = DOCS.read_text()
    assert [name for name in setting_names() if f"`{name}`" not in text] == []
    assert [name for name in secret_names() if f"`{name}_FILE`" not in text] == []


# --- several clusters ------------------------------------------------------------------------------------


def in_file(tmp_path: Path, text: str, **environ: str) -> Settings:
    file = tmp_path / "healer.toml"
    file.write_text(text)
    return loaded(HEALER_CONFIG=str(file), **environ)


TWO = """
HEALER_MODE = "approve"
HEALER_SLURM_USER = "slurm"
[clusters.pod1]
SLURM_CONF = "/etc/pod1/slurm.conf"
HEALER_SLURM_ADAPTERS = ["cli"]
[clusters.pod2]
HEALER_SLURM_ADAPTERS = ["rest", "cli"]
HEALER_SLURM_REST_URL = "http://pod2:6820"
HEALER_SLURM_TOKEN_FILE = "/etc/pod2/token"
HEALER_MODE = "shadow"
"""


def test_cluster_table_overrides_everything_else(tmp_path: Path) -> None:
    settings = in_file(tmp_path, TWO, HEALER_MODE="suggest")
    pod1, pod2 = settings.each()
    assert (pod1.cluster, pod1.mode, str(pod1.slurm_conf)) == ("pod1", Mode.suggest, "/etc/pod1/slurm.conf")
    assert (pod2.cluster, pod2.mode, pod2.slurm_adapters) == ("pod2", Mode.shadow, ("rest", "cli"))
    assert pod1.slurm_user == pod2.slurm_user == "slurm"
    assert settings.of("pod2") is pod2
    assert pod1.sim_socket != pod2.sim_socket


def test_without_tables_there_is_one_cluster(tmp_path: Path) -> None:
    settings = in_file(tmp_path, 'HEALER_CLUSTER = "pod1"')
    assert settings.each() == [settings]
    assert settings.of(None) == settings.of("pod1") == settings
    with pytest.raises(SettingsError, match="manages the cluster pod1, not pod2"):
        settings.of("pod2")


def test_a_way_to_a_token_in_a_table_replaces_the_common_one(tmp_path: Path) -> None:
    text = """
    HEALER_SLURM_TOKEN_FILE = "/etc/token"
    [clusters.pod1]
    HEALER_SLURM_ADAPTERS = "rest"
    HEALER_SLURM_REST_URL = "http://pod1:6820"
    HEALER_SLURM_TOKEN_COMMAND = "scontrol token"
    """
    (pod1,) = in_file(tmp_path, text).each()
    assert pod1.slurm_token_command == ("scontrol", "token") and pod1.slurm_token_file is None


@pytest.mark.parametrize("wanted", [None, "pod3"])
def test_missing_cluster_lists_the_choices(tmp_path: Path, wanted: str | None) -> None:
    with pytest.raises(SettingsError, match="pod1, pod2"):
        in_file(tmp_path, TWO).of(wanted)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[clusters.pod1]\nHEALER_MODE = "now"', "[clusters.pod1]: HEALER_MODE must be one of"),
        ('[clusters.pod1]\nHEALER_MOOD = "auto"', "[clusters.pod1]: HEALER_MOOD is not a setting"),
        ('[clusters.pod1]\nHEALER_LISTEN = "a:1"', "[clusters.pod1]: HEALER_LISTEN holds for all clusters"),
        (
            '[clusters.pod1]\nHEALER_SLURM_ADAPTERS = "rest"',
            "[clusters.pod1]: HEALER_SLURM_ADAPTERS names rest",
        ),
        ('[clusters.pod1]\nSLURM_CONF = "~nosuchuser/s"', "[clusters.pod1]: SLURM_CONF must be a path"),
        ('[clusters."pod 1"]', "is not a valid ClusterName"),
        ("clusters = 2", "clusters must be tables"),
        ('SLURM_CONF = "/etc/slurm.conf"', "SLURM_CONF is not a setting"),
        ('HEALER_CLUSTER = "a"\n[clusters.pod1]', "HEALER_CLUSTER and the tables of clusters in"),
        ('HEALER_RECORDING = "/r"\n[clusters.a]\n[clusters.b]', "a and b have the same HEALER_RECORDING"),
        ('[clusters.a]\nSLURM_CONF = "/s"\n[clusters.b]\nSLURM_CONF = "/s"', "have the same SLURM_CONF"),
        (
            'HEALER_MUNGE_SOCKET = "/m"\n[clusters.a]\n[clusters.b]',
            "a and b have the same HEALER_MUNGE_SOCKET",
        ),
    ],
)
def test_invalid_settings_table_is_reported_with_its_name(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError) as error:
        in_file(tmp_path, text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://healer.example", "https://healer.example"),
        ("https://Healer.Example:443/", "https://healer.example"),
        ("http://localhost:8080", "http://localhost:8080"),
        ("https://[2001:db8::1]:8443", "https://[2001:db8::1]:8443"),
    ],
)
def test_a_public_url_is_an_origin(text: str, origin: str) -> None:
    assert loaded(HEALER_PUBLIC_URL=text).public_url == origin


@pytest.mark.parametrize(
    "text",
    ["healer.example", "ftp://healer.example", "https://healer.example/healer", "https://a@healer.example",
     "https://healer.example?a", "https://healer.example#a", "https://", "https://healer.example:x",
     "https://healer .example", "https://healer.example\\a"],
)  # fmt: skip
def test_public_url_that_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        loaded(HEALER_PUBLIC_URL=text)
    words = "an http or https URL without a path, like https://healer.example"
    assert str(refused.value) == f"HEALER_PUBLIC_URL must be {words}, not {text!r}."


def test_plain_http_beyond_this_machine_needs_a_setting() -> None:
    tls = {"HEALER_TLS_CERT": "/c.pem", "HEALER_TLS_KEY": "/k.pem"}
    for allowed in (
        {},
        {"HEALER_LISTEN": "[::1]:80"},
        {"HEALER_LISTEN": "localhost:80"},
        {"HEALER_LISTEN": "0.0.0.0:80", **tls},
        {"HEALER_PUBLIC_URL": "https://healer.example"},
        {"HEALER_LISTEN": "0.0.0.0:80", "HEALER_ALLOW_PLAIN_HTTP": "on"},
    ):
        check_listener(loaded(**allowed))
    for refused, why in (
        ({"HEALER_LISTEN": "0.0.0.0:80"}, "HEALER_LISTEN is 0.0.0.0:80"),
        ({"HEALER_LISTEN": "healer:80"}, "HEALER_LISTEN is healer:80"),
        ({"HEALER_PUBLIC_URL": "http://healer.example"}, "HEALER_PUBLIC_URL is http://healer.example"),
    ):
        with pytest.raises(SettingsError, match=why):
            check_listener(loaded(**refused))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"HEALER_TLS_CERT": "/c.pem"},
            "HEALER_TLS_CERT and HEALER_TLS_KEY belong together",
        ),
        (
            {"HEALER_PROXIES": "10.0.0.5, proxy"},
            "HEALER_PROXIES must be a comma-separated list of addresses",
        ),
        ({"HEALER_ALLOW_PLAIN_HTTP": "yes"}, "HEALER_ALLOW_PLAIN_HTTP must be on or off"),
    ],
)
def test_wrong_settings_of_tls_are_named(given: dict[str, str], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        loaded(**given)


def test_the_address_of_links_is_the_public_one() -> None:
    assert site_url(loaded()) == own_url(loaded()) == "http://127.0.0.1:8080"
    settings = loaded(
        HEALER_LISTEN="0.0.0.0:8443",
        HEALER_TLS_CERT="/c",
        HEALER_TLS_KEY="/k",
        HEALER_PUBLIC_URL="https://h.example",
    )
    assert (site_url(settings), own_url(settings)) == ("https://h.example", "https://127.0.0.1:8443")


def test_of_several_database_hosts_the_one_that_takes_writes_is_meant() -> None:
    url = loaded(HEALER_DATABASE_URL="postgresql://healer:p@db1:5433,db2/healer?sslmode=require").database_url
    hosts = "host=db1,db2&port=5433,5432&target_session_attrs=read-write"
    assert url == f"postgresql+psycopg://healer:p@/healer?{hosts}&sslmode=require"
