"""Events of other health tools: NVSentinel (an export of its database, or its CloudEvents) and gpud.

An event that names an Xid and the GPU's address becomes the kernel line that it reports, judged like any.
The others are kept as alerts, which production takes as evidence and opens nothing for.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from healer.importing.happenings import Found, ToolEvent
from healer.importing.json_parts import objects
from healer.importing.kernel_text import KernelGroups, KernelRecord
from healer.importing.local_stamps import micros
from healer.importing.source_text import Bytes, lines_of, pieces
from healer.model import LineBook
from healer.signals.alert_bodies import ALERT, NVSENTINEL
from healer.signals.rejects import utc_time
from healer.text import said_by, say

_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?"
_PCI = re.compile(_ADDRESS)
_KERNELS = re.compile(r"(?:NVRM: |nvidia-nvswitch\d).*", re.DOTALL)
#: gpud's own sentence; the name is in brackets or plain.
_XID = re.compile(rf"XID (?P<code>\d{{1,4}})\b ?\(?(?P<name>.*?)\)? detected on .*?PCI:(?P<pci>{_ADDRESS})")
_TEXT_LETTERS = 500
_WHY_LETTERS = 100
#: Types of gpud's events that say that something is wrong.
_WRONG = frozenset({"Warning", "Critical", "Fatal"})


class ToolEvents:
    """One file. `host`: of gpud, which names none."""

    def __init__(self, found: Found, book: LineBook, host: str = "") -> None:
        self._found, self._host = found, host
        self._groups = KernelGroups(found, book)

    def read_nvsentinel(self, file: Bytes) -> None:
        """A document or event on each line, or a list of them."""
        self._each(_records(file, self._found), self._health)

    def read_gpud(self, file: Bytes) -> None:
        """The answer of `/v1/events`: a list of components, each with its events; or a list of events."""
        self._each(_records(file, self._found), self._component)

    def _each(self, records: Iterator[bytes], take: Callable[[Mapping[str, Any]], None]) -> None:
        tally = self._found.tally
        for raw in records:
            try:
                take(_lowered(msgspec.json.decode(raw)))
            except (ValueError, OverflowError, RecursionError, TypeError, AttributeError) as error:
                tally.skip(say("importing.no_event", why=str(said_by(error))[:_WHY_LETTERS]), raw)
        self._groups.close()

    def _health(self, record: Mapping[str, Any]) -> None:
        data = record.get("data")
        health = (data if isinstance(data, dict) else record).get("healthevent", record)
        stamp = health.get("generatedtimestamp") or record.get("time") or record.get("createdat")
        at_us, node = _time(stamp), _word(health.get("nodename"))
        if not node:
            raise ValueError(say("importing.no_node_of_event"))
        if health.get("ishealthy") is True:
            self._found.tally.plain += 1
            return
        entities = [each for each in health.get("entitiesimpacted") or () if isinstance(each, dict)]
        named = {_word(each.get("entitytype")): _word(each.get("entityvalue")) for each in entities}
        codes = [_word(code) for code in health.get("errorcode") or ()]
        check, message = _word(health.get("checkname")), _word(health.get("message"))
        xid = codes[0] if codes and codes[0].isdigit() and "XID" in check.upper() else ""
        if not self._line(node, at_us, message, xid, named.get("PCI", "")):
            self._alert(at_us, node, NVSENTINEL, {"healthEvent": _as_exported(health, entities, codes)})

    def _component(self, record: Mapping[str, Any]) -> None:
        """Its events come from the latest to the first."""
        events = record.get("events", [record])
        for event in sorted(events or (), key=lambda each: _word(each.get("time"))):
            self._event(event, _word(event.get("component") or record.get("component")))

    def _event(self, event: Mapping[str, Any], component: str) -> None:
        if event.get("type") not in _WRONG:
            self._found.tally.plain += 1
            return
        at_us, message = _time(event.get("time")), _word(event.get("message"))
        extra = event.get("extra_info")
        data = extra.get("data") if isinstance(extra, dict) else None
        if isinstance(data, str) and data.startswith("{"):
            data = _lowered(msgspec.json.decode(data))
        quoted = _word(data.get("raw_kmsg")) if isinstance(data, dict) else ""
        match = _XID.search(message)
        code, pci, name = (match["code"], match["pci"], match["name"]) if match else ("", "", message)
        if self._line(self._host, at_us, quoted or name, code, pci):
            return
        labels = {"alertname": _word(event.get("name")) or "gpud", "node": self._host, "component": component}
        self._alert(at_us, self._host, ALERT, {"labels": labels, "annotations": {"summary": message}})

    def _line(self, host: str, at_us: int, message: str, code: str, pci: str) -> bool:
        """Whether the event reports a kernel line. Its own words count, or an Xid with its address."""
        quoted, address = _KERNELS.search(message), _PCI.search(pci)
        if quoted is None and not (code and address):
            return False
        pci = address[0].partition(".")[0].lower() if address else ""
        words = " ".join(message.split()) or "reported"
        line = quoted[0] if quoted else f"NVRM: Xid (PCI:{pci}): {code}, {words}"
        self._groups.take(KernelRecord(at_us, host, line[:_TEXT_LETTERS]))
        return True

    def _alert(self, at_us: int, host: str, kind: str, data: dict[str, Any]) -> None:
        self._found.hosts.add(host)
        self._found.add(at_us, ToolEvent(host, kind, data))


def _records(file: Bytes, found: Found) -> Iterator[bytes]:
    """Each object: of a list, or one on each line."""
    rest = _Rest(file)
    if rest.begins_list:
        for raw in objects(pieces(rest, found.tally), "", found.tally):
            found.tally.lines += 1
            yield raw
        return
    yield from filter(bytes.strip, lines_of(rest, found.tally))


class _Rest:
    """A file whose first piece was already examined."""

    def __init__(self, file: Bytes) -> None:
        self._file, self._first = file, file.read(1 << 20)
        self.begins_list = self._first.lstrip()[:1] == b"["

    def read(self, size: int, /) -> bytes:
        first, self._first = self._first, b""
        return first or self._file.read(size)

    def processed(self, count: int, /) -> None:
        self._file.processed(count)


def _lowered(value: Any) -> Any:
    """With keys in lowercase: the database writes `nodename`, the exporter `nodeName`."""
    if isinstance(value, dict):
        return {str(key).lower(): _lowered(each) for key, each in value.items()}
    return [_lowered(each) for each in value] if isinstance(value, list) else value


def _time(stamp: Any) -> int:
    """µs since 1970, of RFC 3339, `{"seconds": …, "nanos": …}` or MongoDB's forms of a date. Raises
    ValueError."""
    if isinstance(stamp, dict):
        stamp = stamp.get("$date", stamp)
    if isinstance(stamp, dict) and "seconds" in stamp:
        return _number(stamp["seconds"]) * 1_000_000 + _number(stamp.get("nanos", 0)) // 1000
    if isinstance(stamp, dict | int):
        return _number(stamp) * 1000
    return micros(utc_time(_word(stamp)))


def _number(value: Any) -> int:
    if isinstance(value, dict):
        value = next(iter(value.values()), None)
    return int(value)


def _word(value: Any) -> str:
    return value[:_TEXT_LETTERS] if isinstance(value, str) else ""


def _as_exported(
    health: Mapping[str, Any], entities: list[dict[str, Any]], codes: list[str]
) -> dict[str, Any]:
    """In the form of NVSentinel's exporter, which production reads."""
    names = ("agent", "componentClass", "checkName", "message", "nodeName")
    found: dict[str, Any] = {name: _word(health.get(name.lower())) for name in names}
    return found | {
        "isFatal": health.get("isfatal") is True,
        "isHealthy": False,
        "errorCode": codes,
        "entitiesImpacted": [
            {"entityType": _word(each.get("entitytype")), "entityValue": _word(each.get("entityvalue"))}
            for each in entities
        ],
    }
