"""torchrun whose agent leaves a bad node by itself.

    python -m healer_steps.torchrun --nnodes=4:5 --rdzv-backend=c10d ... train.py

It takes torchrun's options, and is torchrun until healer has taken this node out of service (the file that
the node's follower writes). Then the agent here leaves: it makes the other agents meet again without it, ends
its own workers, and ends with status 0, so that `srun --kill-on-bad-exit` does not end the others. They go on
from their checkpoint, by torch's own means, on the nodes that are left.

It leaves only where the others can go on: with the consent of the job's owner (`healer:swap=N` in the job's
comment), with at least N nodes and torchrun's minimum left, and never from the node that keeps the
rendezvous. Otherwise, and where anything is unknown, it does nothing: it then is torchrun and no more.

With `--start-method=forkserver` workers are forked from a process that has already imported torch
(`_forked.py`), and each restart takes some seconds less.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing.forkserver
import os
import re
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import Any, Mapping

from healer_steps import _forked, _rendezvous, _verdict
from healer_steps._slurm import consent, contradicted, say

#: How often the file is looked at, as often as torch looks at its workers; how long until the next attempt
#: where the agents are meeting, as each attempt asks Slurm; and where the others could not go on.
LOOK_S, RETRY_S, AGAIN_S = 0.1, 0.5, 5.0
#: How long the others may take to notice that one leaves, and then to stop their workers and meet again.
NOTICE_S, MEET_S = 5.0, 20.0
#: The workers here get SIGTERM, and SIGKILL after so long; after END_S all that is left here is killed.
TERM_S, END_S = 3.0, 60.0
#: torch kills workers that have not ended so long after it asked them to.
STOP_S = 30.0
#: Rounds after one has left wait so long for further nodes, unless --rdzv-conf says last_call_timeout: not at
#: all where exactly the least number is left. torch waits 30 s in each round that has not the most nodes, as
#: in the first, when the nodes of a job may start apart; one that has left never comes.
LAST_CALL, LAST_CALL_OF_LEAST = timedelta(seconds=5), timedelta(0)
#: For so long the job's comment is believed; and attempts where the rendezvous does not answer.
CONSENT_S, ATTEMPTS = 60.0, 3
#: torch's backend c10d, with a handler that can leave.
BACKEND = "healer-c10d"
STAYS = "healer has taken this node out of service, and the job stays here: %s"


def decision(environ: Mapping[str, str]) -> _verdict.Verdict | None:
    file = environ.get("HEALER_VERDICT_FILE") or _verdict.FILE
    return _verdict.leave_of(file, _verdict.names_of(environ))


# --- leaving ---------------------------------------------------------------------------------------------


class Watched:
    """torch's rendezvous handler, and a look at the verdict wherever the agent asks it something."""

    def __init__(self, params: Any, environ: Mapping[str, str], restarts: int) -> None:
        """`restarts`: how many failures of workers the agents survive."""
        from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend

        backend, self._store = c10d_rendezvous_backend.create_backend(params)
        self._shared = _rendezvous.Shared(backend, BACKEND)
        self._addr = params.local_addr or socket.getfqdn()
        self._interval_s = params.get_as_int("keep_alive_interval", 5)
        self._handler = self._made(params)
        self._params, self._environ = params, environ
        self._restarts, self._began, self._changes = restarts, False, False
        self._look_at, self._fails = float("-inf"), 0
        self._agreed: tuple[float, int | None] = (float("-inf"), None)
        self._said: set[str] = set()
        self._noted_round = -1
        #: How many agents there were when they last met, with those that wait for a place, and how many had
        #: left by then.
        self._agents, self._gone = sys.maxsize, 0
        #: This agent stops its workers, to meet the others again.
        self._stops = threading.Event()
        self.left = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    def _made(self, params: Any) -> Any:
        """The handler that torch makes of these parameters, but for the last call."""
        from torch.distributed.elastic.rendezvous import dynamic_rendezvous

        watched = self

        class Timeout(dynamic_rendezvous.RendezvousTimeout):
            @property
            def last_call(self) -> timedelta:
                """torch asks when the least number of nodes has come."""
                return min(super().last_call, watched.last_call())

        seconds = [
            params.get_as_int(name + "_timeout") for name in ("join", "last_call", "close", "heartbeat")
        ]
        return dynamic_rendezvous.DynamicRendezvousHandler.from_backend(
            params.run_id, self._store, self._shared, params.min_nodes, params.max_nodes, self._addr,
            Timeout(*(None if one is None else timedelta(seconds=one) for one in seconds)),
            self._interval_s, params.get_as_int("keep_alive_max_attempt", 3),
        )  # fmt: skip

    def num_nodes_waiting(self) -> int:
        """The agent asks this while its workers are well. Where it is more than 0 the agent stops them and
        meets the others again."""
        self._look()
        waiting = self._handler.num_nodes_waiting()
        if waiting:
            self._changes = True
            self._notice(ended=False)
            self._stops.set()
            threading.Thread(target=self._hurry, daemon=True).start()
        return waiting

    def next_rendezvous(self) -> Any:
        """Of the agent's start, and after each end of a worker here or elsewhere."""
        ended = self._began and not self._changes
        self._restarts -= ended
        self._stops.clear()
        self._look()
        if ended:
            self._notice(ended=True)
        self._began, self._changes = True, False
        found = self._handler.next_rendezvous()
        with contextlib.suppress(Exception):
            self._agents = found.world_size + len(getattr(self._shared.read(), "redundancy_list", ()))
            self._gone = self._store.add(self._key("gone", 0), 0)
        return found

    def shutdown(self) -> bool:
        """Ends the rendezvous, and with it the work of all others: not because of a bad node."""
        return self._leave() or self._handler.shutdown()

    def _look(self) -> None:
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_S
        if self._leave():
            from torch.distributed.elastic.multiprocessing import SignalException

            # As if Slurm had ended this agent: torch ends its workers, and leaves the rendezvous open.
            raise SignalException("healer: this node is out of service", signal.SIGTERM)

    def _leave(self) -> bool:
        """Whether this agent has left. Never raises: what is wrong here must not end a training."""
        if self.left or self._fails >= ATTEMPTS:
            return self.left
        try:
            decided = decision(self._environ)
            if decided is None:
                return False
            self._look_at = time.monotonic() + RETRY_S
            why = self._unfit() or contradicted(self._environ, decided.node) or self._tried(decided)
        except Exception as error:
            self._fails += 1
            why = "%s: %s" % (type(error).__name__, error)
        if why:
            self._look_at = time.monotonic() + AGAIN_S
            if why not in self._said:
                self._said.add(why)
                say(STAYS % why)
        return self.left

    def _unfit(self) -> str:
        """Why an agent like this one never leaves."""
        if getattr(self._handler, "use_agent_store", False):
            return "TORCH_DISABLE_SHARE_RDZV_TCP_STORE is not 1, and the others would look for a store here"
        if self._restarts < 1:
            return "no restart is left (--max-restarts), so a failure meanwhile would end the training"
        if keeps_store(self._params):
            return "this node keeps the rendezvous (--rdzv-endpoint)"
        if time.monotonic() - self._agreed[0] > CONSENT_S:
            self._agreed = time.monotonic(), consent(self._environ)
        return "" if self._agreed[1] else "no healer:swap=N in the job's comment, and no HEALER_SWAP"

    def _hurry(self) -> None:
        """torch gives workers 30 s to end, and a frozen one takes them all, while the others wait for this
        agent. Where healer takes the node out meanwhile, they get no more than when the agent leaves."""
        until = time.monotonic() + STOP_S
        with contextlib.suppress(Exception):
            stopping = workers()
            while self._stops.is_set() and time.monotonic() < until:
                if decision(self._environ) is not None and not self._unfit():
                    end_workers(stopping)
                    return
                time.sleep(LOOK_S)

    def _tried(self, decided: _verdict.Verdict) -> str:
        """Why this agent stays; empty: it has left, or tries again at the next look."""
        need = max(self._agreed[1] or 0, self._params.min_nodes)
        leaving = _rendezvous.Leaving(self._addr, need, timedelta(seconds=self._interval_s))

        def change(state: Any) -> bool:
            left_round = state.round
            if not leaving(state):
                return False
            self._store.set(self._key("left", left_round), "1")
            return True

        state = self._shared.edit(change)
        self.left = leaving.node is not None
        if self.left:
            end_in(END_S)
            with contextlib.suppress(Exception):
                self._store.add(self._key("gone", 0), 1)
            say(
                "%s is out of service (%s): this agent leaves, the others go on"
                % (decided.node, decided.reason)
            )
            self._wait_noticed(state.round, len(state.participants))
            threading.Thread(target=end_workers, daemon=True).start()
            self._withdraw(leaving.node, state.round)
        return leaving.why

    def _withdraw(self, node: Any, left_round: int) -> None:
        """Waits until the others have left the old round: one that waits makes them meet again once."""
        until = time.monotonic() + MEET_S

        def change(state: Any) -> bool:
            return _rendezvous.withdraw(state, node, left_round, late=time.monotonic() > until)

        try:
            while node in getattr(self._shared.edit(change), "wait_list", ()):
                time.sleep(0.1)
        except Exception as error:
            say("%s: %s; the others notice by themselves" % (type(error).__name__, error))
        self._shared.is_left = True

    # --- the others. Notes in the store of the rendezvous, by the round that one has left

    def _key(self, what: str, number: int) -> str:
        return "healer.%s.%s.%d" % (what, self._params.run_id, number)

    def _is_left(self, number: int) -> bool:
        """Whether one that runs this program leaves, or has left, this round."""
        return bool(self._store.check([self._key("left", number)]))

    def _notice(self, *, ended: bool) -> None:
        """No agent stops its workers before all have noticed: a worker whose peers end counts as failed, but
        where its agent is about to stop it anyway. One whose workers have `ended` does not look again before
        it meets the others: one that leaves from now on need not wait for it."""
        with contextlib.suppress(Exception):
            state = self._shared.read()
            if not state.complete or self._noted_round == state.round:
                return
            is_left = self._is_left(state.round)
            if is_left or ended:
                self._noted_round = state.round
                self._store.add(self._key("noticed", state.round), 1)
            if is_left:
                self._wait_noticed(state.round, len(state.participants))

    def _wait_noticed(self, number: int, others: int) -> None:
        with contextlib.suppress(Exception):
            until = time.monotonic() + NOTICE_S
            while self._store.add(self._key("noticed", number), 0) < others and time.monotonic() < until:
                time.sleep(0.05)

    def last_call(self) -> timedelta:
        """No more than this is waited for further nodes after the least number has come. One may have left
        after this agent had begun to meet the others."""
        with contextlib.suppress(Exception):
            number = self._shared.read().round
            gone = self._store.add(self._key("gone", 0), 0)
            has_left = gone or self._is_left(number - 1) or self._is_left(number)
            if has_left and "last_call_timeout" not in self._params.config:
                is_least = self._agents - (gone - self._gone) <= self._params.min_nodes
                return LAST_CALL_OF_LEAST if is_least else LAST_CALL
        return timedelta.max


def keeps_store(params: Any) -> bool:
    """Whether the store of the rendezvous is, or may be, in this node's agent."""
    if params.get("store_type") == "file":
        return False
    is_host = params.get_as_bool("is_host")
    if is_host is not None:
        return is_host
    from torch.distributed.elastic.rendezvous import utils

    return is_here(utils.parse_rendezvous_endpoint(params.endpoint, default_port=29400)[0])


def is_here(host: str) -> bool:
    """Whether this is, or may be, a name or an address of this machine. torch compares with its name and the
    addresses of that name."""
    own = socket.gethostname()
    try:
        there = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        here = {address[0] for *_, address in socket.getaddrinfo(own, 0, type=socket.SOCK_STREAM)}
    except OSError:
        return True
    return host in (own, socket.getfqdn()) or any(
        address[0] in here or can_bind(family, address) for family, *_, address in there
    )


def can_bind(family: int, address: Any) -> bool:
    """An address of another machine cannot be bound."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as one:
            one.bind(address)
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


# --- an end in time --------------------------------------------------------------------------------------


def end_workers(pids: list[int] | None = None) -> None:
    """The others have noticed. The sooner the workers here are gone, the sooner theirs end that wait."""
    for number, pause_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, 0.0)):
        for pid in workers() if pids is None else pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        time.sleep(pause_s)


def end_in(seconds: float) -> None:
    """After this time all that this agent has started is killed, and it ends, whatever hangs."""
    timer = threading.Timer(seconds, _end)
    timer.daemon = True
    timer.start()


def _end() -> None:
    say("the workers did not end in time: they are killed")
    for pid in descendants(os.getpid(), parents()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


def workers() -> list[int]:
    """This agent's workers, and what they have started. Without the helpers of its multiprocessing: workers
    fork from one, the other removes from /dev/shm what is left."""
    own, parent_of = os.getpid(), parents()
    return [pid for pid in descendants(own, parent_of) if parent_of[pid] != own or not is_helper(pid)]


def is_helper(pid: int) -> bool:
    try:
        with open("/proc/%s/cmdline" % pid, "rb") as file:
            return (
                re.search(rb"from multiprocessing\.(forkserver|resource_tracker) ", file.read()) is not None
            )
    except OSError:
        return False


def parents() -> dict[int, int]:
    """The parent of each process."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % name, encoding="utf-8", errors="replace") as file:
                found[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # it has ended meanwhile
    return found


def descendants(pid: int, parent_of: Mapping[int, int]) -> list[int]:
    """The processes that this one has started, and theirs."""
    found = [pid]
    for one in found:
        found.extend(child for child, parent in parent_of.items() if parent == one)
    return found[1:]


# --- torchrun --------------------------------------------------------------------------------------------


def say_unfit(environ: Mapping[str, str]) -> None:
    """Of an agent whose rendezvous is left to torch."""
    while decision(environ) is None:
        time.sleep(AGAIN_S)
    say(STAYS % "it needs --rdzv-backend=c10d, without --standalone")


def main(argv: list[str] | None = None) -> int:
    # The agents' own store keeps the addresses of the last round, and lies on a node that may leave.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import record
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    args = run.parse_args(argv)
    forks = _forked.use(args)
    made: list[Watched] = []

    def create(params: Any) -> Watched:
        if forks:
            # The imports run while the agents meet: the agent of a spare may wait long for its first worker.
            multiprocessing.forkserver.ensure_running()
        made.append(Watched(params, os.environ, args.max_restarts))
        return made[-1]

    if args.rdzv_backend == "c10d" and not args.standalone:
        rendezvous_handler_registry.register(BACKEND, create)
        args.rdzv_backend = BACKEND
    else:
        threading.Thread(target=say_unfit, args=(os.environ,), daemon=True).start()
    try:
        record(run.run)(args)
    except Exception:
        if any(one.left for one in made):
            return 0
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
