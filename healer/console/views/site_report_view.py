"""The report on a site's own past: chapters of facts, tables and charts, every claim with a link to its
evidence further down in the same file."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from healer.console import words
from healer.console.views.report_charts_view import Span, buckets, ticks
from healer.console.views.svg_charts import Kind, Series, SvgChart, Unit
from healer.model.site_past import RESTART_S, SILENT_DAYS, WAIT_MOST, Answer, Death, Hold, PastReport
from healer.text import Said, joined, say

#: Rows of one table; `--json` has all.
ROWS_MOST = 200
#: Lines of evidence of one incident.
LINES_MOST = 5


class Cell(msgspec.Struct, frozen=True):
    """`link`: an anchor in the same file. `theirs`: a word of others, never translated."""

    text: str
    link: str = ""
    theirs: bool = False


class Chapter(msgspec.Struct, frozen=True, kw_only=True):
    """`facts` are (name, figure, what it rests on); `rows` a table; `anchors` name its rows."""

    id: str
    title: str
    note: str = ""
    facts: Sequence[tuple[str, str, str]] = ()
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    anchors: Sequence[str] = ()
    charts: Sequence[SvgChart] = ()
    lines: Sequence[str] = ()
    more: int = 0


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One incident with the lines that it rests on."""

    anchor: str
    title: str
    what: str
    why: str
    lines: Sequence[str]


def chapters(report: PastReport) -> list[Chapter]:
    return [
        _short(report),
        Chapter(id="time", title=say("past.over_time"), charts=_charts(report)),
        _faults(report),
        _people(report),
        _jobs(report),
        _hours(report),
        _worst(report),
        _silence(report),
        _advice(report),
        _bounds(report),
        _import(report),
        _holds(report),
        _deaths(report),
    ]


def evidence(report: PastReport) -> list[Evidence]:
    return [
        Evidence(
            anchor=_incident_anchor(row["id"]),
            title=row["title"],
            what=say(
                "past.evidence_of", rule=row["rule"], severity=row["severity"], at=_time(row["opened"]),
                place=row["root"].get("node") or row["root"].get("switch") or "",
            ),
            why=(row.get("verdict") or {}).get("sentence", ""),
            lines=[_line(each) for each in row["evidence"][:LINES_MOST]],
        )
        for row in report.incidents
    ]  # fmt: skip


def _line(seen: Mapping[str, Any]) -> str:
    return f"{_time(seen['at'])}  {seen['line'] or seen['text']}"


def _incident_anchor(name: str) -> str:
    return f"i-{name[:12]}"


def _time(text: str | datetime) -> str:
    moment = datetime.fromisoformat(text) if isinstance(text, str) else text
    return words.utc(moment.astimezone(UTC))


def _hours_text(hours: float) -> str:
    return f"{hours:,.{0 if hours >= 100 else 1}f}"


# --- in short


def _short(report: PastReport) -> Chapter:
    count = _counted(report.answers)
    people = sum(hold.owner in {"person", "program"} for hold in report.holds)
    facts = [
        (
            say("past.incidents"),
            words.number(len(report.incidents)),
            say("past.incidents_rest", hardware=sum(map(len, _hardware(report)))),
        ),
        (
            say("past.drains"),
            words.number(sum(count[word] for word in ("earlier", "same", "later", "confirmed", "unneeded"))),
            say("past.drains_rest", agreed=count["earlier"] + count["same"] + count["later"],
                confirmed=count["confirmed"], unneeded=count["unneeded"]),
        ),
        (
            say("past.people"),
            words.number(people),
            say("past.people_rest", missed=count["missed"], seen=count["seen"]),
        ),
        _lost(report),
        (
            say("past.saved"),
            _hours_text(report.saved.waiting + report.saved.on_bad_nodes),
            say("past.saved_rest", cost=_hours_text(report.saved.cost)),
        ),
    ]  # fmt: skip
    return Chapter(id="short", title=say("past.in_short"), note=say("past.in_short_note"), facts=facts)


def _lost(report: PastReport) -> tuple[str, str, str]:
    saved = report.saved
    return say("past.lost"), _hours_text(saved.lost), say("past.lost_rest", unknown=saved.unknown)


def _hardware(report: PastReport) -> list[Sequence[str]]:
    return [ids for name, ids in report.by_class.items() if name in {"fatal", "degraded"}]


def _counted(answers: Iterable[Answer]) -> Counter[str]:
    return Counter(answer.word for answer in answers)


# --- charts


def _charts(report: PastReport) -> list[SvgChart]:
    parts = buckets(Span(since=report.since, until=report.until + timedelta(seconds=1)))
    times = tuple(f"{parts.begin(at):%Y-%m-%d %H:%M}" for at in range(parts.count))

    def drawn(name: str, unit: Unit, series: Mapping[str, Sequence[tuple[datetime, float]]]) -> SvgChart:
        found = []
        for key, points in series.items():
            values = [0.0] * parts.count
            for at, value in points:
                place = int((at - parts.start).total_seconds() // parts.step_s)
                values[min(max(place, 0), parts.count - 1)] += value
            found.append(Series(name=key, values=tuple(values)))
        return SvgChart(
            id=name, title=say(f"past.chart_{name}"), note=say(f"past.chart_{name}_note"), kind=Kind.bars,
            unit=unit, times=times, ticks=ticks(parts), series=tuple(found),
        )  # fmt: skip

    opened = {row["id"]: datetime.fromisoformat(row["opened"]) for row in report.incidents}
    by_class = {
        str(say(f"past.class_{name}")): [(opened[each_id], 1.0) for each_id in ids]
        for name, ids in report.by_class.items()
    }
    drains = {
        "healer": [
            (answer.healer_at, 1.0) for answer in report.answers if answer.healer_at and answer.word != "seen"
        ],
        str(say("past.chart_people")): [
            (hold.at, 1.0) for hold in report.holds if hold.owner in {"person", "program"}
        ],
        "Slurm": [(hold.at, 1.0) for hold in report.holds if hold.owner == "slurm"],
    }
    lives = {number for numbers in report.hit.values() for number in numbers}
    lost = [(death.end, death.gpu_hours or 0.0) for death in report.deaths if death.number in lives]
    return [
        drawn("incidents", Unit.whole, by_class),
        drawn("drains", Unit.whole, drains),
        drawn("lost", Unit.hours, {str(say("past.lost")): lost}),
    ]


# --- chapters of what happened


def _cut(rows: Sequence[Any]) -> tuple[Sequence[Any], int]:
    return rows[:ROWS_MOST], max(0, len(rows) - ROWS_MOST)


def _faults(report: PastReport) -> Chapter:
    by_id = {row["id"]: row for row in report.incidents}
    counted: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for name, ids in report.by_class.items():
        for each in ids:
            counted.setdefault((name, by_id[each]["rule"], by_id[each]["title"]), []).append(by_id[each])
    ordered = sorted(counted.items(), key=lambda item: (-len(item[1]), item[0]))
    kept, more = _cut(ordered)
    rows = [
        (
            Cell(say(f"past.class_{name}")),
            Cell(title, _incident_anchor(its[0]["id"])),
            Cell(rule, theirs=True),
            Cell(words.number(len(its))),
            Cell(words.number(len({row["root"].get("node") for row in its}))),
        )
        for (name, rule, title), its in kept
    ]
    heads = [say("past.head_class"), say("past.head_fault"), say("past.head_rule"),
             say("past.incidents"), say("past.head_nodes")]  # fmt: skip
    return Chapter(id="faults", title=say("past.faults"), heads=heads, rows=rows, more=more)


def _people(report: PastReport) -> Chapter:
    holds = {hold.number: hold for hold in report.holds}
    order = ("earlier", "missed", "unneeded", "later", "confirmed", "same", "seen")
    answers, more = _cut(sorted(report.answers, key=lambda answer: order.index(answer.word)))
    rows = [_answer_row(answer, holds.get(answer.hold or 0)) for answer in answers]
    heads = [say("past.head_what"), say("past.head_node"), say("past.head_healer"), say("past.head_people"),
             say("past.head_minutes"), say("past.head_reason"), say("past.head_died")]  # fmt: skip
    return Chapter(
        id="people", title=say("past.beside_people"), note=say("past.beside_people_note"), heads=heads,
        rows=rows, more=more,
    )  # fmt: skip


def _answer_row(answer: Answer, hold: Hold | None) -> Sequence[Cell]:
    by = Cell("")
    if hold is not None:
        by = Cell(_time(hold.at), f"d-{hold.number}", theirs=True)
    incident = _incident_anchor(answer.incident) if answer.incident else ""
    return (
        Cell(say(f"past.word_{answer.word}")),
        Cell(answer.node, theirs=True),
        Cell("" if answer.healer_at is None else _time(answer.healer_at), incident, theirs=True),
        by,
        Cell("" if answer.minutes is None else f"{answer.minutes:+,.1f}"),
        Cell("" if hold is None else hold.reason, theirs=True),
        Cell(
            words.number(len(answer.died)) if answer.died else "",
            f"j-{answer.died[0]}" if answer.died else "",
        ),
    )


def _jobs(report: PastReport) -> Chapter:
    incident_of = {number: name for name, numbers in report.hit.items() for number in numbers}
    requeued = {(row["job"], row["incident"]): row["at"] for row in report.requeued}
    deaths, more = _cut([death for death in report.deaths if death.number in incident_of])
    rows = []
    for death in deaths:
        incident = incident_of[death.number]
        at = requeued.get((death.job, incident))
        rows.append(
            (
                Cell(death.job, f"j-{death.number}", theirs=True),
                Cell(death.state, theirs=True),
                Cell(_hours_text(death.gpu_hours) if death.gpu_hours is not None else "?"),
                Cell(_time(death.end), _incident_anchor(incident), theirs=True),
                Cell(say(f"past.requeue_{'done' if at else 'may' if death.requeue else 'forbidden'}")),
                Cell(
                    "" if death.again_at is None else words.span((death.again_at - death.end).total_seconds())
                ),
            )
        )
    heads = [say("past.head_job"), say("past.head_state"), say("past.head_gpu_hours"),
             say("past.head_died_at"), say("past.head_requeue"), say("past.head_again")]  # fmt: skip
    return Chapter(
        id="jobs", title=say("past.jobs"), note=say("past.jobs_note"), heads=heads, rows=rows, more=more
    )


def _hours(report: PastReport) -> Chapter:
    saved = report.saved
    facts = [
        _lost(report),
        (say("past.waiting"), _hours_text(saved.waiting),
         say("past.waiting_rest", seconds=RESTART_S, hours=int(WAIT_MOST.total_seconds() // 3600))),
        (say("past.on_bad_nodes"), _hours_text(saved.on_bad_nodes), say("past.on_bad_nodes_rest")),
        (say("past.cost"), _hours_text(saved.cost), say("past.cost_rest")),
    ]  # fmt: skip
    return Chapter(id="hours", title=say("past.hours"), note=say("past.hours_note"), facts=facts)


def _worst(report: PastReport) -> Chapter:
    rows = [
        (
            Cell(row.node, theirs=True),
            Cell(
                words.number(len(row.incidents)), _incident_anchor(row.incidents[0]) if row.incidents else ""
            ),
            Cell(words.number(len(row.deaths)), f"j-{row.deaths[0]}" if row.deaths else ""),
            Cell(_hours_text(row.hours_out)),
        )
        for row in report.worst
    ]
    heads = [
        say("past.head_node"),
        say("past.head_hardware"),
        say("past.head_died"),
        say("past.head_hours_out"),
    ]
    return Chapter(id="worst", title=say("past.worst"), heads=heads, rows=rows)


def _silence(report: PastReport) -> Chapter:
    kept, more = _cut(report.silent)
    rows = [
        (
            Cell(f"{each.first} – {each.last}", theirs=True),
            Cell(words.number(len(each.nodes))),
            Cell(words.names(each.nodes, 5), theirs=True),
        )
        for each in kept
    ]
    heads = [say("past.head_days"), say("past.head_nodes"), say("past.head_which")]
    return Chapter(
        id="silence", title=say("past.silence"), note=say("past.silence_note", days=SILENT_DAYS),
        heads=heads if rows else (), rows=rows, more=more,
        lines=[say(f"past.blind_{name}") for name in report.blind],
    )  # fmt: skip


def _advice(report: PastReport) -> Chapter:
    rows = [
        (
            Cell(row.rule, theirs=True),
            Cell(words.number(row.incidents)),
            Cell(words.number(row.drains)),
            Cell(words.number(row.agreed)),
            Cell(words.number(row.unneeded)),
            Cell(row.mode, theirs=True),
        )
        for row in report.advice
    ]
    heads = [say("past.head_rule"), say("past.incidents"), say("past.drains"), say("past.head_agreed"),
             say("past.word_unneeded"), say("past.head_mode")]  # fmt: skip
    return Chapter(
        id="first", title=say("past.first"), note=say("past.first_note"), heads=heads, rows=rows,
        lines=[say("past.next_up"), say("past.next_rules"), say("past.next_again")],
    )  # fmt: skip


def _bounds(report: PastReport) -> Chapter:
    names = ("mode", "replay", "clock", "forged", "slots", "slow")
    return Chapter(
        id="bounds", title=say("past.bounds"),
        lines=[
            *(say(f"past.bound_{name}") for name in names),
            *report.imported.get("assumed", ()),
        ],
    )  # fmt: skip


def _import(report: PastReport) -> Chapter:
    sources = report.imported.get("sources", [])
    kept, more = _cut(sources)
    rows = [
        (
            Cell(source["source"], theirs=True),
            Cell(source["kind"] or "?", theirs=True),
            Cell(words.number(source["lines"])),
            Cell(words.number(source["signals"])),
            Cell("; ".join(f"{its['count']}: {why}" for why, its in source["skipped"].items()), theirs=True),
        )
        for source in kept
    ]
    heads = [say("past.head_source"), say("past.head_kind"), say("past.head_lines"), say("past.head_signals"),
             say("past.head_skipped")]  # fmt: skip
    offsets = [
        say("past.offset", second=each["second"], first=each["first"], seconds=f"{each['seconds']:+.1f}",
            count=each["events"])
        for each in report.imported.get("offsets", [])
    ]  # fmt: skip
    note = say("past.import_note" if sources else "past.import_none")
    return Chapter(
        id="import", title=say("past.import"), note=note, heads=heads if rows else (), rows=rows, more=more,
        lines=offsets,
    )  # fmt: skip


# --- evidence


def _holds(report: PastReport) -> Chapter:
    kept, more = _cut(report.holds)
    rows = [
        (
            Cell(hold.node, theirs=True),
            Cell(_time(hold.at), theirs=True),
            Cell("" if hold.until is None else words.span((hold.until - hold.at).total_seconds())),
            Cell(hold.by or say("past.somebody")),
            Cell(hold.reason, theirs=True),
        )
        for hold in kept
    ]
    heads = [say("past.head_node"), say("past.head_since"), say("past.head_for"), say("past.head_by"),
             say("past.head_reason")]  # fmt: skip
    anchors = [f"d-{hold.number}" for hold in kept]
    return Chapter(
        id="drains-list", title=say("past.holds"), heads=heads, rows=rows, anchors=anchors, more=more
    )


def _deaths(report: PastReport) -> Chapter:
    linked = {number for numbers in report.hit.values() for number in numbers}
    linked |= {number for answer in report.answers for number in answer.died}
    linked |= {number for node in report.worst for number in node.deaths}
    kept, more = _cut([death for death in report.deaths if death.number in linked])
    rows = [_death_row(death) for death in kept]
    heads = [say("past.head_job"), say("past.head_state"), say("past.head_since"), say("past.head_died_at"),
             say("past.head_gpus"), say("past.head_which")]  # fmt: skip
    anchors = [f"j-{death.number}" for death in kept]
    return Chapter(
        id="deaths-list", title=say("past.deaths"), heads=heads, rows=rows, anchors=anchors, more=more
    )


def _death_row(death: Death) -> Sequence[Cell]:
    return (
        Cell(death.job, theirs=True),
        Cell(death.state, theirs=True),
        Cell("" if death.start is None else _time(death.start), theirs=True),
        Cell(_time(death.end), theirs=True),
        Cell(words.number(death.gpus) if death.gpus else "?"),
        Cell(words.names(death.nodes, 5), theirs=True),
    )


def lede(report: PastReport) -> Said:
    span = joined([words.utc(report.since), words.utc(report.until)], "comma")
    return say(
        "past.lede", cluster=report.cluster, span=span, nodes=words.counted(report.nodes, "node"),
        gpus=words.counted(report.gpus, "gpu"), mode=report.mode,
    )  # fmt: skip
