"""Compares two documents of a replay: what one rule set would have done and the other not. Pure.

`before` is the baseline: the old rules, or what was really done. Incidents are matched by their id, a hash of
rule, root and opening evidence; else by rule and root at nearly the same time; else by root and opening
evidence, where another rule opened it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

Row = Mapping[str, Any]

#: Incidents of one rule and root, and actions on one target, match within this many seconds.
SAME_S = 3600.0
#: Smaller differences in time are ignored: they come from the rhythm of walks and steps.
ALIKE_S = 60.0
#: A page to people is no action on the cluster.
_PAGE = "notify"


def compare(before: Row, after: Row) -> dict[str, Any]:
    """Returns new, lost and changed `incidents` and `actions`, what is `held` by another guard, and the
    counts of all of it by rule."""
    old = _Document(before)
    new = _Document(after)
    same = dict(_same_incidents(old, new))
    incidents = _incidents(old, new, same)
    actions = _actions(old, new)
    held = _held(old, new)
    return {
        "rules": _by_rule(old, new, incidents, actions, held),
        "incidents": incidents,
        "actions": actions,
        "held": held,
    }


def differs(found: Row, kind: str) -> bool:
    """Whether a comparison has differences of the kind of `--fail-on`: new-actions, lost, or any."""
    incidents, actions = found["incidents"], found["actions"]
    if kind == "new-actions":
        return bool(actions["new"])
    if kind == "lost":
        return bool(incidents["lost"] or actions["lost"])
    return any((*incidents.values(), *actions.values(), found["held"]))


class _Document:
    """One document, indexed."""

    def __init__(self, document: Row) -> None:
        self.incidents = {incident["id"]: incident for incident in document["incidents"]}
        self.merged = {incident["id"]: incident for incident in document["merged"]}
        self.actions = [action for action in document["actions"] if action["action"] != _PAGE]
        self.held: list[Row] = list(document["held"])

    def rule_of(self, incident: str | None) -> str:
        found = self.incidents.get(incident or "") or self.merged.get(incident or "")
        return found["rule"] if found else ""


def _same_incidents(old: _Document, new: _Document) -> Iterator[tuple[str, str]]:
    """Yields (old id, new id) of each matched pair; an incident is in at most one."""
    both = old.incidents.keys() & new.incidents.keys()
    yield from ((name, name) for name in both)
    left = [incident for name, incident in old.incidents.items() if name not in both]
    right = [incident for name, incident in new.incidents.items() if name not in both]
    for key in (_rule_and_root, _root_and_evidence):
        pairs = list(_nearest(left, right, key, "opened"))
        yield from ((before["id"], other["id"]) for before, other in pairs)
        taken = {id(row) for pair in pairs for row in pair}
        left = [row for row in left if id(row) not in taken]
        right = [row for row in right if id(row) not in taken]


def _rule_and_root(row: Row) -> Any:
    return row["rule"], _root(row)


def _root_and_evidence(row: Row) -> Any:
    first = row["evidence"][0] if row["evidence"] else {}
    return _root(row), first.get("line") or first.get("text")


def _root(row: Row) -> tuple[Any, ...]:
    return tuple(sorted((name, value) for name, value in row["root"].items() if value is not None))


def _nearest(
    left: Iterable[Row], right: Iterable[Row], key: Callable[[Row], Any], at: str
) -> Iterator[tuple[Row, Row]]:
    """Pairs rows of equal keys, each at most once: for each row of `left` the nearest in time."""
    waiting: dict[Any, list[Row]] = {}
    for row in right:
        waiting.setdefault(key(row), []).append(row)
    for row in left:
        found = waiting.get(key(row), [])
        best = min(found, key=lambda other: abs(_apart_s(row, other, at)), default=None)
        if best is not None and abs(_apart_s(row, best, at)) <= SAME_S:
            found.remove(best)
            yield row, best


def _apart_s(row: Row, other: Row, at: str = "at") -> float:
    """Seconds by which `other` is later; negative if earlier."""
    return (datetime.fromisoformat(other[at]) - datetime.fromisoformat(row[at])).total_seconds()


# --- incidents


def _incidents(old: _Document, new: _Document, same: Mapping[str, str]) -> dict[str, Any]:
    kept = set(same.values())
    lost = [incident for name, incident in old.incidents.items() if name not in same]
    fresh = [incident for name, incident in new.incidents.items() if name not in kept]
    pairs = ((old.incidents[name], new.incidents[other]) for name, other in same.items())
    changed = [row for before, other in pairs if (row := _changed_incident(before, other))]
    return {
        "new": [_incident(incident, old.merged) for incident in fresh],
        "lost": [_incident(incident, new.merged) for incident in lost],
        "changed": sorted(changed, key=lambda row: (row["opened"], row["id"])),
    }


def _incident(incident: Row, merged: Mapping[str, Row]) -> dict[str, Any]:
    """A row of the result. `part_of`: the incident into which the other rule set merged it."""
    other = merged.get(incident["id"])
    names = ("id", "rule", "severity", "title", "opened", "closed", "root", "jobs_hit")
    return {name: incident[name] for name in names} | {"part_of": other["into"] if other else None}


def _changed_incident(before: Row, other: Row) -> dict[str, Any] | None:
    later_s = _apart_s(before, other, "opened")
    changes = {
        name: [before[name], other[name]]
        for name in ("rule", "severity", "cause", "remedy", "nodes")
        if before[name] != other[name]
    }
    if abs(later_s) > ALIKE_S:
        changes["opened"] = [before["opened"], other["opened"]]
    if not changes:
        return None
    names = ("id", "rule", "severity", "title", "opened", "root", "jobs_hit")
    return {name: other[name] for name in names} | {
        "before_id": before["id"], "later_s": later_s, "changes": changes,
    }  # fmt: skip


# --- actions and held actions


def _target(row: Row) -> tuple[Any, ...]:
    return row["action"], row["node"] or None, row["job"] or None


def _actions(old: _Document, new: _Document) -> dict[str, Any]:
    pairs = list(_nearest(old.actions, new.actions, _target, "at"))
    before = {id(row) for row, _ in pairs}
    after = {id(other) for _, other in pairs}
    fresh = [_action(action, new, old) for action in new.actions if id(action) not in after]
    lost = [_action(action, old, new) for action in old.actions if id(action) not in before]
    moved = [
        dict(other) | {"rule": new.rule_of(other["incident"]), "later_s": later_s}
        for row, other in pairs
        if abs(later_s := _apart_s(row, other)) > ALIKE_S
    ]
    return {"new": fresh, "lost": lost, "moved": moved}


def _action(action: Row, document: _Document, other: _Document) -> dict[str, Any]:
    """A row of the result. `held`: the guard that held the same action in the other document; None: it was
    not proposed there."""
    held = [row for row in other.held if _target(row) == _target(action)]
    near = min(held, key=lambda row: abs(_apart_s(action, row)), default=None)
    why = None if near is None else {name: near[name] for name in ("at", "guard", "why")}
    return dict(action) | {"rule": document.rule_of(action["incident"]), "held": why}


def _held(old: _Document, new: _Document) -> list[dict[str, Any]]:
    """Actions that different guards held, and those that only one side held (`before` or `guard` is None: not
    proposed there). What a side did is among the actions."""
    first, last = _first_held(old), _first_held(new)
    pairs = list(_nearest(first, last, _target, "at"))
    paired = {id(row) for pair in pairs for row in pair}
    rows = [_held_row(other, new, row) for row, other in pairs if row["guard"] != other["guard"]]
    for document, held in ((new, last), (old, first)):
        for row in held:
            if id(row) in paired or _was_done(row, old) or _was_done(row, new):
                continue
            lost = {} if document is new else {"guard": None, "why": None}
            rows.append(_held_row(row, document, row if lost else None) | lost)
    return sorted(rows, key=lambda row: row["at"])


def _held_row(row: Row, document: _Document, before: Row | None) -> dict[str, Any]:
    was = {name: before[name] for name in ("at", "guard", "why")} if before is not None else None
    return dict(row) | {"rule": document.rule_of(row["incident"]), "before": was}


def _was_done(held: Row, document: _Document) -> bool:
    """Whether this side did at about that time what was held."""
    return any(
        _target(action) == _target(held) and abs(_apart_s(held, action)) <= SAME_S
        for action in document.actions
    )


def _first_held(document: _Document) -> list[Row]:
    """The first guard that held each action of an incident."""
    first: dict[Any, Row] = {}
    for row in document.held:
        first.setdefault((row["incident"], *_target(row)), row)
    return list(first.values())


# --- counts


def _by_rule(
    old: _Document, new: _Document, incidents: Row, actions: Row, held: Sequence[Row]
) -> list[dict[str, Any]]:
    """Counts of differences for each rule that has any, and its number of incidents in both."""
    counted: dict[str, dict[str, int]] = {}

    def count(rows: Iterable[Row], what: str) -> None:
        for row in rows:
            counts = counted.setdefault(row["rule"], dict.fromkeys(_COUNTS, 0))
            counts[what] += 1

    for what in ("new", "lost", "changed"):
        count(incidents[what], f"incidents_{what}")
    for what in ("new", "lost", "moved"):
        count(actions[what], f"actions_{what}")
    count(held, "held")
    before, after = (
        Counter(incident["rule"] for incident in document.incidents.values()) for document in (old, new)
    )
    return [
        {"rule": rule, "before": before[rule], "after": after[rule], **counts}
        for rule, counts in sorted(counted.items())
    ]


_COUNTS = (
    "incidents_new", "incidents_lost", "incidents_changed",
    "actions_new", "actions_lost", "actions_moved", "held",
)  # fmt: skip
