"""Settings: `HEALER_*` in the environment and in one TOML file (`HEALER_CONFIG`), same names.

The environment wins. A wrong or unknown setting is a SettingsError of one sentence that names it. An empty
value counts as not set.
Settings marked secret may be given as `NAME_FILE`, the path of a file that holds the value.
One healer for several clusters has a table `[clusters.NAME]` for each in the file; its settings are that
cluster's alone and override all others.
"""

from healer.settings.fields import (
    SECRET_OF,
    URL_OF,
    ExecutorSettings,
    Settings,
    SettingsError,
    guard_overrides,
    privileged_names,
    secret_names,
    setting_name,
    setting_names,
)
from healer.settings.parsers import CHECKED, GITHUB, JIRA, ON, Listen, is_loopback, parse_proxies
from healer.settings.places import (
    SIM_FOLDER,
    check_listener,
    own_sim_socket,
    own_url,
    plain_http_problem,
    rules_folder,
    shipped_rules,
    site_url,
)
from healer.settings.settings_file import load, load_executor
