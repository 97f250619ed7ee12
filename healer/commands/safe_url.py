"""Addresses to which commands, nodes and hooks send secrets: https, or this machine."""

from urllib.parse import urlsplit

from healer.commands import Failed
from healer.settings import ON, is_loopback, load
from healer.text import say


def check_safe(url: str, command: str) -> None:
    """Raises Failed if this command's secrets would be sent over a network as plain text."""
    if _is_plain(url):
        raise Failed(say("commands.plain_url", url=url, command=command))


def check_senders(url: str) -> None:
    """Raises Failed if tokens of nodes would be sent over a network as plain text and no setting allows
    it."""
    if _is_plain(url) and load().allow_plain_http != ON:
        raise Failed(say("commands.plain_senders", url=url, on=ON))


def _is_plain(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme != "https" and not is_loopback(parts.hostname or "")
