"""Whose a drain is, told by its reason: ours, Slurm's own, another program's, or a person's.

The user that Slurm records is no help by itself: Slurm sets it to SlurmUser when it appends to a person's
text, and every call of a program is made by one service user. Slurm appends with " : ", so the owner is told
by the part before that. Sources: c.5 and d.9 of the facts.
"""

import re
from enum import StrEnum
from functools import lru_cache

import msgspec

#: What every reason of ours starts with: `healer:<rule> inc:<short id> <text>`.
OUR_PREFIX = "healer:"
#: `sinfo -R` cuts at 20 columns by default; operators print up to about this many.
MAX_LENGTH = 120
_BREAKS = re.compile(r"""["'`,=\\;|]""")
#: What Slurm puts between an old reason and what it appends.
_APPENDED = " : "
#: What stands for no reason at all.
_NONE = frozenset({"", "(null)", "none"})

_GRES = r"gres/\S+ count (?:reported lower than configured|too low)(?: \([^)]*\))?"
_LOW = rf"(?:Low (?:RealMemory|socket\*core\*thread count|CPUs|TmpDisk)(?: \([^)]*\))?|{_GRES})"

#: Slurm's own reasons (slurmctld and slurmd, 22.05 to 26.05), whole: a person's may begin like one of them.
_SLURM_REASONS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("kill-task-failed", r"Kill task failed(?: \(.*\))?"),
        ("not-responding", r"Not responding"),
        ("rebooted", r"Node unexpectedly rebooted"),
        ("prolog-error", r"Prolog error"),
        ("epilog-error", r"Epilog error"),
        ("job-environment", r"Job env setup error"),
        ("batch-failure", r"batch job complete failure"),
        ("gres-count", rf"{_GRES}(?:, {_LOW})*"),
        ("low-resources", rf"{_LOW}(?:, {_LOW})*"),
        ("reboot", r"Reboot ASAP|reboot (?:requested|issued|complete|timed out)"),
        ("power", r"ResumeTimeout reached|Powered down after resume|POWER_DOWN_ASAP"),
    )
)

#: How other programs' reasons begin.
_PROGRAMS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("NHC", r"NHC:"),
        ("soperator", r"\[(?:node_problem|user_problem|hardware_problem|compute_maintenance)\]"),
        ("slurm-operator", r"slurm-operator:"),
        ("Slinky", r"\[HC\]"),
        ("HyperPod", r"Action:(?:Replace|Reboot)\b"),
        ("SUNK", r"k8s:|.*sunk:verify-undrain"),
        ("CycleCloud", r"cyclecloud_"),
    )
)


class OwnerKind(StrEnum):
    """What kind of actor keeps a node out."""

    healer = "healer"
    slurm = "slurm"
    program = "program"
    person = "person"


class ReasonOwner(msgspec.Struct, frozen=True):
    """`name`: `healer`, `Slurm`, the program's, or the person's; empty where nobody knows which person."""

    kind: OwnerKind
    name: str

    def __str__(self) -> str:
        return self.name or "somebody"


HEALER = ReasonOwner(OwnerKind.healer, "healer")
SLURM = ReasonOwner(OwnerKind.slurm, "Slurm")


def plain(text: str) -> str:
    """What of a text may stand in a reason of ours: one line of ASCII, without quotes, commas, `=` and the
    like (parsers), and with nothing that looks as if Slurm had appended it."""
    kept = "".join(letter if letter.isprintable() else " " for letter in text)
    kept = _BREAKS.sub(" ", kept.encode("ascii", "ignore").decode())
    return re.sub(r"( :)+(?= )", ":", re.sub(r"\s+", " ", kept)).strip(" :")


def first_words(reason: str) -> str:
    """What was written, without what Slurm appended."""
    return reason.partition(_APPENDED)[0]


@lru_cache(maxsize=4096)
def is_ours(reason: str) -> bool:
    """As healer writes it, with nothing but words of Slurm's own behind it.

    Whoever adds to our text has taken the node over, though the front of it is ours.
    """
    own, *added = reason.split(_APPENDED)
    if not own.startswith(OUR_PREFIX) or len(own) > MAX_LENGTH or plain(own) != own:
        return False
    return all(slurm_kind(part) is not None for part in added)


def is_none(reason: str) -> bool:
    """Nobody wrote a reason: what Slurm's tools print then counts as nothing."""
    return reason.strip().lower() in _NONE


def owner_of(reason: str, user: str = "") -> ReasonOwner:
    """Who wrote the reason; `user` is whom Slurm recorded. A reason that is none is some person's."""
    if is_ours(reason):
        return HEALER
    if slurm_kind(reason) is not None:
        return SLURM
    program = _program(reason)
    if program is not None:
        return ReasonOwner(OwnerKind.program, program)
    return ReasonOwner(OwnerKind.person, "" if _appended_to(reason) else user)


@lru_cache(maxsize=4096)
def slurm_kind(reason: str) -> str | None:
    """Which of Slurm's own reasons this is; None for a person's text, for ours and for an empty one."""
    own = reason.partition(_APPENDED)[0].strip()
    return next((kind for kind, pattern in _SLURM_REASONS if pattern.fullmatch(own)), None)


@lru_cache(maxsize=4096)
def _program(reason: str) -> str | None:
    return next((name for name, pattern in _PROGRAMS if pattern.match(reason)), None)


def _appended_to(reason: str) -> bool:
    """Slurm added words of its own, and with them its own user and time (d.9)."""
    return any(slurm_kind(part) is not None for part in reason.split(_APPENDED)[1:])
