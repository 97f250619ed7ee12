"""`healer-nvhcd` as a process, and a real client of gRPC that asks it as NVIDIA's launcher does."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from tests.support.follower import ROOT
from tests.support.processes import clean_environ

PROGRAM = ROOT / "healer/hooks/healer-nvhcd"
METHOD = "/nvhcd.HealthCheckService/RunHealthCheck"
#: HealthCheckRequest{args: ["--no-slurm"]}, as NVIDIA's launcher sends it.
REQUEST = b"\n\n--no-slurm"


class Answer(NamedTuple):
    success: bool
    exit_code: int
    output: dict[str, Any]
    error: str


def decoded(data: bytes) -> Answer:
    """HealthCheckResponse: fields 1 and 2 are numbers, 3 and 4 texts."""
    found: dict[int, Any] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            found[tag >> 3] = number()
        else:
            assert tag & 7 == 2
            length = number()
            found[tag >> 3], at = data[at : at + length].decode(), at + length
    assert found.keys() <= {1, 2, 3, 4}
    return Answer(bool(found.get(1)), found.get(2, 0), json.loads(found[3]), found.get(4, ""))


class Node:
    """The service, its socket and what it reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket, self.verdict = folder / "nvhcd.sock", folder / "verdict.json"
        self.devices = folder / "sys/bus/pci/devices"
        self.devices.mkdir(parents=True)

    def write(self, age_s: float = 1.0, mode: int = 0o644, **told: str) -> None:
        heard_at = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() - age_s))
        fresh = self.folder / "fresh"
        fresh.write_text(json.dumps({"node": "gpu0001", "heard_at": heard_at} | told))
        fresh.chmod(mode)
        fresh.rename(self.verdict)

    def gpu(self, pci: str, config: bytes, vendor: str = "0x10de", kind: str = "0x030200") -> None:
        place = self.devices / pci
        place.mkdir(exist_ok=True)
        (place / "vendor").write_text(vendor + "\n")
        (place / "class").write_text(kind + "\n")
        (place / "config").write_bytes(config)

    def ask(self, request: bytes = REQUEST) -> Answer:
        with grpc.insecure_channel(f"unix://{self.socket}") as channel:
            return decoded(channel.unary_unary(METHOD)(request, timeout=10))


def started(node: Node) -> "subprocess.Popen[bytes]":
    """The service, ready to answer."""
    options = ["--socket", node.socket, "--verdict", node.verdict, "--sys", node.folder / "sys"]
    process = subprocess.Popen(
        [sys.executable, "-I", PROGRAM, *options],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/", env=clean_environ(),
    )  # fmt: skip
    assert process.stderr is not None
    assert b"answering at" in process.stderr.readline()
    return process


@contextmanager
def serving_checks(node: Node) -> Iterator[Node]:
    process = started(node)
    try:
        yield node
    finally:
        process.terminate()
        assert process.wait(10) == 0
        assert not node.socket.exists()
