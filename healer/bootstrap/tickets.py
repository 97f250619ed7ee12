"""The ticket system that a site has set, and what `healer doctor` asks it."""

from collections.abc import Callable
from typing import NamedTuple

import sqlalchemy as sa

from healer.adapters.postgres.tickets import NamedTickets
from healer.adapters.tickets.desk import Desk, DeskTickets
from healer.adapters.tickets.github import URL, GitHubDesk
from healer.adapters.tickets.jira import JiraDesk
from healer.adapters.tickets.servicenow import ServiceNowDesk
from healer.adapters.tickets.webhook import WebhookTickets
from healer.adapters.webhook import SignedWebhook
from healer.ports.outbound import DeliveryFailed, Tickets
from healer.settings import Settings, SettingsError
from healer.settings import tickets as ticket_settings


class Look(NamedTuple):
    """As `healer.commands.doctor.Check`."""

    name: str
    ok: bool
    text: str
    repair: str = ""


def tickets(settings: Settings, db: sa.Engine, console_url: Callable[[], str] = lambda: "") -> Tickets | None:
    """What brings tickets to the site's system; None: they stand in healer's own list alone."""
    found = _system(settings)
    return NamedTickets(db, found, console_url) if found is not None else None


def look(settings: Settings) -> list[Look]:
    """Opens nothing there. Without a ticket system there is nothing to look at."""
    system = _system(settings)
    if system is None:
        return []
    try:
        return [Look("tickets", True, system.check())]
    except DeliveryFailed as error:
        repair = (
            "Correct HEALER_TICKETS_* or the rights of its user; tickets wait in healer's list meanwhile."
        )
        return [Look("tickets", False, str(error), repair)]


def _system(settings: Settings) -> Tickets | None:
    if settings.ticket_webhook_url is not None:
        try:
            return WebhookTickets(SignedWebhook(settings.ticket_webhook_url, settings.webhook_secret))
        except ValueError as error:
            raise SettingsError(f"{error}.") from None
    return DeskTickets(_desk(settings)) if settings.tickets is not None else None


def _desk(settings: Settings) -> Desk:
    """`healer.settings.tickets` has seen that what each needs is set."""
    url, project, token = (
        settings.tickets_url or "",
        settings.tickets_project or "",
        settings.tickets_token or "",
    )
    user, closes_by = settings.tickets_user or "", settings.tickets_close or ""
    match settings.tickets:
        case ticket_settings.JIRA:
            kind = settings.tickets_type or "Task"
            return JiraDesk(url, project, token=token, user=user, issue_type=kind, closes_by=closes_by)
        case ticket_settings.GITHUB:
            return GitHubDesk(project, token=token, url=url or URL)
        case _:
            return ServiceNowDesk(url, project or "incident", token=token, user=user, closes_by=closes_by)
