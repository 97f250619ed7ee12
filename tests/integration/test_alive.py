"""The dead man's switch against a real database and a stand-in Alertmanager."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.loops import BEAT_S, DEAD_AFTER_S, Heartbeat, beats_on
from healer.adapters.postgres.tables import beats
from healer.bootstrap.messaging import ALIVE_S, Switch
from healer.model import Channel, ChannelKind, DeadMansSwitch, Notifications
from healer.settings import load as load_settings
from tests.support import chats as stand_in
from tests.support.chats import Chats, serve_chats
from tests.support.loop import shipped


class Watch:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def chats() -> Iterator[Chats]:
    with serve_chats() as served:
        yield served


@pytest.fixture
def switch(fresh_database: sa.Engine, chats: Chats) -> tuple[Switch, Watch, Notifications]:
    notifications = Notifications(
        channels=(Channel(name="feed", kind=ChannelKind.alertmanager, url=chats.url),),
        alive=DeadMansSwitch(channel="feed", every_s=30),
    )
    rules = msgspec.structs.replace(shipped(), notifications=notifications)
    settings = load_settings({"HEALER_ALERTMANAGER_TOKEN": stand_in.AM_TOKEN})
    watch = Watch()
    return Switch(settings, fresh_database, "pod1", lambda: rules, watch), watch, notifications


def heard(chats: Chats) -> list[dict[str, Any]]:
    return chats.taken.get("alertmanager", [])


def silent(engine: sa.Engine, seconds: float) -> None:
    """The detector said nothing for so long."""
    with engine.begin() as conn:
        conn.execute(sa.update(beats).values(at=sa.func.now() - timedelta(seconds=seconds)))


def test_it_is_held_as_long_as_both_live(fresh_database: sa.Engine, chats: Chats, switch) -> None:
    duty, watch, _ = switch
    assert duty() == ALIVE_S
    assert heard(chats) == []  # no detector has worked yet
    Heartbeat(fresh_database, "pod1", "detector")()
    assert (duty(), duty()) == (30, 30)
    (alert,) = chats.alerts.values()
    assert alert["labels"] == {"alertname": "HealerAlive", "cluster": "pod1", "severity": "none"}
    last = datetime.fromisoformat(alert["endsAt"]) - datetime.now().astimezone()
    assert timedelta(seconds=60) < last <= timedelta(seconds=120)
    watch.s += DEAD_AFTER_S - 1
    assert duty() == 30


def test_a_silent_detector_lets_it_go(fresh_database: sa.Engine, chats: Chats, switch) -> None:
    duty, _, _ = switch
    Heartbeat(fresh_database, "pod1", "detector")()
    duty()
    silent(fresh_database, DEAD_AFTER_S + 1)
    assert duty() == ALIVE_S
    assert len(heard(chats)) == 1
    Heartbeat(fresh_database, "pod2", "detector")()  # another cluster's says nothing of this one
    duty()
    assert len(heard(chats)) == 1


def test_a_scheduler_whose_poll_hangs_or_fails_lets_it_go(
    fresh_database: sa.Engine, chats: Chats, switch
) -> None:
    duty, watch, _ = switch
    Heartbeat(fresh_database, "pod1", "detector")()

    def fails() -> float:
        raise RuntimeError("the database is away")

    watch.s += DEAD_AFTER_S + 1
    with pytest.raises(RuntimeError):
        duty.seen(fails)()
    assert duty() == ALIVE_S
    assert heard(chats) == []
    assert duty.seen(lambda: 2.5)() == 2.5
    assert duty() == 30
    assert len(heard(chats)) == 1


def test_an_alertmanager_that_fails_is_asked_again_soon(
    fresh_database: sa.Engine, chats: Chats, switch
) -> None:
    duty, _, _ = switch
    Heartbeat(fresh_database, "pod1", "detector")()
    chats.answers.append((500, {}, {}))
    assert (duty(), duty()) == (ALIVE_S, 30)


def test_a_beat_is_stored_every_few_seconds_and_never_fails(fresh_database: sa.Engine) -> None:
    watch = Watch()
    beat = Heartbeat(fresh_database, "pod1", "detector", watch)
    beat()
    silent(fresh_database, 1000)
    beat()
    assert not beats_on(fresh_database, "pod1", "detector")
    watch.s += BEAT_S
    beat()
    assert beats_on(fresh_database, "pod1", "detector")
    with fresh_database.begin() as conn:
        conn.execute(sa.text("ALTER TABLE beats RENAME TO gone"))
    watch.s += BEAT_S
    beat()
