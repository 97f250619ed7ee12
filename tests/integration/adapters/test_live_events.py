"""Live events from a real database."""

import asyncio
import json

import sqlalchemy as sa

from healer.adapters.postgres.events import CHANNEL, PostgresEvents
from tests.support.wait import wait_until


def test_a_notice_that_is_no_event_ends_none_that_follow(fresh_database: sa.Engine) -> None:
    """Whoever reaches the database may send one."""
    events = PostgresEvents(fresh_database)

    def notify(payload: str) -> None:
        with fresh_database.begin() as conn:
            conn.execute(
                sa.text("SELECT pg_notify(:channel, :payload)"), {"channel": CHANNEL, "payload": payload}
            )

    async def heard() -> str:
        stream = events.listen(None)
        coming = asyncio.ensure_future(anext(stream))
        await asyncio.to_thread(wait_until, events.ready, what="it listens")
        for payload in ("nonsense", json.dumps({"seq": 7, "kind": "fleet", "data": {}})):
            await asyncio.to_thread(notify, payload)
        event = await coming
        await stream.aclose()  # type: ignore[attr-defined]
        return event.kind if event is not None else "nothing"

    try:
        assert asyncio.run(heard()) == "fleet"
    finally:
        events.close()
