"""What every `ports.SiteCommands` must do: in memory, and real programs that outlive who started them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import pytest

from healer.adapters.commands import runner
from healer.adapters.commands.command_runs import Commands
from healer.model import CommandSeen
from healer.ports.node_exec import CommandFailed, SiteCommands
from healer.sim.sim_clock import SimClock
from healer.sim.stores import SimCommands
from tests.support.wait import wait_until

KEY = "r1:reroute:0"


class Bench(Protocol):
    commands: SiteCommands

    def program(self, code: int | None, output: str = "") -> str:
        """A program that ends so; None: never by itself."""
        ...

    def ended(self) -> CommandSeen: ...
    def started(self) -> list[tuple[str, ...]]: ...


class InMemory:
    def __init__(self) -> None:
        self.clock = SimClock(datetime(2026, 11, 20, 3, tzinfo=UTC))
        self.sim = self.commands = SimCommands(self.clock)

    def program(self, code: int | None, output: str = "") -> str:
        self.sim.plant("/site/reroute", code, output)
        return "/site/reroute"

    def ended(self) -> CommandSeen:
        self.clock.advance(60)
        return self.commands.look(KEY)

    def started(self) -> list[tuple[str, ...]]:
        return self.sim.started()


class Real:
    """`go` is the file for which the program waits: so nothing depends on who is faster."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.go, self.calls = folder, folder / "go", folder / "told"
        self.commands = Commands(folder / "records")

    def program(self, code: int | None, output: str = "") -> str:
        path = self.folder / "reroute"
        wait = f"until [ -e {self.go} ]; do sleep 0.02; done" if code is not None else "sleep 1000"
        path.write_text(
            f"#!/bin/sh\necho \"$0 $*\" >>{self.calls}\necho '{output}'\n{wait}\nexit {code or 0}\n"
        )
        path.chmod(0o755)
        return str(path)

    def ended(self) -> CommandSeen:
        self.go.touch()

        def there() -> CommandSeen | None:
            seen = self.commands.look(KEY)
            return seen if seen.state != "running" else None

        found = wait_until(there, 20, what="the command ends")
        assert found is not None
        return found

    def started(self) -> list[tuple[str, ...]]:
        wait_until(self.calls.exists, 10, what="the program begins")
        return [tuple(line.split()) for line in self.calls.read_text().splitlines()]


@pytest.fixture(params=["in memory", "real"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InMemory | Real]:
    yield InMemory() if request.param == "in memory" else Real(tmp_path)


def test_it_runs_once_with_its_words_and_its_end_is_read_back(bench: Bench) -> None:
    path = bench.program(0, "link is out")
    assert bench.commands.look(KEY).state == "never"
    for _ in range(2):
        bench.commands.start(KEY, (path, "--node", "gpu0007"), 30)
    assert bench.commands.look(KEY).state == "running"
    seen = bench.ended()
    assert (seen.state, seen.code, seen.output.strip()) == ("ended", 0, "link is out")
    bench.commands.start(KEY, (path, "--node", "gpu0007"), 30)
    assert bench.started() == [(path, "--node", "gpu0007")]


def test_records_lie_at_a_place_with_a_name_of_its_own(tmp_path: Path) -> None:
    here, again, elsewhere = (Commands(tmp_path / folder) for folder in ("a", "a", "b"))
    assert here.place() == again.place() != elsewhere.place()


@pytest.mark.parametrize("code", [1, 3])
def test_exit_status_is_reported(bench: Bench, code: int) -> None:
    bench.commands.start(KEY, (bench.program(code),), 30)
    assert (bench.ended().code, bench.commands.look(KEY).state) == (code, "ended")


def test_command_that_does_not_end_is_killed(bench: Bench) -> None:
    bench.commands.start(KEY, (bench.program(None, "begins"),), 0.2)
    seen = bench.ended()
    assert (seen.state, seen.code, seen.output.strip()) == ("timed_out", None, "begins")


def test_missing_program_was_not_started(bench: Bench) -> None:
    with pytest.raises(CommandFailed, match="/nowhere/reroute is missing"):
        bench.commands.start(KEY, ("/nowhere/reroute",), 30)
    assert bench.commands.look(KEY).state == "never"


# --- real alone


def test_it_outlives_the_worker_that_started_it(tmp_path: Path) -> None:
    """The worker's whole process group is killed: the command goes on, and who comes next reads its end."""
    bench = Real(tmp_path)
    path = bench.program(0, "done")
    script = (
        "import os, signal; from pathlib import Path\n"
        "from healer.adapters.commands.command_runs import Commands\n"
        f"Commands(Path({str(tmp_path / 'records')!r})).start({KEY!r}, ({path!r},), 30)\n"
        "os.killpg(0, signal.SIGKILL)"
    )
    died = subprocess.run([sys.executable, "-c", script], start_new_session=True, check=False)
    assert died.returncode == -signal.SIGKILL
    assert bench.commands.look(KEY).state == "running"
    assert bench.ended().code == 0 and len(bench.started()) == 1


def test_interrupted_command_is_reported_as_lost_and_not_restarted(tmp_path: Path) -> None:
    bench = Real(tmp_path)
    path = bench.program(0)
    bench.commands.start(KEY, (path,), 30)
    assert len(bench.started()) == 1
    runners = [pid for pid in _of(tmp_path) if pid != os.getpid()]
    assert runners
    for pid in runners:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: bench.commands.look(KEY).state == "lost", 10, what="it is known to be cut short")
    bench.go.touch()
    bench.commands.start(KEY, (path,), 30)
    assert bench.commands.look(KEY).state == "lost" and len(bench.started()) == 1


def test_a_flood_of_output_is_cut_to_its_end(tmp_path: Path) -> None:
    bench = Real(tmp_path)
    path = tmp_path / "flood"
    path.write_text("#!/bin/sh\nhead -c 3000000 /dev/zero | tr '\\0' x\necho the end\n")
    path.chmod(0o755)
    bench.commands.start(KEY, (str(path),), 30)
    seen = bench.ended()
    assert seen.output.endswith("the end\n") and len(seen.output) <= 4000
    assert (tmp_path / "records" / f"{KEY}.json").stat().st_size < 2 * runner.OUTPUT_BYTES


def test_leftover_child_processes_block_nothing(tmp_path: Path) -> None:
    bench = Real(tmp_path)
    path = tmp_path / "leaves"
    path.write_text("#!/bin/sh\nsleep 1000 &\nexit 1\n")
    path.chmod(0o755)
    bench.commands.start(KEY, (str(path),), 60)
    assert bench.ended().code == 1


def test_healer_secrets_are_not_passed_to_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEALER_DATABASE_URL", "postgresql://healer:s3cr3t@db")
    bench = Real(tmp_path)
    path = tmp_path / "env"
    path.write_text("#!/bin/sh\nenv\n")
    path.chmod(0o755)
    bench.commands.start(KEY, (str(path),), 30)
    said = bench.ended().output
    assert f"HEALER_KEY={KEY}" in said and "s3cr3t" not in said


def _of(folder: Path) -> list[int]:
    """Processes that hold this folder's lock open: the runner, and no program of the site."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        if any(link == str(folder / "records" / f"{KEY}.lock") for link in links):
            found.append(int(pid))
    return found
