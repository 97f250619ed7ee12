"""Loads `rules/scrape.yaml`: what healer fetches itself. Its format: docs/signals.md."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from healer.model import Catalogue, ScrapeJob, ScrapeQuery, ScrapeRules
from healer.model.hostlist import expand
from healer.rulebook.source import Problem, Source, did_you_mean

#: Targets of one file; the largest clusters have some exporters on each of 12,500 nodes.
TARGETS_MAX = 50_000
JOBS_MAX, QUERIES_MAX = 200, 500
QUERY_MAX_CHARS = 4096
INTERVAL_MIN_S, INTERVAL_MAX_S = 1.0, 3600.0
SCHEMES = ("http", "https")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,99}")
#: `host:port`; an IPv6 address stands in brackets.
_TARGET = re.compile(r"(?P<host>\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):(?P<port>[0-9]{1,5})")
_SECTIONS = ("jobs", "queries")


def read_scrape(source: Source | None, catalogue: Catalogue, folder: Path) -> ScrapeRules:
    """The file's jobs and queries; what is wrong goes to its problems. Paths in it begin at `folder`."""
    if source is None or source.data is None:
        return ScrapeRules()
    data = source.mapping((), source.data, "a mapping with jobs and queries")
    for name in data:
        if name not in _SECTIONS:
            source.problem((name,), f"unknown field {name}", did_you_mean(str(name), _SECTIONS))
    return ScrapeRules(
        jobs=tuple(_jobs(source, _list(source, data, "jobs", JOBS_MAX), folder)),
        queries=tuple(_queries(source, _list(source, data, "queries", QUERIES_MAX), catalogue)),
    )


def wants_scraper(file: Path) -> Callable[[], bool]:
    """Whether the file has anything to fetch, asked as often as one likes: it is read when it changed.

    A file with mistakes has nothing: the parts that load all rules say what is wrong with it.
    """
    seen: list[tuple[int, int] | bool | None] = [None, False]

    def wanted() -> bool:
        try:
            told = file.stat()
            stamp = (told.st_mtime_ns, told.st_size)
            if stamp != seen[0]:
                problems: list[Problem] = []
                data = Source(file, file.name, problems).data
                seen[:] = [stamp, isinstance(data, dict) and any(data.get(name) for name in _SECTIONS)]
        except OSError:
            seen[:] = [None, False]
        return bool(seen[1])

    return wanted


def address(text: str) -> tuple[str, int] | None:
    """(host, port) of a target, the host without brackets; None when it is none."""
    match = _TARGET.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 65536:
        return None
    return match["host"].strip("[]"), int(match["port"])


def _list(source: Source, data: dict[str, object], name: str, most: int) -> list[object]:
    found = data.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        source.problem((name,), f"{name}: expected a list")
        return []
    if len(found) > most:
        source.problem((name,), f"{name}: at most {most}, and here are {len(found)}")
    return found[:most]


def _jobs(source: Source, items: Sequence[object], folder: Path) -> list[ScrapeJob]:
    jobs: dict[str, ScrapeJob] = {}
    count = 0
    for index, item in enumerate(items):
        path = ("jobs", index)
        job = source.convert(path, item, ScrapeJob)
        if job is None:
            continue
        _check_job(source, path, job)
        if job.name in jobs:
            source.problem((*path, "name"), f"the job {job.name} stands here twice")
        targets = _targets(source, (*path, "targets"), job.targets)
        count += len(targets)
        jobs[job.name] = msgspec.structs.replace(
            job,
            targets=targets,
            timeout_s=min(job.timeout_s, job.interval_s),
            file_sd=tuple(str(folder / one) for one in job.file_sd),
            tls_ca_file=job.tls_ca_file and str(folder / job.tls_ca_file),
            bearer_token_file=job.bearer_token_file and str(folder / job.bearer_token_file),
        )
    if count > TARGETS_MAX:
        source.problem(("jobs",), f"jobs: {count} targets, at most {TARGETS_MAX}")
    return list(jobs.values())


def _check_job(source: Source, path: tuple[str, int], job: ScrapeJob) -> None:
    def wrong(field: str, text: str, hint: str = "") -> None:
        source.problem((*path, field), f"{field}: {text}", hint)

    if not _NAME.fullmatch(job.name):
        wrong("name", f"{job.name!r} has to be letters, digits, _, . and -, at most 64")
    if not job.targets and not job.file_sd:
        source.problem(path, f"the job {job.name} has neither targets nor file_sd")
    if not INTERVAL_MIN_S <= job.interval_s <= INTERVAL_MAX_S:
        wrong("interval_s", f"from {INTERVAL_MIN_S:g} to {INTERVAL_MAX_S:g}")
    if not job.timeout_s > 0:
        wrong("timeout_s", "has to be more than 0")
    if job.scheme not in SCHEMES:
        wrong("scheme", f"{job.scheme!r} is neither http nor https", did_you_mean(job.scheme, SCHEMES))
    if not job.path.startswith("/"):
        wrong("path", "has to begin with /")
    if job.tls_ca_file and job.scheme == "http":
        wrong("tls_ca_file", "needs scheme: https")
    for label in job.labels:
        if not _LABEL.fullmatch(label):
            wrong("labels", f"{label!r} is no name of a label")
    if not _LABEL.fullmatch(job.node):
        wrong("node", f"{job.node!r} is neither host nor series nor the name of a label")
    for number, one in enumerate(job.file_sd):
        if "*" in one.rpartition("/")[0]:
            source.problem((*path, "file_sd", number), "file_sd: only the file's name may hold a *")


def _targets(source: Source, path: Sequence[str | int], texts: Sequence[str]) -> tuple[str, ...]:
    found: list[str] = []
    for index, text in enumerate(texts):
        try:
            names = expand(text)
        except ValueError as error:
            source.problem((*path, index), f"targets: {error}")
            continue
        bad = next((one for one in names if address(one) is None), None)
        if bad is not None:
            hint = "such as gpu[0001-0016]:9400"
            source.problem((*path, index), f"targets: {bad[:100]!r} is not a host and a port", hint)
            continue
        found += names
        if len(found) > TARGETS_MAX:
            break  # told by whoever counts them; a few more lines may stand for millions
    return tuple(dict.fromkeys(found))


def _queries(source: Source, items: Sequence[object], catalogue: Catalogue) -> list[ScrapeQuery]:
    found: list[ScrapeQuery] = []
    for index, item in enumerate(items):
        path = ("queries", index)
        query = source.convert(path, item, ScrapeQuery)
        if query is None:
            continue
        signal = catalogue.signals.get(query.signal)
        if signal is None:
            hint = did_you_mean(query.signal, catalogue.signals)
            source.problem((*path, "signal"), f"signal: the catalogue has no {query.signal}", hint)
        elif signal.derived:
            text = f"signal: {query.signal} is derived by healer and never arrives"
            source.problem((*path, "signal"), text)
        if not query.query.strip() or len(query.query) > QUERY_MAX_CHARS:
            source.problem((*path, "query"), f"query: from 1 to {QUERY_MAX_CHARS} characters")
        if not 5 <= query.interval_s <= INTERVAL_MAX_S:
            source.problem((*path, "interval_s"), f"interval_s: from 5 to {INTERVAL_MAX_S:g}")
        found.append(query)
    return found
