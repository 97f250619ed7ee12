"""A day of a fleet in simulated time over a real PostgreSQL: what memory and tables are after each hour.

    python -m benchmarks.day [--nodes 64] [--every 15] [--hours 24]

Each node reports 8 GPUs, its host and its ports; one job its step times; see tests/support/day.py.
"""

import argparse
import logging

import sqlalchemy as sa
import structlog

from tests.support.day import Day
from tests.support.stack import running_postgres

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--every", type=float, default=15.0)
    parser.add_argument("--hours", type=int, default=24)
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with running_postgres() as server:
        day = Day(sa.create_engine(server.url), nodes=asked.nodes, every_s=asked.every)
        print(f"{'hour':>4} {'memory MiB':>11} {'samples MiB':>12} {'inbox MiB':>10} {'inbox rows':>11}")
        for one in day.hours(asked.hours):
            sizes = [f"{size / MIB:.1f}" for size in (one.memory, one.samples, one.inbox)]
            print(
                f"{one.hour:4} {sizes[0]:>11} {sizes[1]:>12} {sizes[2]:>10} {one.inbox_rows:11,}", flush=True
            )
        print(f"{day.reports:,} reports")


if __name__ == "__main__":
    main()
