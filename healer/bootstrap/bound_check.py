"""What `healer doctor` tells of the gate's caps: those that can never bind here, or always would."""

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from healer import bootstrap
from healer.adapters.clock import SystemClock
from healer.adapters.postgres.gate import read_facts
from healer.adapters.postgres.rows import cluster_names
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.bootstrap.slurm_check import Look
from healer.decisions.bounds import Bound, odd_bounds
from healer.embedded.user import EmbeddedError
from healer.rulebook import ruleset
from healer.settings import Settings, guard_overrides, rules_folder


def look(settings: Settings) -> list[Look]:
    """A warning is no fault: a site may want it so. Nothing where rules or database cannot be read; their own
    checks say why."""
    try:
        db = bootstrap.engine(settings, name="healer doctor", pool_size=1)
    except EmbeddedError:
        return []
    try:
        return [one for of in settings.each() for one in _of(db, of, settings)]
    except (SQLAlchemyError, ruleset.RulesInvalid):
        return []
    finally:
        db.dispose()


def _of(db: sa.Engine, of: Settings, settings: Settings) -> list[Look]:
    rules = ruleset.load(rules_folder(settings), overrides=guard_overrides(of), prove=False)
    found = []
    with db.connect() as conn:
        known = cluster_names(conn)
        for cluster in [of.cluster] if of.cluster else known:
            facts = read_facts(conn, cluster, PostgresSnapshots(db), SystemClock().now())
            found += [told(cluster, one) for one in odd_bounds(facts, rules, SystemClock().now())]
    return found or ([Look("guards", True, "every cap can bind, and none always would")] if known else [])


def told(cluster: str, bound: Bound) -> Look:
    what = "always holds" if bound.always else "can never bind"
    text = f"{cluster}: guard {bound.guard} {what}: {bound.text}"
    return Look("guards", True, text, f"If that is not meant: {bound.setting} in rules/guards.yaml.")
