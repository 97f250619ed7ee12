"""Which presses a person has on a node."""

import pytest

from healer.console.views.buttons import node_buttons
from healer.console.views.fleet import NodeKind, NodeRow
from healer.model import Role, SlurmNode, Verdict
from tests.support.loop import CLUSTER, name, shipped


def row(kind: NodeKind = NodeKind.idle) -> NodeRow:
    return NodeRow(
        name=name(1), kind=kind, verdict=Verdict.healthy, slurm=SlurmNode(name=name(1)),
        state="IDLE", reason="", reason_user="", gpus=8,
        gpu_model="h100", driver="", pod="", rack="", switch="", bad_gpus=(), incidents=(),
    )  # fmt: skip


def labels(shown: NodeRow, role: Role = Role.operator) -> list[str]:
    return [one.label for one in node_buttons(shown, CLUSTER, role, shipped().playbooks.values())]


def test_a_node_in_service_has_every_playbook_that_fits_it() -> None:
    assert labels(row()) == [
        "Drain", "Collect evidence", "Drain at job end", "Gpu reset", "Reboot node", "Restart fabric manager",
        "Restart service", "Slow node", "Storage", "Switch or link", "Validate",
    ]  # fmt: skip


def test_each_asks_for_its_plan_first_and_names_the_node() -> None:
    for one in node_buttons(row(), CLUSTER, Role.operator, shipped().playbooks.values()):
        assert one.preview == one.action
        assert one.body == {"cluster": CLUSTER, "node": name(1)}


def test_what_healer_took_out_is_only_returned() -> None:
    assert labels(row(NodeKind.out_healer)) == ["Resume", "Collect evidence"]


def test_what_slurm_took_out_may_be_taken_over() -> None:
    assert labels(row(NodeKind.out_slurm)) == ["Adopt slurm drain", "Collect evidence"]


def test_what_a_person_took_out_is_theirs_but_may_be_looked_at() -> None:
    assert labels(row(NodeKind.out_person)) == ["Collect evidence"]


@pytest.mark.parametrize("role", [Role.viewer, Role.responder, Role.auditor])
def test_who_may_not_act_has_none(role: Role) -> None:
    assert labels(row(), role) == []
