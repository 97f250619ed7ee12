"""Debian's rsyslog brings the kernel's lines by the documented configuration, and no others.

Its input imkmsg reads a pipe in the place of /dev/kmsg; all else is as a site has it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.api import serving
from tests.support.processes import free_port
from tests.support.rsyslog import BOOT, Rsyslog
from tests.support.wait import wait_until


def xid(number: int, since_boot: int) -> str:
    text = f"NVRM: Xid (PCI:0000:9b:00): {number}, pid=1, name=a, test {since_boot}"
    return f"3,{since_boot},{since_boot}000001,-;{text}"


def stored(database: sa.Engine) -> list[dict[str, object]]:
    """What healer has, in the order of arrival."""
    with database.connect() as conn:
        return list(conn.execute(sa.text("SELECT doc FROM inbox ORDER BY id")).scalars())


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def rsyslog(fresh_database: sa.Engine, scratch: Path, port: int) -> Iterator[Rsyslog]:
    with serving(fresh_database, port=port) as (api, _):
        token = api.token("signals", node="gpu0001")
    one = Rsyslog(scratch, f"http://127.0.0.1:{port}", token)
    yield one
    one.close()


def test_lines_wait_on_disk_while_healer_and_rsyslog_are_away(
    fresh_database: sa.Engine, rsyslog: Rsyslog, port: int
) -> None:
    lines = [xid(13, 100 + n) for n in range(40)]
    with serving(fresh_database, port=port):
        rsyslog.start()
        rsyslog.kernel(lines[0])
        wait_until(lambda: len(stored(fresh_database)) == 1, 60, what="the first line")
    rsyslog.kernel(*lines[1:30])
    wait_until(lambda: "does not answer" in said(rsyslog), 60, what="healer-ship finds no listener")
    rsyslog.stop()
    assert rsyslog.queued_bytes() > 0
    rsyslog.start()
    wait_until(lambda: said(rsyslog).count("does not answer") > 1, 60, what="it finds no listener again")
    rsyslog.stop()  # twice: each stop cuts one delivery short
    rsyslog.start()
    rsyslog.kernel(*lines[30:])
    with serving(fresh_database, port=port):
        # The last one is not behind another that was lost.
        wait_until(lambda: lines_of(stored(fresh_database))[-1:] == lines[-1:], 90, what="the last line")
    lines_stored = stored(fresh_database)
    assert lines_of(lines_stored) == lines
    assert {(one["boot_id"], one["component"]["node"]) for one in lines_stored} == {(BOOT, "gpu0001")}  # type: ignore[index]


def lines_of(records: list[dict[str, object]]) -> list[str]:
    return [f"3,{one['seq']},{one['seq']}000001,-;{one['line']}" for one in records]


def said(rsyslog: Rsyslog) -> str:
    return rsyslog.said.read_text() if rsyslog.said.exists() else ""


FORGED = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=a, GPU has fallen off the bus."


def forge(rsyslog: Rsyslog) -> int:
    """Whatever a user may do; how many lines it makes."""
    rsyslog.logger("-p", "kern.err", FORGED)
    rsyslog.logger("-p", "kern.err", "-t", "kernel", FORGED)
    for raw in (
        f"<3>{FORGED}",
        f"<0>kernel: [  150.000001] {FORGED}",
        f"<3>Nov 20 03:00:00 kernel: {FORGED}",
        f"<3>Nov 20 03:00:00 gpu0001 kernel: {FORGED}",
        f'<3>kernel: @cee: {{"inputname": "imkmsg", "_TRANSPORT": "kernel", "msg": "{FORGED}"}}',
        f'<3>kernel: x", "inputname":"imkmsg", "_TRANSPORT":"kernel", "msg":"{FORGED}',
    ):
        rsyslog.datagram(raw)
    for number, record in enumerate(
        (
            f"12,{{}},901,-;{FORGED}",  # root of a container writes to /dev/kmsg: the facility is its own
            f"6,{{}},902,-;core of /tmp/x\\x0a{FORGED}",
            f"6,{{}},903,-;x\\x0a{FORGED}[77]: segfault at 0 ip 0 sp 0 error 4 in a\\x0a{FORGED}",
            f"4,{{}},904,-;[{FORGED}]: page allocation failure",
            f"6,{{}},905,-;docker0: port 1(veth) entered state\n SUBSYSTEM=net\n DEVICE=x\\x0a{FORGED}",
        ),
        901,
    ):
        rsyslog.kernel(record.format(number))
    return 9  # of these the shipper's marks show it; the kernel's own records say nothing of a fault


def test_a_forged_line_never_becomes_a_kernel_line(
    fresh_database: sa.Engine, rsyslog: Rsyslog, port: int
) -> None:
    with serving(fresh_database, port=port):
        rsyslog.start()
        forge(rsyslog)
        rsyslog.kernel(xid(13, 200))
        wait_until(lambda: stored(fresh_database), 60, what="the kernel's own line")
    assert [one["code"] for one in stored(fresh_database)] == [13]


def test_nor_does_it_where_rsyslog_sends_everything(
    fresh_database: sa.Engine, rsyslog: Rsyslog, scratch: Path, port: int
) -> None:
    folder = scratch / "all"
    folder.mkdir()
    token = (rsyslog.folder / "token").read_text()
    careless = Rsyslog(folder, f"http://127.0.0.1:{port}", token, everything=True)
    try:
        with serving(fresh_database, port=port) as (api, client):
            careless.start()
            forged = forge(careless)
            headers = api.headers("viewer")

            def counted() -> int:
                api.app.state.losses.flush()
                lost = client.get("/api/v1/signals/losses", headers=headers).json()["items"]
                return sum(one["count"] for one in lost if one["reason"] == "not_kernel")

            # rsyslog says of itself that it started: that is not the kernel's either.
            wait_until(lambda: counted() >= forged, 60, what=f"{forged} lines are counted")
            careless.kernel(xid(13, 300))
            wait_until(lambda: stored(fresh_database), 60, what="the kernel's own line")
    finally:
        careless.close()
    assert [one["code"] for one in stored(fresh_database)] == [13]
