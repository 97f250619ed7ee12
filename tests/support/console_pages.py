"""The addresses of every kind of page that people read, for tests that look at all of them."""

import re
from collections.abc import Iterator
from datetime import timedelta

from fastapi import FastAPI
from fastapi.routing import APIRoute

from tests.support.console_sample import NOW
from tests.support.console_site import Site
from tests.support.routes import routes_of

#: What no person reads: data for a page's pictures, files.
_NO_PAGES = re.compile(r"\.(json|md|ico|csv)$|^/static/|^/api/")


#: What a browser takes when a person opens an address.
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
#: Addresses at which there is no page; what a browser shows there is looked at as every page is.
NO_PAGES = ["/no-such-page", "/incidents/", "/words"]


def incident_of(site: Site, rule: str) -> str:
    """The one of the last day that this rule opened."""
    return next(
        key
        for key, detail in site.sample.details.items()
        if detail.incident.rule == rule and NOW - detail.incident.opened < timedelta(hours=23)
    )


def question_of(site: Site, rule: str) -> str:
    """`approve_until` of the run that this incident waits for, as the page sends it back."""
    runs = (record.run for record in site.sample.runs.values())
    asked = next(run for run in runs if run.approve_until and run.incident == incident_of(site, rule))
    assert asked.approve_until
    return asked.approve_until.isoformat()


def pages(site: Site) -> dict[str, list[str]]:
    """Addresses of each kind of page."""
    return {
        "/": ["/"],
        "/incidents": ["/incidents", "/incidents?show=resolved"],
        "/incidents/{incident_id}": [
            f"/incidents/{incident_of(site, rule)}" for rule in ("gpu-lost", "straggler")
        ],
        "/runs": ["/runs"],
        "/runs/{run_id}": [f"/runs/{next(iter(site.sample.runs))}"],
        "/nodes/{cluster}/{name}": ["/nodes/pod1/gpu0017"],
        "/jobs": ["/jobs"],
        "/jobs/{cluster}/{job}": ["/jobs/pod1/4711"],
        "/rules": ["/rules", "/rules?show=unknown"],
        "/signals": ["/signals"],
        "/approvals": ["/approvals"],
        "/pauses": ["/pauses"],
        "/tokens": ["/tokens", "/tokens?ended=true"],
        "/people/{name}": ["/people/mara"],
        "/health": ["/health"],
        "/reports": ["/reports?period=30d", "/reports?from=2026-11-01&to=2026-11-10"],
        "/reports/handover": ["/reports/handover"],
        "/playbooks": ["/playbooks"],
        "/playbooks/{name}": ["/playbooks/gpu-fatal"],
        "/runbooks/{name}": ["/runbooks/gpu-reset"],
        "/audit": ["/audit"],
        "/access": ["/access", "/access?groups=gpu-ops"],
        "/sign-in": ["/sign-in", "/sign-in?token=good"],
        "/sessions": ["/sessions"],
        "/sessions/password": ["/sessions/password"],
        "/break-glass": ["/break-glass"],
    }


def read_by_people(app: FastAPI) -> Iterator[str]:
    """The routes of pages that the application has."""
    for route in routes_of(app.routes):
        if (
            isinstance(route, APIRoute)
            and "GET" in (route.methods or ())
            and not _NO_PAGES.search(route.path)
        ):
            yield route.path
