"""`healer runs`, `healer run`, `healer approve`, `healer pause`: the console's verbs for a terminal."""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import typer

from healer.commands import Failed, say
from healer.commands.phrases import run_lines, run_state
from healer.commands.remote import (
    AS_JSON,
    CLUSTER,
    REASON,
    Client,
    ClientError,
    Column,
    given,
    print_json,
    print_list,
    print_table,
)
from healer.commands.token import parse_lasts
from healer.model.hostlist import expand

RESTART: Any = typer.Option(
    [],
    metavar="JOB",
    help="Consent to restart this job on the node; JOB:RESTARTS means this run of the job. Repeat for more.",
)
RUN: Any = typer.Argument(metavar="RUN", help="The run's id.")


def register(app: typer.Typer) -> None:
    app.command("runs")(runs)
    app.command("run")(run)
    app.command("approve")(approve)
    app.command("reject")(reject)
    app.command("cancel")(cancel)
    app.command("retry")(retry)
    app.command("undo")(undo)
    app.command("pause")(pause)


def runs(
    run_id: str | None = typer.Argument(None, metavar="[RUN]", help="A run's id."),
    state: list[str] = typer.Option([], help="Only runs in this state; repeat for more."),
    node: str | None = typer.Option(None, help="Only those of this node."),
    cluster: str | None = CLUSTER,
    limit: int = typer.Option(200, min=1, help="Maximum number of rows."),
    json: bool = AS_JSON,
) -> None:
    """List playbook runs, newest first, or show one with its steps."""
    with Client() as api:
        if run_id is not None:
            found = api.get(f"/runs/{run_id}")
            print_json(found) if json else _show(found)
            return
        listed = list(api.items("/runs", limit, state=state, node=node, cluster=cluster))
    print_list(listed, _RUNS, json, clusters=True)


_RUNS: dict[str, Column] = {
    "RUN": "id",
    "PLAYBOOK": "playbook",
    "ON": lambda run: run["node"] or run["job"],
    "STATE": "state",
    "BY": "by",
    "CREATED (UTC)": lambda run: run["created_at"][:19],
}
_PAUSES: dict[str, Column] = {
    "ID": "id",
    "SCOPE": "scope",
    "NAME": "name",
    "CLUSTER": "cluster",
    "BY": "by",
    "SINCE (UTC)": lambda pause: pause["since"][:19],
    "UNTIL": "until",
    "WHY": "reason",
}


def _show(found: dict[str, Any]) -> None:
    for line in run_lines(found):
        say(line)
    rows = [(step["title"], step["state"], step["attempt"], step["text"]) for step in found["steps"]]
    print_table(("STEP", "STATE", "TRIES", ""), rows)


def run(
    playbook: str = typer.Argument(help="The playbook: drain, resume, requeue, …"),
    *,
    node: str | None = typer.Option(None, help="The node it works on; gpu[0001-0004] is a run for each."),
    job: str | None = typer.Option(None, help="The job it works on."),
    cluster: str | None = CLUSTER,
    incident: str | None = typer.Option(None, help="The incident it belongs to."),
    reason: str = typer.Option(
        "", "--reason", help="Reason, recorded in the audit. Required unless --dry-run."
    ),
    inputs: list[str] = typer.Option([], "--input", metavar="NAME=VALUE", help="An input of the playbook."),
    restart: list[str] = RESTART,
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Show the planned steps and the guard results; do nothing."
    ),
    json: bool = AS_JSON,
) -> None:
    """Start a playbook on a node or a job. With several nodes, the guards check each one separately; a node
    without a free slot waits for one."""
    if not reason and not dry_run:
        raise typer.BadParameter("a run needs a reason", param_hint="--reason")
    asked = {"job": job, "cluster": cluster, "incident": incident, "reason": reason, "restart": restart}
    body = given(asked | {"inputs": dict(map(_input, inputs)), "dry_run": dry_run or None})
    nodes = _nodes(node)
    with Client() as api:
        if len(nodes) > 1:
            _run_on_each(api, playbook, nodes, body, json)
            return
        body |= {"node": nodes[0]} if nodes else {}
        answer = api.post(f"/playbooks/{playbook}/runs", body, key=None if dry_run else secrets.token_hex(16))
    if json:
        print_json(answer)
    elif dry_run:
        _show_plan(answer)
    else:
        say(_line(answer))


def _nodes(text: str | None) -> list[str]:
    try:
        return expand(text) if text else []
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--node") from error


def _run_on_each(api: Client, playbook: str, nodes: Sequence[str], body: dict[str, Any], json: bool) -> None:
    """Starts a run on each node; a refusal does not stop the others. Ends with 1 if one was refused."""
    answers: list[dict[str, Any]] = []
    for name in nodes:
        key = None if body.get("dry_run") else secrets.token_hex(16)
        try:
            answers.append(
                {"node": name} | api.post(f"/playbooks/{playbook}/runs", {**body, "node": name}, key=key)
            )
        except ClientError as error:
            answers.append({"node": name, "error": str(error)})
    if json:
        print_json(answers)
    else:
        rows = [(answer["node"], _outcome(answer)) for answer in answers]
        print_table(("NODE", ""), rows)
    if any("error" in answer for answer in answers):
        raise typer.Exit(1)


def _outcome(answer: dict[str, Any]) -> str:
    if "error" in answer:
        return f"refused: {answer['error']}"
    return f"{answer['outcome']}. {answer['why']}" if "outcome" in answer else _line(answer)


def _line(answer: dict[str, Any]) -> str:
    return run_state(answer)


def _input(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--input")
    return name, value


def _show_plan(plan: dict[str, Any]) -> None:
    say(f"{plan['playbook']['title']}: {plan['outcome']}. {plan['why']}")
    for step in plan["playbook"]["steps"]:
        lacks = plan["not_available"].get(step["id"])
        say(f"  {step['title'] or step['id']}" + (f" ({lacks})" if lacks else ""))
    if plan["jobs_hit"]:
        say(
            "would hit: "
            + ", ".join(f"{job['id']} {job.get('user', '')}".strip() for job in plan["jobs_hit"])
        )
    for offer in plan["restarts"]:
        say(_offer(offer))
    rows = [
        (answer["guard"], answer["kind"], answer["used"], answer["limit"], answer["why"])
        for answer in plan["answers"]
    ]
    print_table(("GUARD", "SAYS", "USED", "LIMIT", ""), rows)


def _offer(offer: dict[str, Any]) -> str:
    """A job that the run would wait for, and the option that restarts it."""
    job = f"job {offer['job']} {offer['user']}".strip()
    if not offer["possible"]:
        return f"waits for {job}, which cannot be restarted: {offer['why']}"
    return f"waits for {job}; --restart {offer['job']}:{offer['restarts']} restarts it with the run"


def approve(
    run_id: str = RUN, reason: str = REASON, restart: list[str] = RESTART, json: bool = AS_JSON
) -> None:
    """Approve a run."""
    _on_run(run_id, "approve", given({"reason": reason, "restart": restart}), json)


def reject(run_id: str = RUN, reason: str = REASON, json: bool = AS_JSON) -> None:
    """Reject a run that waits for approval: it ends without doing anything."""
    _on_run(run_id, "reject", {"reason": reason}, json)


def cancel(run_id: str = RUN, reason: str = REASON, json: bool = AS_JSON) -> None:
    """Stop a run before its next step. Completed steps stay in place."""
    _on_run(run_id, "cancel", {"reason": reason}, json)


def retry(
    run_id: str = RUN,
    step: str | None = typer.Option(None, "--from", metavar="STEP", help="Restart from this step."),
    reason: str = REASON,
    json: bool = AS_JSON,
) -> None:
    """Continue a stuck run, or restart a stuck or waiting run from a step."""
    _on_run(run_id, "retry", given({"reason": reason, "step": step}), json)


def undo(run_id: str = RUN, reason: str = REASON, json: bool = AS_JSON) -> None:
    """Roll back what a run did, last step first."""
    _on_run(run_id, "undo", {"reason": reason}, json)


def _on_run(run_id: str, verb: str, body: dict[str, Any], json: bool) -> None:
    with Client() as api:
        answer = api.post(f"/runs/{run_id}/{verb}", body, key=secrets.token_hex(16))
    print_json(answer) if json else say(run_state(answer))


def pause(
    *,
    scope: str = typer.Option("all", help="all, cluster, partition, node, rule or playbook."),
    name: str | None = typer.Option(None, help="The name (not for scope all)."),
    cluster: str | None = CLUSTER,
    reason: str = typer.Option("", "--reason", help="Reason, recorded in the audit."),
    lasts: str | None = typer.Option(
        None, "--for", help="End it automatically after 30m, 12h, 7d. Default: never."
    ),
    listed: bool = typer.Option(False, "--list", help="Show the active pauses."),
    end: str | None = typer.Option(None, "--end", help="End the pause with this id."),
    json: bool = AS_JSON,
) -> None:
    """Pause healer, show the active pauses, or end one. Takes effect within a second."""
    with Client() as api:
        if listed:
            print_list(api.get("/pauses")["items"], _PAUSES, json)
            return
        if not reason:
            raise Failed("a pause needs --reason, and so does its end")
        if end is not None:
            answer = api.delete(f"/pauses/{end}", {"reason": reason})
        else:
            asked = {"scope": scope, "name": name, "cluster": cluster, "reason": reason}
            if lasts is not None:
                asked["until"] = (datetime.now(UTC) + parse_lasts(lasts)).isoformat()
            answer = api.post("/pauses", given(asked), key=secrets.token_hex(16))
    done = "ended" if end is not None else "in force"
    print_json(answer) if json else say(
        f"pause {answer['id']} of {answer['name'] or answer['scope']}: {done}"
    )
