"""The console's pages inside the application: they share the API's sessions."""

from fastapi import APIRouter

from healer.api.access import SESSION_LASTS, Access
from healer.api.services import Caller, Services
from healer.console.reads import ConsoleReads, NewSession, Session
from healer.console.routes import router
from healer.model import Role


def console_pages(services: Services, access: Access, reads: ConsoleReads) -> APIRouter:
    """The console's router. A token bound to a node or a job, or one for signals, opens no pages."""

    def session_of(cookie: str) -> Session | None:
        caller = access.session(cookie)
        if caller is None or not _may_look(caller):
            return None
        clusters = (caller.cluster,) if caller.cluster else ()
        return Session(name=caller.name, role=caller.role, csrf=caller.csrf or "", clusters=clusters)

    def sign_in(token: str) -> NewSession | None:
        opened = access.sign_in(token)
        if opened is None:
            return None
        return NewSession(cookie=opened[1], max_age_s=int(SESSION_LASTS.total_seconds()))

    return router(
        reads,
        session_of,
        clock=services.clock.now,
        sign_in=sign_in,
        sign_out=access.sign_out,
        secure_cookie=services.secure_cookies,
    )


def _may_look(caller: Caller) -> bool:
    return caller.role is not Role.signals and not caller.node and not caller.job
