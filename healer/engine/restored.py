"""What must wait for a person in a restored installation: its log is older than the state of the cluster.

A pause of everything holds new steps. Runs that had begun ask first, as only a person knows what was done
since the backup.
"""

from datetime import datetime
from typing import NamedTuple

from healer.engine.runlog import run_changed
from healer.model import Pause, RunState, audit_record
from healer.model.run import BACKUP, RESTORED
from healer.ports.commanding import CommandTx
from healer.telling.news import restored_page
from healer.text import say

#: A worker would continue these by itself.
_GOES_ON = frozenset({RunState.running, RunState.waiting, RunState.held})


class Restore(NamedTuple):
    """`backup_at`: everything committed before then is in the database."""

    backup_at: datetime
    at: datetime
    by: str
    source: str

    @property
    def name(self) -> str:
        return f"restored-{self.at:%Y%m%dT%H%M%S}"


def pause_of(restore: Restore) -> Pause:
    """The pause for the restore; it lasts until a person ends it."""
    reason = str(say("engine.restored_pause", time=_shown(restore.backup_at)))
    return Pause(id=restore.name, scope="all", name="", by=restore.by, reason=reason, since=restore.at)


def hold_back(tx: CommandTx, cluster: str, restore: Restore, head: int) -> int:
    """Makes the cluster's runs ask, records the gap in its audit, and pages; returns the number of runs that
    ask.

    `head`: the number of the last link of its chain."""
    question = say("engine.restored_question", time=_shown(restore.backup_at))
    asking = [run for run in tx.active_runs() if run.state in _GOES_ON and not run.shadow]
    for run in asking:
        stored = tx.set_run_state(run.id, RunState.stuck, why=question, at=restore.at, question=question)
        data = {"why": question, "incident": run.incident, "playbook": run.playbook}
        tx.audit(audit_record(cluster, restore.at, restore.by, "run.stuck", f"run/{run.id}", **data))
        if run.incident:
            news = run_changed(stored, RunState.stuck, restore.at, by=restore.by, reason=question)
            tx.send_command(news, request=f"{restore.name}:{run.id}")
    gap = {"head": head, "backup_at": restore.backup_at.isoformat(), "source": restore.source}
    record = audit_record(cluster, restore.at, restore.by, RESTORED, BACKUP, **gap, runs=len(asking))
    tx.audit(record)
    tx.queue_message(restored_page(cluster, restore.backup_at, restore.at, len(asking)))
    return len(asking)


def _shown(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
