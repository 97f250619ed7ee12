"""One incident as Markdown, for a ticket or a mail."""

from datetime import datetime

from healer.console import words
from healer.console.reads import IncidentDetail
from healer.console.views.incident import STATE_WORDS, place, sure
from healer.console.views.timeline import timeline


def report(detail: IncidentDetail, now: datetime) -> str:
    incident = detail.incident
    closed = f"{words.utc(incident.closed)}: {incident.closed_why or ''}" if incident.closed else "no"
    lines = [
        f"# {_plain(incident.title)}: {place(incident.root)}",
        "",
        f"- Incident `{incident.id}` in cluster {incident.cluster}",
        f"- Rule {incident.rule}, fault {incident.fault}",
        f"- Severity {incident.severity.value}, {STATE_WORDS[incident.state]}; {sure(incident, detail)}",
        f"- Opened {words.utc(incident.opened)}; closed: {_plain(closed)}",
        f"- Jobs hit: {', '.join(incident.jobs_hit) or 'none'}",
        f"- Report made {words.utc(now)}",
        "",
        "## Timeline (UTC)",
        "",
    ]
    for row in timeline(detail):
        if row.day:
            lines += [f"### {row.day}", ""]
        lines.append(f"- `{row.clock}` ({row.offset}) {row.kind}: {_plain(row.text)}")
        if row.line:
            lines += ["", "      " + row.line.replace("\n", " "), ""]
        if row.detail:
            lines.append(f"  {_plain(row.detail)}")
        lines += [
            f"  - {guard.guard}: {guard.word}. {_plain(guard.why)}"
            for guard in row.guards
            if guard.word != "allow"
        ]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """A text from outside on one line, with the characters that Markdown and HTML would act on made inert."""
    text = " ".join(text.split())
    for sign in ("\\", "`", "*", "_", "[", "]", "<", ">", "#", "|"):
        text = text.replace(sign, f"\\{sign}")
    return text
