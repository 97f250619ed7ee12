"""Reads a chain from its first link to its last and names every broken place.

Works on `ChainLink`s by cluster and seq, from database rows and export lines alike. docs/audit.md says what
it can find and what it cannot.
"""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import groupby
from operator import attrgetter

import msgspec

from healer.audit.chain import by_cluster, genesis, link, moment, record_bytes, signature_holds
from healer.model import AuditRecord, Broken, Checkpoint
from healer.model.run import RESTORED, ChainLink
from healer.text import NO_WORDS, Said, joined, say

#: Broken places named per cluster; further ones are only counted, to bound the memory.
NAMED_MAX = 1000
#: Changed links that are compared pair by pair to find exchanged ones (200 pairs of pairs: 0.1 s).
EXCHANGE_MAX = 200
#: How much the clocks of the database and of the sealer may differ.
CLOCKS = timedelta(seconds=5)


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """The chain continues from a backup: what was sealed after `head`, between the backup and its restore, is
    lost. `lost`: the last number that a checkpoint kept elsewhere proves, 0 if none does. `seq`: of the
    record of the restore, by `by`; 0 where it is in another chain only."""

    cluster: str
    seq: int
    head: int
    backup_at: datetime
    restored_at: datetime
    by: str
    lost: int = 0

    def covers(self, checkpoint: Checkpoint) -> bool:
        """Whether this checkpoint is of lost records."""
        return checkpoint.cluster == self.cluster and (
            checkpoint.seq > self.head
            and self.backup_at - CLOCKS <= checkpoint.at <= self.restored_at + CLOCKS
        )


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification. `heads` and `signed`: cluster -> seq of the last link and of the newest
    valid checkpoint; `keys`: public keys of the checkpoints; `unsealed`: records that wait for the sealer.
    `gaps`: what restores of backups have lost; no broken places.
    """

    broken: list[Broken]
    records: int = 0
    heads: dict[str, int] = {}
    signed: dict[str, int] = {}
    keys: list[str] = []
    unsealed: int = 0
    gaps: list[Gap] = []


def examine(
    links: Iterable[ChainLink],
    *,
    checkpoints: Iterable[Checkpoint] = (),
    unsealed: Iterable[AuditRecord] = (),
    keys: Collection[str] | None = None,
) -> Report:
    """Verifies all clusters in one pass.

    `links` come by cluster, then by seq. `unsealed`: records that have no link and will get none.
    `keys`: the public keys that may sign; with None any key may, so that a forgery with a new key is not
    found.
    """
    signed = by_cluster(sorted(checkpoints, key=attrgetter("seq")))
    late = by_cluster(unsealed)
    walks: dict[str, _Walk] = {}
    for cluster, group in groupby(links, key=attrgetter("cluster")):
        walk = walks.get(cluster) or walks.setdefault(cluster, _Walk(cluster, signed.get(cluster, []), keys))
        walk.read(group)
    for cluster in sorted(signed.keys() | late.keys()):
        walks.setdefault(cluster, _Walk(cluster, signed.get(cluster, []), keys))
    _share_gaps(walks)
    broken = [item for _, walk in sorted(walks.items()) for item in walk.finish(late.get(walk.cluster, []))]
    return Report(
        broken=broken,
        records=sum(walk.count for walk in walks.values()),
        heads={cluster: walk.seq for cluster, walk in sorted(walks.items())},
        signed={cluster: walk.signed for cluster, walk in sorted(walks.items())},
        keys=sorted({checkpoint.key for group in signed.values() for checkpoint in group}),
        gaps=[gap for _, walk in sorted(walks.items()) for gap in walk.restores if gap.seq or gap.lost],
    )


def _share_gaps(walks: "dict[str, _Walk]") -> None:
    """A chain that began after a backup is lost as a whole: the restore, of which it has no record, is in the
    other chains."""
    gaps = [gap for walk in walks.values() for gap in walk.restores]
    for walk in walks.values():
        if not walk.restores:
            walk.restores = [
                msgspec.structs.replace(gap, cluster=walk.cluster, seq=0, head=0)
                for gap in gaps
                if walk.began_at is None or walk.began_at > gap.restored_at
            ]


class _Walk:
    """One cluster's chain while it is read."""

    def __init__(self, cluster: str, checkpoints: list[Checkpoint], keys: Collection[str] | None) -> None:
        self.cluster = cluster
        self.keys = keys
        self.count = 0
        self.seq = 0  # of the last link in order
        self.signed = 0
        self.head: bytes | None = genesis(cluster)  # None after a gap: the hash before it is unknown
        self.recomputed = self.head  # the head as its own record gives it
        self.suspects: list[ChainLink] = []
        self.began_at: datetime | None = None  # the time of the first record
        self.gaps: dict[int, int] = {}  # first missing seq -> last
        self.found: dict[int, Said] = {}
        self.unnamed = 0
        self.wanted: dict[int, list[Checkpoint]] = {}
        self.replaced: list[Checkpoint] = []  # with another hash than the link at their place
        self.restores: list[Gap] = []
        for checkpoint in checkpoints:
            self._add_checkpoint(checkpoint)

    def _add_checkpoint(self, checkpoint: Checkpoint) -> None:
        when = say("audit.checkpoint", seq=checkpoint.seq, at=moment(checkpoint.at))
        if self.keys is not None and checkpoint.key not in self.keys:
            self._note(checkpoint.seq, say("audit.unknown_key", checkpoint=when, key_id=checkpoint.key))
        elif not signature_holds(checkpoint):
            self._note(checkpoint.seq, say("audit.forged", checkpoint=when))
        else:
            self.wanted.setdefault(checkpoint.seq, []).append(checkpoint)

    def _note(self, seq: int, what: Said) -> None:
        if seq in self.found:
            self.found[seq] = joined([self.found[seq], what], "semicolon")
        elif len(self.found) < NAMED_MAX:
            self.found[seq] = what
        else:
            self.unnamed += 1

    def read(self, links: Iterable[ChainLink]) -> None:
        wanted = self.wanted
        for at in links:
            self.count += 1
            record = at.record
            if self.began_at is None and record is not None:
                self.began_at = record.at
            # The fast path of a valid link: an audit of years takes it.
            if at.seq == self.seq + 1 and record is not None and at.prev == self.head:
                made = sha256(at.prev + at.seq.to_bytes(8, "big") + record_bytes(record)).digest()
                if made == at.hash:
                    self.seq = at.seq
                    self.head = self.recomputed = made
                    if at.seq in wanted:
                        self._compare(at)
                    if record.verb == RESTORED:
                        self.restores.extend(_gap(at.seq, record))
                    continue
            self._examine(at)
            if at.seq in wanted:
                self._compare(at)

    def _examine(self, at: ChainLink) -> None:
        """Finds out why a link does not follow the one before it, and continues after it."""
        if at.seq <= self.seq:
            self._out_of_place(at)
            self._check_alone(at, None)
            return
        if at.seq > self.seq + 1:
            self.gaps[self.seq + 1] = at.seq - 1
            self.head = self.recomputed = None
        self._check_alone(at, self.head)
        self.seq, self.head = at.seq, at.hash
        self.recomputed = link(at.prev, at.seq, at.record) if at.record else at.hash

    def _check_alone(self, at: ChainLink, head: bytes | None) -> None:
        follows = head is None or at.prev in (head, self.recomputed)
        if at.record is None:
            self._note(at.seq, say("audit.gone", record=at.record_id))
            return
        holds = link(at.prev, at.seq, at.record) == at.hash
        if holds and not follows:
            self._note(at.seq, say("audit.replaced", before=at.seq - 1))
        elif not holds and not follows and head and link(head, at.seq, at.record) == at.hash:
            self._note(at.seq, say("audit.pointer_changed"))
        elif not holds:
            if len(self.suspects) < EXCHANGE_MAX:
                self.suspects.append(at)
            else:
                self._note(at.seq, _changed(at))

    def _out_of_place(self, at: ChainLink) -> None:
        for first, last in self.gaps.items():
            if first <= at.seq <= last:
                del self.gaps[first]
                if first < at.seq:
                    self.gaps[first] = at.seq - 1
                if at.seq < last:
                    self.gaps[at.seq + 1] = last
                self._note(at.seq, say("audit.out_of_place", after=self.seq))
                return
        self._note(at.seq, say("audit.twice"))

    def _compare(self, at: ChainLink) -> None:
        """Compares the link with what was signed for its seq."""
        for checkpoint in self.wanted.pop(at.seq):
            if checkpoint.hash == at.hash.hex():
                self.signed = max(self.signed, at.seq)
            else:
                self.replaced.append(checkpoint)

    def _judge_checkpoints(self) -> None:
        """Says which checkpoints do not fit, except those of what a restore has lost."""
        beyond = [item for seq, group in self.wanted.items() if seq > self.seq for item in group]
        for checkpoint in (*self.replaced, *beyond):
            self._note_lost(checkpoint)
        for checkpoint in self.replaced:
            if not self._is_lost(checkpoint):
                self._note(checkpoint.seq, say("audit.not_as_signed", at=moment(checkpoint.at)))
        cut = [checkpoint for checkpoint in beyond if not self._is_lost(checkpoint)]
        if cut:
            newest = max(cut, key=attrgetter("seq"))
            self._note(newest.seq, say("audit.cut_off", at=moment(newest.at), end=self.seq))

    def _is_lost(self, checkpoint: Checkpoint) -> bool:
        return any(gap.covers(checkpoint) for gap in self.restores)

    def _note_lost(self, checkpoint: Checkpoint) -> None:
        self.restores = [
            msgspec.structs.replace(gap, lost=max(gap.lost, checkpoint.seq))
            if gap.covers(checkpoint)
            else gap
            for gap in self.restores
        ]

    def finish(self, late: list[AuditRecord]) -> Iterator[Broken]:
        exchanged = _exchanged(self.suspects)
        for at in self.suspects:
            other = exchanged.get(at.seq)
            # Exchanged links also break the links after them: report that once.
            if other is not None:
                for seq in (at.seq + 1, other + 1):
                    if self.found.get(seq, NO_WORDS).key == "audit.replaced":
                        del self.found[seq]
            self._note(at.seq, _changed(at) if other is None else say("audit.exchanged", other=other))
        for first, last in self.gaps.items():
            self._note(
                first, say("audit.missing") if first == last else say("audit.missing_up_to", last=last)
            )
        self._judge_checkpoints()
        for seq, what in sorted(self.found.items()):
            yield Broken(cluster=self.cluster, seq=seq, what=_at_seq(seq, what))
        if self.unnamed:
            yield Broken(
                cluster=self.cluster, seq=self.seq, what=say("audit.more_places", count=self.unnamed)
            )
        for record in late:
            what = say(
                "audit.never_sealed", record=record.id, at=moment(record.at), verb=record.verb,
                subject=record.subject,
            )  # fmt: skip
            yield Broken(cluster=self.cluster, seq=0, what=what)


def _gap(seq: int, record: AuditRecord) -> Iterator[Gap]:
    """What the record of a restore says; nothing if that cannot be read."""
    try:
        head, backup_at = int(record.data["head"]), datetime.fromisoformat(record.data["backup_at"])
    except (KeyError, TypeError, ValueError):
        return
    if head < seq and backup_at.tzinfo is not None:
        at, by = record.at, record.actor
        yield Gap(
            cluster=record.cluster, seq=seq, head=head, backup_at=backup_at, restored_at=at, by=by
        )  # fmt: skip


def _at_seq(seq: int, what: Said) -> Said:
    if what.startswith(("the ", "record ", "its ")):
        return say("audit.of_seq", seq=seq, what=what)
    return say("audit.seq_that", seq=seq, what=what)


def _changed(at: ChainLink) -> Said:
    return say("audit.record_changed", record=at.record_id)


def _exchanged(suspects: list[ChainLink]) -> dict[int, int]:
    """Pairs of links whose hashes are valid with exchanged records or places: seq -> seq, both ways."""
    pairs: dict[int, int] = {}
    for index, suspect in enumerate(suspects):
        for other in suspects[index + 1 :]:
            if suspect.seq not in pairs and other.seq not in pairs and _fit_crosswise(suspect, other):
                pairs[suspect.seq], pairs[other.seq] = other.seq, suspect.seq
    return pairs


def _fit_crosswise(suspect: ChainLink, other: ChainLink) -> bool:
    return (_fits(suspect, other) and _fits(other, suspect)) or (
        _sealed_at(suspect, other.seq) and _sealed_at(other, suspect.seq)
    )


def _fits(place: ChainLink, donor: ChainLink) -> bool:
    """Whether the donor's record is what was sealed at this place, under its own id or the place's."""
    record = donor.record
    if record is None:
        return False
    ids = {donor.record_id, place.record_id}
    return any(
        link(place.prev, place.seq, msgspec.structs.replace(record, id=number)) == place.hash
        for number in sorted(ids)
    )


def _sealed_at(at: ChainLink, seq: int) -> bool:
    return at.record is not None and link(at.prev, seq, at.record) == at.hash
