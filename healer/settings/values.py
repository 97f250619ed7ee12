"""What the values of settings may be: each parser returns the value, or raises ValueError with the words that
follow "must be"."""

import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from healer.model.words import Mode

ADAPTERS = ("rest", "cli", "pyslurm", "sim")
DEFAULT_LISTEN = "127.0.0.1:8080"
ON = "on"


class Listen(msgspec.Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def text(text: str) -> str:
    return text


def path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def recording(text: str) -> Path:
    """A folder; the word `on` alone stands for the data directory's own."""
    folder = Path(ON) if text == ON else path(text)
    if folder.is_file():
        raise ValueError(f"a folder or `{ON}`: recordings are many files")
    return folder


def listen(text: str) -> Listen:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"an address and a port, like {DEFAULT_LISTEN}")
    return Listen(host.removeprefix("[").removesuffix("]"), int(port))


def number(low: float, high: float, *, open_low: bool = False) -> Callable[[str], float]:
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


def whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


def user(text: str) -> str:
    """As useradd(8) allows it: it becomes a word of a command line."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", text):
        raise ValueError("the name of a user")
    return text


def nodes(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError("a whole number of nodes, at least 1")
    return int(text)


def mode(text: str) -> Mode:
    try:
        return Mode(text)
    except ValueError:
        raise ValueError(f"one of {', '.join(Mode)}") from None


def adapters(text: str) -> tuple[str, ...]:
    names = tuple(word.strip() for word in text.split(","))
    if not set(names) <= set(ADAPTERS) or len(set(names)) != len(names):
        raise ValueError(f"a comma list of {', '.join(ADAPTERS)}, each at most once")
    return names


def database(text: str) -> str:
    for scheme in ("postgresql+psycopg://", "postgresql://", "postgres://"):
        if text.startswith(scheme):
            return "postgresql+psycopg://" + text.removeprefix(scheme)
    raise ValueError("a PostgreSQL URL, like postgresql://healer@db.example/healer")


def broker(text: str) -> str:
    """What Celery takes. `unix://` is redis-py's word for a socket, `redis+socket://` Celery's."""
    if text.startswith("unix://"):
        return "redis+socket://" + text.removeprefix("unix://")
    if text.startswith(("redis://", "rediss://", "redis+socket://", "sqla+postgresql+psycopg://")):
        return text
    raise ValueError("a Redis URL, like redis://redis.example:6379/0")


def web(text: str) -> str:
    if not text.startswith(("http://", "https://")) or len(text.split("://", 1)[1]) == 0:
        raise ValueError("an http or https URL")
    return text


def bmc(text: str) -> str:
    """Where the BMC of a node is, with `{node}` in it. A password never goes over the network in clear."""
    parts = urlsplit(text)
    here = parts.hostname in {"127.0.0.1", "localhost", "::1"}
    secure = parts.scheme == "https" or (parts.scheme == "http" and here)
    plain = not (parts.query or parts.fragment or "@" in parts.netloc)
    if not secure or not plain or text.count("{node}") != 1 or set(text) & set(" \t"):
        raise ValueError("an https URL with {node} in it, like https://{node}-bmc")
    return text


#: What HEALER_BMC_TLS may be: a certificate is checked, or any is believed.
CHECKED, UNCHECKED = "checked", "unchecked"


def tls(text: str) -> str:
    if text not in (CHECKED, UNCHECKED):
        raise ValueError(f"{CHECKED} or {UNCHECKED}")
    return text


#: Matchers of a PromQL selector, as they stand between its braces.
_MATCHERS = re.compile(r'[A-Za-z_]\w*(?:=|!=|=~|!~)"[^"\\]*"(?:,[A-Za-z_]\w*(?:=|!=|=~|!~)"[^"\\]*")*')


def matchers(text: str) -> str:
    if not _MATCHERS.fullmatch(text):
        raise ValueError('matchers as in PromQL, like slurm_cluster="pod1"')
    return text


def slurmrestd(text: str) -> str:
    scheme, _, rest = text.partition("://")
    if scheme not in {"http", "https", "unix"} or not rest or (scheme == "unix" and rest[0] != "/"):
        raise ValueError(
            "an http, https or unix URL, like http://slurm.example:6820 or unix:///run/slurmrestd"
        )
    return text


def command(text: str) -> tuple[str, ...]:
    """A command and its arguments, split as a shell would; no shell ever sees it."""
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        words = ()
    if not words:
        raise ValueError("a command and its arguments, with quotes that close")
    return words
