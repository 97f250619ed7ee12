"""What `healer doctor` tells of each channel: whether its secrets are there, and what it was told of late."""

from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from healer import bootstrap
from healer.adapters.clock import SystemClock
from healer.adapters.postgres.tables import deliveries
from healer.bootstrap.channels import known_of
from healer.bootstrap.slurm_check import Look
from healer.embedded.user import EmbeddedError
from healer.model import Channel
from healer.rulebook import ruleset
from healer.settings import Settings, SettingsError, rules_folder

#: Dead letters of this time are told of.
RECENT = timedelta(days=1)


def look(settings: Settings) -> list[Look]:
    """Sends nothing. Nothing where the rules cannot be read: their own check says why."""
    try:
        named = ruleset.load(rules_folder(settings), prove=False).notifications.channels
        if not named:
            return []
        db = bootstrap.engine(settings, name="healer doctor", pool_size=1)
    except (ruleset.RulesInvalid, EmbeddedError):
        return []
    try:
        told = told_of(db, SystemClock().now())
    except SQLAlchemyError:
        told = {}  # the database's own check says why
    finally:
        db.dispose()
    return [said(settings, channel, told.get(channel.name)) for channel in named]


def told_of(db: sa.Engine, now: datetime) -> dict[str, sa.Row]:
    """By channel: when it was told last, what waits after a failed try, what was given up, and why."""
    row = deliveries.c
    failing = (row.state == "due") & row.error.is_not(None)
    dead = (row.state == "failed") & (row.ended_at > now - RECENT)
    query = sa.select(
        row.channel,
        sa.func.max(row.ended_at).filter(row.state == "sent").label("told"),
        sa.func.count().filter(failing).label("failing"),
        sa.func.count().filter(dead).label("dead"),
        sa.func.max(row.error).filter(failing | dead).label("error"),
    ).group_by(row.channel)
    with db.connect() as conn:
        return {one.channel: one for one in conn.execute(query)}


def said(settings: Settings, channel: Channel, told: sa.Row | None) -> Look:
    name = f"channel {channel.name}"
    try:
        known_of(settings, channel)
    except SettingsError as error:
        return Look(name, False, str(error), "Set it for the scheduler (docs/notifications.md).")
    if told is None:
        return Look(name, True, f"{channel.kind}: its secrets are there, and it was told nothing yet")
    last = f"told last at {told.told:%Y-%m-%d %H:%M} UTC" if told.told else "never told anything"
    if not told.failing and not told.dead:
        return Look(name, True, f"{channel.kind}: {last}")
    text = f"{channel.kind}: {last}; {told.failing} wait after a failed try, {told.dead} given up in 24 h"
    repair = (
        f"`healer messages --channel {channel.name}` lists them, `healer messages retry` sends one again."
    )
    return Look(name, False, f"{text}: {told.error}", repair)
