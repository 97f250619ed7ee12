"""Checks of `healer doctor`: which nodes follower and hooks report from, and which rules found nothing."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa

from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.tables import audit_records, inbox, incidents, senders, tokens
from healer.adapters.system_clock import SystemClock
from healer.bootstrap.doctor_checks import NAMED, Check, ask_database, managed_clusters, valid_rules
from healer.model import Mode, SlurmNode, SlurmSnapshot
from healer.settings import Settings
from healer.text import NO_WORDS, Said, joined, name_some, say

#: The follower's heartbeat is due every 10 s.
HEARD_WITHIN = timedelta(minutes=1)
#: So long hooks are looked for: those of a long job are silent until it ends.
HOOKED_WITHIN = timedelta(hours=1)


class Heard(NamedTuple):
    """When nodes of a cluster were heard last, by node: heartbeats and hooks of the last hour, anything
    of the last week; and the nodes that have a token of their own."""

    beats: Mapping[str, datetime]
    hooks: Mapping[str, datetime]
    anything: Mapping[str, datetime]
    enrolled: frozenset[str]


def check_coverage(settings: Settings) -> list[Check]:
    """Never a failure: a site may not run the follower, and a node may be down."""
    now = SystemClock().now()

    def ask(db: sa.Engine, conn: sa.Connection) -> list[tuple[str, SlurmSnapshot | None, Heard]]:
        snapshots = PostgresSnapshots(db)
        clusters = managed_clusters(settings, conn)
        return [(name, snapshots.read(conn, name), _heard(conn, name, now)) for name in clusters]

    return [
        result
        for name, picture, heard in ask_database(settings, ask) or []
        if picture is not None
        for result in coverage(name, picture.gpu_nodes, heard, now)
    ]


def _heard(conn: sa.Connection, cluster: str, now: datetime) -> Heard:
    def last(column: sa.Column, at: sa.Column, *where: sa.ColumnElement[bool]) -> dict[str, datetime]:
        query = sa.select(column, sa.func.max(at)).where(*where).group_by(column)
        return {node: when for node, when in conn.execute(query) if node}

    row, recent = inbox.c, now - HOOKED_WITHIN
    here = row.cluster == cluster, row.arrived_at > recent
    sender, token = senders.c, tokens.c
    # A node of another cluster may have the same name. A token of none is of the only cluster.
    of_cluster = sa.or_(token.cluster == cluster, token.cluster.is_(None))
    enrolled = sa.select(token.node).where(token.node.is_not(None), token.revoked_at.is_(None), of_cluster)
    return Heard(
        beats=last(row.node, row.arrived_at, *here, row.kind == "heartbeat"),
        hooks=last(row.node, row.arrived_at, *here, row.kind == "hook"),
        anything=last(sender.node, sender.last_seen, sender.cluster == cluster),
        enrolled=frozenset(filter(None, conn.scalars(enrolled))),
    )


def coverage(cluster: str, nodes: Iterable[SlurmNode], heard: Heard, now: datetime) -> list[Check]:
    """One check for followers, and one for hooks once any hook was heard."""
    listed = sorted(nodes, key=lambda node: node.name)
    whys: dict[Said, list[str]] = defaultdict(list)
    for node in listed:
        if now - heard.beats.get(node.name, now - 2 * HEARD_WITHIN) > HEARD_WITHIN:
            whys[_why_silent(node, heard, now)].append(node.name)
    silent = sum(map(len, whys.values()))
    text = say("doctor.heard", heard=len(listed) - silent, nodes=len(listed), cluster=cluster)
    if whys:
        groups = [say("doctor.because", text=name_some(names, NAMED), why=why) for why, names in whys.items()]
        text = say("doctor.not_heard", text=text, nodes=joined(groups, "semicolon"))
    results = [Check(say("doctor.nodes"), True, text, say("doctor.nodes_repair") if whys else NO_WORDS)]
    if heard.hooks:
        unhooked = [node.name for node in listed if node.name not in heard.hooks]
        text = say("doctor.hooked", heard=len(listed) - len(unhooked), nodes=len(listed), cluster=cluster)
        if unhooked:
            text = say("doctor.not_hooked", text=text, nodes=name_some(unhooked, NAMED))
        results.append(
            Check(say("doctor.hooks"), True, text, say("doctor.hooks_try") if unhooked else NO_WORDS)
        )
    return results


def _why_silent(node: SlurmNode, heard: Heard, now: datetime) -> Said:
    if not node.responding:
        return say("doctor.silent_in_slurm")
    last = max((book[node.name] for book in (heard.beats, heard.anything) if node.name in book), default=None)
    if last is not None and node.name in heard.beats:
        return say("doctor.follower_stopped", age=_ago(now - last))
    if last is not None:
        return say("doctor.no_follower")
    if node.name in heard.enrolled:
        return say("doctor.enrolled_silent")
    return say("doctor.never_enrolled")


def _ago(age: timedelta) -> Said:
    """In steps, so that nodes which fell silent together are one group."""
    minutes = age.total_seconds() / 60
    if minutes >= 15:
        return say("doctor.age_over_15_min")
    return say("doctor.age_1_to_5_min") if minutes < 5 else say("doctor.age_5_to_15_min")


def check_unused_rules(settings: Settings) -> list[Check]:
    """Names the rules that never opened an incident: for most, that is good news."""
    if (rules := valid_rules(settings)) is None:
        return []

    def ask(_db: sa.Engine, conn: sa.Connection) -> tuple[set[str], datetime | None]:
        fired = set(conn.scalars(sa.select(incidents.c.rule).distinct()))
        return fired, conn.scalar(sa.select(audit_records.c.at).order_by(audit_records.c.id).limit(1))

    fired, since = ask_database(settings, ask) or (set(), None)
    names = [rule.name for rule in rules.rules if rules.mode_of(rule) is not Mode.off]
    return [unused_rules(names, fired, since)] if since is not None else []


def unused_rules(names: list[str], fired: set[str], since: datetime) -> Check:
    never = sorted(name for name in names if name not in fired)
    name, used = say("doctor.rules_used"), len(names) - len(never)
    text = say("doctor.rules_used_since", used=used, rules=len(names), since=f"{since:%Y-%m-%d}")
    if not never:
        return Check(name, True, text)
    text = say("doctor.rules_unused", text=text, names=name_some(never, NAMED))
    return Check(name, True, text, say("doctor.rules_unused_hint"))
