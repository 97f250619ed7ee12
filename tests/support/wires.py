"""The same samples in the other wire forms: text exposition and remote_write, as exporters label them."""

import struct
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

Labels = tuple[tuple[str, str], ...]


def series_of(body: Mapping[str, Any]) -> Iterator[tuple[str, Labels, float]]:
    """(name, labels sorted by name, value) of each sample of a columnar body."""
    node = str(body["node"])
    for name, values in body.get("gpu", {}).items():
        for gpu, value in enumerate(values):
            if value is not None:
                yield name, _gpu_labels(node, gpu), value
    for name, value in body.get("host", {}).items():
        yield name, _host_labels(node), value
    for port, figures in body.get("ports", {}).items():
        for name, value in figures.items():
            yield name, _port_labels(node, port), value


@lru_cache(maxsize=100_000)
def _gpu_labels(node: str, gpu: int) -> Labels:
    """As dcgm-exporter 3.x labels them."""
    return (
        ("Hostname", node),
        ("UUID", f"GPU-{node}-{gpu:04d}-4000-8000-000000000000"),
        ("device", f"nvidia{gpu}"),
        ("gpu", str(gpu)),
        ("modelName", "NVIDIA H100 80GB HBM3"),
        ("pci_bus_id", f"00000000:{0x18 + gpu * 0x11:02X}:00.0"),
    )


@lru_cache(maxsize=100_000)
def _host_labels(node: str) -> Labels:
    return (("instance", f"{node}:9100"), ("job", "node"))


@lru_cache(maxsize=100_000)
def _port_labels(node: str, port: str) -> Labels:
    device, _, number = port.partition("/")
    return (("device", device), ("instance", f"{node}:9100"), ("job", "node"), ("port", number))


def exposition(body: Mapping[str, Any]) -> str:
    """One node's samples as text. As exporters print it, it bears no time."""
    return "".join(f"{_series(name, labels)} {value}\n" for name, labels, value in series_of(body))


@lru_cache(maxsize=1_000_000)
def _series(name: str, labels: Labels) -> str:
    return f"{name}{{{','.join(f'{key}={_quoted(text)}' for key, text in labels)}}}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def remote_write(bodies: Iterable[Mapping[str, Any]]) -> bytes:
    """remote_write 1.0: a snappy-packed protobuf of all samples, one per series, zero values left out as
    Prometheus leaves them out."""
    import cramjam

    parts = []
    for body in bodies:
        stamp = b"\x10" + _varint(_ms(body))
        for name, labels, value in series_of(body):
            figure = b"" if value == 0 else b"\x09" + struct.pack("<d", value)
            sample = figure + stamp
            series = _label_block(name, labels) + b"\x12" + _varint(len(sample)) + sample
            parts.append(b"\x0a" + _varint(len(series)) + series)
    return bytes(cramjam.snappy.compress_raw(b"".join(parts)))


@lru_cache(maxsize=1_000_000)
def _label_block(name: str, labels: Labels) -> bytes:
    pairs = sorted((("__name__", name), *labels))
    return b"".join(b"\x0a" + _text(_field(1, key) + _field(2, text)) for key, text in pairs)


def _field(number: int, text: str) -> bytes:
    return bytes([number << 3 | 2]) + _text(text.encode())


def _text(raw: bytes) -> bytes:
    return _varint(len(raw)) + raw


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _ms(body: Mapping[str, Any]) -> int:
    return round(datetime.fromisoformat(str(body["time"])).timestamp() * 1000)
