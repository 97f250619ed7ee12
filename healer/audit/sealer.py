"""The sealer: chains committed records, and signs the heads of the chain.

Ids are handed out before commit, so a lower id may become visible after a higher one. The chain therefore
follows visibility: visible unsealed records are chained by id, and a late record gets the next seq.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from healer.audit.chain import Signer, by_cluster, extend, genesis, sign_checkpoint
from healer.audit.export import ExportError, checkpoint_line, read_checkpoints
from healer.model import Checkpoint
from healer.model.run import ChainLink
from healer.ports.audit_store import ChainHead, ChainStore, CheckpointFile

#: Records per sealing transaction; a backlog is worked off in several.
BATCH = 2000
#: A checkpoint every this many links, or this many seconds after the first link without one.
CHECKPOINT_LINKS = 100
CHECKPOINT_AFTER_S = 60.0


class Sealer:
    """Any number may run; one seals and the others wait. `checkpoint_file` gets every checkpoint too."""

    def __init__(
        self,
        store: ChainStore,
        signer: Signer,
        *,
        checkpoint_file: CheckpointFile | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store, self._signer, self._file, self._now = store, signer, checkpoint_file, now
        self._is_leading = False
        #: By cluster: when its oldest unsigned link was sealed.
        self._unsigned: dict[str, datetime] = {}

    def seal_once(self) -> int:
        """Seals all visible records and signs what is due; returns the number of records sealed.

        0 also while another sealer is active. Without new records it costs one small query. Database errors
        are raised, and the next call starts over.
        """
        try:
            if not self._is_leading and not self._take_over():
                return 0
            total = 0
            while count := self._seal_batch():
                total += count
                if count < BATCH:
                    break
            self._sign_due(CHECKPOINT_AFTER_S)
            return total
        except BaseException:
            self._is_leading = False
            self._store.drop()
            raise

    def close(self) -> None:
        """Signs the heads and lets another sealer take over."""
        if not self._is_leading:
            return
        self._is_leading = False
        try:
            self._sign_due(after_s=0)
            self._store.unlock()
        finally:
            self._store.drop()

    def _take_over(self) -> bool:
        """Takes the lock and completes an earlier sealer's work: checkpoints that are missing from the file.
        False if another sealer has the lock."""
        store, now = self._store, self._now()
        if not store.lock():
            return False
        heads = store.heads().items()
        self._unsigned = {name: now for name, head in heads if head.seq > store.signed_seq(name)}
        if self._file is not None:
            # By the hash too: after a restore the file has others of the same numbers.
            in_file = {(item.cluster, item.seq, item.hash) for item in _readable(self._file.lines())}
            stored = store.checkpoints()
            missed = [item for item in stored if (item.cluster, item.seq, item.hash) not in in_file]
            self._file.append(map(checkpoint_line, missed))
        self._is_leading = True
        return True

    def _seal_batch(self) -> int:
        records = self._store.unsealed(BATCH)
        if not records:
            return 0
        clusters, links = by_cluster(records), list[ChainLink]()
        for cluster, those in clusters.items():
            seq, last = self._store.head(cluster) or ChainHead(0, genesis(cluster))
            links += extend(cluster, seq, last, those)
        self._store.add(links)
        now = self._now()
        for cluster in clusters:
            self._unsigned.setdefault(cluster, now)
        self._sign_long(clusters)
        return len(records)

    def _sign_long(self, clusters: Iterable[str]) -> None:
        """Signs the clusters with `CHECKPOINT_LINKS` unsigned links or more."""
        for cluster in clusters:
            head = self._store.head(cluster)
            if head and head.seq - self._store.signed_seq(cluster) >= CHECKPOINT_LINKS:
                self._sign(cluster)

    def _sign_due(self, after_s: float) -> None:
        before = self._now() - timedelta(seconds=after_s)
        for cluster in [name for name, since in self._unsigned.items() if since <= before]:
            self._sign(cluster)

    def _sign(self, cluster: str) -> None:
        head = self._store.head(cluster)
        if head is not None and head.seq > self._store.signed_seq(cluster):
            made = sign_checkpoint(self._signer, cluster, head.seq, head.hash, self._now().astimezone(UTC))
            # Stored first: a checkpoint in the file that the database lacks was removed from the database.
            self._store.add_checkpoint(made)
            if self._file is not None:
                self._file.append([checkpoint_line(made)])
        self._unsigned.pop(cluster, None)


def _readable(lines: Iterable[bytes]) -> Iterator[Checkpoint]:
    """A damaged line, which a verification reports, must not stop the sealing of later records."""
    for line in lines:
        with suppress(ExportError):
            yield from read_checkpoints([line])
