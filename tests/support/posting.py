"""One sender for each kind of signal, each with numbered bodies: what was answered against what is stored."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
import psycopg

from healer.adapters.postgres.samples import unpacked
from tests.support.up import Stack

CLUSTER = "pod1"
NODE = "gpu0007"
#: Each life of a Poster has a number of its own: several may lie in one database.
_MARKS = itertools.count(1)

Body = Callable[[str, int], dict[str, Any]]


def _kernel(mark: str, number: int) -> dict[str, Any]:
    line = f"NVRM: GPU at PCI:0000:9b:00: GPU-{number:08d}-feed-4000-8000-{mark}"
    boot_id = f"0b11d014-1685-04bd-26ed-{mark}"
    return {"node": NODE, "boot_id": boot_id, "entries": [{"line": line, "seq": number}]}


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


def _steps(mark: str, number: int) -> dict[str, Any]:
    return {"job": f"s{mark}", "restart": 0, "samples": [{"step": number, "rank": 0, "step_s": 1.5}]}


def _metrics(mark: str, number: int) -> dict[str, Any]:
    return {"node": NODE, "host": {"load1": float(number)}}


def _now() -> str:
    return datetime.now(UTC).isoformat()


#: route -> its body. Metrics stand apart: they are promised less.
EVENTS: dict[str, Body] = {
    "kernel-log": _kernel,
    "heartbeat": _beat,
    "hooks/epilog": _hook,
    "checkpoints": _checkpoint,
    "alertmanager": _alert,
    "step-times": _steps,
}
METRICS = "metrics"
_IN_INBOX = ("kernel-log", "heartbeat", "hooks/epilog", "checkpoints", "alertmanager")


@dataclass
class Poster:
    """Sends body after body, each until it is accepted. `accepted` are numbers in their order."""

    stack: Stack
    token: str
    route: str
    make: Body
    every_s: float = 0.01
    mark: str = field(default_factory=lambda: f"{next(_MARKS):012d}")
    accepted: list[int] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"}
        with httpx.Client(base_url=f"{self.stack.url}/api/v1", headers=headers, timeout=20) as client:
            for number in itertools.count(1):
                if not self._sent(client, number) or self._over.wait(self.every_s):
                    return

    def _sent(self, client: httpx.Client, number: int) -> bool:
        body = self.make(self.mark, number)
        while True:
            answer = None
            with contextlib.suppress(httpx.HTTPError):
                answer = client.post(f"/signals/{self.route}", json=body)
            if answer is not None and answer.status_code == 202:
                told = answer.json()
                assert told["accepted"] + told["duplicates"] == 1, (self.route, told)
                # Heartbeats of a node within a second of another count as duplicates and are not stored.
                if self.route != "heartbeat" or told["accepted"]:
                    self.accepted.append(number)
                return True
            assert answer is None or answer.status_code in {429, 500, 503}, (self.route, answer.text)
            if self._over.wait(0.05):
                return False

    def stop(self) -> None:
        self._over.set()

    def stored(self, database: psycopg.Connection) -> list[int]:
        """The numbers that are there, in the order in which they were stored."""
        if self.route in _IN_INBOX:
            wanted = f"{'%' if self.route == 'kernel-log' else 'feed-'}{self.mark}"
            rows = database.execute(
                "SELECT substring(doc::text FROM %s) FROM inbox WHERE doc::text LIKE %s "
                # An alert that was sent again is noted as going on, beside its first telling.
                "AND doc #> '{data,again}' IS NULL ORDER BY id",
                [
                    rf"(\d+)-feed-4000-8000-{self.mark}"
                    if self.route == "kernel-log"
                    else rf"feed-{self.mark}-(\d+)",
                    f"%{wanted}%",
                ],
            )
            return [int(number) for (number,) in rows if number is not None]
        return [number for batch in self._rows(database) for number in batch]

    def _rows(self, database: psycopg.Connection) -> Iterator[list[int]]:
        kind, subject = ("metrics", NODE) if self.route == METRICS else ("steps", f"s{self.mark}")
        rows = database.execute(
            "SELECT at, arrived_at, body FROM samples WHERE kind = %s AND subject = %s ORDER BY tx, id",
            [kind, subject],
        )
        for at, arrived_at, body in rows:
            reports, batches = unpacked(CLUSTER, [(kind, subject, at, arrived_at, body)])
            values = reports[0].values if kind == METRICS else batches[0].step
            yield [int(value) for value in values.tolist()]


@contextmanager
def posting(stack: Stack, token: str, *routes: str) -> Iterator[dict[str, Poster]]:
    """A thread for each of the routes (all of EVENTS without any)."""
    bodies = EVENTS | {METRICS: _metrics}
    posters = {route: Poster(stack, token, route, bodies[route]) for route in routes or tuple(EVENTS)}
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
