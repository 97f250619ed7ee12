"""Reads, checks and completes the settings of the environment and of the file that HEALER_CONFIG names."""

import difflib
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from healer.settings.fields import (
    OF_CLIENTS,
    READS,
    ExecutorSettings,
    Settings,
    SettingsError,
    privileged_names,
    secret_names,
    setting_name,
    setting_names,
)
from healer.settings.fitting import check_adapters, check_sign_in, check_tickets, check_tls
from healer.settings.parsers import DEFAULT_LISTEN, ON, parse_listen, parse_path
from healer.settings.places import default_data_dir, own_sim_socket
from healer.text import Said, said_by, say

S = TypeVar("S", bound=Settings)


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
    given |= {setting_name(field): value for field, value in overrides.items() if value is not None}
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
        check_adapters(values, kind)
    check_tls(values)
    check_tickets(values)
    check_sign_in(values)
    values.setdefault("sim_socket", own_sim_socket(values["data_dir"]))
    _place_recording(values)
    return kind(**values, clusters={**clusters})


def _parsed(given: Mapping[str, str], kind: type[Settings]) -> dict[str, Any]:
    """Values by field. What this kind lacks is not even read from its file."""
    values: dict[str, Any] = {}
    elsewhere = privileged_names() if kind is Settings else ()
    needed = {name: text for name, text in given.items() if text != "" and name not in elsewhere}
    for name, text in _without_files(needed).items():
        if name in OF_CLIENTS:
            continue
        reads = READS[name]
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


# --- several clusters ------------------------------------------------------------------------------------

#: ClusterName of Slurm has at most 40 characters; ours is part of file and queue names too.
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,39}")
#: Prefixes of the settings that may differ between clusters.
_OF_A_CLUSTER = tuple(f"HEALER_{way}_" for way in ("SLURM", "MUNGE", "SIM", "SSH", "BMC", "PROMETHEUS"))
#: Two clusters with the same one of these would be one Slurm twice, or write one file over another.
_APART = ("slurm_rest_url", "slurm_conf", "munge_socket", "sim_socket", "sim_nodes_socket", "recording")


def _may_differ(setting: str) -> bool:
    """Whether a cluster's table may hold it."""
    if setting in ("SLURM_CONF", "HEALER_RECORDING", "HEALER_MODE", "HEALER_BMC_PASSWORD_FILE"):
        return True
    return setting in READS and setting.startswith(_OF_A_CLUSTER)


def _of_table(title: str, name: str, table: object, around: Mapping[str, Any], kind: type[S]) -> S:
    """One cluster's settings: its table overrides the settings around it."""
    if not _CLUSTER_NAME.fullmatch(name):
        raise SettingsError(say("setup.cannot_clustername_slurm", title=title, name=name))
    if not isinstance(table, dict):
        raise SettingsError(say("setup.must_table_clusters", title=title, name=name))
    try:
        for setting in table:
            if not _may_differ(setting):
                raise SettingsError(_not_in_a_table(setting))
        given = {setting: _as_text(setting, value) for setting, value in table.items()}
        conf = given.pop("SLURM_CONF", "")
        of_cluster = _parsed(given, kind) | _slurm_conf(conf)
        tokens = {"slurm_token_file", "slurm_token_command", "slurm_read_token_file"}
        replaced = tokens if tokens & of_cluster.keys() else set()
        values: dict[str, Any] = {k: value for k, value in around.items() if k not in replaced} | of_cluster
        check_adapters(values, kind)
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


def _not_in_a_table(setting: str) -> Said:
    if setting in setting_names():
        return say("setup.holds_for_all_clusters", setting=setting)
    return _unknown(setting)


def _check_apart(clusters: Mapping[str, Settings]) -> None:
    for field in _APART:
        seen: dict[object, str] = {}
        for name, settings in clusters.items():
            value = getattr(settings, field)
            setting = "SLURM_CONF" if field == "slurm_conf" else setting_name(field)
            if value is not None and value in seen:
                raise SettingsError(
                    say("setup.clusters_have_same_each", other=seen[value], name=name, setting=setting)
                )
            seen[value] = name


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
        if name in READS or name in OF_CLIENTS:
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


def _unknown(name: str) -> Said:
    short = name.upper().removeprefix("HEALER_")
    names = [setting.removeprefix("HEALER_") for setting in setting_names()]
    close = difflib.get_close_matches(short, names, n=1, cutoff=0.7)
    if close:
        return say("setup.unknown_setting_like", name=name, like=f"HEALER_{close[0]}")
    return say("setup.unknown_setting", name=name)
