"""`healer runs`, `healer run`, `healer approve`, `healer pause`: the console's verbs for a terminal."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import typer

from healer.commands import Misused, print_line
from healer.commands.phrases import run_state, state_of
from healer.commands.remote import (
    AS_JSON,
    CLUSTER,
    REASON,
    YES,
    Client,
    ClientError,
    Column,
    given,
    print_json,
    print_list,
    print_table,
    second_of,
)
from healer.commands.token import parse_lasts
from healer.model.hostlist import expand
from healer.model.vocabulary import ENDED_RUN_STATES
from healer.text import Said, joined, quoted, said_by, say

RESTART: Any = typer.Option(
    [],
    metavar="JOB",
    help="Consent to restart this job on the node; JOB:RESTARTS means this run of the job. Repeat for more.",
)
RUN: Any = typer.Argument(metavar="RUN", help="The run's id.")


def runs(
    run_id: str | None = typer.Argument(None, metavar="RUN", help="A run's id."),
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
    "STATE": state_of,
    "BY": "by",
    "CREATED (UTC)": second_of("created_at"),
}
_PAUSES: dict[str, Column] = {
    "ID": "id",
    "SCOPE": "scope",
    "NAME": "name",
    "CLUSTER": "cluster",
    "BY": "by",
    "SINCE (UTC)": second_of("since"),
    "UNTIL (UTC)": second_of("until"),
    "WHY": "reason",
}


def _show(found: dict[str, Any]) -> None:
    target = found["node"] or found["job"]
    print_line(say("commands.run_on", playbook=found["title"], target=target, state=state_of(found)))
    print_line(say("commands.requested_by", who=found["by"], reason=found["reason"]))
    if found["question"]:
        print_line(say("commands.question", text=found["question"]))
    newest = found["decisions"][-1] if found["decisions"] else {"outcome": None}
    if newest["outcome"] == "refused":
        print_line(say("commands.run_refused", text=newest["why"]))
    elif newest["outcome"] == found["state"] == "held":
        print_line(say("commands.run_held", text=newest["why"]))
    rows = [(step["title"], _state(step, found), step["attempt"], step["text"]) for step in found["steps"]]
    print_table(("STEP", "STATE", "TRIES", ""), rows)


def _state(step: dict[str, Any], run: dict[str, Any]) -> str:
    """A run that was rolled back or cancelled leaves steps behind: nothing waits in them any more."""
    if step["ended_at"] is not None or run["state"] not in ENDED_RUN_STATES:
        return step["state"]
    return say("commands.step_left") if step["attempt"] else say("commands.step_not_run")


def run(
    playbook: str = typer.Argument(help="The playbook: drain, resume, requeue, …"),
    *,
    node: str | None = typer.Option(
        None, help="The node it works on; gpu[0001-0004] starts one run per node."
    ),
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
    yes: bool = YES,
    json: bool = AS_JSON,
) -> None:
    """Start a playbook on a node or a job. With several nodes, the guards check each one separately; a node
    without a free slot waits for one."""
    if not reason and not dry_run:
        raise typer.BadParameter(say("commands.run_reason"), param_hint="--reason")
    asked = {"job": job, "cluster": cluster, "incident": incident, "reason": reason, "restart": restart}
    body = given(asked | {"inputs": dict(map(_input, inputs)), "dry_run": dry_run or None})
    nodes = _nodes(node)
    with Client() as api:
        if len(nodes) > 1:
            _run_on_each(api, playbook, nodes, body, json)
            return
        body |= {"node": nodes[0]} if nodes else {}
        answer = api.post(f"/playbooks/{playbook}/runs", body, once=not dry_run)
    if json:
        print_json(answer)
    elif dry_run:
        _show_plan(answer)
    else:
        print_line(run_state(answer))


def _nodes(text: str | None) -> list[str]:
    try:
        return expand(text) if text else []
    except ValueError as error:
        raise typer.BadParameter(said_by(error), param_hint="--node") from error


def _run_on_each(api: Client, playbook: str, nodes: Sequence[str], body: dict[str, Any], json: bool) -> None:
    """Starts a run on each node; a refusal does not stop the others. Ends with 1 if one was refused."""
    answers: list[dict[str, Any]] = []
    for name in nodes:
        try:
            answer = api.post(
                f"/playbooks/{playbook}/runs", {**body, "node": name}, once="dry_run" not in body
            )
            answers.append({"node": name} | answer)
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
        return say("commands.refused", why=answer["error"])
    return _forecast(answer) if "outcome" in answer else run_state(answer)


def _forecast(plan: dict[str, Any]) -> Said:
    return say("commands.outcome", outcome=say(f"console.outcome_{plan['outcome']}"), why=plan["why"])


def _input(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise typer.BadParameter(say("commands.no_pair", given=text), param_hint="--input")
    return name, value


def _show_plan(plan: dict[str, Any]) -> None:
    print_line(say("commands.of_field", field=quoted(plan["playbook"]["title"]), text=_forecast(plan)))
    for step in plan["playbook"]["steps"]:
        lacks, title = plan["not_available"].get(step["id"]), step["title"] or step["id"]
        step_line = say("commands.step_lacks", title=title, why=lacks) if lacks else quoted(title)
        print_line(say("commands.indented", text=step_line))
    if plan["jobs_hit"]:
        jobs = [_job(job["id"], job.get("user", "")) for job in plan["jobs_hit"]]
        print_line(say("commands.would_hit", jobs=joined(jobs, "comma")))
    for offer in plan["restarts"]:
        print_line(_offer(offer))
    rows = [
        (answer["guard"], answer["kind"], *map(_figure, (answer["used"], answer["limit"])), answer["why"])
        for answer in plan["answers"]
    ]
    print_table(("GUARD", "RESULT", "USED", "LIMIT", "WHY"), rows)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:g}"


def _job(job: str, user: str) -> Said:
    return say("commands.job_of", job=job, user=user) if user else say("commands.job", job=job)


def _offer(offer: dict[str, Any]) -> Said:
    """A job that the run would wait for, and the option that restarts it."""
    job = _job(offer["job"], offer["user"])
    if not offer["possible"]:
        return say("commands.waits_for", job=job, why=offer["why"])
    return say("commands.may_restart", job=job, given=f"{offer['job']}:{offer['restarts']}")


def approve(
    run_id: str = RUN,
    reason: str = REASON,
    restart: list[str] = RESTART,
    yes: bool = YES,
    json: bool = AS_JSON,
) -> None:
    """Approve a run."""
    _on_run(run_id, "approve", given({"reason": reason, "restart": restart}), json)


def reject(run_id: str = RUN, reason: str = REASON, json: bool = AS_JSON) -> None:
    """Reject a run that waits for approval: it takes no further step."""
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
        answer = api.post(f"/runs/{run_id}/{verb}", body, once=True)
        if answer["state"] == "held" and not answer["question"] and not json:
            decisions = api.get(f"/runs/{answer['id']}")["decisions"]
            answer["question"] = decisions[-1]["why"] if decisions else None
    print_json(answer) if json else print_line(run_state(answer))


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
            raise Misused(say("commands.pause_reason"))
        if end is not None:
            answer = api.delete(f"/pauses/{end}", {"reason": reason})
        else:
            asked = {"scope": scope, "name": name, "cluster": cluster, "reason": reason}
            if lasts is not None:
                asked["until"] = (datetime.now(UTC) + parse_lasts(lasts, "--for")).isoformat()
            answer = api.post("/pauses", given(asked), once=True)
    words = {"id": answer["id"], "of": quoted(answer["name"] or answer["scope"])}
    done = say("commands.pause_ended", **words) if end is not None else say("commands.paused", **words)
    print_json(answer) if json else print_line(done)
