"""The playbook for a dead fabric manager, its restart and its proof over a real sshd."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from healer.model import RunState, StepEvent
from tests.support.loop import equip, name
from tests.support.node_ssh import SshNode, SshSite, ssh_site
from tests.support.slow import SlowSite

NODE = name(1)


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[SshSite]:
    with ssh_site(tmp_path / "site") as one:
        yield one


@pytest.fixture
def node(ssh: SshSite) -> SshNode:
    return ssh.node(NODE)


@pytest.fixture
def site(ssh: SshSite, node: SshNode) -> SlowSite:
    made = SlowSite()
    equip(made.driver, nodes=ssh.exec())
    node.programs.plant(NODE, "fabric-manager")
    made.find("fabric-manager-down")
    return made


def test_it_is_restarted_on_the_node_read_back_and_returned(site: SlowSite, node: SshNode) -> None:
    site.pass_time(30, step_s=5)
    run = site.run_of("restart-fabric-manager")
    done = [one.step for one in site.log(run.id) if one.event is StepEvent.done]
    assert done[1:] == ["drain", "jobs", "empty", "restart", "fabric", "notify", "verify", "resume"]
    assert node.programs.restarts(NODE) == 1
    assert site.node(1).in_service
    verbs = [entry["verb"] for entry in node.programs.log() if entry["event"] == "done"]
    assert verbs == ["service-restart", "service-status", "fabric-state"]


def test_a_node_that_sshd_left_is_not_called_restarted_and_stays_out(site: SlowSite, node: SshNode) -> None:
    node.stop()
    site.pass_time(600, step_s=5)
    run = site.run_of("restart-fabric-manager")
    assert run.state is RunState.stuck
    assert "is unreachable by SSH" in (run.question or "")
    assert not [one for one in site.log(run.id, "restart") if one.event is StepEvent.done]
    assert site.node(1).drain


def test_a_host_key_that_changed_asks_a_person(site: SlowSite, ssh: SshSite, node: SshNode) -> None:
    ssh.known_hosts.write_text(ssh.node("gpu9999").known_hosts_line().replace("gpu9999", NODE))
    site.pass_time(120, step_s=5)
    run = site.run_of("restart-fabric-manager")
    assert run.state is RunState.stuck
    assert "differs from the one in" in (run.question or "")
    assert node.programs.restarts(NODE) == 0
    assert site.node(1).drain


def test_a_restart_that_succeeds_late_is_waited_for(site: SlowSite, node: SshNode) -> None:
    node.programs.mode("systemctl", "late")
    site.pass_time(15, step_s=5)
    assert not [one for one in site.log(site.run_of("restart-fabric-manager").id, "fabric")]
    node.programs.finish()
    site.pass_time(60, step_s=5)
    assert site.run_of("restart-fabric-manager").state is RunState.done
    assert node.programs.restarts(NODE) == 1
    assert site.node(1).in_service
