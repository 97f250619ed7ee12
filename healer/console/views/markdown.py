"""Texts from outside in Markdown: on one line, and inert."""

from collections.abc import Callable, Sequence


def plain(text: str) -> str:
    """On one line, with the characters that Markdown and HTML would act on made inert."""
    text = " ".join(text.split())
    for sign in ("\\", "`", "*", "_", "[", "]", "<", ">", "#", "|"):
        text = text.replace(sign, f"\\{sign}")
    return text


def listed(title: str, rows: Sequence[str], said: Callable[[str], str]) -> list[str]:
    """Lines of a part with its heading; nothing for no rows. `said`: a sentence in the reader's language."""
    return ["", f"## {said(title)}", "", *(f"- {plain(said(row))}" for row in rows)] if rows else []
