"""A made-up healer for the client, and the environment of a rank."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.sink import Sink, serve_sink

RANK = {
    "SLURM_JOB_ID": "4711",
    "SLURM_RESTART_COUNT": "2",
    "SLURMD_NODENAME": "gpu0003",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "16",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_GPUS": "4,6",
    "HEALER_TOKEN": "heal_0_secret",
    # There is none, unless a test starts one: this machine's own is not asked.
    "HEALER_MUNGE_SOCKET": "/nonexistent/munge.socket",
}


class Receiver:
    """What a sink received."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.url = sink.url.partition("/hooks")[0]

    def environ(self, **more: str) -> dict[str, str]:
        return RANK | {"HEALER_URL": self.url} | more

    def bodies(self, route: str = "signals/step-times") -> list[Any]:
        return [json.loads(body) for headers, body in self.sink.asked if headers[":path"].endswith(route)]

    def samples(self) -> list[dict[str, Any]]:
        return [sample for body in self.bodies() for sample in body["samples"]]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with serve_sink(202, b'{"accepted": 1}') as sink:
        yield Receiver(sink)
