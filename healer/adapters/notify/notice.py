"""A message as the channels write it: the same words everywhere, cut to what each of them takes."""

import html

from healer.ports.outbound import Notice

#: What a message's line may begin with to be set in bold: `Where: gpu0017`.
_LABEL_MAX = 24


def label_of(line: str) -> tuple[str, str]:
    """("Where", "gpu0017"); ("", line) where no short label begins it."""
    label, colon, rest = line.partition(": ")
    return (label, rest) if colon and len(label) <= _LABEL_MAX else ("", line)


def cut(text: str, most: int) -> str:
    """At most so many characters, with `…` where something is left out."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def cut_bytes(text: str, most: int) -> str:
    """At most so many bytes of UTF-8, never half a letter, with `…` where something is left out."""
    raw = text.encode()
    if len(raw) <= most:
        return text
    return raw[: most - len("…".encode())].decode(errors="ignore").rstrip() + "…"


def as_markdown(notice: Notice) -> str:
    """For the group bots: a label in bold, one line a paragraph, nothing of the text taken as markup."""
    lines = [f"**{_plain(notice.title)}**"]
    for line in (*notice.lines, *notice.preview):
        label, rest = label_of(line)
        lines.append(f"**{_plain(label)}:** {_plain(rest)}" if label else _plain(rest))
    return "\n\n".join(lines)


def links(notice: Notice) -> list[tuple[str, str]]:
    """(what it says, address) of the buttons of channels that have links alone."""
    found = [("Look and approve", notice.approve)] if notice.approve else []
    return found + ([("Open in healer", notice.console)] if notice.console else [])


def as_html(notice: Notice) -> str:
    def row(line: str) -> str:
        label, rest = label_of(line)
        head = f"<b>{html.escape(label)}:</b> " if label else ""
        return f"<p>{head}{html.escape(rest)}</p>"

    buttons = "".join(f'<p><a href="{html.escape(url)}">{word}</a></p>' for word, url in links(notice))
    body = "".join(map(row, (*notice.lines, *notice.preview)))
    return f"<h3>{html.escape(notice.title)}</h3>{body}{buttons}"


def _plain(text: str) -> str:
    """Text of logs and of people must not become a link, a call of everybody, or bold."""
    for mark in "\\`*[]<>#":
        text = text.replace(mark, f"\\{mark}" if mark in "\\`*[]#" else {"<": "&lt;", ">": "&gt;"}[mark])
    return text
