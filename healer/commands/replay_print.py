"""Replays and comparisons as text for people."""

from typing import Any

import typer


def print_document(document: dict[str, Any]) -> None:
    """One replay."""
    for one in document["incidents"]:
        jobs = ", ".join(one["jobs_hit"]) or "no job"
        typer.echo(
            f"{one['opened']}  {one['severity']} {one['rule']} {one['id'][:8]}  {one['title']}  ({jobs})"
        )
    if document["merged"]:
        typer.echo(f"\n{len(document['merged'])} turned out to be parts of others")
    for one in document["merged"]:
        typer.echo(f"{one['opened']}  {one['rule']} {one['id'][:8]} into {one['into'][:8]}")
    typer.echo(f"\n{len(document['actions'])} actions")
    for row in document["actions"]:
        what = (row["job"] and f"job {row['job']}") or row["node"] or ""
        typer.echo(f"{row['at']}  {row['action']:8} {what}  {(row['incident'] or '')[:8]}")
    typer.echo(f"\n{len(document['held'])} held back")
    for row in document["held"]:
        typer.echo(
            f"{row['at']}  {row['action']:8} {row['job'] or row['node']}  {row['guard']}: {row['why']}"
        )
    if document["differences"]:
        typer.echo("\nDifferent from what was done")
        for row in document["differences"]:
            done = f"drained at {row['recorded']}" if row["recorded"] else "not drained"
            now = f"would be drained at {row['replayed']}" if row["replayed"] else "would not be drained"
            typer.echo(f"{row['node']}  then {done}, now {now}")


def print_comparison(found: dict[str, Any]) -> None:
    """What differs: first by rule, then each incident and action."""
    from healer.commands.remote import print_table

    if not any((*found["incidents"].values(), *found["actions"].values(), found["held"])):
        typer.echo("No difference.")
        return
    rows = [[row[name] for name, _ in _COLUMNS] for row in found["rules"]]
    print_table([title for _, title in _COLUMNS], rows)
    for what, words in (("new", "Only now"), ("lost", "No longer")):
        _section(f"{words}: incidents", [_incident(one) for one in found["incidents"][what]])
        _section(f"{words}: actions", [_action(one) for one in found["actions"][what]])
    _section("Different incidents", [_changed(one) for one in found["incidents"]["changed"]])
    _section("Earlier or later actions", [_moved(one) for one in found["actions"]["moved"]])
    _section("Held by another guard", [_held(one) for one in found["held"]])


_COLUMNS = (
    ("rule", "RULE"), ("before", "BEFORE"), ("after", "NOW"), ("incidents_new", "NEW"),
    ("incidents_lost", "LOST"), ("incidents_changed", "OTHER"), ("actions_new", "ACTIONS+"),
    ("actions_lost", "ACTIONS-"), ("actions_moved", "MOVED"), ("held", "HELD"),
)  # fmt: skip


def _section(title: str, lines: list[str]) -> None:
    if lines:
        typer.echo(f"\n{title} ({len(lines)})")
        for line in lines:
            typer.echo(line)


def _incident(one: dict[str, Any]) -> str:
    part = f"  (part of {one['part_of'][:8]})" if one["part_of"] else ""
    return f"{one['opened']}  {one['severity']} {one['rule']} {one['id'][:8]}  {one['title']}{part}"


def _action(one: dict[str, Any]) -> str:
    held = one["held"]
    other = f"  there held by {held['guard']}: {held['why']}" if held else ""
    return f"{one['at']}  {one['action']:8} {_target(one)}  {one['rule']}{other}"


def _changed(one: dict[str, Any]) -> str:
    changes = (f"{name} {_words(a)} -> {_words(b)}" for name, (a, b) in one["changes"].items())
    return f"{one['opened']}  {one['rule']} {one['id'][:8]}  {'; '.join(changes)}"


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={one}" for name, one in value.items()) or "none"
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)


def _moved(one: dict[str, Any]) -> str:
    seconds = one["later_s"]
    words = f"{abs(seconds):.0f} s {'later' if seconds > 0 else 'earlier'}"
    return f"{one['at']}  {one['action']:8} {_target(one)}  {one['rule']}  {words}"


def _held(one: dict[str, Any]) -> str:
    guards = f"{one['before']['guard']} -> {one['guard']}"
    return f"{one['at']}  {one['action']:8} {_target(one)}  {one['rule']}  {guards}"


def _target(one: dict[str, Any]) -> str:
    return f"job {one['job']}" if one["job"] else one["node"] or ""
