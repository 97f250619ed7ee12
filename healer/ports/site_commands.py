"""Programs of the site."""

from typing import Protocol

from healer.model import CommandSeen


class CommandFailed(Exception):
    """The command surely did not begin. One sentence."""


class SiteCommands(Protocol):
    """Programs of the site on this machine. Each is started once under a key, and outlives who asked."""

    def start(self, key: str, argv: tuple[str, ...], timeout_s: float) -> None:
        """Starts it without a shell and does not wait; the same key is nothing new. Raises CommandFailed."""
        ...

    def look(self, key: str) -> CommandSeen:
        """What became of it."""
        ...
