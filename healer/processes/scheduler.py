"""The scheduler's duties, each in a thread of its own: poll Slurm, wake runs, deliver, tidy. One starts a
process: changes of rules are tried.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any, Protocol

import msgspec
import structlog

from healer.model import Controller, Ruleset
from healer.model.run import Rehearsal
from healer.observations.seal_state import seal_problems
from healer.observations.slurm_poll import POLL_S, SWEEP_CHECK_S, Placing, is_pressed, noted, rest_s
from healer.ports.answers import SealState
from healer.ports.clock import Clock
from healer.ports.lease import SENT
from healer.ports.scheduling import NotAvailable, SchedulerError, SlurmReads, Snapshots
from healer.ports.service_accounts import TokenRow, ending
from healer.ports.transactions import Ledger, Poke
from healer.telling.news import account_ending_message, enrolled_again_page, seal_page
from healer.text import NO_WORDS, Said, said_by, say

log = structlog.get_logger()

#: Slurm's switches are read this seldom, and slurmctld's own figures while all is well.
TREE_S, FIGURES_S = 600.0, 30.0
#: How often it is looked whether any duty has work.
LOOK_S = 0.2
#: A duty with a wake-up still checks this often, whatever the check says.
UNWOKEN_S = 5.0
SWEEP_S = 0.2
#: A run that stays due is sent again after this long, plus this much for each other one that is due.
AGAIN_S, AGAIN_EACH_S = 1.0, 0.05
SEAL_S = 0.3
DELIVER_S = 0.5
TICKETS_S = 2.0
TIDY_S = 60.0
WATCH_S = 10.0
ENROLMENTS_S = 30.0
ACCOUNTS_S = 300.0
#: Nodes that enrol again within this many minutes are one message; after a downtime the scheduler looks back
#: this far.
ENROLMENTS_MIN, ENROLMENTS_FOR = 5, timedelta(hours=12)


@dataclass(frozen=True)
class Duty:
    """`work` is called again and again; it returns how long to rest, None for `every_s`.

    Where there is `woken` the rest continues until that is set, and at most for `UNWOKEN_S`."""

    name: str
    every_s: float
    work: Callable[[], float | None]
    woken: threading.Event | None = None


class Poll:
    """One cluster's poll: Slurm's picture and how slurmctld does, stored; how long to rest then.

    While Slurm is away the old picture stays and grows stale, which holds everything; the controller's state
    says what is wrong, and nothing is done because of it.
    """

    def __init__(
        self,
        scheduler: SlurmReads,
        snapshots: Snapshots,
        rules: Callable[[], Ruleset],
        cluster: str,
        *,
        clock: Clock,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler, self._snapshots, self._rules = scheduler, snapshots, rules
        self._cluster, self._clock, self._stopwatch = cluster, clock, stopwatch
        self._placing = Placing()
        self._tree = _Tree(scheduler, stopwatch)
        self._controller = snapshots.controller(cluster)
        self._figures_at = float("-inf")
        self._rest_s = POLL_S

    @property
    def is_pressed(self) -> bool:
        return self._controller is not None and is_pressed(self._controller)

    def __call__(self) -> float:
        begun = self._stopwatch()
        problem, other = None, False
        try:
            snapshot = self._scheduler.snapshot()
        except SchedulerError as error:
            log.warning("Slurm does not answer", error=str(error))
            problem = said_by(error)
        else:
            other = snapshot.cluster != self._cluster
            if other:
                problem = say("slurm.is_other_cluster", cluster=snapshot.cluster, meant=self._cluster)
            else:
                switches = self._tree.of(snapshot.nodes)
                self._snapshots.put(self._placing.placed(snapshot, self._rules().topology, switches))
        spent_s = self._stopwatch() - begun
        if problem:
            self._snapshots.failed(self._cluster, str(problem))
        state = self._controller
        # Each figure is a request of slurmctld: every poll asks for them only while there is trouble.
        if state is None or problem or state.since or begun - self._figures_at >= FIGURES_S:
            state = noted(self._asked(problem), state, self._rules().watches, other_cluster=other)
            self._snapshots.put_controller(state)
            self._controller, self._figures_at = state, begun
        self._rest_s = rest_s(spent_s, state, self._rest_s)
        return self._rest_s

    def _asked(self, problem: Said | None) -> Controller:
        """slurmctld's figures. That it gives none is a problem, unless no adapter here can ask for them."""
        now = self._clock.now()
        try:
            seen = self._scheduler.controller()
        except NotAvailable:
            seen = Controller(cluster=self._cluster, at=now, adapter=self._scheduler.name)
        except SchedulerError as error:
            seen = Controller(cluster=self._cluster, at=now, problem=said_by(error))
        # By our clock, and under the name that we store it by, also where another cluster answered.
        return msgspec.structs.replace(seen, cluster=self._cluster, at=now, problem=problem or seen.problem)


def watching_sweeps(
    poll: Poll, sweeping: Callable[[], bool], stopwatch: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """`poll` with long rests that end early if a sweep runs, unless slurmctld is pressed."""
    due_s = float("-inf")

    def work() -> float:
        nonlocal due_s
        left_s = due_s - stopwatch()
        if left_s <= 0 or (not poll.is_pressed and sweeping()):
            left_s = poll()
            due_s = stopwatch() + left_s
        return min(left_s, SWEEP_CHECK_S)

    return work


class _Tree:
    """Slurm's switches, read at the start, every ten minutes, and when the list of nodes changed."""

    def __init__(self, scheduler: SlurmReads, stopwatch: Callable[[], float]) -> None:
        self._scheduler, self._stopwatch = scheduler, stopwatch
        self._names: frozenset[str] = frozenset()
        self._switches: Mapping[str, tuple[str, ...]] = {}
        self._read_at = float("-inf")

    def of(self, nodes: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
        """The last switches read, if Slurm does not give them now. Returns the same mapping while nothing
        changes."""
        names, now = frozenset(nodes), self._stopwatch()
        if names == self._names and now - self._read_at < TREE_S:
            return self._switches
        self._names, self._read_at = names, now
        try:
            found = self._scheduler.topology()
        except NotAvailable:
            found = {}
        except SchedulerError as error:
            log.warning("Slurm gave no topology", error=str(error))
            return self._switches
        if found != self._switches:
            self._switches = found
        return self._switches


def sweep(ledger: Ledger, poke: Poke, clock: Clock) -> Callable[[], float | None]:
    """Wakes due runs: those whose wait is over and those that a dead worker left.

    A run that stays due is sent again after a second; the more are due, the later: they wait for workers, and
    superfluous messages would only keep those busy. A new one was sent by the process that began it.
    """
    poked: dict[str, float] = {}

    def work() -> None:
        now, all_due = time.monotonic(), ledger.due_runs(clock.now(), sent=SENT)
        again_s = max(AGAIN_S, len(all_due) * AGAIN_EACH_S)
        for run, at in list(poked.items()):
            if now - at > again_s:
                del poked[run]
        due = [run for run in all_due if run not in poked]
        poked.update(dict.fromkeys(due, now))
        if due:
            poke(due)

    return work


def seal_watch(ledger: Ledger, state: Callable[[], SealState], clock: Clock) -> Callable[[], None]:
    """Pages when nothing seals the audit, or a witness of it does not answer: once a day for each."""
    paged: set[str] = set()

    def work() -> None:
        now = clock.now()
        for problem, text in seal_problems(state(), now).items():
            page = seal_page(ledger.cluster, problem, text, now)
            if page.id not in paged:
                with ledger.transaction() as tx:
                    tx.queue_message(page)
                paged.add(page.id)

    return work


def enrolment_watch(
    ledger: Ledger, again: Callable[[datetime], Sequence[tuple[datetime, str, str]]], clock: Clock
) -> Callable[[], None]:
    """Pages the nodes that enrolled again without their token: once a day for each, those of five minutes in
    one message when those are over. `again`: (when, node, who) since a moment."""

    def work() -> None:
        now = clock.now()
        first: dict[tuple[date, str], tuple[datetime, str]] = {}
        for at, node, who in again((now - ENROLMENTS_FOR).replace(hour=0, minute=0, second=0, microsecond=0)):
            first.setdefault((at.date(), node), (at, who))
        together: dict[datetime, dict[str, str]] = {}
        for (_, node), (at, who) in first.items():
            begun = at.replace(minute=at.minute - at.minute % ENROLMENTS_MIN, second=0, microsecond=0)
            if now - ENROLMENTS_FOR < begun <= now - timedelta(minutes=ENROLMENTS_MIN):
                together.setdefault(begun, {})[node] = who
        for begun, nodes in together.items():
            with ledger.transaction() as tx:
                page = enrolled_again_page(ledger.cluster, sorted(nodes), list(nodes.values()), begun)
                tx.queue_message(page)

    return work


def account_watch(
    ledger: Ledger, accounts: Callable[[datetime], Sequence[TokenRow]], clock: Clock
) -> Callable[[], None]:
    """Has people notified of service accounts that end soon or have ended: each notice once."""

    def work() -> None:
        now = clock.now()
        of_cluster = [row for row in accounts(now) if row.cluster in (None, ledger.cluster)]
        due = ending(of_cluster, now)
        if not due:
            return
        with ledger.transaction() as tx:
            for row, ahead in due:
                tx.queue_message(account_ending_message(ledger.cluster, row, ahead))

    return work


def woken_by(waiting: Callable[[], Set[str]], duties: Sequence[Duty]) -> list[Duty]:
    """These duties, each to be woken when `waiting` names it, and the duty that asks it: one cheap question
    five times a second instead of three dear ones, and none has work most of the time.

    Where the question fails all are woken, and each finds out for itself what is wrong.
    """
    woken = {duty.name: threading.Event() for duty in duties}

    def look() -> None:
        try:
            names = waiting()
        except Exception:
            for event in woken.values():
                event.set()
            raise
        for name in woken.keys() & names:
            woken[name].set()

    return [Duty("look", LOOK_S, look), *(replace(duty, woken=woken[duty.name]) for duty in duties)]


def run_duties(duties: list[Duty], stopped: threading.Event) -> None:
    """Runs all duties until `stopped`. A duty that fails is logged and tried again; the others continue."""
    threads = [
        threading.Thread(target=_repeat, args=(duty, stopped), name=duty.name, daemon=True) for duty in duties
    ]
    for thread in threads:
        thread.start()
    stopped.wait()
    for duty in duties:
        if duty.woken is not None:
            duty.woken.set()
    for thread in threads:
        thread.join(timeout=3)


def _repeat(duty: Duty, stopped: threading.Event) -> None:
    failures = 0
    while not stopped.is_set():
        rest = None
        if duty.woken is not None:
            duty.woken.clear()  # before the work, so that later events wake it again
        try:
            rest = duty.work()
            failures = 0
        except Exception:
            failures += 1
            log.exception("duty failed", duty=duty.name, failures=failures)
            rest = min(5.0, duty.every_s * 2 ** min(failures, 10))  # a float knows no 2**1024
        stopped.wait(duty.every_s if rest is None else rest)
        if duty.woken is not None and not failures and not stopped.is_set():
            duty.woken.wait(UNWOKEN_S)


# --- duties that work in a process of their own ---


class Pace:
    """What is left at the pace of the last minute: the hours of a recording are not alike."""

    WINDOW_S, LEAST_S = 60.0, 3.0

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque()

    def left_s(self, share: float, at_s: float) -> float | None:
        """`at_s` by a stopwatch; None where its pace is not known yet."""
        marks = self._marks
        marks.append((at_s, share))
        while len(marks) > 2 and at_s - marks[1][0] >= self.WINDOW_S:
            marks.popleft()
        begun_s, begun = marks[0]
        if at_s - begun_s < self.LEAST_S or share <= begun:
            return None
        return (1 - share) * (at_s - begun_s) / (share - begun)


def share_of(at: datetime, span: tuple[datetime, datetime]) -> float:
    """The position within the span, 0 to 1."""
    since, until = span
    whole_s = (until - since).total_seconds() or 1.0
    return min(1.0, max(0.0, (at - since).total_seconds() / whole_s))


REHEARSE_S = 2.0
#: A replay that takes longer is given up.
LONGEST_REHEARSAL = timedelta(hours=6)


class RehearsalBook(Protocol):
    """Where rehearsals are stored."""

    def claim(self, cluster: str, now: datetime) -> Rehearsal | None: ...
    def advance(self, name: str, progress: float, now: datetime, left_s: float | None) -> bool: ...
    def end(
        self, name: str, now: datetime, *, result: Mapping[str, Any] | None = None, problem: Said = NO_WORDS
    ) -> None: ...


class RehearsalChild(Protocol):
    """A replay under way. `result` is None while it is; a text is why it failed."""

    def progress(self) -> float: ...
    def result(self) -> Mapping[str, Any] | Said | None: ...
    def stop(self) -> None: ...


class Rehearsing:
    """A duty of the scheduler: one rehearsal of the cluster at a time."""

    def __init__(
        self, book: RehearsalBook, cluster: str, begin: Callable[[Rehearsal], RehearsalChild], clock: Clock
    ) -> None:
        """`begin` raises OSError or ValueError where there is nothing to replay."""
        self._book, self._cluster, self._begin, self._clock = book, cluster, begin, clock
        self._now: tuple[Rehearsal, RehearsalChild, datetime] | None = None
        self._pace = Pace()

    def __call__(self) -> None:
        if self._now is None:
            self._start()
        else:
            self._look(*self._now)

    def close(self) -> None:
        """Ends what is under way with the process."""
        if self._now is not None:
            asked, child, _ = self._now
            child.stop()
            self._finish(asked, child, problem=say("processes.rehearsal_stopped"))

    def _start(self) -> None:
        now = self._clock.now()
        asked = self._book.claim(self._cluster, now)
        if asked is None:
            return
        try:
            child = self._begin(asked)
        except (OSError, ValueError) as error:
            self._book.end(asked.id, now, problem=said_by(error))
            return
        log.info("rehearsing a rule change", rehearsal=asked.id, file=asked.file)
        self._now, self._pace = (asked, child, now), Pace()

    def _look(self, asked: Rehearsal, child: RehearsalChild, begun: datetime) -> None:
        now = self._clock.now()
        result = child.result()
        if isinstance(result, str):
            self._finish(asked, child, problem=result)
        elif result is not None:
            self._finish(asked, child, result=result)
        elif now - begun > LONGEST_REHEARSAL:
            hours = LONGEST_REHEARSAL.total_seconds() / 3600
            why = say("processes.rehearsal_too_long", hours=hours)
            self._finish(asked, child, problem=why)
        else:
            progress = child.progress()
            left_s = self._pace.left_s(progress, now.timestamp())
            if not self._book.advance(asked.id, progress, now, left_s):
                self._finish(asked, child)

    def _finish(
        self,
        asked: Rehearsal,
        child: RehearsalChild,
        *,
        result: Mapping[str, Any] | None = None,
        problem: Said = NO_WORDS,
    ) -> None:
        if result is not None or problem:  # first: what the database does not take is given again
            self._book.end(asked.id, self._clock.now(), result=result, problem=problem)
        child.stop()
        self._now = None
