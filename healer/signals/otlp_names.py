"""Names and labels of OTLP -> those of Prometheus, which the catalogue's aliases are.

By the rules that the collector's own Prometheus exporters follow (OpenTelemetry's specification, "Prometheus
and OpenMetrics Compatibility"): dots become `_`, the unit and `_total` are put behind the name. A collector
that scraped an exporter has the exporter's names already.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

#: UCUM -> the word in a Prometheus name.
_UNITS = {
    "d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds", "us": "microseconds",
    "ns": "nanoseconds", "By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes",
    "KBy": "kilobytes", "MBy": "megabytes", "GBy": "gigabytes", "V": "volts", "A": "amperes", "J": "joules",
    "W": "watts", "Cel": "celsius", "Hz": "hertz", "%": "percent", "1": "ratio",
}  # fmt: skip
_OTHER = re.compile(r"[^a-zA-Z0-9:]+")
_BRACES = re.compile(r"\{[^}]*\}")
#: Names remembered, with what they came to.
_REMEMBERED = 5_000


class SeriesNames:
    """Which name of the catalogue a metric has. `known`: whether the catalogue has a name."""

    def __init__(self, known: Callable[[str], bool]) -> None:
        self._known = known
        self._found: dict[tuple[str, str, bool], str] = {}

    def of(self, name: str, unit: str, grows: bool) -> str:
        """The first of `candidates` that is known; the name itself where none is."""
        key = (name[:256], unit[:64], grows)
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            found = next((one for one in candidates(*key) if self._known(one)), key[0])
            self._found[key] = found
        return found


def candidates(name: str, unit: str, grows: bool) -> Iterator[str]:
    """What a metric may be called, the name as it came first. `grows`: a monotonic sum."""
    yield name
    plain = _OTHER.sub("_", name).strip("_")
    stem = plain.removesuffix("_total")
    with_unit = _with_unit(stem, unit, grows)
    for one in dict.fromkeys((stem, with_unit)):
        if grows:
            yield f"{one}_total"
        yield one


def _with_unit(stem: str, unit: str, grows: bool) -> str:
    """`node_network_receive`, `By` -> `node_network_receive_bytes`."""
    whole, slash, part = _BRACES.sub("", unit).partition("/")
    word = "" if whole == "1" and (grows or slash) else _UNITS.get(whole, "")
    if word and not stem.endswith(f"_{word}"):
        stem = f"{stem}_{word}"
    per = {"s": "second", "min": "minute", "h": "hour"}.get(part) if slash else None
    return f"{stem}_per_{per}" if per and not stem.endswith(f"_per_{per}") else stem


def labels_of(resource: dict[str, Any], point: dict[str, Any]) -> dict[str, str]:
    """Labels as series of Prometheus have them: those of the point, behind them those of the resource.

    The resource names the node in its own words: `service.instance.id`, where it is `host:port` as the
    collector's Prometheus receiver writes it, then `k8s.node.name`, then `host.name`, which is often that
    of the collector.
    """
    labels = {_label(name): word(value) for name, value in point.items()}
    around = {_label(name): word(value) for name, value in resource.items()}
    instance = word(resource.get("service.instance.id"))
    host, colon, port = instance.rpartition(":")
    if colon and port.isascii() and port.isdigit() and host:
        labels.setdefault("hostname", host)
    for label, name in (("node", "k8s.node.name"), ("host", "host.name")):
        if told := word(resource.get(name)):
            labels.setdefault(label, told)
    _of_hardware(labels)
    for name, value in around.items():
        labels.setdefault(name, value)
    return labels


def _of_hardware(labels: dict[str, str]) -> None:
    """`hw.id` of a GPU (semantic conventions of hardware) is what the vendor's tools call it: an index, a
    UUID or a PCI address."""
    told = labels.get("hw_id", "")
    if told.isascii() and told.isdigit():
        labels.setdefault("gpu", told)
    elif told.startswith("GPU-"):
        labels.setdefault("UUID", told)
    elif told.count(":") == 2:
        labels.setdefault("pci_bus_id", told)


def _label(name: str) -> str:
    return name.replace(".", "_").replace("-", "_").replace("/", "_")


def word(value: Any) -> str:
    """A value as Prometheus' labels write it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None or isinstance(value, bytes | list | dict) else str(value)
