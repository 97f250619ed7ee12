"""Verbs on a node itself, where its answer never came, or it surely was not asked."""

import msgspec
import pytest

from healer.actions import VERBS, Again, Done, Failed
from healer.model import Step, Verb
from healer.ports.node_exec import NodeUnavailable
from healer.sim.nodes import FABRIC_MANAGER, SimNodes
from tests.unit.actions.test_verbs import NODE, Desk

RESTART, DIAGNOSE = VERBS[Verb.restart_service], VERBS[Verb.diagnose]


class Broken(SimNodes):
    """Nodes whose calls that change something end in `error`, as long as there is one."""

    error: NodeUnavailable | None = None

    def restart_service(self, node: str, service: str) -> None:
        self._fails()
        super().restart_service(node, service)

    def start_diagnosis(self, node: str, key: str) -> None:
        self._fails()
        super().start_diagnosis(node, key)

    def _fails(self) -> None:
        if self.error is not None:
            raise self.error


def desk(verb: Verb, error: NodeUnavailable | None) -> tuple[Desk, Broken]:
    made = Desk()
    nodes = Broken(made.clock, diagnosis_s=60)
    nodes.error = error
    step = Step(id="step", do=verb, input={"service": FABRIC_MANAGER} if verb is Verb.restart_service else {})
    made.use(nodes=nodes)
    made.ctx = msgspec.structs.replace(made.ctx, step=step, key="r1:step:0")
    return made, nodes


@pytest.mark.parametrize("sent", [True, False])
def test_a_restart_without_an_answer_is_no_restart_though_the_service_is_active(sent: bool) -> None:
    made, nodes = desk(Verb.restart_service, NodeUnavailable("n did not answer", sent=sent))
    result = made.act(RESTART)
    assert isinstance(result, Failed) and not result.final and result.text == "n did not answer"
    nodes.error = None
    assert isinstance(made.act(RESTART), Done)
    assert nodes.restarts(NODE) == 1


@pytest.mark.parametrize("sent", [True, False])
def test_tests_that_did_not_begin_are_begun_later(sent: bool) -> None:
    made, nodes = desk(Verb.diagnose, NodeUnavailable("other tests use the GPUs", sent=sent))
    result = made.act(DIAGNOSE)
    assert isinstance(result, Failed if sent else Again), "where nothing is known they are looked for at once"
    nodes.error = None
    made.act(DIAGNOSE)
    assert nodes.diagnoses(NODE) == ["r1:step:0"]
    made.clock.advance(60)
    assert isinstance(made.act(DIAGNOSE), Done)
