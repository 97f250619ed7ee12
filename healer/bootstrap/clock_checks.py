"""Checks of `healer doctor`: the clocks of this machine and of the nodes."""

import ctypes
from collections.abc import Mapping
from datetime import timedelta

import sqlalchemy as sa

from healer.adapters.postgres.sample_reads import clock_skews
from healer.adapters.system_clock import SystemClock
from healer.bootstrap.doctor_checks import NAMED, Check, ask_database, managed_clusters
from healer.settings import Settings
from healer.text import NO_WORDS, name_some, say

#: Heartbeats come every 10 s; the one with the least delay counts.
_HEARD_WITHIN = timedelta(minutes=5)
#: A node whose clock is further off refuses requests at 60 s, and orders its own lines wrongly long before.
NODE_CLOCK_S = 5.0
#: What adjtimex(2) returns while nothing disciplines the clock, and more than the size of its struct.
_TIME_ERROR, _TIMEX_BYTES = 5, 512


def check_clocks(settings: Settings) -> list[Check]:
    """The database's clock is another check's."""
    since = SystemClock().now() - _HEARD_WITHIN

    def ask(_: sa.Engine, conn: sa.Connection) -> list[tuple[str, dict[str, float]]]:
        clusters = managed_clusters(settings, conn)
        return [(cluster, clock_skews(conn, cluster, since)) for cluster in clusters]

    found = [own_clock(is_synchronised())]
    return found + [node_clocks(name, skews) for name, skews in ask_database(settings, ask) or [] if skews]


def is_synchronised() -> bool | None:
    """The kernel's report about NTP or PTP; None if there is none. Reading needs no privilege."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def own_clock(synchronised: bool | None) -> Check:
    """Never a failure: a hypervisor may keep the clock of its guest without a word to the kernel."""
    name = say("doctor.own_clock")
    if synchronised is None:
        return Check(name, True, say("doctor.clock_unknown"))
    if synchronised:
        return Check(name, True, say("doctor.clock_kept"))
    return Check(name, True, say("doctor.clock_alone"), say("doctor.clock_alone_repair"))


def node_clocks(cluster: str, skews: Mapping[str, float]) -> Check:
    name = say("doctor.node_clocks")
    worst = sorted(skews, key=lambda node: (-abs(skews[node]), node))
    off = [node for node in worst if abs(skews[node]) >= NODE_CLOCK_S]
    text = say("doctor.nodes_in_time", cluster=cluster, good=len(skews) - len(off), nodes=len(skews))
    if not off:
        return Check(name, True, text, NO_WORDS)
    few = name_some([say("doctor.node_clock_off", node=node, seconds=skews[node]) for node in off], NAMED)
    return Check(
        name, False, say("doctor.nodes_out_of_time", text=text, nodes=few), say("doctor.node_clocks_repair")
    )
