"""Keeps a long simulation small: what is over and that nothing asks for any more leaves the ledger.

As the retention of production does it, in hours instead of months: nothing that a guard, a rule over repeats
or the score card looks at goes.
"""

from datetime import datetime, timedelta

from healer.model import ENDED_RUN_STATES
from healer.sim.ledger import Tables

#: The longest that a guard looks back is a day; a finished run and its log are of no use after two.
KEPT = timedelta(days=2)
#: Repeats of faults are judged over a week (`observations/history.py`).
BURSTS_KEPT = timedelta(days=8)


def forget(tables: Tables, now: datetime) -> set[str]:
    """The ids of the runs that went."""
    old = now - KEPT
    gone = {
        run.id
        for run in tables.runs.values()
        if run.state in ENDED_RUN_STATES and (run.ended_at or run.created_at) < old
    }
    tables.runs = {name: run for name, run in tables.runs.items() if name not in gone}
    tables.log = {name: log for name, log in tables.log.items() if name not in gone}
    closed = {one.id for one in tables.incidents.values() if not one.is_open and (one.closed or now) < old}
    tables.incidents = {name: one for name, one in tables.incidents.items() if name not in closed}
    tables.verdicts = {name: one for name, one in tables.verdicts.items() if name not in closed}
    tables.findings = [(name, one) for name, one in tables.findings if name not in closed]
    tables.decisions = [one for one in tables.decisions if one.at >= old]
    tables.granted = [one for one in tables.granted if one.granted_at >= old]
    tables.requeues = [one for one in tables.requeues if one.at >= old]
    tables.requeued_by = {key: run for key, run in tables.requeued_by.items() if run not in gone}
    tables.remedies = [one for one in tables.remedies if one.at >= old]
    tables.audit = [one for one in tables.audit if one.at >= old]
    tables.messages = {name: one for name, one in tables.messages.items() if one.incident not in closed}
    tables.sent = [(at, one) for at, one in tables.sent if at >= old]
    tables.bursts = {key: one for key, one in tables.bursts.items() if one.last_at >= now - BURSTS_KEPT}
    return gone
