"""A `healer up` whose parts are small: the servers, the tree and the guardian are the real ones.

    python -m tests.support.tree_program [--stubborn] DATA_DIR PORT

`api` answers /readyz with 200; `family` has a child of its own; `stubborn` ignores SIGTERM.
"""

import http.server
import os
import signal
import subprocess
import sys
from functools import partial

from healer.embedded.tree import Calls, Part, Tree
from healer.settings import load


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def _api(port: str) -> None:
    http.server.HTTPServer(("127.0.0.1", int(port)), _Answer).serve_forever()


def _family() -> None:
    subprocess.run(["sleep", "1000"], check=False)


def _stubborn() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


def main() -> None:
    *options, data_dir, port = sys.argv[1:]
    settings = load(dict(os.environ), data_dir=data_dir, listen=f"127.0.0.1:{port}")
    parts = [Part("api", partial(_api, port), None), Part("family", _family, None)]
    if options:
        parts.append(Part("stubborn", _stubborn, None))
    Tree(settings, os.environ, parts, Calls(say=lambda text: print(text, flush=True))).run()


if __name__ == "__main__":
    main()
