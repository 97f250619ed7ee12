"""torchrun whose agent leaves a bad node by itself.

    python -m healer_steps.torchrun --nnodes=4:5 --rdzv-backend=c10d ... train.py

It takes torchrun's options, and is torchrun until healer has taken this node out of service (the file that the
node's follower writes). Then the agent here leaves: it makes the other agents meet again without it, ends its own
workers, and ends with status 0, so that `srun --kill-on-bad-exit` does not end the others. They go on from their
checkpoint, by torch's own means, on the nodes that are left.

It leaves only where the others can go on: with the consent of the job's owner (`healer:swap=N` in the job's
comment), with at least N nodes and torchrun's minimum left, and never from the node that keeps the rendezvous.
Otherwise, and where anything is unknown, it does nothing: it then is torchrun and no more.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any, Mapping

from healer_steps import _verdict

#: How often the file is looked at; how long the others may take to notice; and how long all of it may take.
LOOK_S, NOTICE_S, END_S = 0.5, 20.0, 60.0
#: Rounds after the first wait so long for further nodes, unless --rdzv-conf says last_call_timeout. torch waits 30 s
#: as in the first round, when the nodes of a job may start apart.
LAST_CALL_S = 5
#: Attempts where the rendezvous does not answer.
ATTEMPTS = 3
_SWAP = re.compile(r"healer:swap=([1-9][0-9]{0,4})\Z")
#: What this needs of torch's handler beside its documented face. Where it is missing nothing is done.
_NEEDED = ("_heartbeat_lock", "_op_executor", "_settings", "_get_deadline", "_stop_heartbeats")


def say(text: str) -> None:
    try:
        sys.stderr.write("healer-steps: %s\n" % text)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


# --- whether the job's owner agrees ----------------------------------------------------------------------------


def consent(environ: Mapping[str, str]) -> int | None:
    """With how many nodes the job goes on: HEALER_SWAP, else the word in the job's comment. None: no consent,
    or it is not known."""
    told = environ.get("HEALER_SWAP", "")
    if told:
        return int(told) if told.isdigit() and int(told) > 0 else None
    job, scontrol = environ.get("SLURM_JOB_ID", ""), shutil.which("scontrol")
    if not job.isdigit() or scontrol is None:
        return None
    try:
        shown = subprocess.run(
            [scontrol, "show", "job", job],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10, check=False,
        ).stdout.decode("utf-8", "replace")  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    lines = [line.strip().partition("=") for line in shown.splitlines()]
    words = " ".join(value for key, _, value in lines if key in ("Comment", "Extra"))
    found = [match.group(1) for match in map(_SWAP.match, re.split(r"[\s,]+", words)) if match]
    return max(int(number) for number in found) if found else None


# --- leaving ---------------------------------------------------------------------------------------------------


class Operation:
    """An operation on the state that all agents of the rendezvous share. torch calls it with the state as it is
    now, again after each change that it asks for, and until it says FINISH: so what it decides is of one state,
    and two agents that leave at once see each other."""

    def __init__(self, actions: Any, need: int) -> None:
        self.actions, self.need = actions, need
        self.round: int | None = None
        self.left, self.why = False, ""

    def __call__(self, ctx: Any, _deadline: float) -> Any:
        state, node = ctx.state, ctx.node
        if node in state.participants and not self.left:
            self.round, self.why = state.round, self._why_not(state)
            return self.actions.FINISH if self.why else self.actions.REMOVE_FROM_PARTICIPANTS
        if self.round is None:
            self.why = "this agent is not in the rendezvous"
            return self.actions.FINISH
        self.left = True
        # A node that waits is what makes the other agents stop their workers and meet again.
        if state.complete and state.round == self.round and node not in state.wait_list:
            return self.actions.ADD_TO_WAIT_LIST
        return self.actions.FINISH

    def _why_not(self, state: Any) -> str:
        if state.closed or not state.complete or state.wait_list:
            return "the rendezvous is changing"
        others = len(state.participants) - 1 + len(getattr(state, "redundancy_list", ()))
        return (
            "" if others >= self.need else "%d nodes would be left, and %d are needed" % (others, self.need)
        )


class Withdrawal:
    """Takes this agent from the list of those that wait, once the others have met or the time is over."""

    def __init__(self, actions: Any, left_round: int, *, at_once: bool) -> None:
        self.actions, self.left_round, self.at_once = actions, left_round, at_once
        self.done = False

    def __call__(self, ctx: Any, _deadline: float) -> Any:
        over = self.at_once or ctx.state.closed or ctx.state.round != self.left_round
        if over and ctx.node in ctx.state.wait_list:
            return self.actions.REMOVE_FROM_WAIT_LIST
        self.done = over
        return self.actions.FINISH


class Watched:
    """torch's rendezvous handler, and a look at the verdict wherever the agent asks it something."""

    def __init__(self, handler: Any, params: Any, environ: Mapping[str, str]) -> None:
        self._handler, self._params, self._environ = handler, params, environ
        self._file = environ.get("HEALER_VERDICT_FILE") or _verdict.FILE
        self._names = _verdict.names_of(environ)
        self._looked_at, self._fails = float("-inf"), 0
        self._said: set[str] = set()
        self.left = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    def num_nodes_waiting(self) -> int:
        """The agent asks this while its workers are well."""
        self._look()
        return self._handler.num_nodes_waiting()

    def next_rendezvous(self) -> Any:
        """Of the agent's start, and after each end of a worker here or elsewhere."""
        self._look()
        found = self._handler.next_rendezvous()
        self._shorten()
        return found

    def shutdown(self) -> bool:
        """Ends the rendezvous, and the work of all others with it: not because of a bad node."""
        return self._leave(at_once=True) or self._handler.shutdown()

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        if self._leave():
            from torch.distributed.elastic.multiprocessing.api import SignalException

            # As if Slurm had ended this agent: torch ends its workers, and leaves the rendezvous open.
            raise SignalException("healer: this node is out of service", signal.SIGTERM)

    def _leave(self, at_once: bool = False) -> bool:
        """Whether this agent has left. Never raises: what is wrong here must not end a training."""
        if self.left or self._fails >= ATTEMPTS:
            return self.left
        try:
            told = _verdict.leave_of(self._file, self._names)
            if told is None:
                return False
            why = self._tried(told, at_once)
        except Exception as error:
            self._fails += 1
            why = "%s: %s" % (type(error).__name__, error)
        if why and why not in self._said:
            self._said.add(why)
            say("healer has taken this node out of service, and the job stays here: %s" % why)
        return self.left

    def _tried(self, told: _verdict.Leave, at_once: bool) -> str:
        """Why this agent stays; empty: it has left."""
        why = self._unfit()
        if why:
            return why
        least = consent(self._environ)
        if least is None:
            return "no healer:swap=N in the job's comment, and no HEALER_SWAP"
        handler = self._handler
        from torch.distributed.elastic.rendezvous import dynamic_rendezvous

        actions = dynamic_rendezvous._Action
        leaving = Operation(actions, max(least, handler._settings.min_nodes))
        try:
            with handler._heartbeat_lock:
                handler._op_executor.run(leaving, handler._get_deadline(timedelta(seconds=NOTICE_S)))
        finally:
            self.left = leaving.left
        if not leaving.left:
            return leaving.why
        end_in(END_S)
        say("%s is out of service (%s): this agent leaves, the others go on" % (told.node, told.reason))
        self._withdraw(actions, leaving.round or 0, at_once)
        return ""

    def _unfit(self) -> str:
        """Why an agent like this one never leaves."""
        handler = self._handler
        if any(not hasattr(handler, name) for name in _NEEDED):
            return "it needs --rdzv-backend=c10d and a torch that this program knows"
        if getattr(handler, "use_agent_store", False):
            return "TORCH_DISABLE_SHARE_RDZV_TCP_STORE is not 1, so the others would look for a store on this node"
        return "this node keeps the rendezvous (--rdzv-endpoint)" if keeps_store(self._params) else ""

    def _withdraw(self, actions: Any, left_round: int, at_once: bool) -> None:
        """Waits until the others have left the old round, so that none of them finds its peers gone."""
        handler, until = self._handler, time.monotonic() + NOTICE_S
        try:
            while True:
                late = at_once or time.monotonic() > until
                step = Withdrawal(actions, left_round, at_once=late)
                with handler._heartbeat_lock:
                    handler._op_executor.run(step, handler._get_deadline(timedelta(seconds=NOTICE_S)))
                if step.done:
                    break
                time.sleep(0.1)
        except Exception as error:
            say("%s: %s; the others notice by themselves" % (type(error).__name__, error))
        handler._stop_heartbeats()

    def _shorten(self) -> None:
        timeout = getattr(getattr(self._handler, "_settings", None), "timeout", None)
        if hasattr(timeout, "_last_call") and "last_call_timeout" not in self._params.config:
            timeout._last_call = timedelta(seconds=LAST_CALL_S)


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


# --- an end in time --------------------------------------------------------------------------------------------


def end_in(seconds: float) -> None:
    """After this time all that this agent has started is killed, and it ends, whatever hangs."""
    timer = threading.Timer(seconds, _end)
    timer.daemon = True
    timer.start()


def _end() -> None:
    say("the workers did not end in time: they are killed")
    for pid in descendants(os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    os._exit(0)


def descendants(pid: int) -> "list[int]":
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


# --- torchrun --------------------------------------------------------------------------------------------------


def watch(environ: Mapping[str, str]) -> "list[Watched]":
    """From now on torch's agent gets a handler that looks at the verdict; the list fills with them."""
    from torch.distributed.elastic.rendezvous import registry

    made: list[Watched] = []
    original = registry.get_rendezvous_handler

    def get_rendezvous_handler(params: Any) -> Any:
        made.append(Watched(original(params), params, environ))
        return made[-1]

    registry.get_rendezvous_handler = get_rendezvous_handler
    return made


def main(argv: "list[str] | None" = None) -> int:
    # With a store of the agent's, torch 2.4 to 2.13 gives the next round the addresses of the last one.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    from torch.distributed import run

    made = watch(os.environ)
    try:
        run.main(argv)
    except Exception:
        if any(one.left for one in made):
            return 0
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
