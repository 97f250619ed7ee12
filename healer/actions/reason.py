"""The reason healer writes into Slurm: the same bytes for the life of an incident."""

import re

from healer.model import SlurmNode
from healer.model.reasons import OUR_PREFIX, slurm_kind
from healer.model.reasons import is_ours as is_healers

#: `sinfo -R` cuts at 20 columns by default; operators print up to about this many.
MAX_LENGTH = 120


def drain_reason(rule: str, incident: str | None, text: str) -> str:
    """`healer:<rule> inc:<8 characters> <text>`, ASCII without quotes, commas and `=` (parsers)."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    plain = plain.encode("ascii", "ignore").decode()
    plain = re.sub(r"""["'`,=\\;|]""", " ", plain)
    plain = re.sub(r"\s+", " ", plain).strip()
    return f"{OUR_PREFIX}{rule} inc:{(incident or 'none')[:8]} {plain}"[:MAX_LENGTH].rstrip()


def is_ours(reason: str, incident: str | None = None) -> bool:
    """Whether the drain is ours; with an incident: whether it is that incident's."""
    return is_healers(reason) and (incident is None or f" inc:{incident[:8]}" in reason)


def holder_of(node: SlurmNode) -> str | None:
    """`ann holds`, where somebody else's word keeps the node out; None where only ours or Slurm's own does.

    A drain without a reason is somebody's too. Slurm's own DOWN ends by itself when the node registers.
    """
    if not node.held or is_healers(node.reason):
        return None
    if not node.drain and (not node.reason or slurm_kind(node.reason) is not None):
        return None
    return f"{node.reason_user or 'Somebody'} holds"
