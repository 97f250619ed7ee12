"""What the value of a setting may be: each parser raises ValueError with the words that follow "must be"."""

import math
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from healer.model.vocabulary import Mode
from healer.text import joined, say

#: Ticket systems.
WEBHOOK, JIRA, GITHUB, SERVICENOW = "webhook", "jira", "github", "servicenow"
TICKET_SYSTEMS = (WEBHOOK, JIRA, GITHUB, SERVICENOW)
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
    """A folder by its whole path: `true` or `off` would be one below the working directory. The word `on`
    means the data directory's own."""
    if text == ON:
        return Path(ON)
    folder = parse_path(text)
    if folder.is_file() or not text.startswith(("/", "~")):
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
