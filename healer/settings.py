"""Settings: `HEALER_*` in the environment and in one TOML file (`HEALER_CONFIG`), same names.

The environment wins. A wrong or unknown setting is a SettingsError of one sentence that names it. An empty
value counts as not set.
Settings marked secret may be given as `NAME_FILE`, the path of a file that holds the value.
"""

import difflib
import math
import os
import shutil
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from healer.model.words import Mode

ADAPTERS = ("rest", "cli", "pyslurm", "sim")
DEFAULT_LISTEN = "127.0.0.1:8080"


class SettingsError(Exception):
    """A setting is wrong or unknown. The text is one sentence that names it."""


class Listen(msgspec.Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a server process. None: not set, the default of `docs/settings.md` holds."""

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
    slurm_user: str | None = None
    sim_socket: Path | None = None
    sim_nodes_socket: Path | None = None
    recording: Path | None = None
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
    webhook_secret: str | None = None


def guard_overrides(settings: Settings) -> dict[str, Any]:
    """What was set of `model.GuardSettings`, by its field names: it stands above `rules/guards.yaml`."""
    names = {name: name.removeprefix("guard_") for name in Settings.__struct_fields__ if "guard_" in name}
    names["breaker_share"] = "breaker_share"
    return {field: value for name, field in names.items() if (value := getattr(settings, name)) is not None}


def rules_folder(settings: Settings) -> Path:
    """The site's rules, or those that ship: `rules/` of the checkout or of an installed package."""
    if settings.rules_dir is not None:
        return settings.rules_dir
    here = Path(__file__).parent
    checkout = here.parent / "rules"
    return checkout if checkout.is_dir() else here / "_data" / "rules"


def load(
    environ: Mapping[str, str] = os.environ,
    *,
    which: Callable[[str], str | None] = shutil.which,
    **overrides: str | None,
) -> Settings:
    """Reads, checks and completes the settings. `overrides`: options of the command line, by field name."""
    given = _from_file(environ) | {n: v for n, v in environ.items() if n.startswith("HEALER_")}
    given |= {f"HEALER_{field.upper()}": value for field, value in overrides.items() if value is not None}
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
    if "rest" in values.get("slurm_adapters", ()) and "slurm_rest_url" not in values:
        raise SettingsError("HEALER_SLURM_ADAPTERS names rest, which needs HEALER_SLURM_REST_URL.")
    values.setdefault("data_dir", default_data_dir(environ))
    values.setdefault("sim_socket", own_sim_socket(values["data_dir"]))
    values.setdefault("listen", _listen(DEFAULT_LISTEN))
    values.setdefault("slurm_adapters", ("cli",) if which("scontrol") else ("sim",))
    return Settings(**values)


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """/var/lib/healer for root, else `healer` in the user's state folder (XDG base directories)."""
    if os.geteuid() == 0:
        return Path("/var/lib/healer")
    state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME", "/tmp"), ".local/state")  # noqa: S108
    return Path(state) / "healer"


def own_sim_socket(data_dir: Path) -> Path:
    """Where `healer up` offers its own simulated Slurm when HEALER_SIM_SOCKET names no other."""
    return data_dir / "sim-slurm.sock"


def _from_file(environ: Mapping[str, str]) -> dict[str, str]:
    where = environ.get("HEALER_CONFIG", "")
    if not where:
        return {}
    try:
        document = tomllib.loads(Path(where).read_text())
    except OSError as error:
        raise SettingsError(f"HEALER_CONFIG names {where}, which cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"HEALER_CONFIG: {where} is not TOML: {error}.") from None
    return {name: _as_text(name, value, where) for name, value in document.items()}


def _as_text(name: str, value: object, where: str) -> str:
    """A value of the file in the form it has in the environment."""
    if name not in _KNOWN and name.removesuffix("_FILE") not in _KNOWN:
        raise SettingsError(f"{where}: {_unknown(name)}")
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    raise SettingsError(f"{where}: {name} must be a text or a number.")


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


# --- what values may be: each returns the value, or raises ValueError with the words after "must be" ------


def _text(text: str) -> str:
    return text


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _listen(text: str) -> Listen:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"an address and a port, like {DEFAULT_LISTEN}")
    return Listen(host.removeprefix("[").removesuffix("]"), int(port))


def _number(low: float, high: float, *, open_low: bool = False) -> Callable[[str], float]:
    words = f"a number {'above' if open_low else 'from'} {low:g} to {high:g}"

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(words) from None
        if not math.isfinite(value) or not low <= value <= high or (open_low and value == low):
            raise ValueError(words)
        return value

    return parse


def _nodes(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError("a whole number of nodes, at least 1")
    return int(text)


def _mode(text: str) -> Mode:
    try:
        return Mode(text)
    except ValueError:
        raise ValueError(f"one of {', '.join(Mode)}") from None


def _adapters(text: str) -> tuple[str, ...]:
    names = tuple(word.strip() for word in text.split(","))
    if not set(names) <= set(ADAPTERS) or len(set(names)) != len(names):
        raise ValueError(f"a comma list of {', '.join(ADAPTERS)}, each at most once")
    return names


def _database(text: str) -> str:
    for scheme in ("postgresql+psycopg://", "postgresql://", "postgres://"):
        if text.startswith(scheme):
            return "postgresql+psycopg://" + text.removeprefix(scheme)
    raise ValueError("a PostgreSQL URL, like postgresql://healer@db.example/healer")


def _broker(text: str) -> str:
    """What Celery takes. `unix://` is redis-py's word for a socket, `redis+socket://` Celery's."""
    if text.startswith("unix://"):
        return "redis+socket://" + text.removeprefix("unix://")
    if text.startswith(("redis://", "rediss://", "redis+socket://", "sqla+postgresql+psycopg://")):
        return text
    raise ValueError("a Redis URL, like redis://redis.example:6379/0")


def _web(text: str) -> str:
    if not text.startswith(("http://", "https://")) or len(text.split("://", 1)[1]) == 0:
        raise ValueError("an http or https URL")
    return text


class _Known(msgspec.Struct, frozen=True):
    """`parse` None: belongs to clients and hooks, no server reads it."""

    parse: Callable[[str], Any] | None
    secret: bool = False


_SHARE = _number(0, 1, open_low=True)

_KNOWN: dict[str, _Known] = {
    "HEALER_CONFIG": _Known(None),
    "HEALER_DATA_DIR": _Known(_path),
    "HEALER_LISTEN": _Known(_listen),
    "HEALER_DATABASE_URL": _Known(_database, secret=True),
    "HEALER_REDIS_URL": _Known(_broker, secret=True),
    "HEALER_RULES_DIR": _Known(_path),
    "HEALER_CLUSTER": _Known(_text),
    "HEALER_SLURM_ADAPTERS": _Known(_adapters),
    "HEALER_SLURM_REST_URL": _Known(_web),
    "HEALER_SLURM_TOKEN_FILE": _Known(_path),
    "HEALER_SLURM_USER": _Known(_text),
    "HEALER_SIM_SOCKET": _Known(_path),
    "HEALER_SIM_NODES_SOCKET": _Known(_path),
    "HEALER_RECORDING": _Known(_path),
    "HEALER_MODE": _Known(_mode),
    "HEALER_GUARD_MAX_SHARE": _Known(_SHARE),
    "HEALER_GUARD_MAX_NODES": _Known(_nodes),
    "HEALER_GUARD_MIN_SERVICE_SHARE": _Known(_number(0, 1)),
    "HEALER_GUARD_SHARE_PER_HOUR": _Known(_SHARE),
    "HEALER_GUARD_RACK_SHARE": _Known(_SHARE),
    "HEALER_GUARD_PARTITION_SHARE": _Known(_SHARE),
    "HEALER_GUARD_REPEAT_H": _Known(_number(0, 8760)),
    "HEALER_BREAKER_SHARE": _Known(_SHARE),
    "HEALER_SETTLE_S": _Known(_number(0, 60)),
    "HEALER_NOTIFY_WEBHOOK_URL": _Known(_web, secret=True),
    "HEALER_TICKET_WEBHOOK_URL": _Known(_web, secret=True),
    "HEALER_WEBHOOK_SECRET": _Known(_text, secret=True),
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
