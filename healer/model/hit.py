"""What a fault cost a job."""

from datetime import datetime

import msgspec

from healer.model.words import HitBasis


class JobHit(msgspec.Struct, frozen=True, kw_only=True):
    """One life of a job that an incident hit, as Slurm showed it when it was noted: Slurm soon forgets jobs.

    `gpus` it held in all and `nodes` it ran on (0: Slurm did not tell). `ended_at` is when its work ended,
    `since` from when on that work is lost; `lost_gpu_hours` = gpus × (ended_at - since), None: not known.
    """

    job: str
    basis: HitBasis
    user: str = ""
    gpus: int = 0
    nodes: int = 0
    restart: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    since: datetime | None = None
    lost_gpu_hours: float | None = None

    @property
    def settled(self) -> bool:
        """Nothing more will be learnt of this life."""
        return self.basis is not HitBasis.runs_on

    @property
    def at_most(self) -> bool:
        return self.basis is HitBasis.start
