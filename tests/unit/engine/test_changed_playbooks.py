"""Runs whose playbook was changed or removed while they waited: they ask a person, and say what for."""

import msgspec
import pytest

from healer.engine.command import Commands
from healer.engine.command import Site as Where
from healer.model import Mode, Run, RunState
from healer.ports.request_errors import Conflict
from healer.text import quoted
from tests.support.loop import CLUSTER, LOST, Site, name


def without(site: Site, playbook: str) -> None:
    left = {title: book for title, book in site.rules.playbooks.items() if title != playbook}
    site.rules = msgspec.structs.replace(site.rules, playbooks=left)


def people_of(site: Site) -> Commands:
    where = Where(site.ledger, site.slurm, lambda _: None)
    return Commands({CLUSTER: where}, lambda: site.rules, site.clock)


@pytest.mark.parametrize("command", ["retry", "undo"])
def test_a_run_of_a_playbook_that_is_gone_is_not_gone_on_with(command: str) -> None:
    site = Site(10)
    site.run_for(5, *site.say(1, LOST))
    (run,) = site.runs
    with site.ledger.transaction() as tx:
        tx.set_run_state(run.id, RunState.running, why="woken", at=site.now)
    without(site, run.playbook)
    site.drive()
    assert site.runs[0].state is RunState.stuck and "no longer in rules" in (site.runs[0].question or "")
    with pytest.raises(Conflict, match="no longer in rules"):
        getattr(people_of(site), command)(run.id, by="ann", reason="go on", request="q1")


def test_a_run_of_a_playbook_that_is_gone_is_not_approved() -> None:
    site = Site(10, mode=Mode.approve)
    site.run_for(5, *site.say(1, LOST))
    (run,) = site.runs
    without(site, run.playbook)
    with pytest.raises(Conflict, match="no longer in rules"):
        people_of(site).approve(run.id, by="ann", reason="yes", request="q1")


def test_a_run_whose_input_its_playbook_no_longer_takes_asks_a_person() -> None:
    site = Site(10)
    book = site.rules.playbooks["restart-service"]
    fewer = msgspec.structs.replace(book.inputs["service"], choices=("slurmd",))
    changed = msgspec.structs.replace(book, inputs={"service": fewer})
    site.rules = msgspec.structs.replace(
        site.rules, playbooks={**site.rules.playbooks, "restart-service": changed}
    )
    run = Run(
        id="r-ann", cluster=CLUSTER, playbook="restart-service", state=RunState.running, by="ann",
        reason=quoted("hangs"), created_at=site.now, node=name(1), rule="restart-service",
        input={"inputs": {"service": "openibd"}},
    )  # fmt: skip
    with site.ledger.transaction() as tx:
        tx.create_run(run)
    site.drive()
    (asks,) = site.runs
    assert asks.state is RunState.stuck and "service" in (asks.question or "")
    assert not site.node(1).drain
