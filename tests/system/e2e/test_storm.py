"""A storm: half of 32 nodes report a fatal fault within 10 s. The caps hold at every moment.

With the default guards: 1 slot, at least 29 nodes in service, the breaker opens at the fifth root.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from healer.embedded.embedded_slurm import RealSlurm
from tests.support.sink import Sink, serve_sink
from tests.support.site import XID_48, XID_79, Site, site_on, stays
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

SLOTS = 1
FLOOR = 29
ROOTS = 5
HALF = [f"gpu{number:04d}" for number in range(1, 33, 2)]
#: Time in which the first ones are acted on, before it is a storm; then the pace of the others.
PACE_S = 0.45
#: A P0 pages after 10 s: only after that is one page surely the only one.
PAGES_LATE_S = 12.0

_OUT = """
SELECT count(*) FILTER (WHERE NOT unusable), count(*) FROM slots WHERE released_at IS NULL
"""


@dataclass
class Watch:
    """What was seen while the storm lasted, at every look."""

    looks: int = 0
    slots: int = 0
    out_by_us: int = 0
    drained: int = 0
    errors: list[str] = field(default_factory=list)


@contextmanager
def watching(site: Site) -> Iterator[Watch]:
    """Looks at the slots and at Slurm itself without a pause, beside the test."""
    seen, over = Watch(), threading.Event()

    def look() -> None:
        with site.database() as conn:
            while not over.wait(0.05):
                slots, nodes = conn.execute(_OUT).fetchone() or (0, 0)
                drained = site.slurm.run("sinfo", "-hN", "-t", "drain", "-o", "%N").split()
                seen.looks += 1
                seen.slots = max(seen.slots, slots)
                seen.out_by_us = max(seen.out_by_us, nodes)
                seen.drained = max(seen.drained, len(set(drained)))

    def run() -> None:
        try:
            look()
        except (psycopg.Error, OSError) as error:
            seen.errors.append(repr(error))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
    assert seen.errors == []
    assert seen.looks > 50


@pytest.fixture
def sink() -> Iterator[Sink]:
    with serve_sink() as one:
        yield one


@pytest.fixture
def site(real_slurm: RealSlurm, sink: Sink) -> Iterator[Site]:
    with site_on(real_slurm, HEALER_NOTIFY_WEBHOOK_URL=sink.url) as one:
        yield one


def storm(site: Site, line: str, *, at_once: int) -> None:
    """Some nodes at once, and once these are out the others one by one; returns when each is an incident and
    the breaker open."""
    site.snapshot()
    site.api("signals")
    began = time.monotonic()
    for node in HALF[:at_once]:
        site.kernel(node, line)
    first = HALF[:at_once]
    wait_until(lambda: all(site.drained_by_us(node) for node in first), 20, what="the first", every_s=0.1)
    for node in HALF[at_once:]:
        site.kernel(node, line)
        time.sleep(PACE_S)
    assert time.monotonic() - began < 120, "all of it within the five minutes of a storm"
    wait_until(lambda: all(site.incidents(node) for node in HALF), 15, what="16 incidents", every_s=0.2)
    wait_until(lambda: breaker(site)["state"] == "open", 10, what="the breaker opens", every_s=0.1)


def waves(site: Site) -> list[dict[str, Any]]:
    return [one for one in site.open_incidents() if one["rule"] == "wave"]


def breaker(site: Site) -> dict[str, Any]:
    return site.get("/breaker")


def incidents(site: Site) -> dict[str, dict[str, Any]]:
    """The newest of each node's own; the storm as a whole is one too, of none of them."""
    return {
        node: next(one for one in site.incidents(node) if one["root"].get("node") == node) for node in HALF
    }


def pages(site: Site) -> list[str]:
    return [name for (name,) in site.sql("SELECT id FROM messages WHERE page ORDER BY at")]


def assert_one_page(site: Site, sink: Sink) -> None:
    """In the list, and at the sink too: of the whole storm, and of nothing else."""
    stays(lambda: len(pages(site)) == 1, PAGES_LATE_S, what="one page")
    assert pages(site)[0].startswith("breaker:pod1:")
    wait_until(lambda: pages(site)[0] in sink.ids(), 10, what="the page reached the sink")
    assert [name for name in sink.ids() if name.startswith("breaker:")] == pages(site)
    assert not [name for name in sink.ids() if name.endswith(":p0")]


def assert_one_wave(site: Site, nodes: list[str], *, held_by: set[str]) -> None:
    """What the breaker holds is one thing to decide; what another guard holds too stays separate."""

    def folded() -> bool:
        (wave,) = waves(site)
        own = [one for one in incidents(site).values() if one["root"]["node"] in nodes]
        alone = [one for one in own if one["merged_into"] != wave["id"]]
        return (
            wave["severity"] == "P0"
            and {*wave["folded"]} | {one["root"]["node"] for one in alone} == {*nodes}
            and all(one["held_by"] in held_by - {"breaker"} and one["severity"] == "P0" for one in alone)
        )

    wait_until(folded, 10, what="one incident of all that the breaker holds", every_s=0.2)


def assert_resume_works(site: Site, node: str) -> None:
    assert breaker(site)["state"] == "open"
    answer = site.resume(node)
    assert answer.status_code == 202, answer.text
    wait_until(lambda: site.node(node).in_service, 20, what=f"{node} is back", every_s=0.1)
    wait_until(lambda: incidents(site)[node]["state"] == "resolved", 10, what="resolved", every_s=0.1)


def out_now(site: Site) -> list[str]:
    return sorted(node for node in HALF if site.drained_by_us(node))


def test_a_storm_of_ecc_errors_takes_no_more_than_the_slots(site: Site, sink: Sink) -> None:
    with watching(site) as seen:
        storm(site, XID_48, at_once=SLOTS)
        assert_one_page(site, sink)
        assert len(breaker(site)["roots"]) >= ROOTS
        out = out_now(site)
        assert out == HALF[:SLOTS]
        assert_one_wave(site, HALF[SLOTS:], held_by={"breaker"})
        site.keep("storm-xid-48")
        assert_resume_works(site, out[0])
        stays(lambda: out_now(site) == [], 3.0, what="nothing new is taken while the breaker is open")
    assert (seen.slots, seen.out_by_us, seen.drained) == (SLOTS, SLOTS, SLOTS)
    assert sum(site.drains(node) for node in HALF) == SLOTS
    site.audit_holds()


def test_surely_unusable_nodes_pass_the_slots_but_not_the_floor_nor_the_breaker(
    site: Site, sink: Sink
) -> None:
    with watching(site) as seen:
        storm(site, XID_79, at_once=32 - FLOOR)
        assert_one_page(site, sink)
        out = out_now(site)
        assert out == HALF[: 32 - FLOOR]
        assert_one_wave(site, HALF[32 - FLOOR :], held_by={"breaker", "floor"})
        assert all(site.get(f"/nodes/pod1/{node}")["known_bad_in_service"] for node in HALF[32 - FLOOR :])
        site.keep("storm-xid-79")
        assert_resume_works(site, out[0])
        stays(lambda: out_now(site) == out[1:], 3.0, what="nothing new is taken while the breaker is open")
    assert seen.slots == 0, "what law 2 lets pass uses no slot up"
    assert seen.out_by_us == seen.drained == len(out)
    assert sum(site.drains(node) for node in HALF) == len(out)
    site.audit_holds()
