"""The health of healer itself, put together from the database, the API's own process and the broker."""

import threading
import time

import sqlalchemy as sa
from fastapi import FastAPI

from healer import bootstrap
from healer.adapters.postgres.own import stored
from healer.api.services import Services
from healer.api.system import process_checks
from healer.embedded.user import EmbeddedError
from healer.ports.self_health import Own, Queue
from healer.processes.rulebook import Rulebook
from healer.settings import Settings

#: The broker is asked no more often than this, and no page waits for it.
ASK_EVERY_S = 15.0


class BrokerWatch:
    """How many messages wait at the broker, as known last; None and why where it does not answer."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._told: dict[str, tuple[int | None, str]] = {}
        self._asked: dict[str, float] = {}
        self._lock = threading.Lock()

    def __call__(self, cluster: str) -> tuple[int | None, str]:
        with self._lock:
            if time.monotonic() - self._asked.get(cluster, float("-inf")) >= ASK_EVERY_S:
                self._asked[cluster] = time.monotonic()
                threading.Thread(target=self._ask, args=(cluster,), name="broker", daemon=True).start()
            return self._told.get(cluster, (None, ""))

    def _ask(self, cluster: str) -> None:
        told = self._found(cluster)
        with self._lock:
            self._told[cluster] = told

    def _found(self, cluster: str) -> tuple[int | None, str]:
        from kombu.exceptions import ChannelError

        from workers.app import make_app, queue_name

        try:
            app = make_app(bootstrap.broker_url(self._settings), cluster)
            with app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
                queue = connection.default_channel.queue_declare(queue_name(cluster), passive=True)
                return queue.message_count, "answers"
        except ChannelError:
            return 0, "answers"  # an empty queue is no queue there
        except (EmbeddedError, OSError) as error:
            return None, str(error)
        except Exception as error:  # each transport of kombu has errors of its own
            return None, f"{type(error).__name__}: {error}"


class OwnHealth:
    """`healer.ports.self_health.OwnReads`."""

    def __init__(self, settings: Settings, db: sa.Engine, wired: Services, app: FastAPI) -> None:
        self._db, self._wired, self._app = db, wired, app
        self._broker = BrokerWatch(settings)

    def __call__(self, cluster: str) -> Own:
        told, text = self._broker(cluster)
        book = self._wired.rules
        return Own(
            stored=stored(self._db, cluster, self._wired.clock.now()),
            checks=self._wired.ready().checks | process_checks(self._app.state),
            queues=tuple(queues(self._app)),
            broker=told,
            broker_text=text,
            rules_version=book().version,
            rules_since=book.since if isinstance(book, Rulebook) else None,
        )


def queues(app: FastAPI) -> list[Queue]:
    """What waits to be written in this process."""
    units = {"events": "entries"}
    return [
        Queue(name, queue.depth, queue.limit, units.get(name, "bytes"))
        for name, queue in app.state.queues.items()
    ]
