"""Which presses a person has on a node."""

import pytest

from healer.console.views.buttons import node_buttons
from healer.console.views.fleet_view import NodeKind, NodeRow
from healer.model import Role, SlurmNode, Verdict
from tests.support.loop import CLUSTER, name, shipped


def row(kind: NodeKind = NodeKind.idle) -> NodeRow:
    return NodeRow(
        name=name(1), kind=kind, verdict=Verdict.healthy, slurm=SlurmNode(name=name(1)),
        bad_gpus=(), incidents=(),
    )  # fmt: skip


def labels(shown: NodeRow, role: Role = Role.operator) -> list[str]:
    return [one.label for one in node_buttons(shown, CLUSTER, role, shipped().playbooks.values())]


def test_a_node_in_service_has_every_playbook_that_fits_it() -> None:
    shown = labels(row())
    assert shown[0] == "Drain" and len(set(shown)) == len(shown)
    assert {"Drain at job end", "GPU reset", "Reboot validate", "Restart service", "Validate"} <= set(shown)
    assert not {"Resume", "Undrain", "GPU fatal", "Adopt slurm drain", "Requeue"} & set(shown)


def test_each_asks_for_its_plan_first_and_names_the_node() -> None:
    for one in node_buttons(row(), CLUSTER, Role.operator, shipped().playbooks.values()):
        assert one.preview == one.action
        assert one.body == {"cluster": CLUSTER, "node": name(1)}


def test_node_drained_by_healer_offers_only_the_return() -> None:
    assert labels(row(NodeKind.out_healer)) == ["Resume", "Return to service", "Collect evidence"]


def test_key_r_resumes_the_node_as_the_list_of_keys_says() -> None:
    resume, *others = node_buttons(
        row(NodeKind.out_healer), CLUSTER, Role.operator, shipped().playbooks.values()
    )
    assert (resume.key, {button.key for button in others}) == ("r", {""})


def test_node_drained_by_slurm_offers_adoption() -> None:
    assert labels(row(NodeKind.out_slurm)) == ["Adopt slurm drain", "Collect evidence"]


def test_node_drained_by_a_person_offers_only_evidence() -> None:
    assert labels(row(NodeKind.out_person)) == ["Collect evidence"]


@pytest.mark.parametrize("role", [Role.viewer, Role.responder, Role.auditor])
def test_role_that_may_not_act_sees_no_buttons(role: Role) -> None:
    assert labels(row(), role) == []


def test_rare_actions_are_under_more() -> None:
    shown = node_buttons(row(), CLUSTER, Role.operator, shipped().playbooks.values())
    often = [one.label for one in shown if not one.more]
    assert often == ["Drain", "Drain at job end", "Reboot validate", "Validate"]
    service = next(one for one in shown if one.label == "Restart service")
    (asked,) = service.inputs
    assert (asked.name, asked.required, asked.default) == ("service", True, "")
    assert "slurmd" in asked.choices and service.more


def test_a_playbook_of_one_step_has_one_step() -> None:
    shown = node_buttons(row(), CLUSTER, Role.operator, shipped().playbooks.values())
    effect = next(one.effect for one in shown if one.label == "Collect evidence")
    assert effect.startswith("1 step. ")
