"""Commands of the site in playbooks: started once, their exit status is the answer, their words are plain."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from healer.actions.site_command import MissingValue, counts_errors, fill_words, is_unchanged
from healer.model import (
    Cause,
    Column,
    Component,
    FaultClass,
    Incident,
    Part,
    Run,
    RunState,
    Severity,
    SiteCommand,
    StepEvent,
)
from tests.support.loop import CLUSTER, START, Crash, Site, later, name, rules_in

NODE = name(1)
PORT = Part(port="mlx5_0/1")
ERRORS = Column("ib_symbol_error_total", PORT)
COMMANDS = {
    "reroute": SiteCommand(
        name="reroute", title="", argv=("/site/reroute", "--port={port}", "{node}"), timeout_s=300
    ),
    "storage-rebuild": SiteCommand(
        name="storage-rebuild", title="", argv=("/site/rebuild", "{node}"), timeout_s=600, takes_capacity=True
    ),
    "storage-check": SiteCommand(
        name="storage-check", title="", argv=("/site/check", "{node}"), timeout_s=60
    ),
}  # fmt: skip


def incident(**root: Any) -> Incident:
    fields: dict[str, Any] = {"node": NODE, "nic": "mlx5_0/1", **root}
    where = Component(cluster=CLUSTER, **fields)
    return Incident(
        id="1" * 32, cluster=CLUSTER, rule="ib-symbol-errors-lasting", fault="ib-symbol-errors-lasting",
        fault_class=FaultClass.degraded, severity=Severity.P3, cause=Cause.fabric, title="Symbol errors",
        root=where, opened=START, updated=START, settle_until=START, nodes={},
    )  # fmt: skip


class CommandSite(Site):
    """Node 1 with a bad port, a site that has commands, and counters that are reported every 30 s."""

    def __init__(self, commands: dict[str, SiteCommand] | None = None) -> None:
        super().__init__(rules=rules_in(commands=COMMANDS if commands is None else commands))
        self.known = incident()
        self.ledger.tables.incidents[self.known.id] = self.known
        self.errors, self.growing, self.silent = 100.0, False, False

    def ask_for(self, playbook: str, *, shadow: bool = False, **inputs: str) -> str:
        run = Run(
            id=f"r-{playbook}-{len(self.runs)}", cluster=CLUSTER, playbook=playbook, by="ann",
            state=RunState.running, reason="because", created_at=self.now, node=NODE, shadow=shadow,
            incident=self.known.id, rule=playbook, input={"reason_text": "ann: because", "inputs": inputs},
        )  # fmt: skip
        with self.ledger.transaction() as tx:
            tx.create_run(run)
        return run.id

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds // 30):
            self.errors += 5 if self.growing else 0
            if not self.silent:
                self.readings.add(NODE, ERRORS, self.now, self.errors)
                self.readings.add(NODE, Column("ib_rcv_bytes_total", PORT), self.now, self.now.timestamp())
            self.run_for(30, step_s=15)

    def state(self, run: str) -> RunState:
        return self.ledger.tables.runs[run].state

    def question(self, run: str) -> str:
        return self.ledger.tables.runs[run].question or ""

    def done(self, run: str) -> list[str]:
        return [one.step for one in self.log(run) if one.event is StepEvent.done]

    def said(self, run: str, step: str) -> str:
        return self.log(run, step)[-1].text


# --- switch-or-link ----------------------------------------------------------------------------------------


def test_a_link_is_rerouted_and_its_counters_prove_it() -> None:
    site = CommandSite()
    site.commands.plant("/site/reroute", 0, "port is out")
    run = site.ask_for("switch-or-link")
    site.pass_time(300)
    assert site.state(run) is RunState.running and "not enough readings yet" in site.said(run, "counters")
    site.pass_time(600)
    assert site.state(run) is RunState.done
    assert site.commands.started() == [("/site/reroute", "--port=mlx5_0/1", NODE)]
    assert "1 error counters unchanged for 600 s" in site.said(run, "counters")
    assert {"reroute", "counters", "ticket", "notify"} <= set(site.done(run))
    assert site.log(run, "reroute")[-1].data["output"] == "port is out"
    assert site.node(1).in_service and site.ledger.tables.slots == {} and site.audited("command.done") == 1


def test_continuing_errors_are_reported_in_the_ticket() -> None:
    site = CommandSite()
    site.commands.plant("/site/reroute")
    site.growing = True
    run = site.ask_for("switch-or-link")
    site.pass_time(5700)
    last = site.log(run, "counters")[-1]
    assert (site.state(run), last.data["passed"]) == (RunState.done, False)
    assert "errors still increase (ib_symbol_error_total" in last.text and "ticket" in site.done(run)


def test_missing_counters_prove_nothing() -> None:
    site = CommandSite()
    site.commands.plant("/site/reroute")
    site.silent = True
    run = site.ask_for("switch-or-link")
    site.pass_time(5700)
    assert site.state(run) is RunState.stuck and "No error counters of" in site.question(run)


def test_a_command_that_says_no_leads_to_a_ticket_and_no_wait() -> None:
    site = CommandSite()
    site.commands.plant("/site/reroute", 1, "no other path")
    run = site.ask_for("switch-or-link")
    site.pass_time(60)
    assert site.state(run) is RunState.done and "refused: no other path" in site.said(run, "reroute")
    assert "counters" not in site.done(run) and "ticket" in site.done(run)


@pytest.mark.parametrize(("code", "words"), [(3, "exited with 3"), (None, "timed out")])
def test_any_other_end_asks_a_person_and_only_they_start_it_again(code: int | None, words: str) -> None:
    site = CommandSite()
    site.commands.plant("/site/reroute", code)
    run = site.ask_for("switch-or-link")
    site.pass_time(600)
    assert site.state(run) is RunState.stuck and words in site.question(run)
    assert len(site.commands.started()) == 1
    site.commands.plant("/site/reroute", 0)
    site.retry(run, "reroute")
    site.pass_time(60)
    assert len(site.commands.started()) == 2 and "reroute" in site.done(run)


def test_a_site_without_the_command_asks_a_person_and_takes_their_word() -> None:
    site = CommandSite({})
    run = site.ask_for("switch-or-link")
    site.pass_time(30)
    assert site.state(run) is RunState.stuck and "Do it by hand: at the switch" in site.question(run)
    site.retry(run, "reroute")
    site.pass_time(900)
    assert site.state(run) is RunState.done and site.said(run, "reroute") == "reroute done by hand: ann"
    assert site.commands.started() == []


def test_a_program_that_is_missing_asks_a_person() -> None:
    site = CommandSite()
    run = site.ask_for("switch-or-link")
    site.pass_time(30)
    assert site.state(run) is RunState.stuck and "/site/reroute is missing" in site.question(run)


def test_without_a_port_nothing_is_run() -> None:
    site = CommandSite()
    site.commands.plant("/site/reroute")
    bare = msgspec.structs.replace(site.known, root=Component(cluster=CLUSTER, node=NODE))
    site.ledger.tables.incidents[bare.id] = bare
    run = site.ask_for("switch-or-link")
    site.pass_time(30)
    assert site.commands.started() == [] and "needs {port}" in site.question(run)


def test_shadow_starts_nothing() -> None:
    site = CommandSite()
    site.commands.plant("/site/reroute")
    run = site.ask_for("switch-or-link", shadow=True)
    site.pass_time(900)
    assert site.commands.started() == [] and "would site_command" in site.said(run, "reroute")


def test_a_record_that_is_gone_starts_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine's worker takes the run up: what it cannot see it does not begin again."""
    site = CommandSite()
    site.commands.plant("/site/reroute", None)
    run = site.ask_for("switch-or-link")
    site.pass_time(30)
    assert len(site.commands.started()) == 1
    site.commands._runs.clear()
    site.pass_time(30)
    assert site.state(run) is RunState.stuck and "its result is unknown" in site.question(run)
    assert site.commands.started() == []


@pytest.mark.parametrize("where", ["started:reroute", "done:reroute", "performed:reroute"])
def test_a_worker_that_dies_starts_it_once(where: str) -> None:
    site = CommandSite()
    site.commands.plant("/site/reroute")
    run = site.ask_for("switch-or-link")
    died = site.die_once(where, rounds=10, step_s=2)
    assert died == [where] and len(site.commands.started()) == 1
    assert "reroute" in site.done(run)


@pytest.mark.parametrize("where", ["done:reroute", "performed:reroute"])
def test_what_another_machine_may_have_started_is_not_started_again(where: str) -> None:
    site = CommandSite()
    site.commands.plant("/site/reroute")
    run = site.ask_for("switch-or-link")
    started: list[tuple[str, ...]] = []

    def dies(at: str) -> None:
        if at == where and site.commands.started() and not started:
            started.extend(site.commands.started())
            site.commands._runs.clear()
            site.commands.machine = "machine 2"
            raise Crash(at)

    site.on_checkpoint = dies
    with pytest.raises(Crash):
        site.pass_time(60)
    site.clock.advance(15)
    site.pass_time(60)
    assert len(started) == 1 and site.commands.started() == []
    assert site.state(run) is RunState.stuck and "on another machine" in site.question(run)


# --- storage -----------------------------------------------------------------------------------------------


def test_storage_is_rebuilt_on_an_empty_node_checked_and_the_node_returned() -> None:
    site = CommandSite()
    site.commands.plant("/site/rebuild")
    site.commands.plant("/site/check")
    job = site.slurm.add_job(required=[NODE], requeue=False, gpus=8)
    site.look()
    run = site.ask_for("storage", command="storage-rebuild")
    site.pass_time(120)
    assert site.node(1).drain and site.commands.started() == []
    site.slurm.complete(job)
    site.pass_time(120)
    assert site.commands.started() == [("/site/rebuild", NODE), ("/site/check", NODE)]
    assert site.state(run) is RunState.done and site.node(1).in_service


def test_storage_that_fails_its_check_keeps_the_node_out_with_a_ticket() -> None:
    site = CommandSite()
    site.commands.plant("/site/rebuild")
    site.commands.plant("/site/check", 1, "one disk is missing")
    run = site.ask_for("storage", command="storage-rebuild")
    site.pass_time(180)
    assert site.state(run) is RunState.waiting and "ticket" in site.done(run) and site.node(1).drain
    assert "refused: one disk is missing" in site.said(run, "check")


def test_the_gate_lets_no_command_that_takes_capacity_run_under_work() -> None:
    """The node is given back between the look and the command: the gate looks again, for a person too."""
    site = CommandSite()
    site.commands.plant("/site/rebuild")
    run = site.ask_for("storage", command="storage-rebuild")

    def changes(where: str) -> None:
        if where == "performed:empty":
            site.slurm.resume(NODE)

    site.on_checkpoint = changes
    site.run_for(5)
    held = [one for one in site.log(run, "work") if one.event is StepEvent.held]
    assert held and held[-1].data["guard"] == "consent" and site.commands.started() == []


# --- words and counters, alone -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["", "-rf", "a b", "a;id", "$(id)", "a\nb", "../x", "a/../b", "x" * 129, "ü", "`id`", "'"]
)
def test_value_that_is_no_plain_word_never_becomes_an_argument(value: str) -> None:
    with pytest.raises(MissingValue):
        fill_words(("/site/x", "--port={port}"), {"port": value})


def test_words_are_filled_in_place() -> None:
    assert fill_words(("/x", "{node}:{port}", "--go"), {"node": "gpu1", "port": "mlx5_0/1"}) == (
        "/x", "gpu1:mlx5_0/1", "--go",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ([7] * 21, True),
        ([1, 2] + [7] * 21, True),
        ([7] * 10, None),  # too short to know
        ([1, 2] + [7] * 10, False),
        ([7] * 20 + [0], False),  # reset: a change too
        ([], None),
    ],
)
def test_counter_is_flat_rising_or_unknown(values: list[int], answer: bool | None) -> None:
    points = [(later(30 * index), float(value)) for index, value in enumerate(values)]
    now = points[-1][0] if points else START
    assert is_unchanged(points, now, timedelta(seconds=600)) is answer
    if points:
        assert is_unchanged(points, now + timedelta(hours=1), timedelta(seconds=600)) is None


def test_traffic_and_waits_are_no_errors() -> None:
    counters = ["ib_symbol_error_total", "ib_link_downed_total", "nvlink_link_crc_flit_total"]
    assert [counts_errors(one) for one in counters] == [True] * 3
    others = ["ib_rcv_bytes_total", "ib_xmit_wait_total", "switch_port_rx_pfc_total", "ib_state"]
    assert [counts_errors(one) for one in others] == [False] * 4
