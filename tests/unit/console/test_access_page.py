"""Who approves which playbook, as the page of access says it."""

import msgspec
from fastapi.testclient import TestClient

from healer.console.access_pages import approvals
from healer.model import Role
from healer.model.grants import AccessRules, Duty, Grant
from tests.support.console_sample import shipped
from tests.support.console_site import Site, make_sample


def test_each_playbook_says_who_approves_and_whether_a_second_person_is_needed() -> None:
    access = AccessRules(
        grants=(
            Grant(name="ops", role=Role.operator, groups=("ops",), playbooks=("drain*",)),
            Grant(name="eyes", role=Role.viewer, groups=("staff",)),
            Grant(name="root", role=Role.admin, groups=("root",)),
        ),
        duties=(Duty(playbooks=("drain",)), Duty(playbooks=("*",), second_person=False, never=("students",))),
    )
    rules = msgspec.structs.replace(shipped(), access=access)
    found = {row.playbook: row for row in approvals(rules)}
    assert set(found) == set(rules.playbooks)
    drain, power, resume = found["drain"], found["power-cycle"], found["resume"]
    assert (drain.second_person, drain.irreversible, drain.entries) == (True, False, ("ops", "root"))
    assert (power.second_person, power.irreversible, power.entries) == (False, True, ("root",))
    assert (resume.second_person, resume.never) == (False, ("students",))


def test_the_page_names_when_one_person_may_do_what_cannot_be_undone() -> None:
    # As the gate does: a person's power cycle of a drained and empty node waits for no one.
    headers = {"Cookie": "healer_session=cookie-good"}
    page = TestClient(Site(make_sample(8), role=Role.admin).app).get("/access", headers=headers).text
    row = page[page.index('translate="no">power-cycle<') :].split("</tr>", 1)[0]
    assert "irreversible: yes, unless the node is drained and empty" in row
    assert "other than the requester, unless the node is drained and empty." in page
