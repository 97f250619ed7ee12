"""Persons, nodes, users and jobs of an installation under other names, the same throughout one bundle."""

from collections.abc import Mapping

import sqlalchemy as sa

from healer.adapters.postgres.node_rows import PostgresSnapshots, cluster_names
from healer.adapters.postgres.tables import people, tokens
from healer.importing.node_names import NamesInText, by_digest

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


def pseudonyms(names: Mapping[str, set[str]]) -> NamesInText:
    others: dict[str, str] = {}
    for kind, known_names in names.items():
        usable = (name for name in known_names - _PLAIN if len(name) >= _SHORTEST)
        for number, name in enumerate(by_digest(usable), start=1):
            others.setdefault(name, f"{kind}-{number}")
    return NamesInText(others)
