"""A change that was tried: what it would make new, lost or other, by rule, node and job."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from healer.console.views.buttons import Button, may_act
from healer.model import Role
from healer.model.rehearsal import UNDER_WAY, Outcomes, Rehearsal, RehearsalState

Row = Mapping[str, Any]

_PLACE = ("node", "gpu", "link", "nic", "switch")

TONES = {
    RehearsalState.queued: "plain",
    RehearsalState.running: "ask",
    RehearsalState.done: "good",
    RehearsalState.failed: "bad",
    RehearsalState.cancelled: "plain",
}


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the page. `incident` is linked where it is a real one; `known` says what became of it."""

    kind: str
    rule: str
    what: str
    where: str
    node: str
    jobs: tuple[str, ...]
    at: datetime
    incident: str = ""
    known: str = ""
    note: str = ""


def differences(result: Row, real: Mapping[str, bool | None]) -> dict[str, list[Difference]]:
    """By heading, those without a row left out."""
    incidents, actions = result["incidents"], result["actions"]
    found = {
        "Incidents only with the change": [_incident("new", one, real) for one in incidents["new"]],
        "Incidents no longer": [_incident("lost", one, real) for one in incidents["lost"]],
        "Incidents that would be other": [_changed(one, real) for one in incidents["changed"]],
        "Actions only with the change": [_action("new", one, real) for one in actions["new"]],
        "Actions no longer": [_action("lost", one, real) for one in actions["lost"]],
        "Actions earlier or later": [_moved(one, real) for one in actions["moved"]],
        "Held by another guard": [_held(one, real) for one in result["held"]],
    }
    return {title: rows for title, rows in found.items() if rows}


def incidents_in(result: Row) -> list[str]:
    """All ids that the page may link."""
    rows = [row for part in ("incidents", "actions") for rows in result[part].values() for row in rows]
    ids = (row.get("incident") or row.get("before_id") or row.get("id") for row in [*rows, *result["held"]])
    return sorted({one for one in ids if one})


def _incident(kind: str, one: Row, real: Mapping[str, bool | None], **more: Any) -> Difference:
    note = f"part of {one['part_of'][:8]}" if one.get("part_of") else ""
    told = {"kind": kind, "rule": one["rule"], "what": one["title"], "note": note} | more
    root = one["root"]
    place = ", ".join(f"{name} {root[name]}" for name in _PLACE if root.get(name) is not None)
    at = datetime.fromisoformat(one["opened"])
    name = one.get("before_id") or one["id"]
    return Difference(
        **told,
        where=place,
        node=root.get("node") or "",
        jobs=tuple(one["jobs_hit"]),
        at=at,
        **_known(name, real),
    )


def _changed(one: Row, real: Mapping[str, bool | None]) -> Difference:
    words = (f"{name}: {_words(a)} → {_words(b)}" for name, (a, b) in one["changes"].items())
    return _incident("changed", one, real, note="; ".join(words))


def _action(kind: str, one: Row, real: Mapping[str, bool | None], note: str = "") -> Difference:
    held = one.get("held")
    other = "before" if kind == "new" else "with the change"
    note = note or (f"{other} held by {held['guard']}: {held['why']}" if held else "")
    return Difference(
        kind=kind,
        rule=one["rule"],
        what=one["action"],
        where=f"job {one['job']}" if one["job"] else f"node {one['node']}" if one["node"] else "",
        node=one["node"] or "",
        jobs=(one["job"],) if one["job"] else (),
        at=datetime.fromisoformat(one["at"]),
        note=note,
        **_known(one["incident"], real),
    )


def _moved(one: Row, real: Mapping[str, bool | None]) -> Difference:
    seconds = one["later_s"]
    return _action("moved", one, real, f"{abs(seconds):.0f} s {'later' if seconds > 0 else 'earlier'}")


def _held(one: Row, real: Mapping[str, bool | None]) -> Difference:
    return _action("held", one, real, f"{one['before']['guard']} → {one['guard']}: {one['why']}")


def _known(incident: str | None, real: Mapping[str, bool | None]) -> dict[str, str]:
    if not incident or incident not in real:
        return {}
    words = {True: "true fault", False: "false alarm", None: "not judged"}
    return {"incident": incident, "known": words[real[incident]]}


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name} {one}" for name, one in value.items()) or "none"
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def buttons(tried: Rehearsal, outcomes: Sequence[Outcomes], role: Role) -> tuple[Button, ...]:
    """Cancel while it is under way; afterwards, for an admin, to count what it opened as proof."""
    base = f"/api/v1/rehearsals/{tried.id}"
    if tried.state in UNDER_WAY and may_act(role):
        told = "The replay stops; what it found so far is not kept."
        return (Button(label="Cancel", action=f"{base}/cancel", title="Stop this replay", effect=told),)
    judged = [one for one in outcomes if one.right + one.wrong and not one.counted_by]
    if role is not Role.admin or not judged:
        return ()
    words = "; ".join(f"{one.rule}: {one.right} true faults, {one.wrong} false alarms" for one in judged)
    return (
        Button(
            label="Count as proof",
            action=f"{base}/proof",
            title="Count this replay as proof",
            effect=(
                f"{words}. From now on each of these rules, as edited here, is judged by what it opened in "
                "this replay and by what it opens once it is in force."
            ),
            body={"rules": [one.rule for one in judged]},
        ),
    )
