"""A time-stamp authority (RFC 3161) on this machine: `openssl ts` behind HTTP."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_CONF = """
[tsa]
default_tsa = ours
[ours]
serial = {folder}/serial
signer_cert = {folder}/tsa.pem
signer_key = {folder}/tsa.key
certs = {folder}/root.pem
default_policy = 1.2.3.4.1
digests = sha256
signer_digest = sha256
accuracy = secs:1
ess_cert_id_alg = sha256
"""
_CRITICAL = "extendedKeyUsage=critical,timeStamping"


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def _make(folder: Path) -> None:
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    _openssl(folder, "req", "-x509", *key, "-keyout", "root.key", "-out", "root.pem", "-subj", "/CN=root",
             "-days", "2")  # fmt: skip
    _openssl(folder, "req", "-x509", *key, "-keyout", "tsa.key", "-out", "tsa.pem", "-subj", "/CN=tsa",
             "-CA", "root.pem", "-CAkey", "root.key", "-addext", _CRITICAL, "-days", "2")  # fmt: skip
    (folder / "serial").write_text("01\n")
    (folder / "tsa.conf").write_text(_CONF.format(folder=folder))


@contextmanager
def time_stamps(folder: Path) -> Iterator[tuple[str, Path]]:
    """Its address, and its root certificate."""
    folder.mkdir()
    _make(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = folder / f"query.{threading.get_ident()}"
            query.write_bytes(self.rfile.read(int(self.headers["Content-Length"])))
            words = ("-config", "tsa.conf", "-queryfile", query.name, "-out", f"{query.name}.reply")
            _openssl(folder, "ts", "-reply", *words)
            self.send_response(200)
            self.send_header("Content-Type", "application/timestamp-reply")
            self.end_headers()
            self.wfile.write(Path(f"{query}.reply").read_bytes())

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/tsr", folder / "root.pem"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
