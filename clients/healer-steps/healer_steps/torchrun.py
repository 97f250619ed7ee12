"""torchrun whose agent leaves a bad node by itself.

    python -m healer_steps.torchrun --nnodes=4:5 --rdzv-backend=c10d ... train.py

It takes torchrun's options, and is torchrun until healer has taken this node out of service (the file that
the node's follower writes). Then the agent here leaves: it makes the other agents meet again without it, ends
its own workers, and ends with status 0, so that `srun --kill-on-bad-exit` does not end the others. They go on
from their checkpoint, by torch's own means, on the nodes that are left.

It leaves only where the others can go on: with the consent of the job's owner (`healer:swap=N` in the job's
comment), with at least N nodes and torchrun's minimum left, and never from the node that keeps the
rendezvous. Otherwise, and where anything is unknown, it does nothing: it then is torchrun and no more.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta, timezone
from typing import Any, Mapping

from healer_steps import _verdict

#: How often the file is looked at; how long until it is tried again where the others could not go on.
LOOK_S, AGAIN_S = 0.5, 5.0
#: How long the others may take to notice that one leaves, and then to stop their workers and meet again.
NOTICE_S, MEET_S = 5.0, 20.0
#: The workers here get SIGTERM, and SIGKILL after so long; after END_S all that is left here is killed.
TERM_S, END_S = 3.0, 60.0
#: The round after one has left waits so long for further nodes, unless --rdzv-conf says last_call_timeout: as
#: long as the second where exactly the least number is left. torch waits 30 s in each round, as in the first,
#: when the nodes of a job may start apart.
LAST_CALL, LAST_CALL_OF_LEAST = timedelta(seconds=5), timedelta(seconds=0.5)
#: Another agent counts while its last keep-alive is no older than so many intervals.
BEATS = 2
#: For so long the job's comment is believed; and attempts where the rendezvous does not answer.
CONSENT_S, ATTEMPTS = 60.0, 3
_SWAP = re.compile(r"healer:swap=([1-9][0-9]{0,4})\Z")
#: What this needs of torch's handler beside its documented face. Where it is missing nothing is done.
_NEEDED = (
    "_heartbeat_lock",
    "_op_executor",
    "_settings",
    "_state_holder",
    "_get_deadline",
    "_stop_heartbeats",
)


def say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        seen = "".join(letter if letter.isprintable() else "?" for letter in text)
        sys.stderr.write("healer-steps: %s\n" % seen)
        sys.stderr.flush()


# --- what Slurm says: whether the job's owner agrees, and whether the node is drained -----------------------


def scontrol(environ: Mapping[str, str], *words: str) -> list[str] | None:
    """The lines that `scontrol show` prints; None outside of a job, without it, and where it fails."""
    program = shutil.which("scontrol", path=environ.get("PATH"))
    if program is None or not environ.get("SLURM_JOB_ID", "").isdigit():
        return None
    try:
        done = subprocess.run(
            [program, "show", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return [line.strip() for line in done.stdout.decode("utf-8", "replace").splitlines()]


def consent(environ: Mapping[str, str]) -> int | None:
    """With how many nodes the job goes on: HEALER_SWAP, else the word in the job's comment. None: no consent,
    or it is not known."""
    told = environ.get("HEALER_SWAP", "")
    if told:
        return int(told) if told.isdigit() and int(told) > 0 else None
    lines = scontrol(environ, "job", environ.get("SLURM_JOB_ID", "")) or []
    words = " ".join(line.partition("=")[2] for line in lines if line.startswith(("Comment=", "Extra=")))
    found = [match.group(1) for match in map(_SWAP.match, re.split(r"[\s,]+", words)) if match]
    return max(int(number) for number in found) if found else None


def contradicted(environ: Mapping[str, str], node: str) -> str:
    """What Slurm says against the verdict. It is the second word: who can write the verdict cannot drain."""
    if shutil.which("scontrol", path=environ.get("PATH")) is None or not environ.get("SLURM_JOB_ID"):
        return ""  # in a container, or without Slurm: nobody to ask
    lines = scontrol(environ, "node", node)
    if lines is None:
        return "Slurm does not say whether %s is drained" % node
    drained = any(line.startswith("State=") and "DRAIN" in line.split()[0] for line in lines)
    if drained and any(line.startswith("Reason=healer:") for line in lines):
        return ""
    return "Slurm does not show %s as drained by healer" % node


# --- leaving ---------------------------------------------------------------------------------------------


class Operation:
    """An operation on the state that all agents of the rendezvous share. torch calls it with the state as it
    is now, again after each change that it asks for, and until it says FINISH: so what it decides is of one
    state, and two agents that want to leave at once see each other."""

    def __init__(self, actions: Any, need: int) -> None:
        self.actions, self.need = actions, need
        self.round: int | None = None
        self.others = 0
        self.left, self.why = False, ""

    def __call__(self, ctx: Any, _deadline: float) -> Any:
        state, node = ctx.state, ctx.node
        if node in state.participants and not self.left:
            self.round, self.others = state.round, len(state.participants) - 1
            return self.actions.REMOVE_FROM_PARTICIPANTS if self._may(ctx) else self.actions.FINISH
        if self.round is None:
            return self.actions.FINISH  # it has not joined yet
        self.left = True
        # A node that waits is what makes the other agents stop their workers and meet again.
        if state.complete and state.round == self.round and node not in state.wait_list:
            return self.actions.ADD_TO_WAIT_LIST
        return self.actions.FINISH

    def _may(self, ctx: Any) -> bool:
        state = ctx.state
        if state.closed or not state.complete or state.wait_list:
            return False  # it is changing: the next look may find it at rest
        # torch counts a silent agent for three intervals: it may be gone already.
        since = datetime.now(timezone.utc) - ctx.settings.keep_alive_interval * BEATS
        listed = set(state.participants) | set(getattr(state, "redundancy_list", ()))
        others = sum(state.last_heartbeats.get(node, since) > since for node in listed - {ctx.node})
        if others < self.need:
            self.why = "%d nodes would be left, and %d are needed" % (others, self.need)
        return not self.why


class Withdrawal:
    """Takes this agent from the list of those that wait, once the others have met or the time is over."""

    def __init__(self, actions: Any, left_round: int, *, late: bool) -> None:
        self.actions, self.left_round, self.late = actions, left_round, late
        self.done = False

    def __call__(self, ctx: Any, _deadline: float) -> Any:
        over = self.late or ctx.state.closed or ctx.state.round != self.left_round
        if over and ctx.node in ctx.state.wait_list:
            return self.actions.REMOVE_FROM_WAIT_LIST
        self.done = over
        return self.actions.FINISH


class Watched:
    """torch's rendezvous handler, and a look at the verdict wherever the agent asks it something."""

    def __init__(self, handler: Any, params: Any, environ: Mapping[str, str], restarts: int) -> None:
        """`restarts`: how many failures of workers the agents survive."""
        self._handler, self._params, self._environ = handler, params, environ
        self._restarts, self._began, self._changes = restarts, False, False
        self._file = environ.get("HEALER_VERDICT_FILE") or _verdict.FILE
        self._names = _verdict.names_of(environ)
        self._look_at, self._fails = float("-inf"), 0
        self._agreed: tuple[float, int | None] = (float("-inf"), None)
        self._said: set[str] = set()
        self._last_call: Any = None
        self._noted_round, self._least_is_left = -1, False
        self.left = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    def num_nodes_waiting(self) -> int:
        """The agent asks this while its workers are well. Where it is more than 0 the agent stops them and
        meets the others again."""
        self._look()
        waiting = self._handler.num_nodes_waiting()
        if waiting:
            self._changes = True
            self._notice()
        return waiting

    def next_rendezvous(self) -> Any:
        """Of the agent's start, and after each end of a worker here or elsewhere."""
        if self._began and not self._changes:
            self._restarts -= 1
            self._notice()
        self._look()
        self._began, self._changes = True, False
        self._set_last_call()
        return self._handler.next_rendezvous()

    def shutdown(self) -> bool:
        """Ends the rendezvous, and with it the work of all others: not because of a bad node."""
        return self._leave() or self._handler.shutdown()

    def _look(self) -> None:
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_S
        if self._leave():
            from torch.distributed.elastic.multiprocessing.api import SignalException

            # As if Slurm had ended this agent: torch ends its workers, and leaves the rendezvous open.
            raise SignalException("healer: this node is out of service", signal.SIGTERM)

    def _leave(self) -> bool:
        """Whether this agent has left. Never raises: what is wrong here must not end a training."""
        if self.left or self._fails >= ATTEMPTS:
            return self.left
        try:
            told = _verdict.leave_of(self._file, self._names)
            if told is None:
                return False
            why = self._unfit() or contradicted(self._environ, told.node) or self._tried(told)
        except Exception as error:
            self._fails += 1
            why = "%s: %s" % (type(error).__name__, error)
        if why:
            self._look_at = time.monotonic() + AGAIN_S
            if why not in self._said:
                self._said.add(why)
                say("healer has taken this node out of service, and the job stays here: %s" % why)
        return self.left

    def _unfit(self) -> str:
        """Why an agent like this one never leaves."""
        handler = self._handler
        if any(not hasattr(handler, name) for name in _NEEDED):
            return "it needs --rdzv-backend=c10d and a torch that this program knows"
        if getattr(handler, "use_agent_store", False):
            return "TORCH_DISABLE_SHARE_RDZV_TCP_STORE is not 1, and the others would look for a store here"
        if self._restarts < 1:
            return "no restart is left (--max-restarts), so a failure meanwhile would end the training"
        if keeps_store(self._params):
            return "this node keeps the rendezvous (--rdzv-endpoint)"
        if time.monotonic() - self._agreed[0] > CONSENT_S:
            self._agreed = time.monotonic(), consent(self._environ)
        return "" if self._agreed[1] else "no healer:swap=N in the job's comment, and no HEALER_SWAP"

    def _tried(self, told: _verdict.Leave) -> str:
        """Why this agent stays; empty: it has left, or tries again at the next look."""
        from torch.distributed.elastic.rendezvous import dynamic_rendezvous

        handler, actions = self._handler, dynamic_rendezvous._Action
        leaving = Operation(actions, max(self._agreed[1] or 0, handler._settings.min_nodes))
        handler._store.set(self._key("left"), "1")
        noticed = self._key("noticed")
        try:
            with handler._heartbeat_lock:
                handler._op_executor.run(leaving, handler._get_deadline(timedelta(seconds=MEET_S)))
        finally:
            self.left = leaving.left
        if self.left:
            end_in(END_S)
            say("%s is out of service (%s): this agent leaves, the others go on" % (told.node, told.reason))
            self._wait_noticed(noticed, leaving.others)
            threading.Thread(target=end_workers, daemon=True).start()
            self._withdraw(actions, leaving.round or 0)
        return leaving.why

    def _withdraw(self, actions: Any, left_round: int) -> None:
        """Waits until the others have left the old round: one that waits makes them meet again once."""
        handler, until = self._handler, time.monotonic() + MEET_S
        try:
            while True:
                step = Withdrawal(actions, left_round, late=time.monotonic() > until)
                with handler._heartbeat_lock:
                    handler._op_executor.run(step, handler._get_deadline(timedelta(seconds=MEET_S)))
                if step.done:
                    break
                time.sleep(0.1)
        except Exception as error:
            say("%s: %s; the others notice by themselves" % (type(error).__name__, error))
        handler._stop_heartbeats()

    # --- the others. Notes in the store of the rendezvous, by the round that one has left

    def _key(self, what: str) -> str:
        handler = self._handler
        return "healer.%s.%s.%d" % (what, handler._settings.run_id, handler._state_holder.state.round)

    def _is_left(self) -> bool:
        """Whether one that runs this program leaves the present round."""
        return bool(self._handler._store.check([self._key("left")]))

    def _notice(self) -> None:
        """No agent stops its workers before all have noticed: a worker whose peers end counts as failed, but
        where its agent is about to stop it anyway."""
        with contextlib.suppress(Exception):
            with self._handler._heartbeat_lock:
                self._handler._state_holder.sync()
            state = self._handler._state_holder.state
            if state.complete and self._noted_round != state.round and self._is_left():
                self._noted_round, others = state.round, len(state.participants)
                spares = len(getattr(state, "redundancy_list", ()))
                self._least_is_left = others <= self._handler._settings.min_nodes and not spares
                self._handler._store.add(self._key("noticed"), 1)
                self._wait_noticed(self._key("noticed"), others)

    def _wait_noticed(self, key: str, others: int) -> None:
        with contextlib.suppress(Exception):
            until = time.monotonic() + NOTICE_S
            while self._handler._store.add(key, 0) < others and time.monotonic() < until:
                time.sleep(0.05)

    def _set_last_call(self) -> None:
        with contextlib.suppress(Exception):
            timeout = self._handler._settings.timeout
            self._last_call = self._last_call or timeout.last_call
            wanted = LAST_CALL_OF_LEAST if self._least_is_left else LAST_CALL
            marked = "last_call_timeout" not in self._params.config and self._is_left()
            timeout._last_call = min(wanted, self._last_call) if marked else self._last_call


def keeps_store(params: Any) -> bool:
    """Whether the store of the rendezvous is, or may be, in this node's agent."""
    if params.backend != "c10d" or params.get("store_type") == "file":
        return False
    told = params.get_as_bool("is_host")
    if told is not None:
        return told
    from torch.distributed.elastic.rendezvous import utils

    host, _ = utils.parse_rendezvous_endpoint(params.endpoint, default_port=29400)
    return utils._matches_machine_hostname(host)


# --- an end in time --------------------------------------------------------------------------------------


def end_workers() -> None:
    """The others have noticed. The sooner the workers here are gone, the sooner theirs end that wait."""
    for number, pause_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, 0.0)):
        for pid in descendants(os.getpid()):
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
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


def descendants(pid: int) -> list[int]:
    """The processes that this one has started, and theirs."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % name, encoding="utf-8", errors="replace") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # it has ended meanwhile
    found = [pid]
    for one in found:
        found.extend(child for child, parent in parents.items() if parent == one)
    return found[1:]


# --- torchrun --------------------------------------------------------------------------------------------


def watch(environ: Mapping[str, str], restarts: int) -> list[Watched]:
    """From now on torch's agent gets a handler that looks at the verdict; the list fills with them."""
    from torch.distributed.elastic.rendezvous import registry

    made: list[Watched] = []
    original = registry.get_rendezvous_handler

    def get_rendezvous_handler(params: Any) -> Any:
        made.append(Watched(original(params), params, environ, restarts))
        return made[-1]

    registry.get_rendezvous_handler = get_rendezvous_handler
    return made


def main(argv: list[str] | None = None) -> int:
    # The agents' own store keeps the addresses of the last round, and lies on a node that may leave.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    from torch.distributed import run

    made = watch(os.environ, run.parse_args(argv).max_restarts)
    try:
        run.main(argv)
    except Exception:
        if any(one.left for one in made):
            return 0
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
