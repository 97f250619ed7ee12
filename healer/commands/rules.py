"""`healer rules`: checks the files under rules/ and runs their test cases."""

from pathlib import Path
from typing import Annotated

import typer

from healer.commands import Failed, print_line, reading, say_json
from healer.commands.remote import REASON, Client, RulesFolder, add_group, print_json, print_list
from healer.settings import load, rules_folder
from healer.text import said_by, say

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    commands = {
        "check": check, "test": test, "schema": schema, "try": try_change, "proof": proof, "propose": propose,
    }  # fmt: skip
    add_group(app, "rules", "The rules of the site.", commands)


def check(rules: RulesFolder = None, json: _Json = False) -> None:
    """Check every file and print each error with its place; exits with 1 if there are any."""
    import msgspec

    from healer.rulebook.ruleset import RulesInvalid
    from healer.rulebook.ruleset import load as load_rules

    folder = rules or rules_folder(load())
    try:
        found = load_rules(folder)
    except RulesInvalid as error:
        if json:
            say_json(msgspec.json.encode({"ok": False, "problems": error.problems}, enc_hook=str))
        else:
            for problem in error.problems:
                print_line(problem.sentence(folder))
        raise Failed(say("commands.rules_problems", count=len(error.problems), folder=str(folder))) from None
    counts = {
        "rules": len(found.rules),
        "detection_rules": len(found.detection),
        "signals": len(found.catalogue.signals),
        "xids": len(found.xids),
        "sxids": len(found.sxids),
        "playbooks": len(found.playbooks),
    }
    if json:
        say_json(msgspec.json.encode({"ok": True, "version": found.version, **counts}))
    else:
        print_line(say("commands.rules_well", folder=str(folder), **counts))


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
    with reading(file):
        text = file.read_text(encoding="utf-8")
    with Client() as api:
        body = {"file": name, "text": text, "days": days, "samples": samples, "reason": reason}
        made = api.post("/rehearsals", body)
        url = f"{api.url}/rehearsals/{made['id']}"
    if not samples:
        print_line(say("commands.without_samples"), err=True)
    if json:
        print_json(made)
    else:
        print_line(url)


def proof(
    replay: str = typer.Option(..., "--from-replay", help="The ID of the rehearsal."),
    rule: list[str] = typer.Option(..., "--rule", help="A rule that it changes; repeat for more."),
    reason: str = REASON,
    json: _Json = False,
) -> None:
    """Accept incidents that edited rules opened in a replay as proof, where the outcome is known."""
    with Client() as api:
        found = api.post(f"/rehearsals/{replay}/proof", {"rules": rule, "reason": reason})["items"]
    names = ("rule", "right", "wrong", "unknown", "missed_true", "missed_wrong", "counted_by")
    print_list(found, {name.upper(): name for name in names}, json)


def propose(
    recordings: list[Path] = typer.Option(
        ..., "--from", help="A recording, or a folder of them; repeat for more."
    ),
    output: Path = typer.Option(Path("rules-proposed"), help="The folder to write; it must not exist."),
    rules: RulesFolder = None,
    samples: bool = typer.Option(True, help="Also replay measurements: much slower."),
) -> None:
    """Write proposed rules from a recorded history: shadow mode, each rule's precision, and guards."""
    from healer.bootstrap import history

    if output.exists():
        raise Failed(say("commands.propose_exists", folder=str(output)))
    settings, names = load(), ", ".join(map(str, recordings))
    folder = rules or rules_folder(settings)
    try:
        with reading(names):
            changed = history.proposed_rules(recordings, folder, settings, output, samples=samples)
    except ValueError as error:
        raise Failed(say("commands.replay_failed", names=names, why=said_by(error))) from error
    for name in changed:
        print_line(say("commands.changed", file=str(output / name)))
    print_line(say("commands.propose_diff", old=str(folder), new=str(output)))
    print_line(say("commands.propose_start", folder=str(output)))


def test(rules: RulesFolder = None, json: _Json = False) -> None:
    """Run the test cases of the rules; exits with 1 if one fails."""
    import msgspec

    from healer.rulebook.cases.rule_cases import run_cases
    from healer.rulebook.source import Problem

    folder = rules or rules_folder(load())
    results = run_cases(folder)
    wrong = [result for result in results if not result.ok]
    if json:
        shown = [{**msgspec.to_builtins(result, enc_hook=str), "ok": result.ok} for result in results]
        say_json(msgspec.json.encode({"ok": not wrong, "cases": shown}))
    else:
        for case in wrong:
            problem = Problem(
                file=case.file, line=case.line, text=say("words.labelled", label=case.name, text=case.why)
            )
            print_line(problem.sentence(folder))
        print_line(say("commands.cases_hold", hold=len(results) - len(wrong), count=len(results)))
    if wrong:
        raise Failed(say("commands.cases_fail", count=len(wrong)))
