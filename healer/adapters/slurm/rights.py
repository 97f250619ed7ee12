"""Whether an account may change nodes in Slurm, found out without changing anything.

Slurm lets root, SlurmUser and accounting's AdminLevel=Administrator (d.4 of the facts); an Operator may not.
"""

import os
import pwd
import re
from pathlib import Path
from typing import NamedTuple

from healer.adapters.slurm.commands import Commands
from healer.ports.scheduling import SchedulerUnavailable

_TIMEOUT_S = 5.0
_SLURM_USER = re.compile(r"^SlurmUser\s*=\s*([^\s(]+)", re.MULTILINE)


class Rights(NamedTuple):
    """`may` None: it cannot be told here. `way_out` where it may not."""

    may: bool | None
    text: str
    way_out: str = ""


def own_account() -> str:
    """The name of the user that this process runs as."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def of_account(user: str, bin_dir: Path | None = None, slurm_conf: Path | None = None) -> Rights:
    """Asks `scontrol show config` for SlurmUser and `sacctmgr` for the account's AdminLevel."""
    if user == "root":
        return Rights(True, "root may drain")
    commands = Commands(str(slurm_conf) if slurm_conf else None, bin_dir, _TIMEOUT_S)
    slurm_user = _SLURM_USER.search(_said(commands, "scontrol", "show", "config") or "")
    if slurm_user is not None and slurm_user[1] == user:
        return Rights(True, f"{user} is SlurmUser and may drain")
    show = ("show", "user", user, "format=AdminLevel")
    level = _said(commands, "sacctmgr", "--noheader", "--parsable2", *show)
    if level is None:
        return Rights(None, f"whether {user} may drain is not known: Slurm tells it at the first drain")
    if level.strip() == "Administrator":
        return Rights(True, f"{user} has AdminLevel=Administrator and may drain")
    return Rights(
        False,
        f"{user} may not drain: its AdminLevel is {level.strip() or 'None'}, only Administrator is enough",
        f"`sacctmgr modify user {user} set AdminLevel=Administrator`",
    )


def _said(commands: Commands, *command: str) -> str | None:
    """What it printed; None where there is none, or it failed."""
    try:
        output = commands.run(*command)
    except SchedulerUnavailable:
        return None
    return None if output.code else output.text
