"""The reason healer writes into Slurm: the same bytes for the life of an incident."""

from collections.abc import Sequence

from healer.actions.base import Context
from healer.model import LogEntry, SlurmNode, Verb
from healer.model.reasons import MAX_LENGTH, OUR_PREFIX, first_words, plain, slurm_kind
from healer.model.reasons import is_ours as is_healers


def drain_reason(rule: str, incident: str | None, text: str) -> str:
    """`healer:<rule> inc:<8 characters> <text>`, the text as `plain` leaves it."""
    whole = f"{OUR_PREFIX}{rule} inc:{(incident or 'none')[:8]} {plain(text)}"
    return whole[:MAX_LENGTH].rstrip(" :")


def reason_of(ctx: Context) -> str:
    """The reason of this run's drain."""
    given = ctx.run.input.get("reason_text")
    incident = ctx.incident
    text = str(given) if given else (incident.title if incident else ctx.run.reason)
    return drain_reason(ctx.run.rule or ctx.run.playbook, ctx.run.incident or ctx.run.id, text)


def is_ours(reason: str, incident: str | None = None) -> bool:
    """Whether the drain is ours; with an incident: whether it is that incident's."""
    return is_healers(reason) and (incident is None or f" inc:{incident[:8]}" in reason)


def own_words(log: Sequence[LogEntry]) -> str:
    """The reason by which this run knows its node to be out: as its last drain was read back."""
    read = (one.data.get("reason") for one in reversed(log) if one.data.get("verb") == Verb.drain)
    return next((str(reason) for reason in read if reason), "")


def holder_of(node: SlurmNode, words: str = "") -> str | None:
    """`ann holds`, where somebody else's word keeps the node out; None where only ours or Slurm's own does.

    A drain without a reason is somebody's too. Slurm's own DOWN ends by itself when the node registers.
    `words`: what this run has read back of its drain; whoever has added to them since holds the node.
    """
    if not node.held:
        return None
    if is_healers(node.reason):
        added = is_healers(words) and first_words(node.reason).startswith(f"{first_words(words)} ")
        return f"{node.reason_user or 'Somebody'} holds" if added else None
    if not node.drain and (not node.reason or slurm_kind(node.reason) is not None):
        return None
    return f"{node.reason_user or 'Somebody'} holds"
