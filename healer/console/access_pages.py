"""The page of permissions by the groups of the identity provider, with a dry run."""

from fastapi import APIRouter, Request, Response

from healer.console.pages import Here, PageRoute
from healer.console.views import Shown
from healer.decisions import cannot_be_undone
from healer.model import Ruleset
from healer.model.grants import APPROVING, fits_any, strongest

routes = APIRouter(route_class=PageRoute)


def approvals(rules: Ruleset) -> list[Shown]:
    """Who approves runs of each playbook, by name. `second_person`: as the file says; `irreversible`: needed
    whatever it says, unless the node is drained and empty (`healer.decisions.consent`)."""
    found = list[Shown]()
    for name, playbook in sorted(rules.playbooks.items()):
        duties = rules.access.duties_of(name)
        found.append(
            Shown(
                playbook=name,
                irreversible=cannot_be_undone(playbook),
                second_person=rules.access.needs_second(name),
                never=tuple(sorted({group for duty in duties for group in duty.never})),
                entries=tuple(
                    grant.name
                    for grant in rules.access.grants
                    if grant.role in APPROVING and fits_any(name, grant.playbooks)
                ),
            )
        )
    return found


@routes.get("/access")
def access_page(request: Request, pages: Here, groups: str = "", subject: str = "") -> Response:
    """`groups`, with commas between them, and `subject`: what they would be granted."""
    access, context = pages.rules.access, pages.context(request, "access")
    named = {name for part in groups.split(",") if (name := part.strip())}
    asked = bool(named or subject.strip())
    granted = access.grants_of(subject.strip(), named) if asked else ()
    context |= {
        "access": access,
        "approvals": approvals(pages.rules),
        "groups": groups,
        "subject": subject,
        "asked": asked,
        "granted": granted,
        "role": strongest(granted),
        "barred": sorted(
            {glob for duty in access.duties if named & {*duty.never} for glob in duty.playbooks}
        ),
    }
    return pages.show("access.html", context)
