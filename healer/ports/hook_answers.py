"""What the answer to a hook of Slurm rests on."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

import msgspec

from healer.model import GateFacts, HookAsk, Incident, Permit, Run, Slot, Verdict


class HookStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What healer thinks of a node, by its worst open incident, and that incident's title."""

    verdict: Verdict
    reason: str


class HookTx(Protocol):
    """One transaction under the gate's lock, like any drain."""

    facts: GateFacts

    def known(self, ask: HookAsk) -> Permit | None: ...

    def cause(self, slot: Slot) -> tuple[Incident, Run] | None:
        """What the node's slot was granted for."""
        ...

    def add(self, permit: Permit) -> None:
        """Recorded in the audit."""
        ...


class HookBook(Protocol):
    """What is stored for hooks. Raises Unavailable."""

    def standings(self, cluster: str, now: datetime) -> Mapping[str, HookStanding]:
        """By node; those with no open incident and on no probation are not in it."""
        ...

    def is_held(self, cluster: str, node: str) -> bool:
        """Whether the node's slot is granted: only then a permit can be had."""
        ...

    def known(self, ask: HookAsk) -> Permit | None:
        """What this very hook was permitted before."""
        ...

    def note(self, permit: Permit, now: datetime) -> None:
        """Keeps it, unless this very hook has one."""
        ...

    def asking(self, cluster: str, now: datetime) -> AbstractContextManager[HookTx]: ...
