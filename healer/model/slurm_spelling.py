"""How Slurm writes states, reasons and times, for its text and its JSON."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

#: Text names of states and flags that JSON spells differently (d.2 of the facts; sinfo's short names).
_NAMES = {
    "MAINT": "MAINTENANCE", "INVAL": "INVALID_REG", "DRAINED": "DRAIN", "DRAINING": "DRAIN", "DRNG": "DRAIN",
    "ALLOC": "ALLOCATED", "MIX": "MIXED", "COMP": "COMPLETING", "UNK": "UNKNOWN", "RESV": "RESERVED",
    "FAILING": "FAIL", "FAILG": "FAIL", "PLND": "PLANNED",
}  # fmt: skip
#: The meaning of a state's suffix, for releases that print flags that way.
_SUFFIXES = {
    "*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "!": "POWER_DOWN", "%": "POWERING_DOWN",
    "$": "MAINTENANCE", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED",
}  # fmt: skip
_SIGNED = re.compile(r"(?P<text>.*) \[(?P<user>[^\[\]\s]+)@(?P<at>[0-9][0-9T:-]{3,24})\]", re.DOTALL)
#: The end of the year 9999, Python's last date. Slurm accepts any number from a user (`--begin`).
_LAST_SECOND = 253402300799


def state_words(words: Sequence[str]) -> tuple[str, ...]:
    """`["IDLE*", "DRAIN"]` -> ("IDLE", "NOT_RESPONDING", "DRAIN"): the base state first, then the flags in
    their order. Unknown words are kept."""
    found: list[str] = []
    suffixes: list[str] = []
    for word in (raw.strip().upper() for raw in words):
        plain = word.rstrip("".join(_SUFFIXES))
        suffixes += [_SUFFIXES[mark] for mark in reversed(word[len(plain) :])]
        if plain:
            found.append(_NAMES.get(plain, plain))
    base, *flags = found or ["UNKNOWN"]
    return tuple(dict.fromkeys((base, *suffixes, *flags)))


#: Slurm 22.05 shows one word per job: a flag hides the base state. This is the base state of each flag;
#: COMPLETING may have any, so it counts as a base state.
_HIDDEN_BASE = {
    "CONFIGURING": "RUNNING", "STOPPED": "RUNNING", "RESIZING": "RUNNING", "SIGNALING": "RUNNING",
    "REQUEUED": "PENDING", "REQUEUE_HOLD": "PENDING", "REQUEUE_FED": "PENDING", "SPECIAL_EXIT": "PENDING",
    "RESV_DEL_HOLD": "PENDING", "STAGE_OUT": "COMPLETING", "COMPLETING": "COMPLETING",
}  # fmt: skip


def job_state(words: str | list[str]) -> tuple[str, tuple[str, ...]]:
    """Base state and flags, from a word (before 23.11) or a list."""
    if isinstance(words, list):
        return (words[0], tuple(words[1:])) if words else ("UNKNOWN", ())
    base = _HIDDEN_BASE.get(words)
    return (base, (words,)) if base else (words or "UNKNOWN", ())


def signed_reason(text: str) -> tuple[str, str, datetime | None]:
    """`Kill task failed [root@1763607600]` -> the reason, who set it and when. By default Slurm prints a
    local date there instead of Unix seconds: the time is then unknown."""
    signed = _SIGNED.fullmatch(text.strip())
    if signed is None:
        return text, "", None
    at = int(signed["at"]) if signed["at"].isdecimal() else 0
    return signed["text"], signed["user"], to_datetime(at)


def to_datetime(seconds: float) -> datetime | None:
    """From Unix seconds; None for 0, negative values, and times that Python cannot represent."""
    return datetime.fromtimestamp(seconds, UTC) if 0 < seconds <= _LAST_SECOND else None
