"""tools/setup keeps daemons from starting while it installs them, and leaves the machine as it was."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy

SETUP = Path(__file__).parents[2] / "tools" / "setup"


def script(policy: Path, command: str) -> list[str]:
    """Its function around `command`, with another place for the policy."""
    found = re.search(r"^without_units\(\).*?^}", SETUP.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    function = found[0].replace("/usr/sbin/policy-rc.d", str(policy))
    assert function != found[0]
    # A shell cannot catch what its caller ignores, as those in the background ignore Ctrl-C.
    return ["env", "--default-signal", "sh", "-euc", f"{function}\nunits=\nwithout_units {command}"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_of_a_stopped_run(tmp_path: Path, number: signal.Signals) -> None:
    policy, begun, command = tmp_path / "policy-rc.d", tmp_path / "begun", tmp_path / "install"
    # A command that has only been forked takes the signal for its shell, and then runs to its end.
    command.write_text(f"#!/bin/sh\ntouch {begun}\nexec sleep 60\n")
    command.chmod(0o755)
    process = subprocess.Popen(script(policy, str(command)), process_group=0)
    wait_until(begun.exists, what="it installs")
    assert subprocess.run([policy], check=False).returncode == 101
    os.killpg(process.pid, number)
    assert process.wait(30) != 0
    wait_until(lambda: not policy.exists(), what="the policy is gone")


def test_policy_file_left_by_a_killed_run_is_removed_by_the_next(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    process = subprocess.Popen(script(policy, "sleep 60"), process_group=0)
    wait_until(lambda: policy.exists() and os.access(policy, os.X_OK), what="it installs")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    assert policy.exists()
    assert subprocess.run(script(policy, "true"), check=False).returncode == 0
    assert not policy.exists()


@pytest.mark.parametrize("command", ["true", "false"])
def test_site_policy_is_kept_and_the_exit_of_the_command_is_reported(tmp_path: Path, command: str) -> None:
    policy = tmp_path / "policy-rc.d"
    assert subprocess.run(script(policy, command), check=False).returncode == (command == "false")
    assert not policy.exists()
    policy.write_text("#!/bin/sh\nexit 0\n")
    assert subprocess.run(script(policy, command), check=False).returncode == (command == "false")
    assert policy.read_text() == "#!/bin/sh\nexit 0\n"
