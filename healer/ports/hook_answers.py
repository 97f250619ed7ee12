"""What the answer to a hook of Slurm rests on."""

from datetime import datetime
from typing import Protocol

import msgspec

from healer.model import HookAsk, Permit, Verdict


class HookStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What healer thinks of a node, by its worst open incident, and that incident's title."""

    verdict: Verdict
    reason: str


class Hooks(Protocol):
    """What a hook's answer rests on. Raises Unavailable."""

    def standings(self, cluster: str) -> dict[str, HookStanding]:
        """By node; those with no open incident and on no probation are not in it."""
        ...

    def is_held(self, cluster: str, node: str) -> bool:
        """Whether the node's slot is granted: only then a permit can be had."""
        ...

    def permit(self, ask: HookAsk) -> Permit | None:
        """The gate's permit for this hook to fail, recorded; None where the guards do not allow it now."""
        ...

    def known(self, ask: HookAsk) -> Permit | None:
        """What this very hook was permitted before."""
        ...

    def note_own(self, ask: HookAsk, check: str, at: datetime) -> None:
        """The hook failed at `at` without an answer, because of this check. Known ones are nothing new."""
        ...
