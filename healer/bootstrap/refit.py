"""Models made anew: `python -m healer.bootstrap.refit CLUSTER`, at the lowest priority.

The scheduler starts it each hour; `healer model refit` does the same at once. It looks at each class of
nodes: whether its model is due or its features have drifted, whether the new one does as well as the old,
and puts it in force. What it finds stands in `healer model show` and in the audit.
"""

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.forest_rows import PostgresFeatures, PostgresModels
from healer.adapters.postgres.loops import try_lead
from healer.adapters.system_clock import SystemClock
from healer.bootstrap.models import opened
from healer.detection import training
from healer.detection.scorers import Fitted
from healer.detection.training import Sick, TooLittle, healthy, is_judged
from healer.model.trained import HEALER, ClassLook, Drifted, FeatureRow, Matrix, Trained, Version
from healer.processes.background import Refitting
from healer.settings import Settings, load

#: History that a model is made from, and how much of it there must be before the first is made unasked.
SINCE, FIRST_AFTER = timedelta(days=7), timedelta(days=1)
#: Drift is looked for in the moments of the last day, each twelfth of them: one an hour.
LATELY, EACH = timedelta(days=1), 12
DRIFTED_SHOWN = 10
#: What the process may take.
CPU_S, MEMORY_BYTES = 600, 8 * 1024**3


class Refits:
    """The classes of one cluster, looked at once."""

    def __init__(self, db: sa.Engine, cluster: str) -> None:
        self._models, self._features = PostgresModels(db, cluster), PostgresFeatures(db, cluster)

    def look(self, now: datetime) -> list[ClassLook]:
        in_force = {(one.model.hardware, one.model.load): one for one in self._models.in_force()}
        before = {(one.hardware, one.load): one for one in self._models.looks()}
        sick, cluster = self._features.sick(now - SINCE, now), self._models.cluster
        found = []
        for hardware, load_, moments in self._features.classes(now - SINCE):
            history = _History(self._features, hardware, load_, moments, sick, now)
            first = ClassLook(cluster=cluster, hardware=hardware, load=load_, at=now, told="")
            last = before.get((hardware, load_), first)
            look = self._class(history, in_force.get((hardware, load_)), last)
            self._models.note(look)
            found.append(look)
        return found

    def _class(self, history: "_History", version: Version | None, last: ClassLook) -> ClassLook:
        # One that was made from other features is as if there were none.
        fits = version if version is not None and training.usable(version.model) else None
        old = self._models.trained(fits.model) if fits is not None else None
        drifted = history.drifted(old) if old is not None else []
        now, told, tried = history.now, "", False
        why = training.due(fits, tried_at=last.tried_at, drifted=drifted, now=now)
        if why:
            told, tried = self._refit(history, old, version, why)
        return msgspec.structs.replace(
            last,
            at=now,
            told=told or last.told,
            tried_at=now if tried else last.tried_at,
            drifted=tuple(drifted[:DRIFTED_SHOWN]),
        )

    def _refit(
        self, history: "_History", old: Trained | None, in_force: Version | None, why: str
    ) -> tuple[str, bool]:
        """One sentence of what came of it; whether that was a try, after which it rests for a day."""
        if old is None and history.is_young():
            return "no model: its history is younger than a day", False
        try:
            trained = history.train()
        except TooLittle as error:
            # A small class is not read whole each hour; one that has a model soon has enough again.
            return f"no new model: {error}" if old is not None else f"no model: {error}", old is None
        before = Fitted(old) if old is not None else None
        told = training.judged(Fitted(trained), before, history.kept_aside())
        against = in_force.model.id if in_force is not None else None
        new = self._models.save(trained, by=HEALER, at=history.now, why=why, judged=told, against=against)
        name = f"model {trained.model.id[:12]} ({why})"
        if told.refused:
            return f"{name} was made and not put in force: {told.refused}", True
        return f"{name} was put in force" if new else f"{name} was kept already", True


@dataclass(frozen=True, slots=True)
class _History:
    """What is kept of one class."""

    features: PostgresFeatures
    hardware: str
    load: str
    moments: int
    sick: Sick
    now: datetime

    def is_young(self) -> bool:
        first = next(self._rows(), None)
        return first is None or self.now - first.at < FIRST_AFTER

    def train(self) -> Trained:
        rows = (row for row in self._rows() if not is_judged(row.at))
        return training.train(rows, self.moments, self.sick, self.now)

    def kept_aside(self) -> Matrix:
        """Healthy samples of the hours that no model is made from."""
        return healthy((row for row in self._rows() if is_judged(row.at)), self.moments, self.sick).matrix

    def drifted(self, old: Trained) -> list[Drifted]:
        day = self.features.read(self.hardware, self.load, self.now - LATELY)
        sampled = healthy(islice(day, 0, None, EACH), self.moments, self.sick)
        return training.population_shifts(old, sampled.matrix, len(set(sampled.nodes)))

    def _rows(self) -> Iterator[FeatureRow]:
        return self.features.read(self.hardware, self.load, self.now - SINCE)


# --- the process ---


def look_once(settings: Settings, cluster: str | None) -> list[ClassLook] | None:
    """None where another process is at it. Raises NoCluster."""
    with opened(settings, cluster, "healer refit") as (db, name), db.connect() as lock:
        if not try_lead(lock, name, "refit"):
            return None
        return Refits(db, name).look(SystemClock().now())


class Process:
    """`healer.processes.background.Child`."""

    def __init__(self, cluster: str) -> None:
        self._errors: Any = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, cluster],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env=os.environ | one_thread,
        )

    def problem(self) -> str | None:
        status = self._process.poll()
        if not status:
            return None if status is None else ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:500] if lines else f"the process ended with {status}"

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def duty(cluster: str) -> Refitting:
    return Refitting(lambda: Process(cluster), SystemClock())


def main(cluster: str) -> None:
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    look_once(load().of(cluster), cluster)


if __name__ == "__main__":
    main(sys.argv[1])
