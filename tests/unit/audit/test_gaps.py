"""What a restore has lost is a known gap: in its own chain, and in one that began after the backup."""

from datetime import timedelta

import msgspec

from healer.audit import Report, examine, extend, genesis, sign_checkpoint
from healer.audit.export import gap_text
from healer.model import AuditRecord, Checkpoint
from healer.model.run import BACKUP, RESTORED, ChainLink
from tests.support.audit import START, chain_of, record, signer

KEY = signer()
BACKED_UP, AGAIN = START + timedelta(minutes=1), START + timedelta(minutes=9)


def restored(number: int, *, head: int = 5) -> AuditRecord:
    data = {"head": head, "backup_at": BACKED_UP.isoformat(), "runs": 0}
    made = {"at": AGAIN, "verb": RESTORED, "subject": BACKUP, "actor": "bob", "data": data}
    return msgspec.structs.replace(record(number), **made)


def chain(*more: AuditRecord) -> list[ChainLink]:
    return extend("pod1", 0, genesis("pod1"), [*(link.record for link in chain_of(5) if link.record), *more])


def signed(seq: int, minutes: float, cluster: str = "pod1") -> Checkpoint:
    """Of a history that is lost."""
    return sign_checkpoint(KEY, cluster, seq, bytes(32), START + timedelta(minutes=minutes))


def verdict(links: list[ChainLink], *checkpoints: Checkpoint) -> Report:
    return examine(links, checkpoints=checkpoints, keys={KEY.key})


def test_a_lost_checkpoint_is_no_broken_place_and_is_counted() -> None:
    for seq in (6, 7, 40):
        found = verdict(chain(restored(6), record(7)), signed(seq, 5))
        assert found.broken == []
        assert [(gap.head, gap.lost) for gap in found.gaps] == [(5, seq)]
    assert "from after seq 5 to at least seq 40, are lost" in gap_text(found.gaps[0])


def test_gap_that_the_restore_does_not_explain_stays_broken() -> None:
    links = chain(restored(6), record(7))
    for checkpoint in (signed(5, 5), signed(7, 0.5), signed(7, 10), signed(40, 0.5), signed(40, 10)):
        assert verdict(links, checkpoint).broken, checkpoint
    assert verdict(chain(record(6), record(7)), signed(40, 5)).broken, "no restore at all"


def test_a_record_that_was_changed_explains_nothing() -> None:
    links = chain(restored(6), record(7))
    links[5] = msgspec.structs.replace(links[5], record=restored(6, head=0))
    found = verdict(links, signed(7, 5))
    assert [item.seq for item in found.broken] == [6, 7] and found.gaps == []


def test_a_chain_that_began_after_the_backup_is_lost_as_a_whole() -> None:
    links = chain(restored(6))
    found = verdict(links, signed(3, 5, "pod2"))
    assert found.broken == []
    assert [(gap.cluster, gap.lost) for gap in found.gaps] == [("pod1", 0), ("pod2", 3)]
    early = verdict([*links, *chain_of(2, "pod2")], signed(3, 5, "pod2"))
    assert early.broken, "it was there before the restore, which has no record in it"
