"""All routes of the console. A page is one read of the database and one template; presses go to the API."""

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from healer.console import (
    desk_pages,
    fleet_pages,
    incident_pages,
    machine_pages,
    rule_pages,
    run_pages,
    session_pages,
)
from healer.console.errors import ErrorPages
from healer.console.pages import PAGE_ROWS, Entry, Here, PageRoute, Pages, Sources, missing
from healer.console.render import link, speak_to
from healer.console.views import timeline_view
from healer.ports.callers import SessionOf, SignIn, SignOut
from healer.ports.queries import AuditQuery

routes = APIRouter(route_class=PageRoute)


class Console(APIRouter):
    """The routes of the console, and `error_page`: an error as a page of it."""

    def __init__(self, pages: Pages) -> None:
        async def enter(request: Request) -> None:
            """Before every route: whose pages these are, and the language of who asks."""
            request.state.pages = pages
            speak_to(request)

        super().__init__(include_in_schema=False, dependencies=[Depends(enter)])
        self.error_page = ErrorPages(pages)


def router(
    sources: Sources,
    session_of: SessionOf,
    *,
    sign_in: SignIn | None = None,
    sign_out: SignOut | None = None,
    secure_cookie: bool = False,
    link_secret: str | None = None,
) -> Console:
    """All routes of the console. Without `sign_in` the host serves `/sign-in` itself.

    `secure_cookie`: the site is reached by https, so the cookie may be sent by https alone. `link_secret`:
    signs the links of messages that show a run without signing in; None: there are none.
    """
    console = Console(Pages(sources, session_of, Entry(sign_in, sign_out, secure_cookie, link_secret)))
    parts = [fleet_pages.routes, incident_pages.routes, machine_pages.routes, desk_pages.routes]
    parts += [desk_pages.health_routes] if sources.own is not None else []
    parts += [rule_pages.routes]
    parts += [rule_pages.rehearsal_routes] if sources.trying is not None else []
    parts += [run_pages.routes, routes, session_pages.language_routes]
    parts += [session_pages.sign_in_routes] if sign_in is not None else []
    for part in parts:
        console.include_router(part)
    return console


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
    found = pages.queries.audit.page(
        AuditQuery(clusters=[cluster], actor=actor, verb=verb, subject=subject),
        limit=PAGE_ROWS,
        cursor=cursor,
    )
    context |= {
        "records": [timeline_view.audit_row(record, cluster) for record in found.items],
        "next": link("/audit", context["keep"], **filters, cursor=found.next_cursor)
        if found.next_cursor
        else None,
        "first": cursor is None,
        "chain": pages.queries.audit.chain(cluster),
        **filters,
    }
    return pages.show("audit.html", context)


@routes.get("/static/{name:path}")
def static_file(pages: Here, name: str, v: str = "") -> Response:
    found = pages.render.assets.response(name, v)
    if found is None:
        raise missing("No such file", "There is no file at this address.")
    return found


@routes.get("/favicon.ico")
def favicon(pages: Here) -> Response:
    return RedirectResponse(pages.render.assets.url("icon.svg"), 308)
