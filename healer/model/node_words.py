"""Slurm's words for a node: its states and its reasons as text shows them, made those of its JSON."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

#: Text names of states and flags that JSON spells differently (d.2 of the facts; sinfo's short names).
_NAMES = {
    "MAINT": "MAINTENANCE", "INVAL": "INVALID_REG", "DRAINED": "DRAIN", "DRAINING": "DRAIN", "DRNG": "DRAIN",
    "ALLOC": "ALLOCATED", "MIX": "MIXED", "COMP": "COMPLETING", "UNK": "UNKNOWN", "RESV": "RESERVED",
    "FAILING": "FAIL", "FAILG": "FAIL", "PLND": "PLANNED",
}  # fmt: skip
#: What a suffix of a state means, for releases that print flags that way.
_SUFFIXES = {
    "*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "!": "POWER_DOWN", "%": "POWERING_DOWN",
    "$": "MAINTENANCE", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED",
}  # fmt: skip
_SIGNED = re.compile(r"(?P<text>.*) \[(?P<user>[^\[\]@\s]+)@(?P<at>[0-9][0-9T:-]{3,24})\]", re.DOTALL)
#: The end of the year 9999.
_LAST_SECOND = 253402300799


def node_words(words: Sequence[str]) -> tuple[str, ...]:
    """`["IDLE*", "DRAIN"]` -> ("IDLE", "NOT_RESPONDING", "DRAIN"): the base state first, flags behind it in
    their order. Unknown words are carried through."""
    found: list[str] = []
    suffixes: list[str] = []
    for word in (one.strip().upper() for one in words):
        plain = word.rstrip("".join(_SUFFIXES))
        suffixes += [_SUFFIXES[one] for one in reversed(word[len(plain) :])]
        if plain:
            found.append(_NAMES.get(plain, plain))
    base, *flags = found or ["UNKNOWN"]
    return tuple(dict.fromkeys((base, *suffixes, *flags)))


def signed_reason(text: str) -> tuple[str, str, datetime | None]:
    """`Kill task failed [root@1763607600]` -> the reason, who set it and when. Slurm prints a date without a
    zone there unless it is told otherwise: then nobody knows the moment."""
    signed = _SIGNED.fullmatch(text.strip())
    if signed is None:
        return text, "", None
    at = int(signed["at"]) if signed["at"].isdecimal() else 0
    moment = datetime.fromtimestamp(at, UTC) if 0 < at <= _LAST_SECOND else None
    return signed["text"], signed["user"], moment
