"""One sender for each kind of signal, each with numbered bodies: what was answered against what is stored."""

import contextlib
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
import numpy as np
import psycopg

from healer.adapters.postgres.samples import unpacked
from tests.support.collected import as_json, gauge, logs, metrics, point, record
from tests.support.pushing import message, snappy
from tests.support.up import Stack

CLUSTER = "pod1"
NODE = "gpu0007"
#: Each life of a Poster has a number of its own: several may lie in one database, beside those of
#: `away.Fleet`, which begin at 1.
_MARKS = itertools.count(9 * 10**11)
_PROTOBUF = "application/x-protobuf"

#: (mark, number) -> what is sent.
Body = Callable[[str, int], Any]
#: Whether an answer of 2xx says that the body is stored. Raises AssertionError where it says anything else.
Taken = Callable[[httpx.Response], bool]


def _line(mark: str, number: int) -> str:
    return f"NVRM: GPU at PCI:0000:9b:00: GPU-{number:08d}-feed-4000-8000-{mark}"


def _boot(mark: str) -> str:
    return f"0b11d014-1685-04bd-26ed-{mark}"


def _now() -> str:
    return datetime.now(UTC).isoformat()


# --- events ----------------------------------------------------------------------------------------------


def _kernel(mark: str, number: int) -> dict[str, Any]:
    return {"node": NODE, "boot_id": _boot(mark), "entries": [{"line": _line(mark, number), "seq": number}]}


def _journal(node: str) -> Body:
    def body(mark: str, number: int) -> dict[str, Any]:
        fields = {"_TRANSPORT": "kernel", "MESSAGE": _line(mark, number), "_BOOT_ID": _boot(mark)}
        return fields | {"_HOSTNAME": node, "seq": number}

    return body


def _otlp_logs(mark: str, number: int) -> bytes:
    return as_json(logs({}, [record(_journal("gpu0009")(mark, number))]))


def _beat(mark: str, number: int) -> dict[str, Any]:
    """Another node each time: of one node they are stored once a second at most."""
    return {"node": f"gpu{number % 32 + 1:04d}", "boot_id": f"feed-{mark}-{number}", "time": _now()}


def _hook(mark: str, number: int) -> dict[str, Any]:
    return {"node": NODE, "id": f"feed-{mark}-{number}", "job": "4711", "restarts": 0}


def _checkpoint(mark: str, number: int) -> dict[str, Any]:
    return {"job": f"c{mark}", "restart": 0, "step": number, "path": f"feed-{mark}-{number}", "durable": True}


def _alert(mark: str, number: int) -> dict[str, Any]:
    labels = {"alertname": f"feed-{mark}-{number}", "instance": NODE, "severity": "warning"}
    alert = {"status": "firing", "labels": labels, "annotations": {}, "startsAt": _now()}
    around = {"version": "4", "groupKey": "{}", "status": "firing", "receiver": "healer", "groupLabels": {}}
    return around | {"commonLabels": {}, "commonAnnotations": {}, "alerts": [alert]}


def _cloudevent(mark: str, number: int) -> dict[str, Any]:
    """An alert and a body of another route in turn: they go different ways."""
    around = {"specversion": "1.0", "id": f"feed-{mark}-{number}", "source": "/tests"}
    if number % 2:
        return around | {"type": "io.healer.signal.kernel-log.v1", "data": _kernel(mark, number)}
    data = {"labels": {"alertname": f"feed-{mark}-{number}", "node": NODE}, "annotations": {}}
    return around | {"type": "io.healer.alert.v1", "time": _now(), "data": data}


def _steps(mark: str, number: int) -> dict[str, Any]:
    return {"job": f"s{mark}", "restart": 0, "samples": [{"step": number, "rank": 0, "step_s": 1.5}]}


# --- metrics ---------------------------------------------------------------------------------------------
#
# Of each form another node, by which its rows are found: a row has no mark.


def _columnar(mark: str, number: int) -> dict[str, Any]:
    return {"node": "gpu0011", "host": {"load1": float(number)}}


def _openmetrics(mark: str, number: int) -> bytes:
    return f"# TYPE node_load1 gauge\nnode_load1 {number}\n".encode()


def _remote_write(mark: str, number: int) -> bytes:
    labels = {"__name__": "node_load1", "instance": "gpu0013:9100"}
    return snappy(message([(labels, [(float(number), round(time.time() * 1000))])]))


def _otlp(mark: str, number: int) -> bytes:
    request = metrics({"host.name": "gpu0014"}, gauge("node_load1", point(float(number), {}, time.time_ns())))
    return request.SerializeToString()


def _nvidia_smi(mark: str, number: int) -> bytes:
    clocks = f"<clocks><video_clock>{number} MHz</video_clock></clocks>"
    gpu = f'<gpu id="00000000:18:00.0"><minor_number>0</minor_number><uuid>GPU-1</uuid>{clocks}</gpu>'
    return f"<nvidia_smi_log><attached_gpus>1</attached_gpus>{gpu}</nvidia_smi_log>".encode()


# --- answers ---------------------------------------------------------------------------------------------


def _one(answer: httpx.Response) -> bool:
    """202: the one entry is stored, or was."""
    body = answer.json()
    assert answer.status_code == 202 and body["accepted"] + body["duplicates"] == 1, answer.text
    return True


def _new(answer: httpx.Response) -> bool:
    """Heartbeats of a node within a second of another count as duplicates and are not stored."""
    return _one(answer) and answer.json()["accepted"] == 1


def _several(answer: httpx.Response) -> bool:
    """202, with nothing that is not stored; one body holds more than one sample."""
    body = answer.json()
    assert answer.status_code == 202 and body["accepted"] and not body["rejected"], answer.text
    return True


def _silent(answer: httpx.Response) -> bool:
    """200 or 204, and no word of anything that is not stored."""
    assert answer.status_code in {200, 204} and answer.content in {b"", b"{}"}, answer.text
    return True


@dataclass(frozen=True)
class Way:
    """How one kind of signal is sent. A body that is no bytes becomes JSON. `where`: of metrics the node, and
    the signal that holds the number."""

    body: Body
    taken: Taken = _one
    kind: str = "application/json"
    query: str = ""
    where: tuple[str, str] | None = None


#: route -> its way.
EVENTS: dict[str, Way] = {
    "kernel-log": Way(_kernel),
    "logs": Way(_journal("gpu0008")),
    "otlp/v1/logs": Way(_otlp_logs, _silent),
    "heartbeat": Way(_beat, _new),
    "hooks/epilog": Way(_hook),
    "checkpoints": Way(_checkpoint),
    "alertmanager": Way(_alert),
    "cloudevents": Way(_cloudevent, kind="application/cloudevents+json"),
    "step-times": Way(_steps),
}
#: Metrics stand apart: they are promised less.
METRICS: dict[str, Way] = {
    "metrics": Way(_columnar, where=("gpu0011", "load1")),
    "openmetrics": Way(_openmetrics, kind="text/plain", query="?node=gpu0012", where=("gpu0012", "load1")),
    "prometheus/write": Way(_remote_write, _silent, _PROTOBUF, where=("gpu0013", "load1")),
    "otlp/v1/metrics": Way(_otlp, _silent, _PROTOBUF, where=("gpu0014", "load1")),
    "nvidia-smi": Way(_nvidia_smi, _several, "text/xml", "?node=gpu0015", ("gpu0015", "video_clock_mhz")),
}


def post(client: httpx.Client, route: str, way: Way, body: Any) -> httpx.Response:
    """`client`: of the API, with its token."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": way.kind} | ({"Content-Encoding": "snappy"} if "write" in route else {})
    return client.post(f"/signals/{route}{way.query}", content=content, headers=headers)


@dataclass
class Poster:
    """Sends body after body, each until it is accepted. `accepted` are numbers in their order."""

    stack: Stack
    token: str
    route: str
    way: Way
    every_s: float = 0.02
    mark: str = field(default_factory=lambda: str(next(_MARKS)))
    accepted: list[int] = field(default_factory=list)
    #: What ended it before its time.
    error: AssertionError | None = None
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"}
        with httpx.Client(base_url=f"{self.stack.url}/api/v1", headers=headers, timeout=20) as client:
            try:
                for number in itertools.count(1):
                    if not self._sent(client, number) or self._over.wait(self.every_s):
                        return
            except AssertionError as error:
                self.error = error

    def _sent(self, client: httpx.Client, number: int) -> bool:
        body = self.way.body(self.mark, number)
        while True:
            answer = None
            with contextlib.suppress(httpx.HTTPError):
                answer = post(client, self.route, self.way, body)
            if answer is not None and answer.is_success:
                if self.way.taken(answer):
                    self.accepted.append(number)
                return True
            assert answer is None or answer.status_code in {429, 500, 503}, (self.route, answer.text)
            if self._over.wait(0.05):
                return False

    def stop(self) -> None:
        self._over.set()

    def stored(self, database: psycopg.Connection) -> list[int]:
        """The numbers that are there, in the order in which they were stored."""
        if self.way.where is not None:
            return list(self._samples(database, *self.way.where))
        if self.route == "step-times":
            return list(self._steps(database))
        rows = database.execute(
            "SELECT doc::text FROM inbox WHERE (doc::text LIKE %s OR doc::text LIKE %s) "
            # An alert that was sent again is noted as going on, beside its first message.
            "AND doc #> '{data,again}' IS NULL ORDER BY id",
            [f"%feed-{self.mark}-%", f"%-feed-4000-8000-{self.mark}%"],
        )
        number = re.compile(rf"feed-{self.mark}-(\d+)|(\d+)-feed-4000-8000-{self.mark}")
        found = [number.search(doc) for (doc,) in rows]
        return [int(match[1] or match[2]) for match in found if match is not None]

    def _steps(self, database: psycopg.Connection) -> Iterator[int]:
        for row in self._rows(database, "steps", f"s{self.mark}"):
            for batch in unpacked(CLUSTER, [row])[1]:
                yield from batch.step.tolist()

    def _samples(self, database: psycopg.Connection, node: str, signal: str) -> Iterator[int]:
        ids = database.execute("SELECT id FROM signal_columns WHERE signal = %s", [signal]).fetchall()
        for row in self._rows(database, "metrics", node):
            for report in unpacked(CLUSTER, [row])[0]:
                wanted = np.isin(report.columns, ids)
                yield from map(int, report.values[wanted].tolist())

    def _rows(self, database: psycopg.Connection, kind: str, subject: str) -> list[Any]:
        return database.execute(
            "SELECT kind, subject, at, arrived_at, body, relayed_by FROM samples "
            "WHERE kind = %s AND subject = %s ORDER BY tx, id",
            [kind, subject],
        ).fetchall()


@contextmanager
def posting(stack: Stack, token: str, ways: Mapping[str, Way]) -> Iterator[dict[str, Poster]]:
    """A thread for each of the ways."""
    posters = {route: Poster(stack, token, route, way) for route, way in ways.items()}
    threads = [threading.Thread(target=one.run) for one in posters.values()]
    for one in threads:
        one.start()
    try:
        yield posters
    finally:
        for poster in posters.values():
            poster.stop()
        for one in threads:
            one.join()
    for poster in posters.values():
        if poster.error is not None:
            raise poster.error
