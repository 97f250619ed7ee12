"""The system clock."""

from datetime import UTC, datetime
from functools import partial


class SystemClock:
    now = staticmethod(partial(datetime.now, UTC))
