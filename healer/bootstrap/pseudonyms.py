"""Persons, nodes, users and jobs of an installation under other names, the same throughout one bundle."""

import re
from collections.abc import Mapping
from hashlib import sha256

import sqlalchemy as sa

from healer.adapters.postgres.node_rows import PostgresSnapshots, cluster_names
from healer.adapters.postgres.tables import people, tokens

#: Names of the system, which identify no one.
_PLAIN = frozenset({"", "root", "slurm", "healer", "demo", "nobody"})
#: Shorter ones are words of the text, too.
_SHORTEST = 3


def names_in(db: sa.Engine) -> dict[str, set[str]]:
    """Kind (person, node, job) -> names that the database knows."""
    snapshots = PostgresSnapshots(db)
    with db.connect() as conn:
        persons = {*conn.scalars(sa.select(people.c.name)), *conn.scalars(sa.select(tokens.c.name))}
        pictures = [snapshots.read(conn, name) for name in cluster_names(conn)]
    found = {"person": persons, "node": set[str](), "job": set[str]()}
    for picture in filter(None, pictures):
        found["node"] |= {*picture.nodes}
        found["job"] |= {job.name for job in picture.jobs.values()}
        found["person"] |= {job.user for job in picture.jobs.values()}
    return found


class Pseudonyms:
    """Numbers follow a digest of the name, so that their order says nothing."""

    def __init__(self, names: Mapping[str, set[str]]) -> None:
        self._other: dict[str, str] = {}
        for kind, known_names in names.items():
            usable = (name for name in known_names - _PLAIN if len(name) >= _SHORTEST)
            for number, name in enumerate(sorted(usable, key=_digest), start=1):
                self._other.setdefault(name, f"{kind}-{number}")
        words = "|".join(re.escape(name) for name in sorted(self._other, key=len, reverse=True))
        self._in_text = re.compile(rf"(?<![\w-])(?:{words})(?![\w-])") if words else None

    def __call__(self, text: str) -> str:
        return text if self._in_text is None else self._in_text.sub(lambda found: self._other[found[0]], text)


def _digest(name: str) -> bytes:
    return sha256(name.encode()).digest()
