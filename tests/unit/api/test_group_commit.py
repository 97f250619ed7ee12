"""One commit for all that waits, and what happens when the store is away or too slow."""

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime

import pytest

from healer.api.group_commit import Busy, GroupCommit, QueueBounds, in_thread
from healer.model import Component, Observation, ObservationKind
from healer.ports.request_errors import Unavailable
from healer.ports.signal_stores import Arrival


def arrival(number: int) -> Arrival:
    at = datetime(2026, 11, 20, tzinfo=UTC)
    here = Component(cluster="pod1", node="gpu0001")
    return Arrival(
        Observation(
            digest=f"{number:064x}", kind=ObservationKind.xid, component=here, event_at=at, arrived_at=at
        )
    )


class MemoryStore:
    """A SignalStore that keeps digests; `gate` holds it back, `away` makes it unavailable that often."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.batches: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.away = 0
        self.poison = ""

    def store(self, arrivals: Sequence[Arrival]) -> list[bool]:
        self.gate.wait(10)
        if self.away:
            self.away -= 1
            raise Unavailable("away")
        if any(one.observation.digest == self.poison for one in arrivals):
            raise ValueError("poison")
        self.batches.append(len(arrivals))
        new = []
        for one in arrivals:
            new.append(one.observation.digest not in self.known)
            self.known.add(one.observation.digest)
        return new


class Recorded(MemoryStore):
    """Keeps the order too."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[int] = []

    def store(self, arrivals: Sequence[Arrival]) -> list[bool]:
        stored = super().store(arrivals)
        self.order += [int(one.observation.digest, 16) for one in arrivals]
        return stored


def test_waiting_arrivals_are_written_together_and_answered_singly() -> None:
    async def go() -> None:
        store = MemoryStore()
        commit = GroupCommit(in_thread(store.store))
        commit.start()
        store.gate.clear()
        waiting = [asyncio.create_task(commit.add([arrival(number % 20)])) for number in range(40)]
        await asyncio.sleep(0)
        store.gate.set()
        answers = await asyncio.gather(*waiting)
        assert sum(answer[0] for answer in answers) == 20
        assert len(store.batches) <= 3
        assert commit.depth == 0
        await commit.stop()

    asyncio.run(go())


def test_a_batch_begins_before_all_that_came_with_it_is_read() -> None:
    async def go() -> None:
        store = MemoryStore()
        commit = GroupCommit(in_thread(store.store), QueueBounds(begin_at=4))
        commit.start()
        answers = await asyncio.gather(*(commit.add([arrival(number)]) for number in range(10)))
        assert answers == [[True]] * 10
        assert store.batches == [4, 6], "one at a time: what came meanwhile is the next"
        await commit.stop()

    asyncio.run(go())


@pytest.mark.parametrize("begin_at", [None, 1])
def test_a_store_that_comes_back_loses_nothing(begin_at: int | None) -> None:
    async def go() -> None:
        store = MemoryStore()
        store.away = 3
        commit = GroupCommit(in_thread(store.store), QueueBounds(begin_at=begin_at))
        commit.start()
        assert await commit.add([arrival(1)]) == [True]
        await commit.stop()

    asyncio.run(go())


@pytest.mark.parametrize("begin_at", [None, 3])
def test_failed_begin_fails_the_waiting_requests_only(begin_at: int | None) -> None:
    """As a thread pool on a system that has no thread left for a moment."""

    async def go() -> None:
        store, refusals = MemoryStore(), 4
        begin = in_thread(store.store)

        def refusing(arrivals: Sequence[Arrival]) -> Awaitable[Sequence[bool]]:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise RuntimeError("can't start new thread")
            return begin(arrivals)

        commit = GroupCommit(refusing, QueueBounds(begin_at=begin_at, wait_s=5.0))
        commit.start()
        three = [commit.add([arrival(number)], owner=str(number)) for number in range(3)]
        errors = await asyncio.gather(*three, return_exceptions=True)
        assert [str(one) for one in errors] == ["can't start new thread"] * 3, "the batch, then each alone"
        assert commit.depth == 0
        assert await commit.add([arrival(4)]) == [True]
        await commit.stop()

    asyncio.run(go())


def test_unavailable_store_is_reported_not_swallowed() -> None:
    async def go() -> None:
        store = MemoryStore()
        store.away = 10_000
        commit = GroupCommit(in_thread(store.store), QueueBounds(wait_s=0.2))
        commit.start()
        with pytest.raises(Unavailable):
            await commit.add([arrival(1)])
        assert store.known == set()
        await commit.stop()

    asyncio.run(go())


@pytest.mark.heavy
def test_each_sender_waits_its_own_time_and_an_answer_ends_it() -> None:
    """One timer serves all who wait: none is answered too early, none is forgotten, none is answered
    twice."""

    async def go() -> None:
        store = MemoryStore()
        store.gate.clear()
        commit = GroupCommit(in_thread(store.store), QueueBounds(wait_s=1.0))
        commit.start()
        loop = asyncio.get_running_loop()

        async def waited(number: int) -> float | None:
            begun = loop.time()
            try:
                await commit.add([arrival(number)])
            except Unavailable:
                return loop.time() - begun
            return None

        first = [asyncio.create_task(waited(number)) for number in range(3)]
        await asyncio.wait(first[:1], timeout=0.6)
        later = [asyncio.create_task(waited(number)) for number in range(3, 6)]
        for took in await asyncio.gather(*first):
            assert took is not None and took >= 0.99
        store.gate.set()
        await asyncio.gather(*later)
        assert await waited(7) is None
        # A request late enough for the open gate is answered; the others waited their whole time.
        assert all(took is None or took >= 0.99 for took in [one.result() for one in later])
        await commit.stop()

    asyncio.run(go())


def test_heartbeats_are_shed_before_fault_events() -> None:
    async def go() -> None:
        store = MemoryStore()
        store.gate.clear()
        commit = GroupCommit(in_thread(store.store), QueueBounds(queue=10))
        commit.start()
        first = asyncio.create_task(commit.add([arrival(number) for number in range(5)]))
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await commit.add([arrival(20)], shed_first=True)
        second = asyncio.create_task(commit.add([arrival(number) for number in range(5, 10)]))
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await commit.add([arrival(30)])
        store.gate.set()
        assert all(await first) and all(await second)
        await commit.stop()

    asyncio.run(go())


def test_one_poisoned_request_does_not_take_its_neighbours_with_it() -> None:
    async def go() -> None:
        store = MemoryStore()
        store.poison = arrival(7).observation.digest
        store.gate.clear()
        commit = GroupCommit(in_thread(store.store))
        commit.start()
        tasks = [asyncio.create_task(commit.add([arrival(number)])) for number in range(5, 10)]
        await asyncio.sleep(0)
        store.gate.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(one, ValueError) for one in answers] == [False, False, True, False, False]
        await commit.stop()

    asyncio.run(go())


def test_low_priority_work_yields_while_the_other_queue_is_half_full() -> None:
    async def go() -> None:
        store, later = MemoryStore(), MemoryStore()
        store.gate.clear()
        events = GroupCommit(in_thread(store.store), QueueBounds(queue=10))
        metrics = GroupCommit(in_thread(later.store), QueueBounds(queue=10, before=(events,)))
        events.start()
        metrics.start()
        waiting = [asyncio.create_task(events.add([arrival(number) for number in range(5)]))]
        await asyncio.sleep(0)
        assert await metrics.add([arrival(100)]) == [True], "half full is not over half full"
        waiting.append(asyncio.create_task(events.add([arrival(5)])))
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await metrics.add([arrival(101)])
        store.gate.set()
        await asyncio.gather(*waiting)
        assert await metrics.add([arrival(101)]) == [True]
        await events.stop()
        await metrics.stop()

    asyncio.run(go())


def test_weights_bound_the_queue_and_the_batch() -> None:
    async def go() -> None:
        store = MemoryStore()
        store.gate.clear()
        commit = GroupCommit(in_thread(store.store), QueueBounds(queue=300, batch=100, weigh=lambda _: 60))
        commit.start()
        waiting = [asyncio.create_task(commit.add([arrival(number)])) for number in range(5)]
        await asyncio.sleep(0)
        assert commit.depth == 300
        with pytest.raises(Busy):
            await commit.add([arrival(9)])
        store.gate.set()
        await asyncio.gather(*waiting)
        assert store.batches == [1] * 5, "two of them would weigh more than a batch"
        assert commit.depth == 0
        await commit.stop()

    asyncio.run(go())


def test_the_first_of_a_batch_waits_for_others() -> None:
    async def go() -> None:
        store = MemoryStore()
        commit = GroupCommit(in_thread(store.store), QueueBounds(gather_s=0.2))
        commit.start()
        first = asyncio.create_task(commit.add([arrival(1)]))
        await asyncio.sleep(0.01)
        assert await commit.add([arrival(2)]) == [True]
        assert await first == [True]
        assert store.batches == [2]
        await commit.stop()

    asyncio.run(go())


def test_one_owner_gets_a_share_of_the_queue_and_blocks_no_other() -> None:
    async def go() -> None:
        store = MemoryStore()
        store.gate.clear()
        commit = GroupCommit(in_thread(store.store), QueueBounds(queue=100))
        commit.start()
        waiting = [
            asyncio.create_task(
                commit.add([arrival(n) for n in range(5 * k, 5 * k + 5)], owner="loud", share=0.1)
            )
            for k in range(2)
        ]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await commit.add([arrival(10)], owner="loud", share=0.1)
        other = asyncio.create_task(commit.add([arrival(11)], owner="other", share=0.1))
        await asyncio.sleep(0)
        assert commit.depth == 11
        store.gate.set()
        assert await other == [True]
        await asyncio.gather(*waiting)
        assert await commit.add([arrival(10)], owner="loud", share=0.1) == [True], "its place is free again"
        assert commit.depth == 0
        await commit.stop()

    asyncio.run(go())


def test_a_request_longer_than_its_share_is_taken_and_fills_no_more_than_that() -> None:
    async def go() -> None:
        store = Recorded()
        store.gate.clear()
        commit = GroupCommit(in_thread(store.store), QueueBounds(queue=1_000, batch=1_000))
        commit.start()
        big = asyncio.create_task(commit.add([arrival(n) for n in range(3_300)], owner="loud", share=0.1))
        await asyncio.sleep(0)
        assert commit.depth == 100
        small = [
            asyncio.create_task(commit.add([arrival(9_000 + n)], owner=f"n{n}", share=0.1)) for n in range(50)
        ]
        await asyncio.sleep(0)
        store.gate.set()
        answers = await asyncio.gather(*small)
        assert all(one == [True] for one in answers)
        assert not big.done(), "others do not wait for all of it"
        assert await big == [True] * 3_300
        assert [n for n in store.order if n < 9_000] == list(range(3_300)), "its own order is kept"
        assert commit.depth == 0
        await commit.stop()

    asyncio.run(go())


def test_slices_of_a_request_keep_their_order_through_a_store_that_was_away_and_a_neighbours_poison() -> None:
    async def go() -> None:
        store = Recorded()
        store.away, store.poison = 2, arrival(9_000).observation.digest
        store.gate.clear()
        commit = GroupCommit(in_thread(store.store), QueueBounds(batch=2_000))
        commit.start()
        big = asyncio.create_task(commit.add([arrival(n) for n in range(2_600)], owner="a", share=0.1))
        bad = asyncio.create_task(commit.add([arrival(9_000)], owner="b", share=0.1))
        same = asyncio.create_task(commit.add([arrival(3_000)], owner="a", share=0.9))
        await asyncio.sleep(0)
        store.gate.set()
        answers = await asyncio.gather(big, bad, same, return_exceptions=True)
        assert answers[0] == [True] * 2_600 and isinstance(answers[1], ValueError) and answers[2] == [True]
        assert store.order == [*range(2_600), 3_000]
        assert commit.depth == 0
        await commit.stop()

    asyncio.run(go())


def test_a_slow_store_is_not_reported_as_a_database_that_is_away() -> None:
    async def go() -> None:
        store = MemoryStore()
        store.gate.clear()
        commit = GroupCommit(in_thread(store.store), QueueBounds(wait_s=0.2))
        commit.start()
        with pytest.raises(Unavailable, match=r"^not stored within 0\.2 s: "):
            await commit.add([arrival(1)])
        store.gate.set()
        await commit.stop()

    asyncio.run(go())


def test_a_request_whose_sender_gave_up_frees_its_place() -> None:
    async def go() -> None:
        store = MemoryStore()
        store.away = 10_000
        commit = GroupCommit(in_thread(store.store), QueueBounds(wait_s=0.2, queue=1_000))
        commit.start()
        with pytest.raises(Unavailable):
            await commit.add([arrival(n) for n in range(1_600)], owner="a", share=0.1)
        store.away = 0
        assert await commit.add([arrival(5_000)], owner="b", share=0.1) == [True]
        assert commit.depth == 0
        await commit.stop()

    asyncio.run(go())
