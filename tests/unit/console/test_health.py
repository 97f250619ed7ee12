"""The page on healer's own health."""

from datetime import timedelta

import msgspec
import pytest
from fastapi.testclient import TestClient

from healer.console.views import Shown, health_view
from healer.console.views.health_view import Arrives, Row, health
from healer.model import Loss, LossReason, ScrapeState, Sender, TargetState
from healer.ports.answers import Backlog, HeardSender, Queue, SelfHealth, SendersHeard, Sink, Standing, Stored
from healer.text import quoted, say
from tests.support.console_desk import own
from tests.support.console_sample import CLUSTER, NOW
from tests.support.console_site import Site, make_sample, standing_of

COOKIE = {"Cookie": "healer_session=cookie-good"}


def standing(**changes: object) -> Standing:
    found = standing_of(make_sample(32))
    return msgspec.structs.replace(found, **changes)


def health_page(known: SelfHealth, site: Standing | None = None, arrives: Arrives | None = None) -> Shown:
    return health(known, site or standing(), arrives or Arrives(), 3, 2, NOW)


def row(found: Shown, name: str) -> Row:
    return next(one for section in found.sections for one in section.rows if one.name == name)


def well() -> SelfHealth:
    beats = {part: NOW - timedelta(seconds=2) for part in ("detector", "scheduler", "worker")}
    stored = Stored(version="16.4", beats=beats, leads=frozenset({"detector"}))
    return SelfHealth(stored=stored, broker=0, broker_text="answers", rules_version="9d1f")


def test_healthy_site_lists_no_problems() -> None:
    assert health_page(well()).wrong == ()


def test_problems_come_first_and_say_what_to_do() -> None:
    names = [(one.name, one.tone) for one in health_page(own()).wrong]
    assert names == [
        ("Workers", "bad"),
        ("Controller: delayed", "warn"),
        ("Runs for the workers", "warn"),
        ("Scrape targets", "warn"),
        ("<b>chat</b>", "warn"),
    ]
    assert all(one.todo for one in health_page(own()).wrong)


def test_a_detector_that_beats_but_does_not_lead_is_down() -> None:
    known = well()
    stored = msgspec.structs.replace(known.stored, leads=frozenset())
    found = row(health_page(msgspec.structs.replace(known, stored=stored)), "Detector")
    assert (found.tone, found.text) == ("bad", "no active detector")


@pytest.mark.parametrize(
    ("leads", "reported_s", "targets", "tone"),
    [
        (True, 4, 1, "good"),
        (True, 90, 1, "bad"),  # frozen: it keeps its lock
        (False, 4, 1, "bad"),
        (False, 90, 0, None),  # the rules name nothing to fetch: none runs
    ],
)
def test_a_scraper_that_leads_and_reports_works(
    leads: bool, reported_s: int, targets: int, tone: str | None
) -> None:
    found = TargetState(cluster=CLUSTER, job="dcgm", target="gpu0001:9400", up=True)
    state = ScrapeState(cluster=CLUSTER, at=NOW - timedelta(seconds=reported_s), targets=(found,) * targets)
    stored = msgspec.structs.replace(
        well().stored, leads=frozenset({"detector", *(["scraper"] if leads else [])}), scrape=state
    )
    page = health_page(msgspec.structs.replace(well(), stored=stored))
    tones = [one.tone for section in page.sections for one in section.rows if one.name == "Scraper"]
    assert tones == ([tone] if tone else [])


def test_a_picture_that_is_too_old_and_none_at_all_are_down() -> None:
    site = standing()
    assert site.snapshot is not None
    old = msgspec.structs.replace(site.snapshot, taken_at=NOW - timedelta(minutes=2))
    found = row(health_page(well(), standing(snapshot=old, snapshot_error="no route")), "Slurm snapshot")
    assert (found.tone, found.text) == ("bad", "taken 2 min ago, 32 nodes. No route")
    assert row(health_page(well(), standing(snapshot=None)), "Slurm snapshot").tone == "bad"


def test_backlog_turns_to_a_warning_only_after_a_long_wait() -> None:
    def waiting(seconds: int) -> str:
        one = Backlog(name="x", count=4, oldest=NOW - timedelta(seconds=seconds))
        stored = msgspec.structs.replace(well().stored, backlogs=(one,))
        return row(health_page(msgspec.structs.replace(well(), stored=stored)), "x").tone

    assert (waiting(2), waiting(40)) == ("good", "warn")
    full = Arrives(queues=tuple(health_view.queue_rows([Queue("events", 99, 100, "entries")])))
    found = row(health_page(well(), arrives=full), "Write queue: events")
    assert (found.tone, found.text) == ("bad", "99 entries, 99% of capacity")


def test_a_sink_is_looked_at_when_it_refuses_and_not_while_it_waits_for_its_turn() -> None:
    def tone(**fields: object) -> str:
        sink = Sink(name="chat", **fields)  # type: ignore[arg-type]
        stored = msgspec.structs.replace(well().stored, sinks=(sink,))
        return row(health_page(msgspec.structs.replace(well(), stored=stored)), "chat").tone

    assert (tone(sent=2), tone(due=1), tone(due=1, error="503"), tone(failed=1)) == (
        "good", "good", "warn", "warn",
    )  # fmt: skip


def test_quiet_senders_are_named() -> None:
    def sender(who: str, *, node: str = "") -> Sender:
        return Sender(cluster=CLUSTER, who=who, source="heartbeat", node=node, first_seen=NOW, last_seen=NOW)

    silent = [sender("signals-1f", node="gpu0001"), *(sender(f"q{i}") for i in range(9))]
    heard = [*(HeardSender(each, True) for each in silent), HeardSender(sender("a"), False)]
    found = row(health_page(well(), arrives=Arrives(senders=SendersHeard(900, 20, heard))), "Senders")
    assert found.text.startswith("silent: gpu0001, q0, q1") and found.text.endswith("q6 and 12 more")
    found = row(health_page(well(), arrives=Arrives(senders=SendersHeard(900, 0, heard[-1:]))), "Senders")
    assert found.text == "900 senders, none silent"


def test_samples_that_are_stored_already_need_no_attention() -> None:
    def lost(reason: LossReason) -> Row:
        loss = Loss(
            cluster=CLUSTER, source="windows", reason=reason, count=9, example=say("console.none"),
            first_seen=NOW, last_seen=NOW,
        )  # fmt: skip
        arrives = Arrives(losses=tuple(health_view.loss_rows([loss], NOW)))
        return row(health_page(well(), arrives=arrives), "Rejected")

    assert (lost(LossReason.out_of_order).tone, lost(LossReason.late).tone) == ("good", "warn")


def test_an_error_that_ends_with_a_stop_gets_no_second_one() -> None:
    site = Site(make_sample(32))
    sink = Sink(name="tickets", due=1, error=quoted("Jira answered 400: Cost center is required."))
    site.own = msgspec.structs.replace(well(), stored=msgspec.structs.replace(well().stored, sinks=(sink,)))
    page = TestClient(site.app).get("/health", headers=COOKIE).text
    assert "is required." in page and "is required.." not in page


def test_the_page_shows_it_and_leaves_what_sinks_say_text() -> None:
    page = TestClient(Site(make_sample(32)).app).get("/health", headers=COOKIE)
    assert page.status_code == 200
    assert "<script>alert(1)" not in page.text and "<b>chat" not in page.text
    assert "403 &lt;script&gt;" in page.text and "nodes scored: 96" in page.text
    assert ">16,807 spool_full" in page.text
