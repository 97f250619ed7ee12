"""Sends checkpoints to witnesses as they are made, and checks the chain against what they keep."""

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from healer.audit.chain import moment
from healer.audit.export import report
from healer.audit.verify import Report
from healer.model import Broken, Checkpoint
from healer.ports.audit_store import ChainReads, Position, Tail, Witness
from healer.text import Said, say

#: Checkpoints in one delivery.
TOGETHER = 500
#: A healthy sealer seals within a second and signs within a minute; a witness has it soon after.
SEALED_WITHIN, WITNESSED_WITHIN = timedelta(seconds=60), timedelta(minutes=5)


class Deliveries:
    """Callable: sends what the checkpoint file has and the witness lacks, in order, and returns when nothing
    is left. WitnessAway: it is tried again from there. A crash between sending and noting sends twice, which
    changes nothing for those who read."""

    def __init__(
        self, witness: Witness, file: Tail, position: Position, on_served: Callable[[], None]
    ) -> None:
        """`on_served` is called whenever the witness has everything."""
        self._witness, self._file, self._position, self._on_served = witness, file, position, on_served

    def __call__(self) -> None:
        at = self._position.read()
        while True:
            lines, end = self._file.after(at, TOGETHER)
            if not lines:
                break
            self._witness.send(lines)
            self._position.write(end)
            at = end
        self._on_served()


def report_against(
    chain: ChainReads, place: str, held: Sequence[Checkpoint], *, keys: Collection[str] = ()
) -> Report:
    """Verifies the chain in the database against a witness.

    `held`: the checkpoints that the witness keeps at `place`. `keys`: public keys that may sign; without them
    that of its first checkpoint, never those that the database names.
    """
    now = datetime.now(UTC)
    held = list(dict.fromkeys(held))
    trusted = set(keys) or {item.key for item in held[:1]}
    found = report(chain, keys=trusted, outside=held, where=say("audit.in_witness"))
    with chain.snapshot() as seen:
        stored, since = seen.checkpoints(), seen.unsealed_since()
        unsigned = seen.unsigned_since()
    broken = [*found.broken, *_unknown_to(place, held, stored, now)]
    if since is not None and now - since > SEALED_WITHIN:
        broken.append(_at("", say("audit.sealer_stopped", since=moment(since))))
    for cluster, oldest in unsigned.items():
        if now - oldest > 2 * SEALED_WITHIN:
            what = say("audit.no_checkpoint_since", since=moment(oldest))
            broken.append(_at(cluster, what))
    return msgspec.structs.replace(found, broken=broken)


def _unknown_to(
    place: str, held: Sequence[Checkpoint], stored: Sequence[Checkpoint], now: datetime
) -> Iterable[Broken]:
    """Checkpoints that the database has and the witness should have had by now."""
    if not held:
        yield _at("", say("audit.no_checkpoints", place=place))
        return
    kept = {(item.cluster, item.seq, item.hash) for item in held}
    first: dict[str, int] = {}
    for item in held:
        first[item.cluster] = min(item.seq, first.get(item.cluster, item.seq))
    for item in stored:
        missing = (item.cluster, item.seq, item.hash) not in kept and item.seq >= first.get(item.cluster, 0)
        if missing and now - item.at > WITNESSED_WITHIN:
            what = say(
                "audit.not_witnessed", checkpoint=say("audit.checkpoint", seq=item.seq, at=moment(item.at))
            )
            yield Broken(cluster=item.cluster, seq=item.seq, what=what)


def _at(cluster: str, what: Said) -> Broken:
    return Broken(cluster=cluster, seq=0, what=what)
