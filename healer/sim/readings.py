"""Counters in memory: for simulation and tests."""

from datetime import datetime

from healer.model import Column


class SimReadings:
    """`healer.ports.measurements.Readings`."""

    def __init__(self) -> None:
        self._told: dict[str, dict[Column, list[tuple[datetime, float]]]] = {}

    def tell(self, subject: str, column: Column, at: datetime, value: float) -> None:
        self._told.setdefault(subject, {}).setdefault(column, []).append((at, value))

    def counters(self, subject: str, since: datetime) -> dict[Column, list[tuple[datetime, float]]]:
        known = self._told.get(subject, {})
        newer = {column: [one for one in points if one[0] > since] for column, points in known.items()}
        return {column: points for column, points in newer.items() if points}
