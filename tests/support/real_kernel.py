"""What a user of a node can make this machine's real kernel log: crashes, and lines written to /dev/kmsg."""

import contextlib
import os
import re
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import clean_environ
from tests.support.wait import wait_until

_BASE = 0x400000
#: xor eax, eax; mov [rax], eax: a write to address 0.
_CODE = bytes.fromhex("31c08900")
JOURNALD = "/usr/lib/systemd/systemd-journald"


def _program() -> bytes:
    """The smallest ELF for x86-64 that crashes: the kernel logs the name of its file."""
    size = 64 + 56 + len(_CODE)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, _BASE + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return head + struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000) + _CODE


def crash(folder: Path, name: str) -> None:
    """A program of that file name is killed by the kernel, which says so in its log: of ten in 5 s.

    Its record is known by the name, which begins with a word of its own: the kernel logs the process id of
    no namespace."""
    path = folder / name
    path.write_bytes(_program())
    path.chmod(0o755)
    device = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    os.lseek(device, 0, os.SEEK_END)

    begin = f";{re.split(r'[^0-9A-Za-z.]', name)[0]}".encode()

    def is_logged() -> bool:
        assert subprocess.Popen([path], cwd=folder).wait() == -11
        return any(begin in record and b"]: segfault" in record for record in _records(device))

    try:
        wait_until(is_logged, 30, what="the kernel logs the crash", every_s=1)
    finally:
        os.close(device)


_OUT_OF_MEMORY = """
place=$(mktemp -d)
trap 'rmdir "$place/$1"; umount "$place"; rmdir "$place"' EXIT
if mount -t cgroup -o memory groups "$place" 2>/dev/null; then
    limit=memory.limit_in_bytes
else
    mount -t cgroup2 groups "$place" && echo +memory >"$place/cgroup.subtree_control" && limit=memory.max
fi
mkdir "$place/$1" && echo 16M >"$place/$1/$limit" || exit 1
sh -c 'echo $$ >"$1/cgroup.procs" && exec python3 -c "bytearray(range(1, 129)) * (1 << 20)"' sh "$place/$1"
[ $? = 137 ] || exit 1
sleep 0.2
"""


def run_out_of_memory(name: str) -> None:
    """A process in a container of that name is killed for its memory: the kernel's record names the group."""
    command = ["unshare", "--mount", "sh", "-c", _OUT_OF_MEMORY, "sh", name]
    subprocess.run(command, check=True, capture_output=True)


def _records(device: int) -> Iterator[bytes]:
    with contextlib.suppress(BlockingIOError):
        while True:
            yield os.read(device, 16384)


def write(text: str) -> None:
    """What root of a privileged container writes to /dev/kmsg, in one record."""
    device = os.open("/dev/kmsg", os.O_WRONLY)
    try:
        os.write(device, text.encode())
    finally:
        os.close(device)


_JOURNALD = f"""
mount --make-rprivate / && mount -t tmpfs none /run && mkdir -p /run/systemd/journal /run/log/journal
printf '[Journal]\\nStorage=volatile\\nReadKMsg=yes\\nRateLimitBurst=0\\n' > /run/journald.conf
mount --bind /run/journald.conf /etc/systemd/journald.conf
mount --bind "$0" /run/log/journal && exec {JOURNALD}
"""


@contextmanager
def journald(folder: Path) -> Iterator[Path]:
    """Debian's journald on this machine's kernel log, apart from all else. Yields a `journalctl` of it."""
    files, program = folder / "journal", folder / "journalctl"
    files.mkdir()
    program.write_text(f'#!/bin/sh\nexec /usr/bin/journalctl -D {files} "$@"\n')
    program.chmod(0o755)
    command = ["unshare", "-m", "sh", "-ec", _JOURNALD, str(files)]
    process = subprocess.Popen(command, env=clean_environ(), stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: list(files.rglob("*.journal")), 30, what="journald keeps a journal")
        (folder / "sockets").symlink_to(f"/proc/{process.pid}/root/run/systemd/journal")
        yield program
    finally:
        process.terminate()
        process.wait(20)


def say_to_journald(folder: Path, line: str) -> None:
    """What any user of the node says to that journald, in both forms that it takes: as if it was the
    kernel."""
    fields = f"MESSAGE={line}\nPRIORITY=3\nSYSLOG_FACILITY=0\n_TRANSPORT=kernel\nSYSLOG_IDENTIFIER=kernel\n"
    for name, message in (("socket", fields), ("dev-log", f"<3>kernel: {line}")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(message.encode(), str(folder / "sockets" / name))
