"""All routes of the console. A page is one read of the database and one template; presses go to the API."""

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from healer.console import (
    access_pages,
    desk_pages,
    fleet_pages,
    glass_pages,
    incident_pages,
    machine_pages,
    people_pages,
    provider_pages,
    rule_pages,
    run_pages,
    session_pages,
)
from healer.console.errors import ErrorPages
from healer.console.pages import PAGE_ROWS, Here, PageRoute, Pages, missing
from healer.console.render import next_link
from healer.console.views import timeline_view
from healer.model import Role
from healer.ports.queries import AuditQuery

routes = APIRouter(route_class=PageRoute)


class Console(APIRouter):
    """All routes of the console, and `error_page`: an error as a page."""

    def __init__(self, pages: Pages) -> None:
        async def enter(request: Request) -> None:
            """Before every route."""
            request.state.pages = pages

        super().__init__(include_in_schema=False, dependencies=[Depends(enter)])
        self.error_page = ErrorPages(pages)
        parts = [fleet_pages.routes, incident_pages.routes, machine_pages.routes, desk_pages.routes]
        parts += [desk_pages.health_routes] if pages.sources.self_health is not None else []
        parts += [people_pages.routes] if pages.sources.leavers is not None else []
        parts += [rule_pages.routes, access_pages.routes]
        parts += [rule_pages.rehearsal_routes] if pages.sources.trying is not None else []
        parts += [session_pages.list_routes] if pages.people is not None else []
        parts += [provider_pages.routes] if pages.sign_in is not None else []
        for part in (*parts, run_pages.routes, routes, session_pages.routes, glass_pages.routes):
            self.include_router(part)


@routes.get("/audit")
def audit_page(
    request: Request,
    pages: Here,
    actor: str = "",
    verb: str = "",
    subject: str = "",
    cursor: str | None = None,
) -> Response:
    context = pages.context(request, "audit")
    cluster, filters = context["cluster"], {"actor": actor, "verb": verb, "subject": subject}
    query = AuditQuery(clusters=[cluster], actor=actor, verb=verb, subject=subject)
    found = pages.queries.audit.page(query, limit=PAGE_ROWS, cursor=cursor)
    context |= {
        "records": [timeline_view.audit_row(record, cluster) for record in found.items],
        "next": next_link("/audit", context["keep"], found.next_cursor, **filters),
        "first": cursor is None,
        "chain": pages.queries.audit.chain(cluster),
        "exports": pages.role_check(context["session"])(Role.auditor),
        **filters,
    }
    return pages.show("audit.html", context)


@routes.get("/static/{name:path}")
def static_file(pages: Here, name: str, v: str = "") -> Response:
    found = pages.render.assets.response(name, v)
    if found is None:
        raise missing("file")
    return found


@routes.get("/favicon.ico")
def favicon(pages: Here) -> Response:
    return RedirectResponse(pages.render.assets.url("icon.svg"), 308)
