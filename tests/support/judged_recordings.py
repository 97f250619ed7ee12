"""Recordings written as short YAML cases, with what must come of them.

A case names a fleet, jobs, what arrives when, and the outcome. Files lie in `tests/recordings/judged/`. Times
are seconds from the start, or `90s`, `6m`, `2h`, `3d`; `@+12.5` anywhere in a body is that time as a
timestamp.

    - case: a GPU falls off the bus under a job
      source: xid_catalog.csv row 79
      fleet: {nodes: 20, rack_of: 4, switch_of: 10}
      jobs: [{id: "4711", nodes: [gpu0001, gpu0002]}]
      rows:
        - {at: 10, kernel: gpu0001, lines: ["NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."]}
        - {at: 5m, clock: true}
      expect: {drained: [gpu0001], requeued: ["4711"], incidents: 1}
"""

import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from healer.model import Mode
from healer.recordings.recording import read
from healer.sim.replaying import replay
from tests.support.loop import rules_in

START = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
FOLDER = Path(__file__).parents[1] / "recordings" / "judged"
CLUSTER = "pod1"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: What a case and its rows may hold: a misspelt key is an error, never a case that checks nothing.
_CASE = {"case", "source", "point", "fleet", "jobs", "rows", "expect", "mode", "known_gap"}
_FLEET = {"nodes", "rack_of", "switch_of", "pdu_of", "gpus", "model", "driver"}
_EXPECT = {
    "drained", "requeued", "returned", "done", "not_done", "held", "incidents", "open_at_end", "incident",
    "within_s",
}  # fmt: skip

Case = dict[str, Any]
Row = dict[str, Any]


def cases() -> list[Case]:
    """All cases of all files, by file and place."""
    found: list[Case] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        for case in yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or []:
            _known(case, _CASE)
            _known(case["expect"], _EXPECT)
            found.append(case)
    return found


def seconds(value: float | str) -> float:
    """`90`, `90s`, `6m`, `2h` or `3d` in seconds."""
    if isinstance(value, str):
        match = re.fullmatch(r"([\d.]+)([smhd])", value)
        assert match, f"not a time: {value!r}"
        return float(match[1]) * _UNITS[match[2]]
    return float(value)


def stamp(after_s: float) -> str:
    return (START + timedelta(seconds=after_s)).isoformat().replace("+00:00", "Z")


def play(case: Case) -> dict[str, Any]:
    """The document of `healer replay --json`."""
    rows = sorted(_rows(case), key=lambda row: datetime.fromisoformat(row["at"]))
    return replay(rules_in(Mode(case.get("mode", "auto"))), read(json.dumps(row) for row in rows))


def complaints(case: Case, document: dict[str, Any]) -> list[str]:
    """What differs from the case's `expect`, one sentence each."""
    return list(_complaints(case["expect"], document))


# --- rows ---------------------------------------------------------------------------------------------------


def _rows(case: Case) -> Iterator[Row]:
    fleet = _fleet(case.get("fleet", {}))
    yield _row(0, "slurm/nodes", {"cluster": CLUSTER, "nodes": list(fleet.values())})
    yield _row(0, "slurm/jobs", {"cluster": CLUSTER, "jobs": [_job(job) for job in case.get("jobs", [])]})
    for row in case["rows"]:
        for at_s in _times(row):
            yield from _expanded(row, at_s, fleet)


def _times(row: Row) -> Iterator[float]:
    """`at`, or `every` from `from` until before `until`."""
    if "every" not in row:
        yield seconds(row["at"])
        return
    at_s, until_s = seconds(row.get("from", 0)), seconds(row["until"])
    while at_s < until_s:
        yield at_s
        at_s += seconds(row["every"])


def _expanded(row: Row, at_s: float, fleet: dict[str, Row]) -> Iterator[Row]:
    match row:
        case {"kernel": node, "lines": lines}:
            extra = {key: row[key] for key in ("boot_id",) if row.get(key) is not None}
            entries = [line if isinstance(line, dict) else {"line": line} for line in lines]
            body = {"cluster": CLUSTER, "node": node, "boot_id": "b1", "entries": entries} | extra
            if "boot_id" in row and row["boot_id"] is None:
                del body["boot_id"]
            yield _row(at_s, "signals/kernel-log", body)
        case {"heartbeat": beating}:
            for node in _names(beating):
                body = {"cluster": CLUSTER, "node": node, "boot_id": row.get("boot_id", "b1")}
                yield _row(at_s, "signals/heartbeat", body)
        case {"nodes": changed}:
            shown = [fleet[name] | changed.get(name, {}) for name in fleet]
            yield _row(at_s, "slurm/nodes", {"cluster": CLUSTER, "nodes": shown})
        case {"jobs": given}:
            yield _row(at_s, "slurm/jobs", {"cluster": CLUSTER, "jobs": [_job(job) for job in given]})
        case {"route": route}:
            yield _row(at_s, route, row.get("body", {}))
        case {"clock": True}:
            yield _row(at_s, "clock", {})
        case _:
            raise AssertionError(f"not a row: {row}")


def _row(at_s: float, route: str, body: Any) -> Row:
    return {"at": stamp(at_s), "route": route, "body": _stamped(body, at_s)}


def _stamped(body: Any, at_s: float) -> Any:
    """`@+N`: N seconds from the start; `@now`: when the row arrives."""
    if isinstance(body, dict):
        return {key: _stamped(value, at_s) for key, value in body.items()}
    if isinstance(body, list):
        return [_stamped(value, at_s) for value in body]
    if isinstance(body, str) and "@" in body:
        body = body.replace("@now", stamp(at_s))
        return re.sub(r"@\+([\d.]+)", lambda match: stamp(float(match[1])), body)
    return body


def _fleet(given: Row) -> dict[str, Row]:
    _known(given, _FLEET)
    fleet: dict[str, Row] = {}
    for number in range(1, given.get("nodes", 20) + 1):
        name = f"gpu{number:04}"
        node = {"name": name, "state": ["IDLE"], "gpus": given.get("gpus", 8), "partitions": ["train"]}
        node |= {"boot_id": "b1"}
        node |= {"gpu_model": given["model"]} if "model" in given else {}
        node |= {"driver": given["driver"]} if "driver" in given else {}
        for place in ("rack", "switch", "pdu"):
            if size := given.get(f"{place}_of"):
                node[place] = f"{place}{(number - 1) // size + 1}"
        fleet[name] = node
    return fleet


def _job(given: Row) -> Row:
    return {"state": "RUNNING"} | given | {"id": str(given["id"])} | {"nodes": _names(given["nodes"])}


def _names(given: list[str] | str) -> list[str]:
    """A list, or `gpu0001-gpu0016`."""
    if isinstance(given, str):
        if "-" not in given:
            return [given]
        first, last = (int(part.removeprefix("gpu")) for part in given.split("-"))
        return [f"gpu{number:04}" for number in range(first, last + 1)]
    return given


def _known(given: Row, keys: set[str]) -> None:
    unknown = set(given) - keys
    assert not unknown, f"unknown keys {sorted(unknown)} in {given}"


# --- outcome ------------------------------------------------------------------------------------------------


def _complaints(expect: Row, document: dict[str, Any]) -> Iterator[str]:
    incidents, actions = document["incidents"], document["actions"]
    for key, verbs, field in (
        ("drained", {"drain", "down"}, "node"),
        ("requeued", {"requeue", "revive"}, "job"),
        ("returned", {"resume", "undrain"}, "node"),
    ):
        if key in expect:
            was = sorted({action[field] for action in actions if action["action"] in verbs})
            wanted = sorted(str(name) for name in _names(expect[key]))
            if was != wanted:
                yield f"{key}: {was}, not {wanted}"
    done = {f"{action['action']} {action['job'] or action['node']}" for action in actions}
    done |= {action["action"] for action in actions}
    yield from (f"not done: {text}" for text in expect.get("done", []) if text not in done)
    yield from (f"done: {text}" for text in expect.get("not_done", []) if text in done)
    for wanted in expect.get("held", []):
        if not any(wanted.items() <= held.items() for held in document["held"]):
            yield f"not held: {wanted}; held: {document['held']}"
    yield from _counted("incidents", expect, incidents)
    yield from _counted("open_at_end", expect, [one for one in incidents if one["closed"] is None])
    if "within_s" in expect:
        for node, limit_s in expect["within_s"].items():
            at = [one["at"] for one in actions if one["action"] == "drain" and one["node"] == node]
            if not at or at[0] > stamp(seconds(limit_s)):
                yield f"{node} drained at {at[:1]}, not before {stamp(seconds(limit_s))}"
    drained = {action["incident"] for action in actions if action["action"] in {"drain", "down"}}
    for wanted in expect.get("incident", []):
        if not any(_is(wanted, incident, drained) for incident in incidents):
            yield f"no incident {wanted}"


def _counted(key: str, expect: Row, incidents: list[Row]) -> Iterator[str]:
    wanted = expect.get(key)
    if wanted is None:
        return
    least, most = (
        (wanted, wanted) if isinstance(wanted, int) else (wanted.get("min", 0), wanted.get("max", 999))
    )
    if not least <= len(incidents) <= most:
        found = [(one["rule"], one["root"].get("node"), one["severity"]) for one in incidents]
        yield f"{key}: {len(incidents)}, not {wanted}: {found}"


def _is(wanted: Row, incident: Row, drained: set[str]) -> bool:
    """`drained`: ids of incidents that drained a node: until its repair the verdict was `isolate`.

    `node`, `pci`, `job`, `switch` … of the root; `verdict` of a node; the rest as in the document."""
    for key, value in wanted.items():
        match key:
            case "verdict":
                repaired = incident["closed"] is not None and incident["id"] in drained
                good = value in incident["nodes"].values() or (repaired and value == "isolate")
            case "remedy":
                good = value in incident["remedy"]
            case "closed":
                good = (incident["closed"] is not None) == value
            case "severity":
                good = incident["severity"] in ([value] if isinstance(value, str) else value)
            case "jobs_hit":
                good = sorted(incident["jobs_hit"]) == sorted(map(str, value))
            case "cause" | "rule":
                good = incident[key] in ([value] if isinstance(value, str) else value)
            case _:
                good = incident["root"].get(key) == value
        if not good:
            return False
    return True


def main() -> None:
    """`python -m tests.support.judged_recordings [WORD [document]]`: plays cases with WORD in their title,
    and prints their documents too."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    for case in cases():
        if word in case["case"]:
            document = play(case)
            found = complaints(case, document)
            print("ok  " if not found else "FAIL", case["case"])
            for text in found:
                print("      ", text)
            if word and len(sys.argv) > 2:
                print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
