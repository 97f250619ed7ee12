"""One event is one event, however many senders report it and whatever each of them leaves out."""

import random
from collections.abc import Callable

import pytest

from tests.stories.test_replay import Row, actions, clock, job, jobs, nodes, played, row
from tests.support.loop import CLUSTER, later, name

pytestmark = pytest.mark.heavy

#: Seconds from the start; by the node's monotonic clock 802 s more.
EVENT_S = 10.25
TEXT = f"signals/kernel-log?cluster={CLUSTER}&node={name(1)}"
LINES = {
    "contained memory error": "94, pid=1896, name=python, Contained: SM (0x1). RST: No, D-RST: No",
    "row to be remapped": "63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.",
    "lost GPU": "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "double-bit error": "48, pid=12, name=python, DBE (double bit error) was detected",
    "program's error": "31, pid=7, name=p, MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted",
    "NVLink": "74, pid=1, NVLink: fatal error detected on link 4(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
}


def stamp(seconds: float) -> str:
    return later(seconds).isoformat().replace("+00:00", "Z")


def entry(at: float, line: str, *, boot_id: str | None = None, **fields: object) -> Row:
    body = {"cluster": CLUSTER, "node": name(1), "entries": [{"line": line, **fields}]}
    return row(at, "signals/kernel-log", body | ({"boot_id": boot_id} if boot_id else {}))


SENDERS: dict[str, Callable[[float, str], Row]] = {
    "follower": lambda at, line: entry(at, line, boot_id="b1", seq=123, time=stamp(EVENT_S)),
    "follower without time": lambda at, line: entry(at, line, boot_id="b1", seq=123),
    "journal": lambda at, line: entry(at, line, boot_id="b1", time=stamp(EVENT_S)),
    "relay": lambda at, line: entry(at, line, time=stamp(EVENT_S + 0.4)),
    "relay of whole seconds": lambda at, line: entry(at, line, time=stamp(int(EVENT_S))),
    "line alone": entry,
    "dmesg": lambda at, line: row(at, TEXT, f"[  812.250000] {line}"),
    "dmesg -T": lambda at, line: row(at, TEXT, f"[Fri Nov 20 03:00:09 2026] {line}"),
    "syslog": lambda at, line: row(at, TEXT, f"Nov 20 03:00:10 {name(1)} kernel: {line}"),
}


def outcome(*rows: Row) -> tuple[list[tuple[object, ...]], list[object]]:
    document = played(nodes(), jobs(0, job()), *sorted(rows, key=lambda one: one["at"]), clock(50_000))
    found = [(one["rule"], one["severity"], one["root"].get("pci")) for one in document["incidents"]]
    return found, actions(document)


@pytest.mark.parametrize("seed", range(24))
def test_any_senders_in_any_order_within_an_hour_are_one_event(seed: int) -> None:
    drawn = random.Random(seed)
    kind = drawn.choice(list(LINES))
    line = f"NVRM: Xid (PCI:0000:9b:00): {LINES[kind]}"
    senders = drawn.sample(list(SENDERS), drawn.randint(2, len(SENDERS)))
    delays = [drawn.choice([drawn.uniform(0, 30), drawn.uniform(0, 3500)]) for _ in senders]
    rows = [SENDERS[sender](EVENT_S + delay, line) for sender, delay in zip(senders, delays, strict=True)]
    first = min(zip(delays, rows, strict=True), key=lambda one: one[0])[1]
    assert outcome(*rows) == outcome(first), (kind, senders, delays)


def test_dmesg_read_each_hour_adds_nothing() -> None:
    line = f"NVRM: Xid (PCI:0000:9b:00): {LINES['contained memory error']}"
    read = [SENDERS["dmesg"](EVENT_S + 3600 * hour, line) for hour in range(12)]
    assert outcome(*read) == outcome(read[0])


def test_a_line_that_comes_again_is_another_event() -> None:
    """By one sender with another sequence number, and with another time."""
    line = f"NVRM: Xid (PCI:0000:9b:00): {LINES['contained memory error']}"
    again = entry(900, line, boot_id="b1", seq=500, time=stamp(899))
    found, done = outcome(SENDERS["follower"](11, line), again, SENDERS["line alone"](1500, line))
    assert found[0][0] == "gpu-contained-again"
    assert ("drain", name(1), None) in done


def test_of_two_lines_without_time_the_one_after_a_repair_is_news() -> None:
    line = f"NVRM: Xid (PCI:0000:9b:00): {LINES['lost GPU']}"
    returned = nodes(1200), nodes(1300)
    found, done = outcome(SENDERS["line alone"](11, line), *returned, SENDERS["syslog"](1500, line))
    assert [rule for rule, *_ in found].count("gpu-lost") == 2, (found, done)
