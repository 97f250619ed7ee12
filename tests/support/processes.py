"""What runs on this machine, by /proc."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_ONE = ("--map-user=1000", "--map-group=1000")
#: Before a command that root's tests start, and that refuses to be root: it has a user id of its own and none
#: of root's rights, files and servers take it for who started it, and it may connect to embedded servers.
NOT_ROOT = () if os.geteuid() != 0 else ("setpriv", "--groups=healer", "unshare", "--user", *_ONE)


def descendants(pid: int) -> set[int]:
    """All living processes below `pid`, itself included."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):  # not of each its `stat`: glob raises where one ends meanwhile
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state not in "ZX":
            parents[int(entry.name)] = int(parent)
    found = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def living(pids: set[int]) -> set[int]:
    """Those of `pids` that still live; a zombie does not."""
    found = set[int]()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            found.add(pid)
    return found


def name_of(pid: int) -> str:
    """The command line as process lists show it; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def memory_holds(pid: int, secret: bytes) -> bool:
    """Whether it is anywhere in the memory of the process."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in maps.splitlines():
            if not re.match(r"[0-9a-f]+-[0-9a-f]+ rw", line) or "[vvar" in line:
                continue
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            try:
                memory.seek(begin)
                if secret in memory.read(end - begin):
                    return True
            except (OSError, ValueError, OverflowError):
                continue
    return False


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]


def clean_environ(**more: str) -> dict[str, str]:
    """Ours without any HEALER_ setting of the caller, and with `more`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HEALER_")} | more


def unlogged(*command: str) -> list[str]:
    """The command without this machine's syslog, where root runs the tests: what it says is no news there."""
    if os.geteuid() or not Path("/dev/log").exists():
        return [*command]
    return ["unshare", "--mount", "sh", "-c", 'mount --bind /dev/null /dev/log && exec "$0" "$@"', *command]


@contextmanager
def running(log: Path, *command: str, environ: Mapping[str, str] | None = None) -> Iterator[None]:
    """While a program of one process runs, as the user who runs the tests. Its input stays open meanwhile.
    Where the test's own process is killed, the kernel ends it."""
    environ = clean_environ() if environ is None else environ
    found = shutil.which(command[0], path=environ.get("PATH"))
    assert found, f"{command[0]} is not installed: tools/setup --system installs it"
    with log.open("wb") as said:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *unlogged(found, *command[1:])],
            stdin=subprocess.PIPE, stdout=said, stderr=said, env=environ,
        )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
