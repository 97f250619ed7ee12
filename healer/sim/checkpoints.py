"""Checkpoints that jobs told, in memory: for replay, simulation and tests."""

from collections.abc import Iterable

from healer.model import JobCheckpoint, Observation, ObservationKind


class MemoryCheckpoints:
    """`healer.ports.transactions.Checkpoints`. Of each job only what `newest_durable` answers is kept."""

    def __init__(self) -> None:
        self._newest: dict[str, JobCheckpoint] = {}

    def take(self, told: Iterable[JobCheckpoint]) -> None:
        """Durable ones only."""
        for one in told:
            known = self._newest.get(one.job)
            if known is None or (known.restart, known.step, known.at) < (one.restart, one.step, one.at):
                self._newest[one.job] = one

    def hear(self, signals: Iterable[Observation]) -> None:
        """Takes the checkpoints among these signals."""
        self.take(
            JobCheckpoint(
                job=one.component.job or "",
                restart=int(one.data["restart"]),
                step=int(one.data["step"]),
                path=str(one.data["path"]),
                at=one.event_at,
                arrived_at=one.arrived_at,
            )
            for one in signals
            if one.kind is ObservationKind.checkpoint and one.data["durable"]
        )

    def newest_durable(self, job: str) -> JobCheckpoint | None:
        return self._newest.get(job)
