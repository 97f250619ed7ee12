"""Lists of slurmrestd that are fetched again only when they changed (d.8, 21).

`GET /jobs` takes slurmctld's locks and 5 kB a job. With `update_time` Slurm answers at once when nothing has
changed since: `/nodes` and `/reservations` with 304, `/jobs` with 200, a warning and no jobs at all.
"""

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from healer.adapters.slurm.commands import understanding
from healer.adapters.slurm.rest_answers import Answer, error_of
from healer.adapters.slurm.rest_link import Found, RestLink

#: "Unchanged" is believed for so long: a controller whose clock was set back would say it for longer.
_BELIEVED_S = 60.0
#: A whole list may take this many times the usual time-out.
PATIENCE = 6

T = TypeVar("T")


class _Kept(NamedTuple, Generic[T]):
    """`updated` by Slurm's clock, `fetched_at` by ours, of `found`'s slurmctld."""

    found: Found
    updated: int
    fetched_at: float
    rows: Mapping[str, T]


class KeptList(Generic[T]):
    """One list, parsed. Safe for threads: each reader gets what was true when it asked, or later."""

    def __init__(self, link: RestLink, path: str, parse: Callable[[bytes], Mapping[str, T]]) -> None:
        self._link, self._path, self._parse = link, path, parse
        self._kept: _Kept[T] | None = None

    def read(self, now: float) -> Mapping[str, T]:
        """All rows. The very same mapping as before when nothing has changed."""
        found, kept = self._link.found(), self._kept
        answer = None
        if kept and kept.found == found and kept.updated and now - kept.fetched_at < _BELIEVED_S:
            query = {"update_time": str(kept.updated)}
            answer = self._link.ask("GET", self._path, query=query, patience=PATIENCE)
            if unchanged(answer):
                return kept.rows
            if answer.no_contact:
                raise error_of(answer.problems[0], f"Slurm did not list {self._path[1:]}", "")
        # After an error too: 24.11 answers 500 where nodes have changed and partitions have not.
        if answer is None or not answer.good:
            answer = self._link.call("GET", self._path, f"list {self._path[1:]}", patience=PATIENCE)
        with understanding():
            rows = self._parse(answer.body)
        if kept and kept.rows == rows:
            rows = kept.rows
        self._kept = _Kept(found, answer.updated, now, rows)
        return rows


def unchanged(answer: Answer) -> bool:
    """Of an answer to `update_time`. A list that is really empty comes with the time of its last change."""
    return answer.status == 304 or (answer.good and bool(answer.warnings) and not answer.updated)
