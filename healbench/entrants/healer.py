"""healer, with the rules that ship, every rule automatic that names no mode of its own."""

import json
import sys
from pathlib import Path

from healer.bootstrap.offline import entries_in, replayed
from healer.model import Mode
from healer.rulebook import ruleset
from healer.settings import shipped_rules


def main() -> None:
    rules = ruleset.load(Path(shipped_rules()), default_mode=Mode.auto, prove=False)
    document, _ = replayed(rules, entries_in(sys.stdin, None))
    for row in document["actions"]:
        kept = {
            name: row[name] for name in ("at", "action", "node", "job", "incident") if row[name] is not None
        }
        print(json.dumps(kept))
    for row in document["incidents"]:
        print(json.dumps({"at": row["opened"], "action": "cause", "incident": row["id"]}))


if __name__ == "__main__":
    main()
