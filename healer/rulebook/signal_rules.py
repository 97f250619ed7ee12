"""Loads `rules/signals*.yaml`, which signals exist and how they arrive, and `rules/scrape.yaml`, what healer
fetches itself. Their format: docs/metrics.md."""

import re
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from healer.model import (
    MEASURED_SCOPES,
    OF_DEVICES,
    Alias,
    Catalogue,
    DeviceKind,
    Scope,
    ScrapeJob,
    ScrapeQuery,
    ScrapeRules,
    Signal,
    SignalEntry,
    SignalKind,
    TargetGroup,
)
from healer.model.hostlist import expand
from healer.model.vocabulary import did_you_mean
from healer.rulebook.source import Problem, Source, Where
from healer.text import said_by, say

#: Units a signal may have. Those of time, data and counts can be multiplied and divided in rules.
UNITS = (
    "°C", "W", "J", "V", "A", "Hz", "MHz", "%", "ratio", "count", "bool", "s", "ns", "B", "B/s", "Mb/s",
    "rpm", "packets", "rows", "state", "bits", "/s", "dBm", "l/min", "kPa",
)  # fmt: skip
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_ALIAS = re.compile(r"(?:[a-zA-Z_:][a-zA-Z0-9_:{}]{0,199}|nvidia-smi:[a-zA-Z0-9_/]{1,150})")


def read_catalogue(*sources: Source) -> Catalogue:
    """The catalogue of one or more files, empty without any; what is wrong goes to their problems."""
    signals: dict[str, Signal] = {}
    arriving: dict[str, tuple[str, float]] = {}
    name_of: dict[tuple[Any, ...], str] = {}
    for at, entry in chain.from_iterable(source.entries(SignalEntry) for source in sources):
        _check(at, entry)
        if entry.name in signals:
            at.at("name").problem(say("rulebook.signal_twice", name=entry.name))
        aliases = tuple(Alias(name=alias) if isinstance(alias, str) else alias for alias in entry.aliases)
        own_name = () if entry.derived else (Alias(name=entry.name),)
        for number, alias in enumerate((*own_name, *aliases)):
            # An NVLink's number or a device's name completes the name: so one alias may serve several
            # signals.
            whose = entry.scope if entry.scope in (Scope.link, *OF_DEVICES) else None
            key = (alias.name, tuple(sorted(alias.labels.items())), whose)
            aliased = at.at("aliases", number - len(own_name)) if number >= len(own_name) else at.at("name")
            if key in name_of:
                aliased.problem(say("rulebook.name_already", name=alias.name, name_of=name_of[key]))
                continue
            name_of[key] = entry.name
            if not alias.labels and "{" not in alias.name:
                arriving.setdefault(alias.name, (entry.name, alias.scale))
        signals[entry.name] = msgspec.convert(msgspec.structs.asdict(entry) | {"aliases": aliases}, Signal)
    return Catalogue(signals=signals, arriving=arriving)


def _check(at: Where, entry: SignalEntry) -> None:
    def wrong(field: str, text: str, hint: str = "", number: int | None = None) -> None:
        (at.at(field) if number is None else at.at(field, number)).problem(
            say("rulebook.field", field=field, text=text), hint
        )

    if not _NAME.fullmatch(entry.name):
        wrong("name", say("rulebook.small_letters_digits_at", name=entry.name))
    if entry.unit not in UNITS:
        hint = did_you_mean(entry.unit, UNITS) or say("rulebook.one_of", words=", ".join(UNITS))
        wrong("unit", say("rulebook.no_unit_that_healer", unit=entry.unit), hint)
    if entry.scope not in MEASURED_SCOPES:
        text = say("rulebook.signal_lives_on_gpu", scope=entry.scope)
        wrong("scope", text)
    if (entry.scope in OF_DEVICES) is not (entry.device is not None):
        kinds = ", ".join(DeviceKind)
        wrong("device", say("rulebook.signal_device_only_that"), say("rulebook.one_of", words=kinds))
    if (entry.kind is SignalKind.bits) != bool(entry.bits):
        wrong("kind", say("rulebook.bit_mask_only_bit"), say("rulebook.give_bits"))
    if entry.words and entry.kind is not SignalKind.enum:
        wrong("words", say("rulebook.only_an_enum_words"))
    for word, bit in entry.bits.items():
        if bit <= 0 or bit & (bit - 1):
            wrong("bits", say("rulebook.not_one_bit", word=word, bit=bit))
    if entry.stale_s <= 0:
        wrong("stale_s", say("rulebook.more_than"))
    if entry.derived and entry.aliases:
        wrong("aliases", say("rulebook.derived_signal_never_arrives"))
    for number, alias in enumerate(entry.aliases):
        name = alias if isinstance(alias, str) else alias.name
        if not _ALIAS.fullmatch(name) or ("{" in name and name.count("{link}") != name.count("{")):
            wrong("aliases", say("rulebook.no_name_series", name=name), number=number)
        if "{link}" in name and entry.scope is not Scope.link:
            wrong("aliases", say("rulebook.speaks_links_signal_does", name=name), number=number)
        if not isinstance(alias, str) and alias.part and entry.scope is not Scope.device_part:
            wrong("aliases", say("rulebook.names_part_signal", name=name, scope=entry.scope), number=number)
        if not isinstance(alias, str) and alias.scale == 0:
            wrong("aliases", say("rulebook.scale_makes_every_value"), number=number)


# --- what healer scrapes itself

#: Targets of one file; the largest clusters have some exporters on each of 12,500 nodes.
TARGETS_MAX = 50_000
JOBS_MAX, QUERIES_MAX = 200, 500
QUERY_MAX_CHARS = 4096
INTERVAL_MIN_S, INTERVAL_MAX_S = 1.0, 3600.0
#: One question reaches back a minute at most, and healer's windows have steps of five seconds.
FOLLOW_MIN_S, FOLLOW_MAX_S = 5.0, 60.0
SCHEMES = ("http", "https")

_JOB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,99}")
#: `host:port`; an IPv6 address is in brackets.
_TARGET = re.compile(r"(?P<host>\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):(?P<port>[0-9]{1,5})")
_SECTIONS = ("jobs", "queries", "follow_interval_s")


def read_scrape(source: Source | None, catalogue: Catalogue, folder: Path) -> ScrapeRules:
    """The file's jobs and queries; what is wrong goes to its problems. Paths in it begin at `folder`."""
    if source is None or source.data is None:
        return ScrapeRules()
    data = source.fields(_SECTIONS)
    return ScrapeRules(
        jobs=tuple(_jobs(source, _list(source, data, "jobs", JOBS_MAX), folder)),
        queries=tuple(_queries(source, _list(source, data, "queries", QUERIES_MAX), catalogue)),
        follow_interval_s=_follow_interval_s(source, data),
    )


def _follow_interval_s(source: Source, data: dict[str, object]) -> float:
    value = data.get("follow_interval_s")
    if value is None:
        return 0.0
    if not isinstance(value, int | float) or not FOLLOW_MIN_S <= value <= FOLLOW_MAX_S:
        at = source.at("follow_interval_s")
        at.problem(
            say("rulebook.follow_interval_s_number", follow_min_s=FOLLOW_MIN_S, follow_max_s=FOLLOW_MAX_S)
        )
        return 0.0
    return float(value)


def wants_scraper(file: Path) -> Callable[[], bool]:
    """Whether the file has anything to fetch, asked as often as one likes: it is read when it changed.

    A file with mistakes has nothing: the parts that load all rules say what is wrong with it.
    """
    seen: list[tuple[int, int] | bool | None] = [None, False]

    def wanted() -> bool:
        try:
            status = file.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != seen[0]:
                problems: list[Problem] = []
                data = Source(file, file.name, problems).data
                seen[:] = [stamp, isinstance(data, dict) and any(data.get(name) for name in _SECTIONS)]
        except OSError:
            seen[:] = [None, False]
        return bool(seen[1])

    return wanted


def address(text: str) -> tuple[str, int] | None:
    """(host, port) of a target, the host without brackets; None if it is invalid."""
    match = _TARGET.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 65536:
        return None
    return match["host"].strip("[]"), int(match["port"])


def _list(source: Source, data: dict[str, object], name: str, most: int) -> list[object]:
    found = data.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        source.at().wrong(name, say("rulebook.expected_list"))
        return []
    if len(found) > most:
        source.at(name).problem(say("rulebook.at_most_here_are", name=name, most=most, len=len(found)))
    return found[:most]


def _jobs(source: Source, items: Sequence[object], folder: Path) -> list[ScrapeJob]:
    jobs: dict[str, ScrapeJob] = {}
    count = 0
    for index, item in enumerate(items):
        at = source.at("jobs", index)
        if isinstance(item, dict) and "file_sd" in item:
            at.at("file_sd").problem(say("rulebook.no_file_sd"))
            continue
        job = source.convert(at.path, item, ScrapeJob)
        if job is None:
            continue
        _check_job(at, job)
        if job.name in jobs:
            at.at("name").problem(say("rulebook.job_twice", name=job.name))
        targets = _targets(at.at("targets"), job.targets)
        groups = _groups(at.at("groups"), job.groups)
        count += len(targets) + sum(len(group.targets) for group in groups)
        jobs[job.name] = msgspec.structs.replace(
            job,
            targets=targets,
            timeout_s=min(job.timeout_s, job.interval_s),
            groups=groups,
            tls_ca_file=job.tls_ca_file and str(folder / job.tls_ca_file),
            bearer_token_file=job.bearer_token_file and str(folder / job.bearer_token_file),
        )
    if count > TARGETS_MAX:
        source.at().wrong("jobs", say("rulebook.targets_at_most", n=count, targets_max=TARGETS_MAX))
    return list(jobs.values())


def _check_job(at: Where, job: ScrapeJob) -> None:
    check, named = at.check, _JOB_NAME.fullmatch(job.name) is not None
    check("name", named, say("rulebook.letters_digits_at_most", name=job.name))
    if not job.targets and not job.groups:
        at.problem(say("rulebook.job_neither_targets_nor", name=job.name))
    at.check_between("interval_s", job.interval_s, INTERVAL_MIN_S, INTERVAL_MAX_S)
    check("timeout_s", job.timeout_s > 0, say("rulebook.more_than"))
    hint = did_you_mean(job.scheme, SCHEMES)
    check("scheme", job.scheme in SCHEMES, say("rulebook.neither_http_nor_https", scheme=job.scheme), hint)
    check("path", job.path.startswith("/"), say("rulebook.begin_with"))
    check("tls_ca_file", not job.tls_ca_file or job.scheme != "http", say("rulebook.needs_scheme_https"))
    _check_labels(at.at("labels"), job.labels)
    is_label = _LABEL.fullmatch(job.node) is not None
    check("node", is_label, say("rulebook.neither_host_nor_series", node=job.node))


def _groups(at: Where, groups: Sequence[TargetGroup]) -> tuple[TargetGroup, ...]:
    """The groups with their hostlists expanded, together at most a little more than TARGETS_MAX."""
    found: list[TargetGroup] = []
    count = 0
    for index, group in enumerate(groups):
        _check_labels(at.at(index, "labels"), group.labels)
        targets = _targets(at.at(index, "targets"), group.targets)
        found.append(TargetGroup(targets, group.labels))
        count += len(targets)
        if count > TARGETS_MAX:
            break  # the caller says so
    return tuple(found)


def _check_labels(at: Where, labels: dict[str, str]) -> None:
    for label in labels:
        if not _LABEL.fullmatch(label):
            at.problem(say("rulebook.labels_no_name_label", label=label))
    scheme = labels.get("__scheme__") or SCHEMES[0]
    if scheme not in SCHEMES:
        text = say("rulebook.labels_scheme_neither_http", scheme=scheme[:100])
        at.at("__scheme__").problem(text, did_you_mean(scheme, SCHEMES))


def _targets(at: Where, texts: Sequence[str]) -> tuple[str, ...]:
    found: list[str] = []
    for index, text in enumerate(texts):
        try:
            names = expand(text)
        except ValueError as error:
            at.at(index).problem(say("rulebook.field", field="targets", text=said_by(error)))
            continue
        bad = next((name for name in names if address(name) is None), None)
        if bad is not None:
            hint = say("rulebook.such_as_gpu")
            at.at(index).problem(say("rulebook.targets_not_host_port", bad=bad[:100]), hint)
            continue
        found += names
        if len(found) > TARGETS_MAX:
            break  # the caller reports it; a few more lines may expand to millions
    return tuple(dict.fromkeys(found))


def _queries(source: Source, items: Sequence[object], catalogue: Catalogue) -> list[ScrapeQuery]:
    found: list[ScrapeQuery] = []
    for index, item in enumerate(items):
        at = source.at("queries", index)
        query = source.convert(at.path, item, ScrapeQuery)
        if query is None:
            continue
        signal = catalogue.signals.get(query.signal)
        if signal is None:
            hint = did_you_mean(query.signal, catalogue.signals)
            at.wrong("signal", say("rulebook.there_no_signal", name=query.signal), hint)
        elif signal.derived:
            at.wrong("signal", say("rulebook.derived_by_healer_never", signal=query.signal))
        if not query.query.strip() or len(query.query) > QUERY_MAX_CHARS:
            at.wrong("query", say("rulebook.from_characters", query_max_chars=QUERY_MAX_CHARS))
        at.check_between("interval_s", query.interval_s, 5, INTERVAL_MAX_S)
        found.append(query)
    return found
