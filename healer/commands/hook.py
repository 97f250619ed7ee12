"""`healer hook`: Slurm's hooks put in place on a node or in its image, and taken away again."""

import difflib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from healer.commands import Failed, local, print_line, reading
from healer.commands.remote import AS_JSON, YES, add_group, print_json
from healer.commands.safe_url import check_senders
from healer.text import said_by, say

if TYPE_CHECKING:
    from healer.commands.hook_install import Plan

_SLURM_CONF = typer.Option(
    os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf"), "--slurm-conf", help="Slurm's configuration file."
)
_TO = typer.Option("/usr/local/lib/healer", "--to", help="The folder for healer-hook and what calls it.")


def register(app: typer.Typer) -> None:
    commands = {"install": install, "uninstall": uninstall}
    add_group(app, "hook", "Slurm's hooks on this machine.", commands)


def install(
    slurm_conf: Path = _SLURM_CONF,
    to: Path = _TO,
    conf: Path = typer.Option("/etc/healer/hook.conf", "--conf", help="The hook's own settings."),
    *,
    url: str = typer.Option("", "--url", envvar="HEALER_URL", help="healer's address, for new settings."),
    token_file: str = typer.Option("/etc/healer/token", "--token-file", help="Its token, for new settings."),
    yes: bool = YES,
    json: bool = AS_JSON,
) -> None:
    """Install prolog, epilog and health check; shows the changes first. The site's own hooks keep running."""
    from healer.commands.hook_install import installation

    if url:
        check_senders(url)
    make = lambda: installation(slurm_conf, to, conf, url=url, token_file=token_file)  # noqa: E731
    _confirm_and_apply(slurm_conf, to, make, yes=yes, json=json)


def uninstall(slurm_conf: Path = _SLURM_CONF, to: Path = _TO, yes: bool = YES, json: bool = AS_JSON) -> None:
    """Uninstall them; slurm.conf is restored byte for byte, the hook's settings stay."""
    from healer.commands.hook_install import removal

    _confirm_and_apply(slurm_conf, to, lambda: removal(slurm_conf, to), yes=yes, json=json)


def _confirm_and_apply(
    slurm_conf: Path, to: Path, make: Callable[[], "Plan"], *, yes: bool, json: bool
) -> None:
    from healer.commands.hook_install import carry_out, named
    from healer.commands.slurm_conf import ConfProblem

    try:
        with reading(slurm_conf):
            plan = make()
        if not json:
            _show(plan)
        wanted = yes or (
            not json and bool(plan.changes) and typer.confirm(local(say("commands.hook_confirm")))
        )
        if wanted:
            with reading(to, writes=True):
                carry_out(plan, to)
    except ConfProblem as error:
        raise Failed(say("commands.of_field", field=str(slurm_conf), text=said_by(error))) from None
    if json:
        print_json(
            {
                "applied": wanted,
                "changes": named(plan.changes),
                "warnings": [str(warning) for warning in plan.warnings],
            }
        )
    elif not plan.changes:
        print_line(say("commands.hook_nothing"))
    elif wanted:
        print_line(say("commands.hook_done"))
    else:
        print_line(say("commands.hook_unchanged"))


def _show(plan: "Plan") -> None:
    for change in plan.changes:
        print_line(say(f"commands.file_{change.what}", path=str(change.path)))
        if change.what == "change" and change.path.suffix == ".conf":
            before, after = (
                (data or b"").decode("utf-8", "replace") for data in (change.before, change.after)
            )
            rows = list(difflib.unified_diff(before.split("\n"), after.split("\n"), n=1, lineterm=""))
            print_line("\n".join(rows[2:]), lines=True)
    for warning in plan.warnings:
        print_line(say("commands.warning", text=warning))
