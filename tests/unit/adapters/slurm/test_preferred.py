"""One simulated Slurm by two or three ways, some of them broken."""

import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from healer.adapters.slurm import process
from healer.adapters.slurm.preferred import WRITE_S, PreferredScheduler
from healer.adapters.slurm.preferred_reads import REST_S, OtherCluster
from healer.model import SlurmCall
from healer.ports.lease import FRESH_S, LEASE_S
from healer.ports.scheduling import (
    NotAvailable,
    SchedulerError,
    SchedulerRefused,
    SchedulerUnavailable,
    UnknownNode,
)
from healer.sim.sim_clock import SimClock
from healer.sim.sim_slurm import SimScheduler

OURS = "healer:gpu-lost inc:1a2b3c4d GPU 3 fell off the bus (Xid 79)"
DEAD = SchedulerUnavailable("connection refused", sent=False)


class Way:
    """A way to a simulated Slurm. `broken`: what a call raises ("" for all); `answers`: what it gives."""

    def __init__(self, name: str, slurm: SimScheduler) -> None:
        self.name, self.slurm = name, slurm
        self.broken: dict[str, SchedulerError] = {}
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.before: Callable[[], object] = lambda: None

    def __getattr__(self, call: str) -> Callable[..., Any]:
        def ask(*given: Any, **named: Any) -> Any:
            self.asked.append(call)
            self.before()
            error = self.broken.get(call) or self.broken.get("")
            if error:
                raise error
            if call in self.answers:
                return self.answers[call]
            return getattr(self.slurm, call)(*given, **named)

        return ask

    def unavailable(self) -> dict[SlurmCall, str]:
        if "" in self.broken:
            raise self.broken[""]
        return {error.call: error.why for error in self.broken.values() if isinstance(error, NotAvailable)}


class Ways:
    """`rest`, `cli` and `pyslurm` to one Slurm; a chain of the first two; `now` is its stopwatch."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slurm = SimScheduler("pod1", SimClock(datetime(2026, 11, 20, 9, 0, tzinfo=UTC)), 4)
        self.rest, self.cli, self.pyslurm = (Way(name, self.slurm) for name in ("rest", "cli", "pyslurm"))
        self.chain = self.of(self.rest, self.cli)

    def of(self, *ways: Any) -> PreferredScheduler:
        return PreferredScheduler(ways, stopwatch=lambda: self.now)


@pytest.fixture
def ways() -> Ways:
    return Ways()


def lacks(call: SlurmCall, why: str) -> dict[str, SchedulerError]:
    return {call: NotAvailable(call, why)}


# --- who is asked


def test_the_first_answers_and_the_others_are_not_asked(ways: Ways) -> None:
    ways.chain.drain("gpu0001", OURS)
    assert ways.chain.node("gpu0001").reason == OURS
    assert ways.rest.asked == ["cluster_name", "drain", "node"]
    assert ways.cli.asked == []


@pytest.mark.parametrize("call", list(SlurmCall))
def test_every_call_that_the_first_lacks_goes_to_the_next(call: SlurmCall, ways: Ways) -> None:
    ways.rest.broken = ways.cli.broken = lacks(call, "an old release")
    given = {"reserve": (None,), "submit": (None,), "topology": (), "snapshot": (), "controller": ()}
    given |= {"reserved": ()}
    two = ("drain", "down", "reboot", "change_reservation", "exclude", "shrink", "signal", "notify", "remark")
    arguments = given.get(call, ("gpu0001", "words") if call in two else ("gpu0001",))
    with pytest.raises(NotAvailable) as caught:
        getattr(ways.chain, call)(*arguments)
    assert caught.value.call == call
    assert str(caught.value) == "not available here: rest: an old release; cli: an old release"
    assert ways.rest.asked[-1] == ways.cli.asked[-1] == call


def test_call_that_one_adapter_lacks_goes_to_the_next(ways: Ways) -> None:
    ways.rest.broken = lacks(SlurmCall.drain, "slurmrestd 22.05 can only read nodes")
    ways.chain.drain("gpu0001", OURS)
    assert ways.slurm.node("gpu0001").reason == OURS
    assert ways.chain.unavailable() == {}


def test_call_that_no_adapter_has_names_the_reason_of_each(ways: Ways) -> None:
    ways.rest.broken, ways.cli.broken = lacks(SlurmCall.reboot, "no such route"), lacks(SlurmCall.reboot, "x")
    assert ways.chain.unavailable() == {SlurmCall.reboot: "rest: no such route; cli: x"}


def test_one_alone_raises_its_own_errors(ways: Ways) -> None:
    chain = ways.of(ways.rest)
    ways.rest.broken = lacks(SlurmCall.requeue, "comes with 26.05") | {"drain": DEAD}
    with pytest.raises(NotAvailable, match=r"^not available here: comes with 26\.05$"):
        chain.requeue("1")
    with pytest.raises(SchedulerUnavailable) as caught:
        chain.drain("gpu0001", OURS)
    assert caught.value is DEAD


def test_slurms_own_no_is_final(ways: Ways) -> None:
    with pytest.raises(UnknownNode):
        ways.chain.drain("gpu9999", OURS)
    with pytest.raises(SchedulerRefused) as caught:
        ways.chain.resume("gpu0001")
    assert caught.value.code == 2180
    with pytest.raises(ValueError):
        ways.chain.drain("gpu0001", " ")
    assert ways.chain.job("999") is None
    assert ways.cli.asked == []


# --- rights


@pytest.mark.parametrize("code", [2002, 2010])
def test_a_refusal_by_rights_goes_to_an_adapter_with_another_account(ways: Ways, code: int) -> None:
    ways.rest.broken = {"drain": SchedulerRefused("healer may not", code)}
    ways.chain.drain("gpu0001", OURS)
    assert ways.slurm.node("gpu0001").drain
    ways.cli.broken = {"drain": SchedulerRefused("nobody may not", code)}
    with pytest.raises(SchedulerRefused) as caught:
        ways.chain.drain("gpu0002", OURS)
    assert caught.value.code == code
    assert str(caught.value) == "rest: healer may not; cli: nobody may not"


def test_refusal_is_not_final_while_another_adapter_does_not_answer(ways: Ways) -> None:
    ways.rest.broken = {"drain": SchedulerRefused("healer may not", 2010)}
    ways.cli.broken = {"drain": DEAD}
    with pytest.raises(SchedulerUnavailable) as caught:
        ways.chain.drain("gpu0001", OURS)
    assert not caught.value.sent
    assert "healer may not" in str(caught.value) and "connection refused" in str(caught.value)


# --- silence


def test_read_continues_after_any_outcome_of_the_first_request(ways: Ways) -> None:
    ways.rest.broken = {"node": SchedulerUnavailable("no answer in 4 s")}
    assert ways.chain.node("gpu0001").name == "gpu0001"


def test_a_write_that_may_have_arrived_is_not_handed_on(ways: Ways) -> None:
    ways.rest.broken = {"drain": SchedulerUnavailable("no answer in 4 s")}
    with pytest.raises(SchedulerUnavailable) as caught:
        ways.chain.drain("gpu0001", OURS)
    assert caught.value.sent
    assert "drain" not in ways.cli.asked
    # The caller reads back, by the next one while the first rests.
    assert not ways.chain.node("gpu0001").drain
    assert ways.cli.asked[-1] == "node"


def test_a_write_that_never_left_is_handed_on(ways: Ways) -> None:
    ways.rest.broken = {"": DEAD}
    ways.chain.drain("gpu0001", OURS)
    assert ways.slurm.node("gpu0001").drain


def test_a_write_is_handed_on_only_while_its_lease_covers_it(ways: Ways) -> None:
    def slow() -> None:
        ways.now += 5.1

    ways.rest.broken, ways.rest.before = {"": DEAD}, slow
    with pytest.raises(SchedulerUnavailable) as caught:
        ways.chain.drain("gpu0001", OURS)
    assert not caught.value.sent
    assert str(caught.value) == "rest: connection refused; cli: no time left"
    assert not ways.slurm.node("gpu0001").drain
    ways.chain.drain("gpu0001", OURS)
    assert ways.slurm.node("gpu0001").drain


def test_write_ends_within_the_lease_margin_in_every_wait(ways: Ways) -> None:
    left: list[float] = []
    ways.rest.before = lambda: left.append(process.left_s(None))
    ways.chain.drain("gpu0001", OURS)
    ways.chain.node("gpu0001")
    assert all(0 < each <= WRITE_S for each in left[:-1]), "its look at the cluster and itself"
    assert left[-1] == math.inf, "a read has only its own time-outs"
    assert FRESH_S + WRITE_S + 1 <= LEASE_S


def test_all_silent_names_each(ways: Ways) -> None:
    ways.rest.broken = ways.cli.broken = {"": DEAD}
    for call in (ways.chain.snapshot, ways.chain.cluster_name, ways.chain.describe):
        with pytest.raises(SchedulerUnavailable, match=r"rest.*connection refused.*cli.*connection refused"):
            call()


def test_a_silent_one_rests_while_another_answers(ways: Ways) -> None:
    ways.chain.snapshot()
    ways.rest.broken = {"": DEAD}
    ways.rest.asked.clear()
    for _ in range(3):
        ways.chain.snapshot()
    assert ways.rest.asked == ["snapshot"]
    ways.now += REST_S
    ways.chain.snapshot()
    assert ways.rest.asked == ["snapshot"] * 2
    ways.rest.broken = {}
    ways.now += REST_S
    ways.chain.snapshot()
    ways.chain.snapshot()
    assert ways.rest.asked == ["snapshot"] * 4


def test_after_its_rest_one_caller_tries_it_and_the_others_do_not_wait(ways: Ways) -> None:
    ways.chain.snapshot()
    ways.rest.broken = {"": DEAD}
    ways.chain.snapshot()
    ways.now += REST_S
    ways.rest.asked.clear()
    tried, let_go = threading.Event(), threading.Event()
    ways.rest.before = lambda: (tried.set(), let_go.wait(20))
    first = threading.Thread(target=ways.chain.snapshot)
    first.start()
    assert tried.wait(20)
    ways.chain.snapshot()
    assert ways.rest.asked == ["snapshot"]
    let_go.set()
    first.join(20)


def test_resting_adapter_is_asked_when_no_other_can(ways: Ways) -> None:
    ways.rest.broken = {"snapshot": DEAD}
    ways.chain.snapshot()
    ways.cli.broken = lacks(SlurmCall.drain, "an old release")
    ways.chain.drain("gpu0001", OURS)
    assert ways.rest.asked[-1] == "drain"
    assert ways.slurm.node("gpu0001").drain


# --- what it says


def test_describe_names_all_in_order(ways: Ways) -> None:
    ways.cli.broken = {"describe": DEAD}
    assert ways.chain.describe() == f"{ways.slurm.describe()}, then cli (connection refused)"
    assert ways.chain.name == "rest,cli"


def test_the_controller_names_who_answered_and_why_the_others_did_not(ways: Ways) -> None:
    chain = ways.of(ways.rest, ways.pyslurm, ways.cli)
    assert (chain.controller().adapter, chain.controller().fallbacks) == ("rest", ())
    ways.rest.broken = {"": DEAD}
    ways.pyslurm.broken = lacks(SlurmCall.controller, "an old release")
    for _ in range(2):  # the second finds the first at rest
        found = chain.controller()
        assert found.adapter == "cli"
        assert found.fallbacks == ("rest: connection refused", "pyslurm: not available here: an old release")


def test_call_is_not_unavailable_while_one_adapter_is_silent(ways: Ways) -> None:
    ways.rest.broken = lacks(SlurmCall.reboot, "no such route")
    ways.cli.broken = {"": DEAD}
    assert ways.chain.unavailable() == {}


def test_an_unchanged_picture_stays_the_same_object(ways: Ways) -> None:
    picture = ways.slurm.snapshot()
    ways.rest.answers = {"snapshot": picture}
    assert ways.chain.snapshot() is picture


# --- one cluster


def test_an_adapter_of_another_cluster_is_never_used(ways: Ways) -> None:
    ways.cli.slurm = SimScheduler("pod2", SimClock(datetime(2026, 11, 20, tzinfo=UTC)), 4)
    with pytest.raises(OtherCluster, match=r"cli reaches cluster pod2, the other adapters pod1"):
        ways.chain.cluster_name()
    ways.rest.broken = {"drain": DEAD}
    with pytest.raises(OtherCluster):
        ways.chain.drain("gpu0001", OURS)
    assert "drain" not in ways.cli.asked


def test_nothing_reaches_another_cluster_than_the_one_that_is_meant(ways: Ways) -> None:
    adapters: list[Any] = [ways.rest, ways.cli]
    chain = PreferredScheduler(adapters, cluster="pod9")
    for ask in (chain.snapshot, lambda: chain.drain("gpu0001", OURS)):
        with pytest.raises(OtherCluster, match=r"is cluster pod1, not pod9: correct SLURM_CONF"):
            ask()
    assert not {"drain", "snapshot"} & {*ways.rest.asked, *ways.cli.asked}


def test_late_adapter_reports_its_cluster_before_first_use(ways: Ways) -> None:
    ways.cli.broken = {"": DEAD}
    assert ways.chain.cluster_name() == "pod1"
    ways.cli.broken, ways.cli.slurm = {}, SimScheduler("pod2", SimClock(datetime(2026, 1, 1, tzinfo=UTC)), 4)
    ways.rest.broken = {"": DEAD}
    with pytest.raises(OtherCluster):
        ways.chain.drain("gpu0001", OURS)


def test_silence_before_the_first_use_means_that_nothing_was_sent(ways: Ways) -> None:
    ways.rest.broken = {"cluster_name": SchedulerUnavailable("no answer in 4 s")}
    ways.chain.drain("gpu0001", OURS)
    assert ways.slurm.node("gpu0001").drain
    assert "drain" not in ways.rest.asked


def test_no_adapter_at_all_is_an_error() -> None:
    with pytest.raises(ValueError):
        PreferredScheduler([])
