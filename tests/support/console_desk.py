"""What the sample site knows of healer itself."""

from datetime import timedelta

from healer.console.own import Backlog, ModelSeen, Own, Sink, Stored
from healer.console.reads import Queue
from healer.model import Controller, Trouble
from healer.model.scrape import ScrapeState, TargetState
from tests.support.console_sample import CLUSTER, NOW


def _ago(**span: float):
    return NOW - timedelta(**span)


def own() -> Own:
    """Mostly well; the workers are silent, a sink fails and a target is down."""
    return Own(
        stored=Stored(
            version="16.4",
            size_bytes=3_400_000_000,
            free_share=0.62,
            controller=Controller(
                cluster=CLUSTER,
                at=NOW,
                adapter="slurmrestd",
                version="24.11.1",
                answer_s=0.21,
                since={Trouble.backlog: _ago(minutes=3)},
                agent_queue=812,
            ),
            beats={"detector": _ago(seconds=3), "scheduler": _ago(seconds=1), "worker": _ago(minutes=4)},
            leads=frozenset({"detector", "scraper"}),
            backlogs=(
                Backlog(name="Signals for the detector"),
                Backlog(name="Runs for the workers", count=3, oldest=_ago(minutes=4)),
            ),
            sinks=(
                Sink(name="pager", sent=31, last_sent=_ago(minutes=2)),
                Sink(name="<b>chat</b>", sent=2, due=1, failed=4, error="403 <script>alert(1)</script>"),
            ),
            scrape=ScrapeState(
                cluster=CLUSTER,
                at=_ago(seconds=4),
                targets=(
                    TargetState(cluster=CLUSTER, job="dcgm", target="gpu0001:9400", up=True),
                    TargetState(cluster=CLUSTER, job="dcgm", target="gpu0002:9400", up=False),
                ),
            ),
            models=(
                ModelSeen(
                    hardware="h100", load="busy", id="5ac1" * 16, trained_at=_ago(days=3),
                    in_force_at=_ago(days=2), by="healer", told="features lie as in training",
                ),
            ),
        ),
        checks={"spool": {"ok": True, "text": "empty"}, "database": {"ok": True, "text": "answers"}},
        queues=(Queue("events", 12, 20_000, "entries"),),
        broker=0,
        broker_text="answers",
        rules_version="9d1f00c2aa51",
        rules_since=_ago(hours=30),
    )  # fmt: skip
