"""Which addresses there are to fetch: those of `rules/scrape.yaml`, and those of its file_sd files.

A file is read again when it changed. One that cannot be read keeps its last targets, as in Prometheus, and is
told as a trouble: half a file must not make a fleet fall silent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from healer.adapters.pull.file_sd import Group, Unreadable, WrongGroup, files_of, how, read_groups
from healer.model import ScrapeJob, ScrapeRules
from healer.model.hostlist import expand
from healer.ports.pull import Listed, Target
from healer.rulebook.scrape_rules import TARGETS_MAX, address

#: One file; 50,000 targets with their labels are below.
FILE_BYTES_MAX = 16 * 2**20
#: Addresses of one job that are looked at, those that stand twice and those that are none among them.
_TOLD_MAX = 4 * TARGETS_MAX
#: Troubles that are told at once.
_TROUBLES_MAX = 100


class _Troubles(dict[str, None]):
    """Each once, in order; those beyond the limit are not kept."""

    def tell(self, text: str) -> None:
        if len(self) < _TROUBLES_MAX:
            self[text] = None


@dataclass(slots=True)
class _File:
    stamp: tuple[int, int]
    groups: list[Group]
    troubles: tuple[str, ...] = ()


class FileTargets:
    """The targets of one cluster. For one thread."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._files: dict[str, _File] = {}
        self._last: tuple[ScrapeRules, dict[str, _File], Listed] | None = None

    def __call__(self, rules: ScrapeRules) -> Listed:
        """All targets of these rules, each once and bounded, and what is wrong with their files. The same
        value as long as nothing changed."""
        forms = {form: files_of(form) for job in self._mine(rules) for form in job.file_sd}
        files = {path: self._read(path) for paths in forms.values() for path in paths}
        if self._last is not None and self._last[:2] == (rules, files):
            return self._last[2]
        self._files, listed = files, self._listed(rules, forms, files)
        self._last = (rules, files, listed)
        return listed

    def _mine(self, rules: ScrapeRules) -> list[ScrapeJob]:
        return [job for job in rules.jobs if job.cluster in ("", self._cluster)]

    def _listed(self, rules: ScrapeRules, forms: dict[str, list[str]], files: dict[str, _File]) -> Listed:
        troubles = _Troubles()
        found: dict[tuple[str, str], Target] = {}
        for job in self._mine(rules):
            own = dict.fromkeys(path for form in job.file_sd for path in forms[form])
            for path in own:
                for one in files[path].troubles:
                    troubles.tell(f"{job.name}: {one}")
            groups = [Group(job.targets), *(one for path in own for one in files[path].groups)]
            for target in _targets(job, groups, troubles):
                if len(found) > TARGETS_MAX:
                    break
                if target.labels.get("cluster", self._cluster) in ("", self._cluster):
                    found.setdefault((job.name, target.url), target)
        told = tuple(troubles)
        if len(found) > TARGETS_MAX:
            told = (f"more than {TARGETS_MAX} targets: the first {TARGETS_MAX} are fetched", *told)
        return Listed(tuple(found.values())[:TARGETS_MAX], told[:_TROUBLES_MAX])

    def _read(self, path: str) -> _File:
        before = self._files.get(path)
        kept = before.groups if before else []
        stamp = (0, 0)
        try:
            told = Path(path).stat()
            stamp = (told.st_mtime_ns, told.st_size)
            if before is not None and before.stamp == stamp:
                return before
            if told.st_size > FILE_BYTES_MAX:
                return _File(stamp, kept, (f"{path} is larger than {FILE_BYTES_MAX} bytes",))
            groups, wrong = read_groups(Path(path))
        except OSError as error:
            return _File((0, 0), kept, (f"{path} cannot be read: {error.strerror}",))  # until it can
        except Unreadable as error:
            return _File(stamp, kept, (str(error),))
        return _File(stamp, groups, tuple(wrong[:_TROUBLES_MAX]))


def _targets(job: ScrapeJob, groups: list[Group], troubles: _Troubles) -> Iterator[Target]:
    looked = 0
    for group in groups:
        # What stands in the rules themselves was checked with them.
        where = f"{job.name}: {group.where}" if group.where else job.name
        try:
            scheme, path, labels = how(job.labels | group.labels, job.scheme, job.path)
        except WrongGroup as error:
            troubles.tell(f"{where}: {error}")
            continue
        for text in group.targets:
            for name in _names(text, where, troubles):
                looked += 1
                if looked > _TOLD_MAX:  # a few bytes of a file may stand for 100,000 names
                    troubles.tell(f"{where}: more than {_TOLD_MAX} addresses: the others are not looked at")
                    return
                at = address(name)
                if at is None:
                    troubles.tell(f"{where}: {name[:100]!r} is not a host and a port")
                else:
                    yield Target(job=job, host=at[0], url=f"{scheme}://{name}{path}", labels=labels)


def _names(text: str, where: str, troubles: _Troubles) -> list[str]:
    try:
        return expand(text)
    except ValueError as error:
        troubles.tell(f"{where}: {error}")
        return []
