"""Makes foreign text safe to display: every character that a reader cannot see, or that changes how others
are shown, becomes a symbol. Used at every exit: terminals, logs, pages, mails, chats, tickets, and Slurm's
comments.

A terminal obeys escape sequences, a page obeys bidi overrides, and a person trusts what both show.
"""

import re

#: First and last code points of characters that are never shown as themselves.
_UNSEEN = (
    (0x00, 0x1F), (0x7F, 0x9F),  # controls: C0, DEL, C1
    (0xAD, 0xAD), (0x34F, 0x34F), (0x200B, 0x200B), (0x2060, 0x2064), (0xFEFF, 0xFEFF),  # no width
    (0x61C, 0x61C), (0x200E, 0x200F), (0x202A, 0x202E), (0x2066, 0x206F),  # direction of the text
    (0x2028, 0x2029), (0x2065, 0x2065),  # separators of lines and paragraphs; never given
    (0x115F, 0x1160), (0x17B4, 0x17B5), (0x3164, 0x3164), (0xFFA0, 0xFFA0),  # blank letters
    (0xD800, 0xDFFF), (0xFFF0, 0xFFFB), (0xFFFE, 0xFFFF),  # halves of pairs, annotations, no characters
    (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE00FF), (0xE01F0, 0xE0FFF),  # scores, tags
)  # fmt: skip
#: Joiners have a meaning only inside these scripts and between pictures: elsewhere two names look alike.
_JOINERS = ((0x180B, 0x180F), (0x200C, 0x200D))
_JOINING = (
    (0x600, 0x61B), (0x61D, 0x1CFF), (0x2190, 0x27BF), (0x2B00, 0x2BFF), (0xA800, 0xABFF), (0xFB50, 0xFDFF),
    (0xFE0F, 0xFE0F), (0xFE70, 0xFEFC), (0x10A00, 0x11FFF), (0x1E900, 0x1E95F), (0x1F000, 0x1FAFF),
)  # fmt: skip


def _members(ranges: tuple[tuple[int, int], ...]) -> str:
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)


#: Any of these, and only then what is around it: alternatives would each be tried at every character of an
#: answer, and an answer may be large.
_FORM = re.compile(
    f"[{_members(_UNSEEN + _JOINERS)}]"
    f"(?:(?<=[{_members(_UNSEEN)}])|(?![{_members(_JOINING)}])|(?<![{_members(_JOINING)}].))"
)


def shown(text: str, *, keep: str = "") -> str:
    """The text with a symbol for each invisible character: `␛` for escape, `⟨U+202E⟩` for an override of the
    direction. `keep`: line ends and tabs that stay, `"\n"` or `"\n\t"`. Text of all scripts stays as it is,
    and the result is stable under repetition.
    """
    if text.isascii() and text.isprintable():
        return text
    return _FORM.sub(lambda found: found[0] if found[0] in keep else _symbol(ord(found[0])), text)


def cut(text: str, most: int) -> str:
    """At most this many characters, with `…` if something is cut."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def one_line(text: str) -> str:
    """The text on one line, with single spaces, and `shown`."""
    return shown(" ".join(text.split()))


#: Where a spreadsheet begins a cell, by its own separators or by those of its user's country, and what makes
#: that cell a formula.
_FORMULA = re.compile('(^|[;\t\r\n])(?=[ "]*[=+\\-@＝＋－＠])')


def cell_text(text: str) -> str:
    """The text for a CSV file: no spreadsheet runs any part of it as a formula."""
    return _FORMULA.sub(r"\1'", text)


def shown_json(document: str) -> str:
    """JSON for a terminal: the same document, with escapes for what `shown` replaces. Line ends between its
    values stay."""
    return _FORM.sub(lambda found: found[0] if found[0] in "\n\t" else _escape(found[0]), document)


def sent_json(body: bytes) -> bytes:
    """`shown_json` for a program's output, in UTF-8: people also print answers of the API."""
    if body.isascii() and b"\x7f" not in body:
        return body  # other invisible characters are escaped in JSON
    return shown_json(body.decode()).encode()


def _symbol(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)
    return "\N{SYMBOL FOR DELETE}" if code == 0x7F else f"⟨U+{code:04X}⟩"


def _escape(letter: str) -> str:
    raw = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{raw[at : at + 2].hex()}" for at in range(0, len(raw), 2))
