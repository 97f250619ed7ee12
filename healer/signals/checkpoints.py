"""`POST /signals/checkpoints`: what a job can go back to -> observations of kind `checkpoint`."""

from datetime import datetime
from typing import Annotated, Any

import msgspec

from healer.model import Component, Observation, ObservationKind
from healer.signals.identity import digest_of
from healer.signals.rejects import BadBody, BadEntry, Rejects
from healer.signals.wire import Accepted, check_entries, event_time

_Job = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z_.+\[\]-]{1,64}$")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class JobCheckpointBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One checkpoint. `durable`: it is where a restarted job will find it, and whole. `sha256`: of the file;
    of a folder, of what `sha256sum` prints of its files, sorted by path."""

    job: _Job | Annotated[int, msgspec.Meta(ge=1)]
    step: _Count
    path: Annotated[str, msgspec.Meta(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f]+$")]
    durable: bool
    restart: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    cluster: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None = None
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")] | None = None
    time: str | None = None


def checkpoint_observations(body: Any, now: datetime, *, cluster: str) -> Accepted:
    """One checkpoint, or a list of them, decoded from JSON. Told again, it is a duplicate. Raises BadBody."""
    observations: list[Observation] = []
    rejects = Rejects()
    for index, item in enumerate(_objects(body)):
        try:
            observations.append(_observation(msgspec.convert(item, JobCheckpointBody), now, cluster))
        except (BadEntry, msgspec.ValidationError) as error:
            rejects.add(index, error)
    return Accepted(observations=tuple(observations), rejected=rejects.sorted(), rejected_more=rejects.more)


def _objects(body: Any) -> list[Any]:
    if not isinstance(body, dict | list):
        raise BadBody("the body: expected an object with `job`, `step`, `path` and `durable`, or a list")
    items = body if isinstance(body, list) else [body]
    check_entries(len(items))
    return items


def _observation(told: JobCheckpointBody, now: datetime, cluster: str) -> Observation:
    where, job = told.cluster or cluster, str(told.job)
    at = event_time(told.time, now) or now
    data = {"restart": told.restart, "step": told.step, "path": told.path, "durable": told.durable}
    known = [told.restart, told.step, told.path, told.durable]
    if told.sha256 is not None:
        data["sha256"] = told.sha256
        known.append(told.sha256)
    return Observation(
        digest=digest_of("checkpoint", where, job, *known),
        kind=ObservationKind.checkpoint,
        component=Component(cluster=where, job=job),
        event_at=at,
        arrived_at=now,
        data=data,
    )
