"""LLDP as lldpd prints it (`lldpctl -f json`, `-f json0`, `lldpcli show neighbors -f json`) -> cables. Pure.

One document of one host, or one on each line, each with its `host` next to `lldp`.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from healer.signals.hardware_names import wrong_port
from healer.text import Said, said_by, say
from healer.topology.found import BYTES_MAX, CABLES_MAX, Cable, Found, Unreadable

_NAME_MAX = 64


def read_lldp(text: str, host: str = "") -> Found:
    """`host`: whose output it is, if the document does not say. Raises Unreadable."""
    if len(text) > BYTES_MAX:
        raise Unreadable(say("topology.more_than_mb", bytes_max=BYTES_MAX >> 20))
    cables: dict[tuple[str, str], Cable] = {}
    skipped: Counter[Said] = Counter()
    for place, document in _documents(text):
        whose = document.get("host", host) if isinstance(document, dict) else host
        if not isinstance(whose, str) or not _is_name(whose):
            raise Unreadable(say("topology.does_say_whose_give", place=place))
        for interface, neighbour in _interfaces(document, place):
            if wrong_port(interface):
                skipped[say("topology.no_hardware")] += 1
                continue
            switch, port = _chassis(neighbour.get("chassis")), _port(neighbour.get("port"))
            if not switch or not port:
                skipped[say("topology.no_name")] += 1
                continue
            node = whose.partition(".")[0]
            cables[switch, port] = Cable(switch, port, node, interface, is_switch=False)
            if len(cables) > CABLES_MAX:
                raise Unreadable(say("topology.more_than_cables", place=place, cables_max=CABLES_MAX))
    # Switches that run lldpd themselves report each other.
    switches = {cable.switch for cable in cables.values()}
    marked = tuple(cable._replace(is_switch=cable.peer in switches) for cable in cables.values())
    return Found(cables=marked, skipped=dict(skipped))


def _documents(text: str) -> Iterator[tuple[Said, Any]]:
    """(where it is, document)."""
    try:
        yield say("topology.document"), msgspec.json.decode(text.encode())
        return
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        wrong = str(error)
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if len(lines) < 2:
        raise Unreadable(say("topology.json", wrong=wrong))
    for number, line in lines:
        try:
            yield say("topology.line", number=number), msgspec.json.decode(line.encode())
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise Unreadable(say("topology.line_json", number=number, why=said_by(error))) from None


def _interfaces(document: Any, place: Said) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, neighbour). lldpd writes one thing as an object and several as a list; json0 always lists."""
    lldp = document.get("lldp") if isinstance(document, dict) else None
    if lldp is None:
        raise Unreadable(say("topology.no_lldp", place=place))
    for part in _all(lldp):
        for entry in _all(part.get("interface")):
            name = entry.get("name")
            if isinstance(name, str):
                yield name, entry
            else:
                yield from ((str(key), value) for key, value in entry.items() if isinstance(value, dict))


def _all(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in (value if isinstance(value, list) else [value]) if isinstance(entry, dict)]


def _chassis(value: Any) -> str:
    """The neighbour's own name, without its domain: as key (json) or under `name` (json0)."""
    for entry in _all(value):
        name = _value(entry.get("name"))
        if name:
            return _short(name)
        for key, inner in entry.items():
            if isinstance(inner, dict) and key not in ("id", "mgmt-ip", "capability"):
                return _short(key)
    return ""


def _port(value: Any) -> str:
    """The switch's own name of its port: its identifier if that is a name, else its description.

    An identifier of the type `local` that is a number is mostly the interface's index (Junos has 513 for
    et-0/0/1): it counts only if there is no description either.
    """
    for entry in _all(value):
        index = ""
        for identity in _all(entry.get("id")):
            name, kind = identity.get("value"), identity.get("type")
            if kind not in ("ifname", "local", "ifalias") or not _is_name(name):
                continue
            if kind != "local" or not str(name).isdigit():
                return str(name)
            index = index or str(name)
        if _is_name(name := _value(entry.get("descr"))):
            return name
        if index:
            return index
    return ""


def _value(value: Any) -> str:
    """`"x"`, or json0's `[{"value": "x"}]`."""
    if isinstance(value, str):
        return value
    return next((text for entry in _all(value) if isinstance(text := entry.get("value"), str)), "")


def _short(name: str) -> str:
    short = name if name.replace(".", "").isdigit() else name.partition(".")[0]
    return short if _is_name(short) else ""


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _NAME_MAX and value.isascii() and value.isprintable()
