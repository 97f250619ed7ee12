"""What `healer doctor` tells of the site's own commands: is each program there, and may healer start it?"""

import os
from pathlib import Path

from healer.bootstrap.slurm_check import Look
from healer.rulebook import ruleset
from healer.settings import Settings, rules_folder

NAME = "site commands"


def look(settings: Settings) -> list[Look]:
    """Nothing is started. Rules that cannot be read are told elsewhere."""
    try:
        commands = ruleset.load(rules_folder(settings), prove=False).commands
    except ruleset.RulesInvalid:
        return []
    if not commands:
        return [Look(NAME, True, "none: what only the site can do is handed to a person")]
    return [_checked(name, one.argv[0]) for name, one in sorted(commands.items())]


def _checked(name: str, program: str) -> Look:
    title = f"{NAME}: {name}"
    if not Path(program).is_file():
        return Look(
            title,
            False,
            f"{program} is missing",
            "Install it on this machine, or correct rules/commands.yaml.",
        )
    if not os.access(program, os.X_OK):
        return Look(title, False, f"{program} may not be started by this user", f"chmod a+x {program}")
    return Look(title, True, program)
