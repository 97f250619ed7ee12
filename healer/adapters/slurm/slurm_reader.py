"""The common part of the three Slurm adapters that read it."""

import abc
from collections.abc import Mapping
from datetime import datetime

from healer.adapters.slurm.parse_json import Queues, Server
from healer.model import Controller, SlurmCall, SlurmJob
from healer.ports.scheduling import NotAvailable


class SlurmReader(abc.ABC):
    """What the three adapters read in the same way, and nothing that changes Slurm."""

    name: str

    @abc.abstractmethod
    def unavailable(self) -> Mapping[SlurmCall, str]: ...

    @abc.abstractmethod
    def cluster_name(self) -> str: ...

    @abc.abstractmethod
    def job(self, job: str) -> SlurmJob | None: ...

    def topology(self) -> Mapping[str, tuple[str, ...]]:
        raise self._lacking(SlurmCall.topology)

    @abc.abstractmethod
    def _all_jobs(self) -> Mapping[str, SlurmJob]: ...

    def _lacking(self, call: SlurmCall) -> NotAvailable:
        return NotAvailable(call, self.unavailable()[call])

    def _controller(
        self, at: datetime, version: str, answer_s: float, server: Server | None, queues: Queues
    ) -> Controller:
        return Controller(
            cluster=self.cluster_name(),
            at=at,
            adapter=self.name,
            host=server.host if server else "",
            role=server.role if server else "",
            version=version,
            answer_s=answer_s,
            threads=queues.threads,
            agent_queue=queues.agent,
            dbd_queue=queues.dbd,
        )
