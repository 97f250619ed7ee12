"""One incident and one run as lines of text, in sentences by key."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from healer.model import IncidentVerdict, JobHit
from healer.text import Said, from_stored, joined, quoted, say

#: Nodes of a verdict that are named.
_NODES = 8


def incident_lines(found: dict[str, Any]) -> Iterator[str]:
    """All but its timeline: verdict, evidence, ruled-out causes, impact, similar incidents, runs. An empty
    line begins each part."""
    from healer.incidents.impact import total_loss_text  # with all detectors, and numpy

    yield say(
        "commands.incident", severity=found["severity"], state=quoted(found["state"]), title=found["title"]
    )
    yield say(
        "commands.incident_where", where=where(found["root"]), id=found["id"], rule=found["rule"],
        opened=moment(found["opened"]),
    )  # fmt: skip
    if found["closed_why"]:
        yield say("commands.incident_closed", closed=moment(found["closed"]), why=found["closed_why"])
    yield from _verdict(found["verdict"])
    impact = total_loss_text(_hits(found))
    title = say("commands.impact")
    yield from _part(say("commands.impact_of", loss=impact) if impact else title, _jobs(found))
    similar = [
        say(
            "commands.similar_one", id=other["id"][:8], where=where(other["root"]),
            day=other["opened"][:10], ended=other["ended"],
        )
        for other in found["similar"]
    ]  # fmt: skip
    yield from _part(say("commands.similar"), similar)
    yield from _part(say("commands.actions"), _actions(found))


def where(root: dict[str, Any]) -> str:
    """The node, or the switch, device with its part, job or cluster."""
    name = root.get("node") or root.get("switch") or " ".join(
        root[word] for word in ("device", "part") if root.get(word)
    )  # fmt: skip
    if name:
        return name
    if root.get("job"):
        return say("commands.job", job=root["job"])
    return say("commands.cluster", cluster=root["cluster"])


def moment(text: str) -> str:
    """A time of the API, to the second: `2026-11-20 03:00:04 UTC`."""
    return f"{text[:10]} {text[11:19]} UTC"


def _verdict(document: dict[str, Any]) -> Iterator[str]:
    from healer.incidents.incident_verdict import certainty_text, ruled_out_text

    verdict = from_stored(document, IncidentVerdict)
    named = islice(verdict.nodes.items(), _NODES)
    nodes = joined(
        [say("commands.verdict_node", node=name, word=quoted(word)) for name, word in named], "comma"
    )
    yield ""
    yield say("commands.verdict", sentence=verdict.sentence)
    yield say(
        "commands.verdict_facts", sure=certainty_text(verdict.certainty), cause=quoted(verdict.cause.value),
        nodes=nodes if verdict.nodes else say("commands.verdict_no_node"),
    )  # fmt: skip
    if verdict.retest is not None:
        yield say("commands.verdict_test", text=quoted(verdict.retest.text))
    yield from _part(say("commands.why"), verdict.why)
    yield from _part(say("commands.ruled_out"), [ruled_out_text(each) for each in verdict.set_aside])


def _part(title: str, rows: Sequence[str]) -> Iterator[str]:
    if rows:
        yield ""
        yield title
    for row in rows:
        yield say("commands.item", text=row)


def _hits(found: dict[str, Any]) -> list[JobHit]:
    return msgspec.convert(found["hit"], list[JobHit])


def _jobs(found: dict[str, Any]) -> list[str]:
    from healer.incidents.impact import loss_text

    hits: dict[str, JobHit] = {}
    for hit in _hits(found):
        hits.setdefault(hit.job, hit)
    rows = []
    for job in found["jobs"]:
        hit = hits.get(job["id"])
        user = job.get("user") or (hit.user if hit else "")
        parts = [
            say("commands.job_of", job=job["id"], user=user) if user else say("commands.job", job=job["id"])
        ]
        if hit and hit.gpus:
            parts.append(say("words.count_gpu", count=hit.gpus))
        if hit:
            parts.append(loss_text(hit))
        rows.append(joined(parts, "comma"))
    return rows


def _actions(found: dict[str, Any]) -> list[str]:
    """Its runs with their states; if there is none, why nothing is done."""
    rows: list[str] = []
    for run in found["runs"]:
        target, state = run.get("node") or run.get("job"), state_of(run)
        line = say("commands.run_on", playbook=run["playbook"], target=target, state=state)
        question = run.get("question")
        rows.append(say("commands.run_asks", run=line, question=question) if question else line)
    if rows:
        return rows
    return [say("commands.no_action", why=decision["why"]) for decision in found["decisions"][-1:]]


def timeline_title() -> str:
    return say("commands.timeline")


def state_of(run: Mapping[str, Any]) -> Said:
    """A run that is done in shadow mode has done nothing."""
    state = quoted(run["state"])
    return say("console.runs_shadow", word=state) if run.get("shadow") else state


def run_state(answer: dict[str, Any]) -> str:
    line = say("commands.run", id=answer["id"], state=state_of(answer))
    question = answer.get("question")
    return say("commands.run_asks", run=line, question=question) if question else line
