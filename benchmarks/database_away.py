"""A database that hangs while a fleet reports: `python benchmarks/database_away.py [MINUTES] [PER_SECOND]`.

1,250 simulated nodes send numbered kernel lines, two in a request, PER_SECOND lines in all. Every process
of PostgreSQL is stopped for MINUTES. Prints what was answered, what lay in the spool and how long it took to
bring it in; ends with 1 when something that was answered 2xx is missing, there twice or out of order.
"""

import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.away import Fleet, compare, connect, frozen, ready, rss_bytes, spooled
from tests.support.stack import make_scratch
from tests.support.up import ROOT, Stack
from tests.support.wait import wait_until

NODES = 1250
SENDERS = 4
LINES = 2


def main() -> int:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    rate = float(sys.argv[2]) if len(sys.argv) > 2 else 250.0
    folder = make_scratch()
    socket = folder / "slurm.sock"
    slurm = (sys.executable, "-m", "healer.sim.sim_slurm", "--socket", str(socket), "--nodes", str(NODES))
    simulated = subprocess.Popen(slurm, cwd=ROOT)
    try:
        with Stack(
            folder, HEALER_SLURM_ADAPTERS="sim", HEALER_SIM_SOCKET=str(socket), HEALER_MODE="shadow"
        ) as stack:
            wait_until(lambda: ready(stack).get("ready"), 60, what="healer is ready")
            return measured(stack, minutes * 60, rate)
    finally:
        simulated.terminate()
        simulated.wait()


def measured(stack: Stack, away_s: float, rate: float) -> int:
    nodes = [f"gpu{number:04d}" for number in range(1, NODES + 1)]
    fleet = Fleet(stack.url, stack.token("signals"), nodes, every_s=SENDERS * LINES / rate, lines=LINES)
    api = stack.pids()["api"]
    with fleet.sending(SENDERS):
        time.sleep(10)
        before, first = fleet.count, rss_bytes(api)
        print(f"before: {before} lines in 10 s, API {first >> 20} MiB", flush=True)
        with frozen(stack):
            fleet.slowest_s, until = 0.0, time.monotonic() + away_s
            while time.monotonic() < until:
                time.sleep(min(30.0, max(0.0, until - time.monotonic())))
                waits = spooled(stack)
                print(
                    f"away: {waits.get('entries')} entries, {waits.get('bytes', 0) / 1e6:.1f} MB spooled, "
                    f"API {rss_bytes(api) >> 20} MiB, slowest answer {fleet.slowest_s:.2f} s, "
                    f"answers {dict(fleet.answers)}",
                    flush=True,
                )
        back = time.monotonic()
        wait_until(lambda: spooled(stack).get("entries") == 0, 600, what="the spool is empty", every_s=0.1)
        took_s, peak = time.monotonic() - back, rss_bytes(api)
        time.sleep(5)
    with connect(stack) as database:
        result = compare(fleet.accepted, fleet.stored(database))
    wait_until(lambda: ready(stack).get("ready"), 120, what="healer is ready again")
    print(f"all in the inbox {took_s:.1f} s after the database was back; API {peak >> 20} MiB")
    print(f"answers {dict(fleet.answers)}; {result}")
    stack.run("audit", "verify")
    print("audit verify ok")
    return 1 if (result.missing, result.twice, result.out_of_order) != (0, 0, 0) else 0


if __name__ == "__main__":
    sys.exit(main())
