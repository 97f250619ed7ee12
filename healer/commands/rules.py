"""`healer rules`: checks the files under rules/ and runs the cases that lie beside them."""

from pathlib import Path
from typing import Annotated

import typer

from healer.commands import Failed
from healer.settings import load, rules_folder

_Folder = Annotated[Path | None, typer.Option("--rules", help="The folder; HEALER_RULES_DIR if left out.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The rules of the site.", rich_markup_mode=None)
    group.command("check")(check)
    group.command("test")(test)
    group.command("schema")(schema)
    app.add_typer(group, name="rules")


def check(rules: _Folder = None, json: _Json = False) -> None:
    """Check every file and print what is wrong where; ends with 1 if anything is."""
    import msgspec

    from healer.ruleset import RulesInvalid
    from healer.ruleset import load as load_rules

    folder = rules or rules_folder(load())
    try:
        found = load_rules(folder)
    except RulesInvalid as error:
        if json:
            typer.echo(msgspec.json.encode({"ok": False, "problems": error.problems}))
        else:
            for problem in error.problems:
                typer.echo(str(folder / str(problem)))
        raise Failed(f"{len(error.problems)} problems in {folder}") from None
    counts = {
        "rules": len(found.rules),
        "detection rules": len(found.detection),
        "signals": len(found.catalogue.signals),
        "xids": len(found.xids),
        "sxids": len(found.sxids),
        "playbooks": len(found.playbooks),
    }
    if json:
        named = {what.replace(" ", "_"): n for what, n in counts.items()}
        typer.echo(msgspec.json.encode({"ok": True, "version": found.version, **named}))
    else:
        typer.echo(f"{folder}: all right ({', '.join(f'{n} {what}' for what, n in counts.items())})")


def schema() -> None:
    """Print the JSON schema of a playbook's file, for editors."""
    import json

    from healer.playbookschema import playbook_schema

    typer.echo(json.dumps(playbook_schema(), indent=2))


def test(rules: _Folder = None, json: _Json = False) -> None:
    """Run the cases beside the rules; ends with 1 if one does not hold."""
    import msgspec

    from healer.rulecases import run_cases
    from healer.ruleset import RulesInvalid

    folder = rules or rules_folder(load())
    try:
        results = run_cases(folder)
    except RulesInvalid as error:
        raise Failed(str(error)) from None
    wrong = [result for result in results if not result.ok]
    if json:
        shown = [{**msgspec.to_builtins(one), "ok": one.ok} for one in results]
        typer.echo(msgspec.json.encode({"ok": not wrong, "cases": shown}))
    else:
        for one in wrong:
            typer.echo(f"{folder / one.file}:{one.line}: {one.name}: {one.why}")
        typer.echo(f"{len(results) - len(wrong)} of {len(results)} cases hold")
    if wrong:
        raise Failed(f"{len(wrong)} cases do not hold")
