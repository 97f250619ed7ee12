"""The report on a site's own past: chapters of facts, tables and charts, every claim with a link to its
evidence further down in the same file."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from healer.console import words
from healer.console.views.report_charts_view import Span, buckets, ticks
from healer.console.views.svg_charts import Kind, Series, SvgChart, Unit
from healer.model.site_past import SILENT_DAYS, WAIT_MOST, Answer, Death, Hold, PastReport
from healer.text import Said, name_some, say

#: Rows of one table; `--json` has all.
ROWS_MOST = 200
#: Lines of evidence of one incident.
LINES_MOST = 5


class Cell(msgspec.Struct, frozen=True):
    """`link`: an anchor in the same file. `theirs`: a word of others, never translated."""

    text: str
    link: str = ""
    theirs: bool = False


class Field(msgspec.Struct, frozen=True):
    """An assumption that a reader may change."""

    name: str
    label: str
    value: str


class Chapter(msgspec.Struct, frozen=True, kw_only=True):
    """`facts` are (name, figure, what it rests on), `figures` their names where assumptions move them;
    `fields` are these assumptions; `rows` a table; `anchors` name its rows; `commands` are for a terminal."""

    id: str
    title: str
    note: str = ""
    facts: Sequence[tuple[str, str, str]] = ()
    figures: Sequence[str] = ()
    fields: Sequence[Field] = ()
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    anchors: Sequence[str] = ()
    charts: Sequence[SvgChart] = ()
    lines: Sequence[str] = ()
    commands: Sequence[str] = ()
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
        _slow(report),
        _silence(report),
        _bounds(report),
        _import(report),
        _holds(report),
        _deaths(report),
        _advice(report),
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
    count = Counter(answer.word for answer in report.answers)
    people = sum(hold.owner in {"person", "program"} for hold in report.holds)
    hardware = sum(len(report.by_class.get(name, ())) for name in ("fatal", "degraded"))
    facts = [
        (
            say("past.incidents"),
            words.number(len(report.incidents)),
            say("past.incidents_rest", hardware=hardware),
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
    return Chapter(id="short", title=say("past.in_short"), note=say("past.in_short_note"), facts=facts,
                   figures=("", "", "", "lost", "saved"))  # fmt: skip


def _lost(report: PastReport) -> tuple[str, str, str]:
    saved = report.saved
    return say("past.lost"), _hours_text(saved.lost), say("past.lost_rest", unknown=saved.unknown)


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
    by_class: dict[str, list[tuple[datetime, float]]] = {
        say(f"past.class_{name}"): [(opened[each_id], 1.0) for each_id in ids]
        for name, ids in report.by_class.items()
    }
    drains = {
        "healer": [
            (answer.healer_at, 1.0) for answer in report.answers if answer.healer_at and answer.word != "seen"
        ],
        say("past.chart_people"): [
            (hold.at, 1.0) for hold in report.holds if hold.owner in {"person", "program"}
        ],
        "Slurm": [(hold.at, 1.0) for hold in report.holds if hold.owner == "slurm"],
    }
    lives = {number for numbers in report.hit.values() for number in numbers}
    lost = [(death.end, death.gpu_hours or 0.0) for death in report.deaths if death.number in lives]
    return [
        drawn("incidents", Unit.whole, by_class),
        drawn("drains", Unit.whole, drains),
        drawn("lost", Unit.hours, {say("past.lost"): lost}),
    ]


# --- chapters about what happened

#: Heading of a column -> its cell in the row of an item.
Columns = Mapping[Said, Callable[[Any], Cell]]


def _theirs(text: str, link: str = "") -> Cell:
    return Cell(text, link, theirs=True)


def _number(count: int, link: str = "") -> Cell:
    return Cell(words.number(count), link)


def _table(items: Sequence[Any], columns: Columns) -> dict[str, Any]:
    """The fields of a chapter that hold a table: its first rows, and how many more there are."""
    rows = [[cell(item) for cell in columns.values()] for item in items[:ROWS_MOST]]
    return {"heads": list(columns), "rows": rows, "more": max(0, len(items) - ROWS_MOST)}


def _faults(report: PastReport) -> Chapter:
    by_id = {row["id"]: row for row in report.incidents}
    counted: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for name, ids in report.by_class.items():
        for each in ids:
            counted.setdefault((name, by_id[each]["rule"], by_id[each]["title"]), []).append(by_id[each])
    ordered = sorted(counted.items(), key=lambda item: (-len(item[1]), item[0]))
    columns: Columns = {
        say("past.head_class"): lambda item: Cell(say(f"past.class_{item[0][0]}")),
        say("past.head_fault"): lambda item: Cell(item[0][2], _incident_anchor(item[1][0]["id"])),
        say("past.head_rule"): lambda item: _theirs(item[0][1]),
        say("past.incidents"): lambda item: _number(len(item[1])),
        say("past.head_nodes"): lambda item: _number(len({row["root"].get("node") for row in item[1]})),
    }
    return Chapter(id="faults", title=say("past.faults"), **_table(ordered, columns))


def _people(report: PastReport) -> Chapter:
    holds = {hold.number: hold for hold in report.holds}
    order = ("earlier", "missed", "unneeded", "later", "confirmed", "same", "seen")

    def held(answer: Answer) -> Hold | None:
        return holds.get(answer.hold or 0)

    columns: Columns = {
        say("past.head_what"): lambda answer: Cell(say(f"past.word_{answer.word}")),
        say("past.head_node"): lambda answer: _theirs(answer.node),
        say("past.head_healer"): lambda answer: _theirs(
            _time(answer.healer_at) if answer.healer_at is not None else "",
            _incident_anchor(answer.incident) if answer.incident else "",
        ),
        say("past.head_people"): lambda answer: (
            _theirs(_time(hold.at), f"d-{hold.number}") if (hold := held(answer)) else Cell("")
        ),
        say("past.head_minutes"): lambda answer: Cell(
            "" if answer.minutes is None else f"{answer.minutes:+z,.1f}"
        ),
        say("past.head_reason"): lambda answer: _theirs(hold.reason if (hold := held(answer)) else ""),
        say("past.head_died"): lambda answer: (
            _number(len(answer.died), f"j-{answer.died[0]}") if answer.died else Cell("")
        ),
    }
    answers = sorted(report.answers, key=lambda answer: order.index(answer.word))
    title, note = say("past.beside_people"), say("past.beside_people_note")
    return Chapter(id="people", title=title, note=note, **_table(answers, columns))


def _jobs(report: PastReport) -> Chapter:
    incident_of = {number: name for name, numbers in report.hit.items() for number in numbers}
    requeued = {(row["job"], row["incident"]) for row in report.requeued}

    def requeue(death: Death) -> str:
        if (death.job, incident_of[death.number]) in requeued:
            return "done"
        return "may" if death.requeue else "forbidden"

    columns: Columns = {
        say("past.head_job"): lambda death: _theirs(death.job, f"j-{death.number}"),
        say("past.head_state"): lambda death: _theirs(death.state),
        say("past.head_gpu_hours"): lambda death: Cell(
            _hours_text(death.gpu_hours) if death.gpu_hours is not None else "?"
        ),
        say("past.head_died_at"): lambda death: _theirs(
            _time(death.end), _incident_anchor(incident_of[death.number])
        ),
        say("past.head_requeue"): lambda death: Cell(say(f"past.requeue_{requeue(death)}")),
        say("past.head_again"): lambda death: Cell(
            "" if death.again_at is None else words.span((death.again_at - death.end).total_seconds())
        ),
    }
    deaths = [death for death in report.deaths if death.number in incident_of]
    return Chapter(id="jobs", title=say("past.jobs"), note=say("past.jobs_note"), **_table(deaths, columns))


def _hours(report: PastReport) -> Chapter:
    saved, assumed = report.saved, report.saved.assumed
    worth = None if assumed.price is None else (saved.waiting + saved.on_bad_nodes) * assumed.price
    facts = [
        _lost(report),
        (say("past.waiting"), _hours_text(saved.waiting),
         say("past.waiting_rest", hours=int(WAIT_MOST.total_seconds() // 3600))),
        (say("past.on_bad_nodes"), _hours_text(saved.on_bad_nodes), say("past.on_bad_nodes_rest")),
        (say("past.cost"), _hours_text(saved.cost), say("past.cost_rest")),
        (say("past.worth"), "–" if worth is None else _hours_text(worth), say("past.worth_rest")),
    ]  # fmt: skip
    values = {"start_up_s": assumed.start_up_s, "checkpoint_h": assumed.checkpoint_h, "price": assumed.price}
    fields = [
        Field(name, say(f"past.assume_{name}"), "" if value is None else f"{value:g}")
        for name, value in values.items()
    ]
    return Chapter(
        id="hours", title=say("past.hours"), note=say("past.hours_note"), facts=facts, fields=fields,
        figures=("lost", "waiting", "on_bad_nodes", "", "worth"),
    )  # fmt: skip


def _slow(report: PastReport) -> Chapter:
    slow = set(report.slow)
    columns: Columns = {
        say("past.head_fault"): lambda row: Cell(row["title"], _incident_anchor(row["id"])),
        say("past.head_where"): lambda row: _theirs(row["root"].get("node") or row["root"].get("job") or ""),
        say("past.head_since"): lambda row: _theirs(_time(row["opened"])),
        say("past.head_for"): lambda row: Cell(
            "" if row["closed"] is None else words.span(_seconds(row["opened"], row["closed"]))
        ),
        say("past.head_jobs"): lambda row: _theirs(name_some([str(job) for job in row["jobs_hit"]], 5)),
    }
    blind = [name for name in ("steps", "metrics") if name in report.blind]
    return Chapter(
        id="slow", title=say("past.slow"), note=say("past.slow_note"),
        lines=[say(f"past.blind_{name}") for name in blind],
        **_table([row for row in report.incidents if row["id"] in slow], columns),
    )  # fmt: skip


def _seconds(first: str, last: str) -> float:
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()


def _worst(report: PastReport) -> Chapter:
    columns: Columns = {
        say("past.head_node"): lambda row: _theirs(row.node),
        say("past.head_hardware"): lambda row: _number(
            len(row.incidents), _incident_anchor(row.incidents[0]) if row.incidents else ""
        ),
        say("past.head_died"): lambda row: _number(
            len(row.deaths), f"j-{row.deaths[0]}" if row.deaths else ""
        ),
        say("past.head_hours_out"): lambda row: Cell(_hours_text(row.hours_out)),
    }
    return Chapter(id="worst", title=say("past.worst"), **_table(report.worst, columns))


def _silence(report: PastReport) -> Chapter:
    columns: Columns = {
        say("past.head_days"): lambda each: _theirs(f"{each.first} – {each.last}"),
        say("past.head_nodes"): lambda each: _number(len(each.nodes)),
        say("past.head_which"): lambda each: _theirs(name_some(each.nodes, 5)),
    }
    return Chapter(
        id="silence", title=say("past.silence"), note=say("past.silence_note", days=SILENT_DAYS),
        lines=[say(f"past.blind_{name}") for name in report.blind],
        **_table(report.silent, columns if report.silent else {}),
    )  # fmt: skip


_NEXT = """\
healer rules propose --from RECORDING --output rules-proposed
HEALER_RULES_DIR=rules-proposed HEALER_MODE=shadow healer up
healer replay RECORDING --rules rules-proposed --against shipped
"""


def _advice(report: PastReport) -> Chapter:
    first = {row["rule"]: _incident_anchor(row["id"]) for row in reversed(report.incidents)}
    columns: Columns = {
        say("past.head_rule"): lambda row: _theirs(row.rule, first[row.rule]),
        say("past.incidents"): lambda row: _number(row.incidents),
        say("past.drains"): lambda row: _number(row.drains),
        say("past.head_agreed"): lambda row: _number(row.agreed),
        say("past.word_unneeded"): lambda row: _number(row.unneeded),
        say("past.head_mode"): lambda row: _theirs(row.mode),
    }
    return Chapter(
        id="first", title=say("past.first"), note=say("past.first_note"),
        lines=[say("past.next_propose"), say("past.next_up"), say("past.next_again")],
        commands=_NEXT.splitlines(),
        **_table(report.advice, columns),
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
    columns: Columns = {
        say("past.head_source"): lambda source: _theirs(source["source"]),
        say("past.head_kind"): lambda source: _theirs(source["kind"] or "?"),
        say("past.head_lines"): lambda source: _number(source["lines"]),
        say("past.head_signals"): lambda source: _number(source["signals"]),
        say("past.head_skipped"): lambda source: _theirs(
            "; ".join(f"{its['count']}: {why}" for why, its in source["skipped"].items())
        ),
    }
    offsets = [
        say("past.offset", second=each["second"], first=each["first"], seconds=f"{each['seconds']:+.1f}",
            count=each["events"])
        for each in report.imported.get("offsets", [])
    ]  # fmt: skip
    note = say("past.import_note" if sources else "past.import_none")
    table = _table(sources, columns if sources else {})
    return Chapter(id="import", title=say("past.import"), note=note, lines=offsets, **table)


# --- evidence


def _holds(report: PastReport) -> Chapter:
    columns: Columns = {
        say("past.head_node"): lambda hold: _theirs(hold.node),
        say("past.head_since"): lambda hold: _theirs(_time(hold.at)),
        say("past.head_for"): lambda hold: Cell(
            "" if hold.until is None else words.span((hold.until - hold.at).total_seconds())
        ),
        say("past.head_by"): lambda hold: Cell(hold.by or say("past.somebody")),
        say("past.head_reason"): lambda hold: _theirs(" · ".join(filter(None, (hold.reason, hold.check)))),
    }
    anchors = [f"d-{hold.number}" for hold in report.holds]
    return Chapter(
        id="drains-list", title=say("past.holds"), anchors=anchors, **_table(report.holds, columns)
    )


def _deaths(report: PastReport) -> Chapter:
    linked = {number for numbers in report.hit.values() for number in numbers}
    linked |= {number for answer in report.answers for number in answer.died}
    linked |= {number for node in report.worst for number in node.deaths}
    columns: Columns = {
        say("past.head_job"): lambda death: _theirs(death.job),
        say("past.head_state"): lambda death: _theirs(death.state),
        say("past.head_since"): lambda death: _theirs("" if death.start is None else _time(death.start)),
        say("past.head_died_at"): lambda death: _theirs(_time(death.end)),
        say("past.head_gpus"): lambda death: Cell(words.number(death.gpus) if death.gpus else "?"),
        say("past.head_which"): lambda death: _theirs(name_some(death.nodes, 5)),
    }
    deaths = [death for death in report.deaths if death.number in linked]
    anchors = [f"j-{death.number}" for death in deaths]
    return Chapter(id="deaths-list", title=say("past.deaths"), anchors=anchors, **_table(deaths, columns))


def lede(report: PastReport) -> Said:
    span = say("words.range", first=words.utc(report.since), last=words.utc(report.until))
    return say(
        "past.lede", cluster=report.cluster, span=span, nodes=words.counted(report.nodes, "node"),
        gpus=words.counted(report.gpus, "gpu"), mode=report.mode,
    )  # fmt: skip
