"""Slots that hold nothing any more: the worker alone frees them, as it alone grants them (law 1)."""

from datetime import datetime
from typing import Protocol

import msgspec

from healer.decisions.book_mismatch import slots_over
from healer.model import GateFacts
from healer.ports.transactions import Ledger


class _Releases(Protocol):
    def release_slot(self, node: str, *, at: datetime, why: str) -> None: ...


def free_slots(tx: _Releases, facts: GateFacts, now: datetime) -> GateFacts:
    """Frees them, under the gate's lock; returns the facts without them."""
    over = slots_over(facts, now)
    for slot, why in over:
        tx.release_slot(slot.node, at=now, why=why)
    return without_slots(facts, {slot.node for slot, _ in over})


def free_slots_of(ledger: Ledger, now: datetime) -> None:
    """Frees them where no run asks the gate. It is not locked while no slot is held."""
    with ledger.transaction() as tx:
        if tx.has_slots():
            free_slots(tx, tx.lock_gate(), now)


def without_slots(facts: GateFacts, nodes: set[str]) -> GateFacts:
    if not nodes:
        return facts
    return msgspec.structs.replace(facts, slots=tuple(slot for slot in facts.slots if slot.node not in nodes))
