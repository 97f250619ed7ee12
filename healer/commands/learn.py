"""`healer learn`: takes the facts of a good node as the reference of its kind."""

from typing import Any

import typer

from healer.commands import Failed, Misused, print_line
from healer.commands.remote import AS_JSON, CLUSTER, Client, given, print_json, print_table
from healer.text import joined, say


def learn(
    *,
    node: str | None = typer.Option(None, "--node", help="The good node."),
    kind: str | None = typer.Option(None, "--kind", help="The GPU model; default: the node's."),
    show: bool = typer.Option(False, "--show", help="Show the recorded references."),
    forget: bool = typer.Option(False, "--forget", help="Forget the reference of --kind."),
    reason: str = typer.Option("no reason given", "--reason", help="Reason, recorded in the audit."),
    yes: bool = typer.Option(False, "--yes", help="Record it; otherwise only show it."),
    cluster: str | None = CLUSTER,
    json: bool = AS_JSON,
) -> None:
    """Record the driver, firmware, BIOS and settings of a good node as the reference for its kind."""
    if sum((node is not None, show, forget)) != 1:
        raise Misused(say("commands.learn_which"))
    with Client() as api:
        found = api.get("/references", cluster=cluster)
        if node is not None:
            answer = _learn(api, found["cluster"], node, kind, reason=reason, yes=yes)
        elif forget:
            answer = _forget(api, found, kind, reason=reason, yes=yes)
        else:
            answer = found
    if json:
        print_json(answer)
    elif node is not None:
        _print_learnt(answer)
    elif forget:
        words = {"kind": answer["kind"], "node": answer["node"]}
        print_line(say("commands.forgotten", **words) if yes else say("commands.would_forget", **words))
    else:
        _print_references(answer["items"])


def _learn(api: Any, cluster: str, node: str, kind: str | None, *, reason: str, yes: bool) -> Any:
    body = {"cluster": cluster, "node": node, "kind": kind, "reason": reason, "dry_run": not yes}
    return api.post("/references", given(body), once=True)


def _forget(api: Any, found: Any, kind: str | None, *, reason: str, yes: bool) -> Any:
    by_kind = {reference["kind"]: reference for reference in found["items"]}
    if kind is None and len(by_kind) != 1:
        raise Misused(say("commands.forget_which", kinds=joined(list(by_kind), "or") or "KIND"))
    wanted = kind or next(iter(by_kind))
    if wanted not in by_kind:
        raise Failed(say("commands.no_reference", kind=wanted))
    if not yes:
        return by_kind[wanted]
    return api.delete(f"/references/{found['cluster']}/{wanted}", {"reason": reason})


def _print_learnt(answer: Any) -> None:
    reference, before = answer["reference"], (answer["before"] or {}).get("facts", {})
    rows = [(name, value, before.get(name, "")) for name, value in reference["facts"].items()]
    measured = (answer["before"] or {}).get("figures", {})
    rows += [(name, f"{value:g}", _short(measured, name)) for name, value in reference["figures"].items()]
    print_table(("FACT", reference["node"], "BEFORE"), rows)
    differ = [
        (name, ", ".join(f"{fact} {value}" for fact, value in facts.items()))
        for name, facts in answer["differ"].items()
    ]
    if differ:
        print_table(("NODE", "DIFFERS"), differ)
    silent = answer["silent"]
    print_line(say("commands.learn_differ", count=len(differ), kind=reference["kind"], silent=silent))
    print_line(say("commands.learnt" if answer["stored"] else "commands.would_learn"))


def _print_references(items: Any) -> None:
    if not items:
        print_line(say("commands.no_references"))
        return
    rows = [
        (reference["kind"], reference["node"], reference["at"][:19], reference["by"], fact, value)
        for reference in items
        for fact, value in [
            *reference["facts"].items(),
            *((name, f"{figure:g}") for name, figure in reference["figures"].items()),
        ]
    ]
    print_table(("KIND", "FROM", "AT (UTC)", "BY", "FACT", "VALUE"), rows)


def _short(figures: Any, name: str) -> str:
    return f"{figures[name]:g}" if name in figures else ""
