"""Thresholds in the manner of LBNL's node health check: each node looks at its own log every five minutes and
is drained when a line names a code of a list. It knows no job, no neighbour and no plan; a node that is
drained already is not touched. Jobs are left to Slurm."""

import json
import re
import sys
from datetime import datetime, timedelta

EVERY = timedelta(minutes=5)
#: As such lists are found in the field.
CODES = {48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120}
XID = re.compile(r"(?:^|kernel: .*|\] )NVRM: Xid \([^)]*\): (\d+)")
out, pending, due = set(), {}, None


def look(now):
    """What each node finds at the next full five minutes."""
    for node, at in sorted(pending.items(), key=lambda item: item[1]):
        when = at + (EVERY - (at - start) % EVERY)
        if when <= now and node not in out:
            out.add(node)
            print(json.dumps({"at": when.isoformat(), "action": "drain", "node": node}))
            del pending[node]


start = None
for text in sys.stdin:
    entry = json.loads(text)
    at = datetime.fromisoformat(entry["at"].replace("Z", "+00:00"))
    start = start or at
    look(at)
    body = entry["body"]
    if entry["route"] == "slurm/nodes":
        for row in body.get("changed", body.get("nodes", [])):
            (out.add if "DRAIN" in row.get("state", []) else out.discard)(row["name"])
    elif entry["route"].startswith("signals/kernel-log"):
        for row in body["entries"]:
            match = XID.search(row["line"])
            if match and int(match[1]) in CODES:
                pending.setdefault(body["node"], at)
