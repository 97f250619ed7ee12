"""`GET /scrape`: what healer fetches itself, and how it goes."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from healer.api.access import own_clusters
from healer.api.answers import answer
from healer.api.documents import answers
from healer.api.reading import Limit, Name, Viewer, services_of
from healer.model import ScrapeState, TargetState

router = APIRouter(tags=["reading"])


class ScraperView(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster's scraper. `up`, `unknown` and `waiting` are targets; the other counts are since its start.

    `at` is when it told so last: one that is older than some seconds does not run.
    """

    cluster: str
    at: datetime
    up: int
    unknown: int
    waiting: int
    scrapes: int
    failed: int
    samples: int
    troubles: tuple[str, ...] = ()


class ScrapeView(msgspec.Struct, frozen=True, kw_only=True):
    """`items` are targets and queries, those of which nothing came first; `more` of them are not shown."""

    scrapers: list[ScraperView]
    items: list[TargetState]
    more: int = 0


@router.get("/scrape", responses=answers(ScrapeView, "targets, those of which nothing came first"))
def scrape(
    request: Request,
    caller: Viewer,
    *,
    cluster: Name = None,
    job: Name = None,
    up: bool | None = None,
    limit: Limit = 500,
) -> Response:
    """What healer fetches itself: each target, when it was fetched last, and why nothing came."""
    states = services_of(request).scrapes.states(own_clusters(request, caller, cluster))
    targets = [one for state in states for one in state.targets]
    wanted = [one for one in targets if job in (None, one.job) and up in (None, one.up)]
    wanted.sort(key=lambda one: (one.up is not False, one.cluster, one.job, one.target))
    unlisted = sum(state.more for state in states) if job is None and up is None else 0
    view = ScrapeView(
        scrapers=[_scraper(state) for state in states],
        items=wanted[:limit],
        more=len(wanted[limit:]) + unlisted,
    )
    return answer(request, view)


def _scraper(state: ScrapeState) -> ScraperView:
    ups = _ups(state.targets)
    return ScraperView(
        cluster=state.cluster,
        at=state.at,
        up=ups[True],
        unknown=ups[False],
        waiting=ups[None],
        scrapes=state.scrapes,
        failed=state.failed,
        samples=state.samples,
        troubles=state.troubles,
    )


def _ups(targets: Sequence[TargetState]) -> Counter[bool | None]:
    return Counter(one.up for one in targets)


def scrape_gauges(states: Sequence[ScrapeState], now: datetime) -> dict[str, dict[tuple[str, ...], Any]]:
    """For /metrics: gauge -> {label values: number}."""
    words = {True: "up", False: "unknown", None: "waiting"}
    found: dict[str, dict[tuple[str, ...], Any]] = {
        "scrape_targets": {},
        "scrapes": {},
        "scrape_samples": {},
        "scrape_age": {},
    }
    for state in states:
        ups = _ups(state.targets)
        for up, word in words.items():
            found["scrape_targets"][state.cluster, word] = ups[up]
        found["scrapes"][state.cluster, "failed"] = state.failed
        found["scrapes"][state.cluster, "done"] = state.scrapes - state.failed
        found["scrape_samples"][(state.cluster,)] = state.samples
        found["scrape_age"][(state.cluster,)] = (now - state.at).total_seconds()
    return found
