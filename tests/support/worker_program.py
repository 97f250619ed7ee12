"""A worker that writes down the runs it was told to advance.

python -m tests.support.worker_program BROKER_URL CLUSTER FILE
"""

import sys
from pathlib import Path

from setproctitle import setproctitle

from workers.app import make_app, make_worker


def main() -> None:
    broker_url, cluster, file = sys.argv[1:]
    setproctitle("healer worker")

    def advance(run: str) -> None:
        with Path(file).open("a") as out:
            out.write(f"{run}\n")

    make_worker(make_app(broker_url), [cluster], advance).start()


if __name__ == "__main__":
    main()
