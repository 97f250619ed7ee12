"""Logs taken from a node: once, whole, beside whatever else works on it; a death in between loses nothing."""

import gzip

import pytest

from healer.model import RunState, SlurmNode, StepEvent
from healer.ports.node_exec import NodeError
from tests.support.loop import LOST, Site, equip, name

NODE = name(1)


def asked(site: Site) -> str:
    return site.ask("collect-evidence", 1)


def state(site: Site, run: str) -> RunState:
    return site.ledger.tables.runs[run].state


def slurm_of(site: Site) -> SlurmNode:
    return site.node(1)


def test_it_is_collected_kept_and_the_node_stays_in_service() -> None:
    site = Site()
    site.nodes.plant(NODE, "slow-gpu-3")
    run = asked(site)
    site.run_for(20)
    assert state(site, run) is RunState.done
    (file,) = site.evidence.files(run=run)
    data = site.evidence.content(file.id)
    assert b"slow-gpu-3" in gzip.decompress(data) and len(data) == file.bundle.size_bytes
    assert file.node == NODE and file.name.startswith(f"{NODE}-2026")
    assert site.nodes.collections(NODE) == [f"{run}:collect:0"]
    assert slurm_of(site).in_service and site.ledger.tables.slots == {}
    assert site.audited("evidence.collected") == 1


def test_it_runs_beside_the_run_that_has_the_node_and_ends_none() -> None:
    site = Site()
    site.run_for(8, *site.say(1, LOST))
    (fatal,) = (one for one in site.runs if one.playbook == "gpu-fatal")
    assert state(site, fatal.id) is RunState.waiting  # for the repair
    run = asked(site)
    site.run_for(20)
    assert (state(site, run), state(site, fatal.id)) == (RunState.done, RunState.waiting)


def test_a_fatal_fault_waits_for_no_collection() -> None:
    site = Site()
    run = asked(site)
    site.run_for(2)
    assert state(site, run) is RunState.running
    site.run_for(6, *site.say(1, LOST))
    assert site.node(1).drain
    site.run_for(15)
    assert state(site, run) is RunState.done


def test_without_a_way_to_nodes_a_person_gets_the_commands() -> None:
    site = Site()
    equip(site.driver, nodes=None)
    run = asked(site)
    site.run_for(5)
    assert "nvidia-bug-report.sh" in (site.ledger.tables.runs[run].question or "")


def test_a_node_that_cannot_collect_asks_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()

    def full(node: str, key: str) -> None:
        raise NodeError("no room on its disk.")

    monkeypatch.setattr(site.nodes, "start_collection", full)
    run = asked(site)
    site.run_for(60)
    assert state(site, run) is RunState.stuck and site.evidence.files(run=run) == []
    assert "no room on its disk" in (site.ledger.tables.runs[run].question or "")


def test_bytes_that_are_not_those_of_the_node_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    monkeypatch.setattr(site.nodes, "read_collection", lambda node, key, start: b"x" * 64)
    run = asked(site)
    site.run_for(60)
    assert state(site, run) is RunState.stuck and site.evidence.files(run=run) == []
    assert "does not match" in (site.ledger.tables.runs[run].question or "")


def test_an_unreachable_node_is_asked_again_and_nothing_is_lost() -> None:
    site = Site()
    run = asked(site)
    site.run_for(2)
    site.nodes.plant(NODE, "unreachable")
    site.run_for(30)
    assert state(site, run) is RunState.running
    site.nodes.mend(NODE, "unreachable")
    site.run_for(20)
    assert state(site, run) is RunState.done and len(site.evidence.files(run=run)) == 1


def test_a_pause_holds_it() -> None:
    site = Site()
    site.pause()
    run = asked(site)
    site.run_for(5)
    assert state(site, run) is RunState.held and site.nodes.collections(NODE) == []


@pytest.mark.parametrize("where", ["started:collect", "done:collect", "performed:collect"])
def test_a_worker_that_dies_collects_once(where: str) -> None:
    site = Site()
    run = asked(site)
    died = site.die_once(where, rounds=40)
    assert died == [where] and state(site, run) is RunState.done
    assert len(site.nodes.collections(NODE)) == len(site.evidence.files(run=run)) == 1
    assert sum(one.event is StepEvent.done for one in site.log(run, "collect")) == 1
