"""One incident as Markdown, for a ticket or a mail."""

from collections.abc import Callable
from datetime import datetime

from healer.console import words
from healer.console.views.incident import STATE_WORDS, verdict_view
from healer.console.views.markdown import listed, plain
from healer.console.views.timeline import timeline
from healer.incidents.hit import lost_together
from healer.incidents.sentence import place
from healer.ports.console_answers import IncidentDetail


def report(detail: IncidentDetail, now: datetime, said: Callable[[str], str] = str) -> str:
    """`said`: a finished sentence in the language of the one who asks."""
    incident = detail.incident
    closed = f"{words.utc(incident.closed)}: {incident.closed_why or ''}" if incident.closed else "no"
    verdict = verdict_view(detail.verdict)
    lines = [
        f"# {plain(said(incident.title))}: {said(place(incident.root))}",
        "",
        plain(said(verdict.sentence)),
        "",
        said(f"- Incident `{incident.id}` in cluster {incident.cluster}"),
        said(f"- Rule {incident.rule}, fault {incident.fault}"),
        said(
            f"- Severity {incident.severity.value}, {STATE_WORDS[incident.state]}; {verdict.sure}, "
            f"cause {verdict.cause}"
        ),
        plain(said(f"- Opened {words.utc(incident.opened)}; closed: {closed}")),
        said(f"- Jobs hit: {', '.join(incident.jobs_hit) or 'none'}"),
        said(f"- Lost: {lost_together(incident.hit) or 'not known'}"),
        said(f"- Report made {words.utc(now)}"),
        *listed("Why", verdict.why, said),
        *listed("Set aside", verdict.aside, said),
        *listed(
            "Similar",
            [f"{one.opened:%Y-%m-%d} {said(place(one.root))}: {said(one.ended)}" for one in detail.similar],
            said,
        ),
        "",
        said("## Timeline (UTC)"),
        "",
    ]
    for row in timeline(detail):
        if row.day:
            lines += [f"### {said(row.day)}", ""]
        lines.append(f"- `{row.clock}` ({said(row.offset)}) {said(row.kind)}: {plain(said(row.text))}")
        if row.line:
            lines += ["", "      " + row.line.replace("\n", " "), ""]
        if row.detail:
            lines.append(f"  {plain(row.detail if row.typed else said(row.detail))}")
        lines += [
            f"  - {guard.guard}: {said(guard.word)}. {plain(said(guard.why))}"
            for guard in row.guards
            if guard.word != "allow"
        ]
    return "\n".join(lines) + "\n"
