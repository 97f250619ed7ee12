"""Drains a node at its first Xid or SXid, whatever it says."""

import json
import re
import sys

SIGN = re.compile(r"\b(?:Xid|SXid) \(|fallen off the bus")
drained = set()
for text in sys.stdin:
    entry = json.loads(text)
    if not entry["route"].startswith("signals/kernel-log"):
        continue
    body = entry["body"]
    for row in body["entries"]:
        if SIGN.search(row["line"]) and body["node"] not in drained:
            drained.add(body["node"])
            print(json.dumps({"at": entry["at"], "action": "drain", "node": body["node"]}))
