"""Approvals bind to persons: who may approve, on both ledgers."""

import msgspec
import pytest

from healer.console.views.buttons import run_buttons
from healer.console.views.runs_view import asks
from healer.engine.command import Commands, Site
from healer.model import AnswerKind, Guard, Playbook, Role, Ruleset, RunState, Step, Verb
from healer.model.grants import AccessRules, Duty, Grant
from healer.ports.directory import LOCAL, Person
from healer.ports.request_errors import Forbidden
from tests.support.command_desk import Desk
from tests.support.ledgers import CLUSTER, begin, bench_of, run
from tests.support.loop import rules_in

pytestmark = pytest.mark.heavy

OPS = Grant(name="ops", role=Role.operator, groups=("ops",))
POWER = Playbook(name="power", title="Power", target="node", steps=(Step(id="off", do=Verb.power_cycle),))


class Directory:
    """All users that the provider has seen."""

    issuer = "https://idp"

    def __init__(self, **groups: tuple[str, ...]) -> None:
        self._groups = groups

    def find(self, name: str) -> Person | None:
        if name not in self._groups:
            return None
        return Person(name=name, issuer=self.issuer, subject=f"sub-{name}", groups=self._groups[name])


@pytest.fixture(params=["memory", "postgres"])
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(bench_of(request))


def people_of(
    desk: Desk, access: AccessRules, directory: Directory | None = None, *, provided: bool | None = None
) -> Commands:
    """Commands of a site with these access rules; without a directory every name is a person's."""
    rules = rules_in()
    rules = msgspec.structs.replace(rules, access=access, playbooks=rules.playbooks | {"power": POWER})

    def in_force() -> Ruleset:
        return rules

    site = Site(desk.ledger, desk.slurm, lambda _: None)
    provided = directory is not None if provided is None else provided
    return Commands({CLUSTER: site}, in_force, desk.clock, directory, provided=provided)


def approve(commands: Commands, run_id: str, by: str) -> RunState:
    return commands.approve(run_id, by=by, reason="looked at", request=f"q-{by}").state


def waiting(desk: Desk, playbook: str = "drain", by: str = "healer") -> str:
    asked = run(playbook=playbook, by=by, state=RunState.waiting_approval, incident=None)
    begin(desk.bench, asked)
    return asked.id


def test_a_service_account_approves_nothing_and_its_owner_not_what_it_asked_for(desk: Desk) -> None:
    people = people_of(desk, AccessRules())
    asked = waiting(desk, "power", by="ann/deploy")
    for name, says in (("ann/deploy", "service account"), ("bob/ci", "service account"), ("ann", "yourself")):
        with pytest.raises(Forbidden, match=says):
            approve(people, asked, name)
    assert approve(people, asked, "bob") is not RunState.waiting_approval


def test_with_a_provider_only_its_people_approve_what_their_groups_may(desk: Desk) -> None:
    directory = Directory(ann=("ops",), eve=("guests",))
    access = AccessRules(grants=(msgspec.structs.replace(OPS, playbooks=("drain",)),))
    people = people_of(desk, access, directory)
    asked = waiting(desk)
    with pytest.raises(Forbidden, match="not a person of the identity provider"):
        approve(people, asked, "operator-1a2b3c4d")
    with pytest.raises(Forbidden, match="does not allow eve to approve drain"):
        approve(people, asked, "eve")
    assert approve(people, asked, "ann") is RunState.running


def test_a_person_of_this_site_alone_approves_only_where_there_is_no_provider(desk: Desk) -> None:
    directory = Directory(ann=("ops",))
    directory.issuer = LOCAL
    asked = waiting(desk)
    with pytest.raises(Forbidden, match="not a person of the identity provider"):
        approve(people_of(desk, AccessRules(grants=(OPS,)), directory), asked, "ann")
    here = people_of(desk, AccessRules(), directory, provided=False)
    with pytest.raises(Forbidden, match="healer account add operator-1a2b3c4d"):
        approve(here, asked, "operator-1a2b3c4d")
    assert approve(here, asked, "ann") is RunState.running


def test_a_grant_for_another_cluster_playbook_or_a_lesser_role_approves_nothing(desk: Desk) -> None:
    asked = waiting(desk)
    for narrow in ({"clusters": ("pod9",)}, {"playbooks": ("resume",)}, {"role": Role.responder}):
        access = AccessRules(grants=(msgspec.structs.replace(OPS, **narrow),))
        with pytest.raises(Forbidden, match="does not allow ann to approve drain"):
            approve(people_of(desk, access, Directory(ann=("ops",))), asked, "ann")


def test_a_duty_bars_groups_and_asks_for_a_second_person(desk: Desk) -> None:
    directory = Directory(ann=("ops",), bob=("ops", "students"), cid=("ops",))
    duty = Duty(playbooks=("drain",), never=("students",))
    people = people_of(desk, AccessRules(grants=(OPS,), duties=(duty,)), directory)
    held = people.start(desk.ask(by="ann"))
    assert held.state is RunState.held
    assert desk.decisions()[-1].guard is Guard.approval
    with pytest.raises(Forbidden, match="you requested it yourself"):
        approve(people, held.id, "ann")
    with pytest.raises(Forbidden, match="group students"):
        approve(people, held.id, "bob")
    assert approve(people, held.id, "cid") is RunState.running


def test_the_page_disables_approve_for_who_may_not_in_the_words_of_the_refusal(desk: Desk) -> None:
    people = people_of(desk, AccessRules(duties=(Duty(playbooks=("drain",)),)))
    for asked in (waiting(desk, "power", by="ann"), people.start(desk.ask(by="ann")).id):
        approve_button, _ = run_buttons(desk.run(asked), Role.operator, people.bars("ann"))
        with pytest.raises(Forbidden, match="you requested it yourself") as refused:
            approve(people, asked, "ann")
        assert approve_button.barred == str(refused.value)
        other, _ = run_buttons(desk.run(asked), Role.operator, people.bars("bob"))
        assert other.label.startswith("Approve") and not other.barred
        assert asks(desk.run(asked))


def test_the_guard_does_not_say_that_a_run_with_a_step_for_two_needs_no_approval(desk: Desk) -> None:
    people = people_of(desk, AccessRules())
    people.start(desk.ask("power-cycle", by="ann"))
    (answer,) = (one for one in desk.decisions()[-1].answers if one.guard is Guard.approval)
    assert "another person" in answer.why and answer.kind is AnswerKind.allow
