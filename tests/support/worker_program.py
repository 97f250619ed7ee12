"""A worker that writes down the runs it was asked to advance, but for the run `fails`.

python -m tests.support.worker_program BROKER_URL CLUSTER FILE
"""

import sys
from pathlib import Path

from setproctitle import setproctitle

from workers.app import make_app, run


def main() -> None:
    broker_url, cluster, file = sys.argv[1:]
    setproctitle("healer worker")

    def advance(name: str) -> None:
        if name == "fails":
            raise ValueError(name)
        with Path(file).open("a") as out:
            out.write(f"{name}\n")

    run(make_app(broker_url, cluster), cluster, advance)


if __name__ == "__main__":
    main()
