"""`healer rules`: checks the files under rules/ and runs their test cases."""

from pathlib import Path
from typing import Annotated

import typer

from healer.commands import Failed, say, say_json
from healer.commands.remote import REASON, Client, add_group, print_json, print_list
from healer.settings import load, rules_folder

_Folder = Annotated[Path | None, typer.Option("--rules", help="The folder. Default: HEALER_RULES_DIR.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    commands = {"check": check, "test": test, "schema": schema, "try": try_change, "proof": proof}
    add_group(app, "rules", "The rules of the site.", commands)


def check(rules: _Folder = None, json: _Json = False) -> None:
    """Check every file and print each error with its place; exits with 1 if there are any."""
    import msgspec

    from healer.rulebook.ruleset import RulesInvalid
    from healer.rulebook.ruleset import load as load_rules

    folder = rules or rules_folder(load())
    try:
        found = load_rules(folder)
    except RulesInvalid as error:
        if json:
            say_json(msgspec.json.encode({"ok": False, "problems": error.problems}))
        else:
            for problem in error.problems:
                say(str(folder / str(problem)))
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
        say_json(msgspec.json.encode({"ok": True, "version": found.version, **named}))
    else:
        say(f"{folder}: all right ({', '.join(f'{n} {what}' for what, n in counts.items())})")


def schema() -> None:
    """Print the JSON schema of a playbook's file, for editors."""
    import json

    from healer.rulebook.playbook_rules import playbook_schema

    say_json(json.dumps(playbook_schema(), indent=2))


def try_change(
    file: Path = typer.Argument(help="The changed file."),
    name: str = typer.Option(..., "--as", help="The file of rules/ it replaces, like policies.yaml."),
    reason: str = REASON,
    days: float = typer.Option(7.0, help="Number of the newest recorded days."),
    samples: bool = typer.Option(False, help="With measurements: much slower."),
    json: _Json = False,
) -> None:
    """Rehearse a changed file over the recordings, on healer's machine; prints the page with the result."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"{file} cannot be read: {error}") from error
    with Client() as api:
        body = {"file": name, "text": text, "days": days, "samples": samples, "reason": reason}
        made = api.post("/rehearsals", body)
        url = f"{api.url}/rehearsals/{made['id']}"
    if json:
        print_json(made)
    else:
        say(url)


def proof(
    replay: str = typer.Option(..., "--from-replay", help="The ID of the rehearsal."),
    rule: list[str] = typer.Option(..., "--rule", help="A rule that it changes; may be given again."),
    reason: str = REASON,
    json: _Json = False,
) -> None:
    """Accept what the edited rules opened in a replay as proof, where the outcome is known."""
    with Client() as api:
        found = api.post(f"/rehearsals/{replay}/proof", {"rules": rule, "reason": reason})["items"]
    names = ("rule", "right", "wrong", "unknown", "missed_true", "missed_wrong", "counted_by")
    print_list(found, {name.upper(): name for name in names}, json)


def test(rules: _Folder = None, json: _Json = False) -> None:
    """Run the test cases of the rules; exits with 1 if one fails."""
    import msgspec

    from healer.rulebook.cases.rule_cases import run_cases
    from healer.rulebook.ruleset import RulesInvalid

    folder = rules or rules_folder(load())
    try:
        results = run_cases(folder)
    except RulesInvalid as error:
        raise Failed(str(error)) from None
    wrong = [result for result in results if not result.ok]
    if json:
        shown = [{**msgspec.to_builtins(result), "ok": result.ok} for result in results]
        say_json(msgspec.json.encode({"ok": not wrong, "cases": shown}))
    else:
        for case in wrong:
            say(f"{folder / case.file}:{case.line}: {case.name}: {case.why}")
        say(f"{len(results) - len(wrong)} of {len(results)} cases hold")
    if wrong:
        raise Failed(f"{len(wrong)} cases do not hold")
