"""What Slurm's reservations promise, what a QOS protects, and the NVLink domain as a place."""

from datetime import timedelta

import msgspec
import pytest

from healer.decisions import judge, limits
from healer.model import (
    AnswerKind,
    Guard,
    GuardSettings,
    Outcome,
    Reservation,
    SlurmNode,
    Topology,
    Verb,
)
from healer.model.rules import Place, Spares
from tests.support.gate import (
    NOW,
    answer,
    drain,
    facts,
    job,
    later,
    name,
    node,
    propose,
    requeue,
    rules,
    slot,
)

SLOW = {"fatal": False}


def kept(nodes=(1, 2, 3, 4), **fields) -> Reservation:
    given = {"name": "llama", "nodes": tuple(name(one) for one in nodes), "users": ("alice",)}
    return Reservation(**(given | fields))


def known(*reservations: Reservation, nodes=32, **fields):
    base = facts(nodes, **fields)
    held = {one.name: one for one in reservations}
    return msgspec.structs.replace(base, snapshot=msgspec.structs.replace(base.snapshot, reservations=held))


class TestReserved:
    def test_a_slow_node_stays_with_those_it_is_promised_to(self):
        until = later(hours=3)
        result = judge(drain(**SLOW), known(kept(until=until)), rules(), NOW)
        assert (result.outcome, result.guard) == (Outcome.held, Guard.reserved)
        said = result.answer
        assert (said.limit, said.used, said.frees_at) == (4, 4, until)
        assert "llama" in said.why and name(1) in said.why

    @pytest.mark.parametrize("fault", [{"unusable": True, "fatal": False}, {"fatal": True}])
    def test_faulty_node_may_be_drained_despite_its_reservation(self, fault):
        said = answer(Guard.reserved, drain(**fault), known(kept()))
        assert said.kind is AnswerKind.allow and "of no use" in said.why

    @pytest.mark.parametrize("asked", [{"by": "bob"}, {"approved_by": "bob"}])
    def test_a_person_takes_it_by_name(self, asked):
        assert answer(Guard.reserved, drain(**SLOW, **asked), known(kept())).kind is AnswerKind.allow

    @pytest.mark.parametrize(
        "other",
        [
            kept(nodes=(2, 3)),
            kept(maintenance=True),
            kept(name="healer_12345678"),
            kept(name="spares"),
            kept(flags=("REPLACE_DOWN",)),
            kept(until=NOW),
            kept(since=NOW + timedelta(hours=1, seconds=1)),
        ],
        ids=["elsewhere", "planned", "ours", "spares", "replaced", "over", "tomorrow"],
    )
    def test_no_promise(self, other):
        site = rules(GuardSettings(spares=Spares(reservation="spares")))
        assert answer(Guard.reserved, drain(**SLOW), known(other), site).kind is AnswerKind.allow

    def test_node_already_out_costs_the_reservation_nothing(self):
        down = [node(1, state=("IDLE", "DRAIN")), *(node(one) for one in range(2, 33))]
        assert answer(Guard.reserved, drain(**SLOW), known(kept(), nodes=down)).kind is AnswerKind.allow
        riding = known(kept(), slots=(slot(1),))
        assert answer(Guard.reserved, drain(**SLOW), riding).kind is AnswerKind.allow

    def test_a_run_that_only_begins_takes_nothing_yet(self):
        result = judge(drain(**SLOW, begins=True), known(kept()), rules(), NOW)
        assert all(one.guard is not Guard.reserved for one in result.answers)


class TestQos:
    SITE = rules(GuardSettings(protected_qos=("production",)))

    def jobs(self, qos: str):
        return facts(jobs=[job(qos=qos, requeue=True)])

    @pytest.mark.parametrize("verb", [Verb.requeue, Verb.revive, Verb.cancel])
    def test_its_jobs_are_left_alone_regardless_of_requester(self, verb):
        for by in (None, "bob"):
            asked = propose(verb, job="4711", restarts=0, by=by)
            result = judge(asked, self.jobs("production"), self.SITE, NOW)
            assert (result.outcome, result.guard) == (Outcome.refused, Guard.protected)
            assert "4711" in result.why and "production" in result.why

    def test_capitals_of_the_sites_list_protect_as_well(self):
        """Slurm keeps the names of QOS in small letters."""
        site = rules(GuardSettings(protected_qos=("Production",)))
        assert answer(Guard.protected, requeue(), self.jobs("production"), site).kind is AnswerKind.refuse

    def test_a_node_with_one_is_not_set_down(self):
        for verb in (Verb.down, Verb.power_cycle):
            said = answer(Guard.protected, propose(verb), self.jobs("production"), self.SITE)
            assert said.kind is AnswerKind.refuse

    def test_a_drain_lets_it_run(self):
        assert answer(Guard.protected, drain(), self.jobs("production"), self.SITE).kind is AnswerKind.allow

    def test_others_are_not_protected(self):
        assert answer(Guard.protected, requeue(), self.jobs("normal"), self.SITE).kind is AnswerKind.allow

    def test_a_component_of_such_a_qos_protects_its_whole_job(self):
        parts = [
            job("10", qos="normal", het_job="10", het_offset=0),
            job("11", qos="production", het_job="10", het_offset=1, nodes=(name(2),)),
        ]
        for asked in (requeue("10"), requeue("10", by="bob", node=None)):
            result = judge(asked, facts(jobs=parts), self.SITE, NOW)
            assert (result.outcome, result.guard) == (Outcome.refused, Guard.protected)

    def test_by_partition(self):
        site = rules(partition_guards={"train": GuardSettings(protected_qos=("production",))})
        assert answer(Guard.protected, requeue(), self.jobs("production"), site).kind is AnswerKind.refuse


class TestNvlinkDomain:
    def fleet(self) -> list[SlurmNode]:
        """Racks of 8; domains of 4, from the snapshot."""
        return [node(number, domain=f"nvl{(number - 1) // 4}") for number in range(1, 33)]

    def test_it_is_a_place_with_a_cap_of_its_own(self):
        result = judge(drain(1), facts(self.fleet(), slots=(slot(2),)), rules(WIDE), NOW)
        assert (result.outcome, result.guard) == (Outcome.held, Guard.rack)
        assert "NVLink domain nvl0" in result.why and result.answer.limit == 1

    def test_the_next_domain_of_the_same_rack_is_free(self):
        assert judge(drain(5), facts(self.fleet(), slots=(slot(2),)), rules(WIDE), NOW).outcome is Outcome.act

    def test_by_the_topology_file(self):
        places = {name(one): Place(domain="nvl0") for one in range(1, 5)}
        site = rules(WIDE, topology=Topology(places=places))
        result = judge(drain(1), facts(slots=(slot(2),)), site, NOW)
        assert (result.outcome, result.guard) == (Outcome.held, Guard.rack)

    def test_its_figures_are_shown(self):
        shown = limits(facts(self.fleet(), slots=(slot(2),)), rules(WIDE), NOW)
        assert ("NVLink domain nvl0", 1, 1, 4) in [
            (one.name, one.used, one.limit, one.nodes) for one in shown
        ]


#: Only the places bind.
WIDE = GuardSettings(max_share=1, max_nodes=100, share_per_hour=1, partition_share=1)
