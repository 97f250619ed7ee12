"""What tests start of others' programs ends with them, whatever happens meanwhile."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import snmp
from tests.support.processes import living, running
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy


def test_a_program_ends_with_a_killed_test(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from tests.support.processes import *\n"
        "with running(Path(sys.argv[1]), 'sh', '-c', 'echo $$; exec sleep 600'): time.sleep(600)\n"
    )
    log = tmp_path / "log"
    process = subprocess.Popen([sys.executable, "-c", program, str(log)])
    try:
        wait_until(lambda: log.exists() and log.read_text().endswith("\n"), 30, what="the program runs")
        pid = int(log.read_text())
        assert living({pid}) == {pid}
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_until(lambda: living({pid}) == set(), what="the program has ended")


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="no-such-program is not installed"),
        running(tmp_path / "log", "no-such-program"),
    ):
        pass


def test_nothing_is_left_where_a_server_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snmp, "SNMPD", "no-such-snmpd")
    served: list[snmp._Server] = []
    monkeypatch.setattr(snmp._Server, "serve_forever", lambda self, **_: served.append(self))
    monkeypatch.setattr(snmp._Server, "shutdown", lambda _: None)
    with pytest.raises(AssertionError, match="no-such-snmpd"), snmp.snmp_exporter(tmp_path, {}):
        pass
    assert [one.socket.fileno() for one in served] == [-1], "closed"
