"""Debian's rsyslogd as a process of its own, with the configuration that the documents show and a pipe in the
place of /dev/kmsg, which it alone sees there (a mount namespace)."""

import fcntl
import os
import socket
import subprocess
from pathlib import Path

from tests.support.processes import clean_environ, unlogged
from tests.support.snippets import placed, snippet
from tests.support.wait import wait_until

RSYSLOGD = "/usr/sbin/rsyslogd"
SHIP = Path(__file__).parents[2] / "healer" / "hooks" / "healer-ship"
BOOT = "0b11d014-1685-44bd-a6ed-5fc0bc1c44ae"
ONLY_KERNEL = 'if $inputname == "imkmsg" and $syslogfacility == 0 then {'
_IN_PLACE = 'mount --bind "$0" /dev/kmsg && exec "$@"'


class Rsyslog:
    """`folder` must be short: it holds a socket. `everything`: nothing is filtered before it is sent."""

    def __init__(self, folder: Path, url: str, token: str, *, everything: bool = False) -> None:
        self.folder, self.log, self.kmsg = folder, folder / "log", folder / "kmsg"
        self.work, self.said = folder / "work", folder / "said.txt"
        self.work.mkdir()
        os.mkfifo(self.kmsg)
        # Open for both, so that neither side ever sees the pipe end.
        self._pipe = os.open(self.kmsg, os.O_RDWR)
        # One record for each read, as the device gives them.
        fcntl.fcntl(self._pipe, fcntl.F_SETFL, os.O_DIRECT)
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "token").write_text(token)
        settings = {"URL": url, "TOKEN_FILE": folder / "token", "HOOK_SPOOL": folder / "spool"}
        conf = "".join(f"HEALER_{name}={value}\n" for name, value in settings.items())
        (folder / "hook.conf").write_text(conf)
        places = {
            'global(workDirectory="/var/spool/rsyslog")':
                f'global(workDirectory="{self.work}" localHostname="gpu0001")',
            "/usr/local/lib/healer/healer-ship": str(SHIP),
            "/etc/healer/hook.conf": str(folder / "hook.conf"),
            "/var/log/healer-ship.log": str(self.said),
            'action.resumeInterval="5" action.resumeIntervalMax="30"': 'action.resumeInterval="1"',
        } | ({ONLY_KERNEL: 'if $msg != "" then {'} if everything else {})  # fmt: skip
        inputs = f'module(load="imuxsock" sysSock.use="off")\ninput(type="imuxsock" socket="{self.log}")\n'
        self.conf = folder / "rsyslog.conf"
        self.conf.write_text(inputs + placed(snippet("signals.md", "rsyslog"), places))

    def start(self) -> None:
        apart = ("unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", _IN_PLACE, str(self.kmsg))
        command = unlogged(*apart, RSYSLOGD, "-n", "-f", str(self.conf), "-i", str(self.folder / "pid"))
        environ = clean_environ() | {"HEALER_BOOT_ID": BOOT}
        with (self.folder / "rsyslogd.txt").open("ab") as said:
            self._process = subprocess.Popen(command, env=environ, stdout=said, stderr=said)
        wait_until(self.log.exists, 30, what="rsyslogd listens")

    def stop(self) -> None:
        """As `systemctl stop` does: what is not delivered goes to the disk."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            assert process.wait(60) == 0
            self.log.unlink(missing_ok=True)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(10)
        os.close(self._pipe)

    def kernel(self, *records: str) -> None:
        """What /dev/kmsg gives: `priority,number,microseconds,flags;text`, line ends in it as `\\x0a`."""
        for record in records:
            os.write(self._pipe, record.encode() + b"\n")

    def datagram(self, raw: str) -> None:
        """What any program may write to /dev/log."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(raw.encode(), str(self.log))

    def logger(self, *words: str) -> None:
        """util-linux' logger, called by any user."""
        subprocess.run(["logger", "-u", str(self.log), *words], check=True, timeout=20)

    def queued_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.work.glob("healer.0*"))
