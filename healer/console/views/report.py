"""One incident as Markdown, for a ticket or a mail."""

from datetime import datetime

from healer.console import words
from healer.console.reads import IncidentDetail
from healer.console.views.incident import STATE_WORDS, verdict_view
from healer.console.views.markdown import listed, plain
from healer.console.views.timeline import timeline
from healer.incidents.hit import lost_together
from healer.incidents.sentence import place


def report(detail: IncidentDetail, now: datetime) -> str:
    incident = detail.incident
    closed = f"{words.utc(incident.closed)}: {incident.closed_why or ''}" if incident.closed else "no"
    verdict = verdict_view(detail.verdict)
    lines = [
        f"# {plain(incident.title)}: {place(incident.root)}",
        "",
        plain(verdict.sentence),
        "",
        f"- Incident `{incident.id}` in cluster {incident.cluster}",
        f"- Rule {incident.rule}, fault {incident.fault}",
        f"- Severity {incident.severity.value}, {STATE_WORDS[incident.state]}; {verdict.sure}, "
        f"cause {verdict.cause}",
        f"- Opened {words.utc(incident.opened)}; closed: {plain(closed)}",
        f"- Jobs hit: {', '.join(incident.jobs_hit) or 'none'}",
        f"- Lost: {lost_together(incident.hit) or 'not known'}",
        f"- Report made {words.utc(now)}",
        *listed("Why", verdict.why),
        *listed("Set aside", verdict.aside),
        *listed(
            "Similar", [f"{one.opened:%Y-%m-%d} {place(one.root)}: {one.ended}" for one in detail.similar]
        ),
        "",
        "## Timeline (UTC)",
        "",
    ]
    for row in timeline(detail):
        if row.day:
            lines += [f"### {row.day}", ""]
        lines.append(f"- `{row.clock}` ({row.offset}) {row.kind}: {plain(row.text)}")
        if row.line:
            lines += ["", "      " + row.line.replace("\n", " "), ""]
        if row.detail:
            lines.append(f"  {plain(row.detail)}")
        lines += [
            f"  - {guard.guard}: {guard.word}. {plain(guard.why)}"
            for guard in row.guards
            if guard.word != "allow"
        ]
    return "\n".join(lines) + "\n"
