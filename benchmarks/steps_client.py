"""What a step costs the training thread, with the client of step times sending as fast as the steps come.

    python benchmarks/steps_client.py

A real HTTP server on this machine takes what is sent, in a process of its own. Printed is the time of one
`with steps.step()` with compute_done, comm_done and the loss, by the clock and of this thread's
processor; then the same with a healer that is away.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "clients" / "healer-steps"))

import healer_steps

STEPS, ROUNDS = 20_000, 5
_SERVER = """
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        receipt = b'{"accepted":1,"duplicates":0,"unrecognised":0,"rejected":[]}'
        self.send_response(202); self.send_header("content-length", str(len(receipt))); self.end_headers()
        self.wfile.write(receipt)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def measure(url: str) -> dict[str, float]:
    """Microseconds of a step: by the clock and of this thread's processor; the 99.9th by the clock."""
    environ = {
        "HEALER_URL": url,
        "HEALER_TOKEN": "heal_0_x",
        "SLURM_JOB_ID": "1",
        "SLURMD_NODENAME": "gpu0001",
    }
    wall, cpu, each = [], [], []
    with healer_steps.Steps(every_s=0.5, environ=environ) as steps:
        for _ in range(ROUNDS):
            started, used = time.perf_counter(), time.thread_time()
            for _ in range(STEPS):
                before = time.perf_counter()
                with steps.step(work=8192) as step:
                    step.compute_done()
                    step.comm_done()
                    step.tell(loss=2.5)
                each.append(time.perf_counter() - before)
            wall.append((time.perf_counter() - started) / STEPS)
            cpu.append((time.thread_time() - used) / STEPS)
            time.sleep(1.0)  # the sender gets its turn
        counts = {"sent": steps.sent, "dropped": steps.dropped}
    each.sort()
    return {
        "clock_us": round(sorted(wall)[ROUNDS // 2] * 1e6, 2),
        "processor_us": round(sorted(cpu)[ROUNDS // 2] * 1e6, 2),
        "p999_us": round(each[int(len(each) * 0.999)] * 1e6, 2),
    } | counts


def main() -> None:
    with subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        try:
            answers = measure(url)
        finally:
            server.kill()
    print(json.dumps({"healer answers": answers, "healer is away": measure("http://127.0.0.1:1")}, indent=2))
    print("goal: under 100 µs a step")


if __name__ == "__main__":
    main()
