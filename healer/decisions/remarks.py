"""Our part of a job's admin comment, which its owner sees in squeue and sacct.

`… | healer: TEXT; off:gpu0007,gpu0008`: `off` names the nodes that healer excluded from the job, so that
whoever comes later takes back exactly those. What others wrote there is theirs, to the byte.
"""

import re
from collections.abc import Collection
from datetime import datetime
from hashlib import sha256

import msgspec

from healer.model import Mode, Run, RunState, SlurmJob, SlurmSnapshot

_OURS = "healer: "
_BETWEEN = " | "
_OFF = re.compile(r"(?:^|; )off:([A-Za-z0-9_.,-]+)$")
#: Longer than any sentence of ours; squeue cuts far earlier.
LONGEST = 400


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """What healer says to a job's owner, and the nodes that it keeps the job off."""

    text: str = ""
    off: tuple[str, ...] = ()


def remark_in(comment: str) -> Remark:
    """Our part; an empty one where there is none."""
    ours = next((part for part in comment.split(_BETWEEN) if part.startswith(_OURS)), "")
    text = ours.removeprefix(_OURS).strip()
    found = _OFF.search(text)
    if found is None:
        return Remark(text=text)
    return Remark(text=text[: found.start()], off=tuple(found[1].split(",")))


def with_remark(comment: str, remark: Remark) -> str:
    """The comment with this as our part, which is gone where it says nothing; all else stays."""
    parts = [part for part in comment.split(_BETWEEN) if not part.startswith(_OURS)] if comment else []
    off = f"off:{','.join(remark.off)}" if remark.off else ""
    said = "; ".join(part for part in (plain(remark.text), off) if part)
    return _BETWEEN.join([*parts, f"{_OURS}{said}"] if said else parts)


def plain(text: str) -> str:
    """One printable line without what would divide it."""
    line = "".join(letter if letter.isprintable() else " " for letter in text.replace("|", "/"))
    return re.sub(r"\s+", " ", line).strip()[:LONGEST].rstrip()


def kept_off(snapshot: SlurmSnapshot | None) -> list[SlurmJob]:
    """Pending jobs that healer keeps off some nodes: only a pending job's list can be changed."""
    jobs = snapshot.jobs.values() if snapshot is not None else ()
    waiting = (
        job for job in jobs if _OURS in job.admin_comment and job.state == "PENDING" and not job.active
    )
    return [job for job in waiting if remark_in(job.admin_comment).off]


def take_backs(snapshot: SlurmSnapshot | None, known_bad: Collection[str], now: datetime) -> list[Run]:
    """A run for each of them that is kept off a node which is not known bad in service any more.

    Its id holds the hour: where one ended and something is left all the same, the next hour has another.
    """
    found = []
    for job in kept_off(snapshot):
        back = sorted(set(remark_in(job.admin_comment).off) - set(known_bad))
        if not back or snapshot is None:
            continue
        told = f"off|{snapshot.cluster}|{job.id}|{job.restarts}|{','.join(back)}|{now:%Y%m%d%H}"
        found.append(
            Run(
                id=f"r{sha256(told.encode()).hexdigest()[:23]}",
                cluster=snapshot.cluster,
                playbook="release",
                state=RunState.running,
                by="healer",
                reason=f"{', '.join(back)} is not known bad in service any more",
                created_at=now,
                job=job.id,
                mode=Mode.auto,
                input={"restarts": job.restarts},
            )
        )
    return found
