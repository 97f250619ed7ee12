"""The Celery application. It carries only "advance these runs": a lost or doubled message is harmless.

PostgreSQL holds the truth (runs, leases, epochs); the scheduler's sweep finds what a lost message left.
"""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

# Celery would name the process after itself; in process lists it is `healer worker`. Read at its import.
os.environ.setdefault("NOSETPS", "1")

from celery import Celery, Task
from kombu.entity import Queue
from kombu.exceptions import OperationalError

from workers.broker_messages import ADVANCE, TOGETHER, displace_strangers, install

#: Messages at once, beside the `TOGETHER` runs of one message: what many runs write at the same time goes to
#: the database together, so more threads than cores cost less.
CONCURRENCY = 8
#: A message that no worker took by then is dropped: while a run is due the sweep sends another each second,
#: and a day without workers would leave a heap. The worker's clock judges, which may be another.
EXPIRES_S = 120
#: After this Redis hands an unacknowledged message to another worker. Steps bound themselves far below it:
#: Celery's own time limits do not work in a pool of threads.
VISIBILITY_S = 300
#: A publisher gives up a Redis that is silent for so long.
SILENT_S = 3
#: A host that is cut off is noticed within 11 s; the default is two hours, in which a worker gets nothing.
_KEEPALIVE = {
    socket.TCP_KEEPIDLE: 5,
    socket.TCP_KEEPINTVL: 2,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 10_000,
}


class RunTask(Task):
    """The one kind of task: short, acknowledged after its end, never retried by Celery (the sweep does)."""

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    ignore_result = True
    max_retries = 0


def make_app(broker_url: str, cluster: str) -> Celery:
    """An application for publishing to a cluster's queue and for working on it. No result backend; JSON only.

    Publish with `send`.
    """
    install()
    app = Celery("healer", broker=broker_url, task_cls=RunTask, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_queues=[Queue(queue_name(cluster), durable=True)],
        task_default_queue=queue_name(cluster),
        task_create_missing_queues=False,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=2,
        broker_transport_options=_transport_options(broker_url),
    )
    return app


def send(app: Celery, runs: Sequence[str]) -> None:
    """Asks workers to advance the runs, a few with each message. Fails at once when the broker is away."""
    for first in range(0, len(runs), TOGETHER):
        app.send_task(ADVANCE, args=list(runs[first : first + TOGETHER]), retry=False, expires=EXPIRES_S)


def _transport_options(broker_url: str) -> dict[str, Any]:
    if not broker_url.startswith("redis"):
        return {"pool_pre_ping": True}  # options of SQLAlchemy's engine; it looks for messages each second
    return {
        "visibility_timeout": VISIBILITY_S,
        # Defaults look for lost messages every 100 s; 5 s costs one command on an idle Redis.
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        "socket_connect_timeout": 2,
        # A frozen Redis does not answer, and the sweep must not wait for it.
        "socket_timeout": SILENT_S,
        "socket_keepalive": not broker_url.startswith("redis+socket"),
        "socket_keepalive_options": _KEEPALIVE,
        # A publisher that cannot reach Redis gives up at once: the sweep pokes again.
        "max_retries": 1,
        "interval_start": 0,
        "interval_step": 0.2,
        "interval_max": 0.2,
    }


def queue_name(cluster: str) -> str:
    return f"healer.{cluster}"


def run(app: Celery, cluster: str, advance: Callable[[str], None]) -> None:
    """Works with pools of threads until SIGTERM or SIGINT, which let running tasks end.

    `advance` takes a run's id and returns when the run waits or has ended.
    """
    from workers.tasks import register

    register(app, advance, ThreadPoolExecutor(TOGETHER, thread_name_prefix="run"))
    with suppress(OperationalError), app.connection_for_write() as connection:  # Celery waits for a broker
        displace_strangers(connection, queue_name(cluster))
    worker = app.Worker(
        pool="threads",
        concurrency=CONCURRENCY,
        queues=[queue_name(cluster)],
        hostname=f"healer-{os.getpid()}@%h",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
        loglevel="WARNING",
    )
    worker.start()
    if worker.exitcode:
        sys.exit(worker.exitcode)
