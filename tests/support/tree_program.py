"""A `healer up` whose parts are small: the servers, the tree and the guardian are the real ones.

    python -m tests.support.tree_program [--stubborn] DATA_DIR PORT

`api` answers /readyz with 200; `family` has a child of its own; `stubborn` ignores SIGTERM.
"""

import os
import sys

from healer.embedded.tree import Part, Tree
from healer.settings import load

_API = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
_STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); [signal.pause() for _ in iter(int, 1)]"
)
_FAMILY = "import subprocess; subprocess.run(['sleep', '1000'])"


def main() -> None:
    *options, data_dir, port = sys.argv[1:]
    settings = load(dict(os.environ), data_dir=data_dir, listen=f"127.0.0.1:{port}")
    parts = [
        Part("api", (sys.executable, "-c", _API, port)),
        Part("family", (sys.executable, "-c", _FAMILY)),
    ]
    if options:
        parts.append(Part("stubborn", (sys.executable, "-c", _STUBBORN)))
    Tree(settings, os.environ, parts=parts, say=lambda text: print(text, flush=True)).run()


if __name__ == "__main__":
    main()
