"""Whatever happens in whatever order: no cap is ever exceeded, and a return is never held back by one.

A cluster of 4 to 200 nodes lives through faults, people's drains, nodes that go down and come back, breaker
states, requests and hours. Slurm's picture lags behind what was granted. The limits are counted here in whole
percents, in another way than the gate does.
"""

from collections import Counter
from datetime import datetime, timedelta

import msgspec
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from healer.decisions import after_grant, judge, limits, reset
from healer.model import (
    Breaker,
    BreakerState,
    GateFacts,
    Guard,
    GuardSettings,
    Outcome,
    SlurmNode,
    Verb,
)
from tests.support.gate import CLUSTER, NOW, drain, name, node, propose, rules, snapshot

HOUR = timedelta(hours=1)
PERCENT = st.integers(0, 40)
ANY = st.integers(0, 10_000)


class Gate(RuleBasedStateMachine):
    @initialize(
        count=st.integers(4, 200),
        rack=st.integers(2, 16),
        leaf=st.integers(2, 40),
        share=PERCENT,
        number=st.integers(1, 12),
        floor=st.integers(50, 100),
        hour=PERCENT,
        place=PERCENT,
        partition=PERCENT,
    )
    def start(self, count, rack, leaf, share, number, floor, hour, place, partition):
        self.count = count
        self.percent = {"share": share, "floor": floor, "hour": hour, "place": place, "partition": partition}
        self.number = number
        self.slurm = {
            name(n): node(
                n,
                rack=f"r{n // rack}",
                switch=f"s{n // leaf}",
                partitions=("train", "debug") if n % 3 == 0 else ("train",),
            )
            for n in range(1, count + 1)
        }
        self.ruleset = rules(
            GuardSettings(
                max_share=share / 100,
                max_nodes=number,
                min_service_share=floor / 100,
                share_per_hour=hour / 100,
                rack_share=place / 100,
                partition_share=partition / 100,
                protected=("gpu0001", "gpu0002"),
            )
        )
        self.now = NOW
        self.facts = GateFacts(cluster=CLUSTER, snapshot=None, breaker=Breaker(cluster=CLUSTER))
        self.drains: dict[str, str] = {}
        self.granted: list[datetime] = []
        self.look()

    # --- the world ---

    def set(self, which: str, state: tuple[str, ...], reason: str = "", user: str = ""):
        shown = self.slurm[which]
        self.slurm[which] = msgspec.structs.replace(shown, state=state, reason=reason, reason_user=user)

    def pick(self, number: int) -> SlurmNode:
        return self.slurm[name(number % self.count + 1)]

    @rule()
    def look(self):
        """The poller takes a new picture."""
        self.facts = msgspec.structs.replace(
            self.facts, snapshot=snapshot(list(self.slurm.values()), taken_at=self.now)
        )

    @rule(number=ANY)
    def a_person_drains(self, number):
        which = self.pick(number)
        if not which.drain:
            self.set(which.name, ("IDLE", "DRAIN"), "PSU swap", "alice")

    @rule(number=ANY)
    def a_node_goes_down(self, number):
        which = self.pick(number)
        if not which.drain:
            self.set(which.name, ("DOWN", "NOT_RESPONDING"), "Not responding", "slurm")

    @rule(number=ANY)
    def a_person_resumes(self, number):
        which = self.pick(number)
        if which.reason_user in {"alice", "slurm"}:
            self.set(which.name, ("IDLE",))

    @rule(minutes=st.integers(1, 50))
    def time_passes(self, minutes):
        self.now += timedelta(minutes=minutes)
        recent = tuple(one for one in self.facts.granted if one > self.now - HOUR)
        self.facts = msgspec.structs.replace(self.facts, granted=recent)
        self.look()

    @rule()
    def drains_arrive(self):
        """Granted actions are done in Slurm, unless another was faster."""
        for which in [slot.node for slot in self.facts.slots]:
            if not self.slurm[which].drain:
                self.set(which, ("IDLE", "DRAIN"), "healer:gpu-lost inc:00000001 x", "healer")

    @rule(state=st.sampled_from(list(BreakerState)))
    def the_breaker_moves(self, state):
        breaker = Breaker(cluster=CLUSTER, state=BreakerState.open, why="a storm")
        if state is BreakerState.half_open:
            breaker = reset(breaker, "alice", "looked at it", self.now)
        elif state is BreakerState.closed:
            breaker = Breaker(cluster=CLUSTER)
        self.facts = msgspec.structs.replace(self.facts, breaker=breaker)

    # --- the gate ---

    @rule(number=ANY, unusable=st.booleans(), person=st.booleans())
    def something_is_to_be_drained(self, number, unusable, person):
        which = self.pick(number).name
        proposal = drain(node=which, unusable=unusable, by="bob" if person else None, incident=f"i{which}")
        result = judge(proposal, self.facts, self.ruleset, self.now)
        if result.outcome is not Outcome.act:
            assert result.guard and result.why
            return
        assert which not in {"gpu0001", "gpu0002"}
        assert person or self.facts.breaker.state is not BreakerState.open
        self.check_floor(which)
        shown = self.facts.snapshot.nodes[which] if self.facts.snapshot else None
        assert shown and shown.reason_user != "alice"
        new = all(slot.node != which for slot in self.facts.slots)
        self.facts = after_grant(self.facts, proposal, f"r{len(self.granted)}", self.now)
        if new and not unusable:
            self.granted.append(self.now)

    @rule(number=ANY)
    def a_run_that_waits_begins(self, number):
        """It takes nothing: whatever begins, no slot is used, and its drain is judged like any other."""
        which = self.pick(number).name
        proposal = drain(node=which, begins=True, incident=f"i{which}")
        if judge(proposal, self.facts, self.ruleset, self.now).outcome is Outcome.act:
            before = self.facts
            self.facts = after_grant(self.facts, proposal, f"w{which}", self.now)
            assert (self.facts.slots, self.facts.granted) == (before.slots, before.granted)
            assert self.facts.breaker == before.breaker

    def check_floor(self, which: str):
        """After this grant at least the floor is in service, unless the node was gone already."""
        assert self.facts.snapshot
        gone = {one.name for one in self.facts.snapshot.nodes.values() if one.state != ("IDLE",)}
        gone |= {slot.node for slot in self.facts.slots}
        if which in gone:
            return
        least = min(-(-self.percent["floor"] * self.count // 100), self.count - 1)
        assert self.count - len(gone) - 1 >= least

    @precondition(lambda self: self.facts.slots)
    @rule(number=ANY)
    def a_node_is_returned(self, number):
        slot = self.facts.slots[number % len(self.facts.slots)]
        self.look()
        result = judge(propose(Verb.resume, node=slot.node), self.facts, self.ruleset, self.now)
        if self.slurm[slot.node].reason_user in {"alice", "slurm"}:
            assert (result.outcome, result.guard) == (Outcome.refused, Guard.ownership)
            return
        # Neither breaker nor caps nor the floor are asked.
        assert result.outcome is Outcome.act
        self.set(slot.node, ("IDLE",))
        left = tuple(one for one in self.facts.slots if one.node != slot.node)
        self.facts = msgspec.structs.replace(self.facts, slots=left)

    # --- what is always true ---

    def at_most(self, percent: int, nodes: int) -> int:
        return max(1, percent * nodes // 100)

    @invariant()
    def no_cap_is_exceeded(self):
        if not hasattr(self, "facts"):
            return
        held = [self.slurm[slot.node] for slot in self.facts.slots if not slot.unusable]
        assert len(held) <= max(1, min(self.number, self.percent["share"] * self.count // 100))
        fleet = self.slurm.values()
        for where in ("rack", "switch"):
            size = Counter(getattr(one, where) for one in fleet)
            for place, used in Counter(getattr(one, where) for one in held).items():
                assert used <= self.at_most(self.percent["place"], size[place])
        size = Counter(partition for one in fleet for partition in one.partitions)
        for partition, used in Counter(partition for one in held for partition in one.partitions).items():
            assert used <= min(max(1, self.number), self.at_most(self.percent["partition"], size[partition]))

    @invariant()
    def no_hour_has_more_than_its_share(self):
        if not hasattr(self, "facts"):
            return
        limit = self.at_most(self.percent["hour"], self.count)
        for begin in self.granted:
            assert sum(begin <= one < begin + HOUR for one in self.granted) <= limit

    @invariant()
    def what_people_are_shown_agrees(self):
        if not hasattr(self, "facts"):
            return
        for one in limits(self.facts, self.ruleset, self.now):
            assert one.guard is Guard.floor or one.used <= one.limit


# No shrinking: of so many steps it takes minutes, longer than one test may last; the steps are printed whole.
Gate.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
TestGate = Gate.TestCase
