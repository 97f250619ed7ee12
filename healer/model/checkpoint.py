"""What a job can go back to."""

from datetime import datetime

import msgspec


class JobCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A durable checkpoint that a job told. `at` is the job's clock, `arrived_at` ours; both are UTC."""

    job: str
    restart: int
    step: int
    path: str
    at: datetime
    arrived_at: datetime
