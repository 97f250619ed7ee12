"""Commands of the site that playbooks may start: `rules/commands.yaml`."""

import msgspec


class SiteCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One of the closed list. `argv` is the program and its words, with places like `{node}` in them; nothing
    is read as a shell would. `takes_capacity`: it ends or slows work on the node: drained and empty first.
    """

    name: str
    title: str
    argv: tuple[str, ...]
    timeout_s: float
    takes_capacity: bool = False


class CommandSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command that was started under a key.

    `state`: `never` (no record of it here), `running`, `ended` (then `code` is its exit status, below 0 the
    signal that ended it), `timed_out` (it was killed), `lost` (cut short: nobody knows how far it came).
    `output`: the end of what it printed.
    """

    state: str
    code: int | None = None
    output: str = ""
