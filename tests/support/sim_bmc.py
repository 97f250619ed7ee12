"""Simulated BMCs: power in memory, time through the clock, and what goes wrong with real ones.

Faults: `away` (no answer), `hangs` (takes a reset and never says so), `busy` (refuses for now),
`refuses` (the account), `no-cycle` (knows ForceOff and On alone), `stays-off` (does not come on again),
`task-fails` (takes a reset as a task, which fails).
"""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from healer.model import Power, ResetKind
from healer.model.node import OFF, ON
from healer.ports.clock import Clock
from healer.ports.node_exec import BmcError, BmcUnavailable

__all__ = ["SimBmc"]

#: From power off to power on again in one PowerCycle.
CYCLE_S = 5.0
TASK = "/redfish/v1/TaskService/Tasks/1"


class SimBmc:
    """`ports.Bmc`; any name is a node. `boots` is called for a node whose power has come back."""

    name = "sim"

    def __init__(self, clock: Clock, boots: Callable[[str], None] = lambda _: None) -> None:
        self._clock, self._boots = clock, boots
        self._faults: dict[str, set[str]] = {}
        #: Off, and when it comes on again; None: only on request.
        self._off: dict[str, datetime | None] = {}
        self._lock = threading.Lock()
        self.resets: list[tuple[str, ResetKind]] = []

    def power(self, node: str) -> Power:
        with self._lock:
            self._reached(node)
            self._pass(node)
            kinds = [str(kind) for kind in ResetKind]
            if "no-cycle" in self._of(node):
                kinds.remove(ResetKind.power_cycle)
            state = OFF if node in self._off else ON
            return Power(state=state, system="1", target=f"/redfish/v1/{node}", kinds=tuple(kinds))

    def reset(self, node: str, target: str, kind: ResetKind) -> str | None:
        with self._lock:
            faults = self._reached(node)
            if "busy" in faults:
                raise BmcUnavailable(f"The BMC of {node} is busy.", sent=False)
            if kind is ResetKind.power_cycle and "no-cycle" in faults:
                raise BmcError(f"The BMC of {node} takes no {kind}.")
            self.resets.append((node, kind))
            if "task-fails" not in faults:
                self._switch(node, kind)
            if "hangs" in faults:
                raise BmcUnavailable(f"The BMC of {node} did not answer in time.")
            return TASK if "task-fails" in faults else None

    def task_failed(self, node: str, task: str) -> str | None:
        with self._lock:
            return "the power supply said no" if "task-fails" in self._reached(node) else None

    # --- what drives them ---

    def plant(self, node: str, fault: str) -> None:
        with self._lock:
            self._of(node).add(fault)

    def mend(self, node: str, fault: str) -> None:
        with self._lock:
            self._of(node).discard(fault)

    # --- inside ---

    def _of(self, node: str) -> set[str]:
        return self._faults.setdefault(node, set())

    def _reached(self, node: str) -> set[str]:
        faults = self._of(node)
        if "away" in faults:
            raise BmcUnavailable(f"The BMC of {node} cannot be reached.", sent=False)
        if "refuses" in faults:
            raise BmcError(f"The BMC of {node} does not take healer's account.")
        return faults

    def _switch(self, node: str, kind: ResetKind) -> None:
        stays = "stays-off" in self._of(node)
        if kind is ResetKind.on:
            if node in self._off and not stays:
                self._off[node] = self._clock.now()
        else:
            comes = kind is ResetKind.power_cycle and not stays
            self._off[node] = self._clock.now() + timedelta(seconds=CYCLE_S) if comes else None

    def _pass(self, node: str) -> None:
        comes_at = self._off.get(node)
        if comes_at is not None and comes_at <= self._clock.now():
            del self._off[node]
            self._boots(node)
