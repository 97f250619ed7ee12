"""Which addresses there are to fetch: those of `rules/scrape.yaml`, and those of its file_sd files.

A file is read again when it changed. One that cannot be read keeps its last targets, as in Prometheus, and is
told as a trouble: half a file must not make a fleet fall silent.
"""

import glob
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from healer.hostlist import expand
from healer.model import ScrapeJob, ScrapeRules
from healer.processes.targets import Listed, Target
from healer.rulefiles import Problem, Source
from healer.scraperules import TARGETS_MAX, address

#: One file; 50,000 targets with their labels are below.
FILE_BYTES_MAX = 16 * 2**20
FILES_MAX = 1000
#: Targets of one job that are looked at, those that stand twice among them.
_TOLD_MAX = 4 * TARGETS_MAX
#: Troubles that are told at once.
_TROUBLES_MAX = 100
#: Labels of Prometheus that say how to fetch, and not whose it is.
_PATH, _SCHEME = "__metrics_path__", "__scheme__"


class _Group(msgspec.Struct, frozen=True):
    targets: tuple[str, ...]
    labels: dict[str, str] = {}


_json = msgspec.json.Decoder(list[_Group])


@dataclass(slots=True)
class _File:
    stamp: tuple[int, int]
    groups: list[_Group]
    trouble: str = ""


class FileTargets:
    """The targets of one cluster. For one thread."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._files: dict[str, _File] = {}
        self._last: tuple[ScrapeRules, dict[str, _File], Listed] | None = None

    def __call__(self, rules: ScrapeRules) -> Listed:
        """All targets of these rules, each once and bounded, and what is wrong with their files. The same
        value as long as nothing changed."""
        files = {path: self._read(path) for path in _paths(rules)}
        if self._last is not None and self._last[:2] == (rules, files):
            return self._last[2]
        self._files, listed = files, self._listed(rules, files)
        self._last = (rules, files, listed)
        return listed

    def _listed(self, rules: ScrapeRules, files: dict[str, "_File"]) -> Listed:
        troubles: list[str] = []
        found: dict[tuple[str, str], Target] = {}
        for job in rules.jobs:
            if job.cluster not in ("", self._cluster):
                continue
            groups = [_Group(job.targets), *_groups(job, files, troubles)]
            for number, target in enumerate(_targets(job, groups, troubles)):
                if number >= _TOLD_MAX or len(found) > TARGETS_MAX:
                    break  # a few bytes of a file may stand for 100,000 names
                if target.labels.get("cluster", self._cluster) in ("", self._cluster):
                    found.setdefault((job.name, target.url), target)
        if len(found) > TARGETS_MAX:
            troubles.append(f"more than {TARGETS_MAX} targets: the first {TARGETS_MAX} are fetched")
        return Listed(tuple(found.values())[:TARGETS_MAX], tuple(dict.fromkeys(troubles))[:_TROUBLES_MAX])

    def _read(self, path: str) -> _File:
        before = self._files.get(path)
        kept = before.groups if before else []
        try:
            told = Path(path).stat()
            stamp = (told.st_mtime_ns, told.st_size)
            if before is not None and before.stamp == stamp:
                return before
            if told.st_size > FILE_BYTES_MAX:
                return _File(stamp, kept, f"{path} is larger than {FILE_BYTES_MAX} bytes")
            groups, why = _parsed(Path(path))
        except OSError as error:
            return _File((0, 0), kept, f"{path} cannot be read: {error.strerror}")
        return _File(stamp, kept if why else groups, why)


def _paths(rules: ScrapeRules) -> Iterator[str]:
    for job in rules.jobs:
        for form in job.file_sd:
            found = sorted(glob.glob(form)) if "*" in form else [form]  # noqa: PTH207 - a form, not a folder
            yield from found[:FILES_MAX]


def _groups(job: ScrapeJob, files: dict[str, _File], troubles: list[str]) -> Iterator[_Group]:
    for path, one in files.items():
        if any(fnmatch(path, form) if "*" in form else path == form for form in job.file_sd):
            if one.trouble:
                troubles.append(f"{job.name}: {one.trouble}")
            yield from one.groups


def _parsed(path: Path) -> tuple[list[_Group], str]:
    """(groups, what is wrong): Prometheus' file_sd, a list of {targets, labels}."""
    if path.suffix == ".json":
        try:
            return _json.decode(path.read_bytes()), ""
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return [], f"{path}: {error}"
    problems: list[Problem] = []
    source = Source(path, str(path), problems)
    items = source.items("groups of targets")
    groups = [source.convert((index,), item, _Group) for index, item in enumerate(items)]
    return [one for one in groups if one is not None], str(problems[0]) if problems else ""


def _targets(job: ScrapeJob, groups: list[_Group], troubles: list[str]) -> Iterator[Target]:
    for group in groups:
        labels = job.labels | group.labels
        scheme, path = labels.pop(_SCHEME, job.scheme), labels.pop(_PATH, job.path)
        for text in group.targets:
            try:
                names = expand(text)
            except ValueError as error:
                troubles.append(f"{job.name}: {error}")
                continue
            for name in names:
                where = address(name)
                if where is None or scheme not in ("http", "https"):
                    troubles.append(f"{job.name}: {name[:100]!r} is not a host and a port, or not over http")
                    continue
                yield Target(job=job, host=where[0], url=f"{scheme}://{name}{path}", labels=labels)
