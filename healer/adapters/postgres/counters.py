"""What a node or device measured, for checks: the samples that pages read, as plain numbers."""

from collections import defaultdict
from datetime import datetime

import numpy as np

from healer.adapters.postgres.history import PostgresSignalReads
from healer.model import Column
from healer.ports.request_errors import Unavailable
from healer.ports.transactions import LedgerAway


class PostgresReadings:
    """`healer.ports.measurements.Readings` of one cluster."""

    def __init__(self, reads: PostgresSignalReads, cluster: str) -> None:
        self._reads, self._cluster = reads, cluster

    def counters(self, subject: str, since: datetime) -> dict[Column, list[tuple[datetime, float]]]:
        try:
            reports, columns = self._reads.node_signals(self._cluster, subject, since)
        except Unavailable as error:
            raise LedgerAway(str(error)) from error
        found: dict[Column, list[tuple[datetime, float]]] = defaultdict(list)
        for report in reports:
            for number, value in zip(report.columns.tolist(), report.values.tolist(), strict=True):
                column = columns.get(number)
                if column is not None and column.signal.endswith("_total") and not np.isnan(value):
                    found[column].append((report.arrived_at, value))
        return dict(found)
