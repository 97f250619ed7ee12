"""The state that the agents of torch's rendezvous share, and how one of them leaves it.

It is an object of torch, pickled. Only its public fields are used; where one is missing an error is raised
before anything is written.
"""

from __future__ import annotations

import os
import pickle
from datetime import datetime, timedelta, timezone
from typing import Any, Callable

#: Another agent counts while its last keep-alive is no older than so many intervals.
BEATS = 2


class Shared:
    """torch's backend, which keeps the state, for torch's handler and for changes of our own. It has the
    methods of torch's RendezvousBackend, but does not inherit: this module needs no torch."""

    def __init__(self, backend: Any, name: str) -> None:
        self._backend, self.name, self.is_left = backend, name, False

    def get_state(self) -> Any:
        """None where this agent has left: then its handler finds nothing that it would have to keep alive."""
        return None if self.is_left else self._backend.get_state()

    def set_state(self, state: bytes, token: Any = None) -> Any:
        return None if self.is_left else self._backend.set_state(state, token)

    def read(self) -> Any:
        return self.edit(lambda _: False)

    def edit(self, change: Callable[[Any], bool]) -> Any:
        """The state, changed where `change` says so. It is written only where nothing else was since it was
        read, else `change` is asked again: so two agents that want to leave at once see each other, and the
        keep-alive of this one cannot undo it."""
        while True:
            found = self._backend.get_state()
            if found is None:
                return None
            state = pickle.loads(found[0])  # noqa: S301 - torch's handler loads the same bytes
            if not change(state):
                return state
            written = self._backend.set_state(pickle.dumps(state), found[1])
            if written is not None and written[2]:
                return state


class Leaving:
    """The change by which this agent leaves a round. `node`: its entry, once it has."""

    def __init__(self, addr: str, need: int, interval: timedelta) -> None:
        self._own, self._need, self._interval = (addr, os.getpid()), need, interval
        self.node: Any = None
        self.why = ""

    def __call__(self, state: Any) -> bool:
        self.node, self.why = None, ""
        found = [node for node in state.participants if (node.addr, node.pid) == self._own]
        if len(found) != 1 or state.closed or not state.complete or state.wait_list:
            return False  # it has not joined yet, or the round is changing: the next look may find it at rest
        now = datetime.now(timezone.utc)
        # torch counts a silent agent for three intervals: it may be gone already.
        since = now - self._interval * BEATS
        listed = {*state.participants, *getattr(state, "redundancy_list", ())} - {found[0]}
        others = sum(state.last_heartbeats.get(node, since) > since for node in listed)
        if others < self._need:
            self.why = "%d nodes would be left, and %d are needed" % (others, self._need)
            return False
        self.node = found[0]
        self._take_out(state, now)
        return True

    def _take_out(self, state: Any, now: datetime) -> None:
        """As torch does where a node removes itself, and then adds itself to those that wait."""
        del state.participants[self.node]
        state.last_heartbeats.pop(self.node, None)
        if state.participants:
            # A node that waits is what makes the other agents stop their workers and meet again.
            state.wait_list.add(self.node)
            state.last_heartbeats[self.node] = now
        else:
            state.complete, state.round = False, state.round + 1


def withdraw(state: Any, node: Any, left_round: int, *, late: bool) -> bool:
    """The change that takes the agent from those that wait, once the others have met or the time is over."""
    if node not in state.wait_list or not (late or state.closed or state.round != left_round):
        return False
    state.wait_list.remove(node)
    state.last_heartbeats.pop(node, None)
    return True
