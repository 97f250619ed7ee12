"""`healer access`: permissions by the groups of the identity provider."""

from typing import Annotated, Any

import typer

from healer.commands import Failed, print_line
from healer.commands.remote import AS_JSON, RulesFolder, add_group, print_json, print_list
from healer.model.grants import Grant
from healer.settings import load, rules_folder
from healer.text import joined, say


def register(app: typer.Typer) -> None:
    add_group(app, "access", "Who may do what.", {"who": who})


def who(
    groups: Annotated[
        list[str] | None, typer.Option("--group", help="A group, by the provider's name; repeat for more.")
    ] = None,
    *,
    subject: Annotated[str, typer.Option("--subject", help="The person's `sub` at the provider.")] = "",
    rules: RulesFolder = None,
    json: bool = AS_JSON,
) -> None:
    """Show what rules/access.yaml grants, in total or to a person with these groups. Changes nothing."""
    from healer.rulebook.ruleset import RulesInvalid
    from healer.rulebook.ruleset import load as load_rules

    folder = rules or rules_folder(load())
    try:
        access = load_rules(folder, prove=False).access
    except RulesInvalid as error:
        for problem in error.problems:
            print_line(problem.sentence(folder), err=True)
        raise Failed(say("commands.rules_problems", count=len(error.problems), folder=str(folder))) from None
    named = set(groups or ())
    grants = access.grants_of(subject, named) if named or subject else access.grants
    duties = [duty for duty in access.duties if not named or named & {*duty.never}]
    rows = [_row(grant) for grant in grants]
    barred = sorted({glob for duty in duties if named & {*duty.never} for glob in duty.playbooks})
    if json:
        print_json({"grants": rows, "approves_none_of": barred})
        return
    if not rows:
        nothing = say("commands.grants_nothing", file=str(folder / "access.yaml"))
        print_line(say("commands.no_role") if named or subject else nothing)
        return
    shown = [
        {name: ", ".join(value) if isinstance(value, list) else value for name, value in row.items()}
        for row in rows
    ]
    print_list(shown, {name: name for name in rows[0]}, json)
    if barred:
        print_line(say("commands.barred", playbooks=joined(barred, "comma")))


def _row(grant: Grant) -> dict[str, Any]:
    return {
        "entry": grant.name,
        "role": grant.role.value,
        "clusters": list(grant.clusters),
        "playbooks": list(grant.playbooks),
        "groups": list(grant.groups),
        "subjects": list(grant.subjects),
    }
