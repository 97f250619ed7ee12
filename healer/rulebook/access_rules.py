"""Loads and checks `rules/access.yaml`: permissions by the groups of the identity provider, and who may not
approve. Format: docs/sign-in.md."""

from collections.abc import Collection

from healer.model import Role
from healer.model.grants import AccessRules, fits_any
from healer.model.vocabulary import did_you_mean
from healer.rulebook.rule_checks import check_name
from healer.rulebook.source import Source, Where
from healer.text import say


def read_access(source: Source, playbooks: Collection[str]) -> AccessRules:
    """Problems go to the source's list."""
    found = source.whole(AccessRules)
    names: set[str] = set()
    for index, grant in enumerate(found.grants):
        at = source.at("grants", index)
        check_name(at, grant.name, names)
        names.add(grant.name)
        check = at.check
        who = bool(grant.groups or grant.subjects)
        check("groups", who, say("rulebook.no_one_has_role"), say("rulebook.name_groups_or_subjects"))
        check("groups", all(grant.groups), say("rulebook.an_empty_name_no"))
        check("subjects", all(grant.subjects), say("rulebook.an_empty_name_no_subject"))
        check(
            "role",
            grant.role is not Role.signals,
            say("rulebook.people_send_no_signals"),
            say("rulebook.token_does"),
        )
        check("clusters", bool(grant.clusters), say("rulebook.list_empty"), say("rulebook.all"))
        _check_playbooks(at, grant.playbooks, playbooks)
    for index, duty in enumerate(found.duties):
        at = source.at("duties", index)
        _check_playbooks(at, duty.playbooks, playbooks)
        is_needed = duty.second_person or bool(duty.never)
        at.check(
            "second_person", is_needed, say("rulebook.this_entry_says_nothing"), say("rulebook.leave_out")
        )
    return found


def _check_playbooks(at: Where, globs: Collection[str], playbooks: Collection[str]) -> None:
    if not globs:
        at.wrong("playbooks", say("rulebook.list_empty"), say("rulebook.all"))
    for glob in globs:
        if not any(fits_any(name, [glob]) for name in playbooks):
            at.wrong("playbooks", say("rulebook.there_no_playbook", name=glob), did_you_mean(glob, playbooks))
