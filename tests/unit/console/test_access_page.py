"""Who approves which playbook, as the page of access says it."""

import msgspec

from healer.console.access_pages import approvals
from healer.model import Role
from healer.model.grants import AccessRules, Duty, Grant
from tests.support.console_sample import shipped


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
    assert (power.second_person, power.irreversible, power.entries) == (True, True, ("root",))
    assert (resume.second_person, resume.never) == (False, ("students",))
