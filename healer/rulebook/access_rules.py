"""Loads and checks `rules/access.yaml`: which groups of the identity provider may do what, and who may not
approve. Format: docs/sign-in.md."""

from collections.abc import Collection

from healer.model import Role
from healer.model.grants import AccessRules, fits_any
from healer.model.vocabulary import did_you_mean
from healer.rulebook.rule_checks import check_name
from healer.rulebook.source import Source, Where


def read_access(source: Source, playbooks: Collection[str]) -> AccessRules:
    """What is wrong goes to the source's problems."""
    if source.data is None:
        return AccessRules()
    found = source.convert((), source.data, AccessRules)
    if found is None:
        return AccessRules()
    names: set[str] = set()
    for index, grant in enumerate(found.grants):
        at = source.at("grants", index)
        check_name(at, grant.name, names)
        names.add(grant.name)
        check = at.check
        who = bool(grant.groups or grant.subjects)
        check("groups", who, "nobody has this role by this entry", "name `groups` or `subjects`")
        check("groups", all(grant.groups), "an empty name is no group")
        check("subjects", all(grant.subjects), "an empty name is no subject")
        check("role", grant.role is not Role.signals, "people send no signals", "a token does")
        check("clusters", bool(grant.clusters), "the list is empty", '"*" is all')
        _check_playbooks(at, grant.playbooks, playbooks)
    for index, duty in enumerate(found.duties):
        at = source.at("duties", index)
        _check_playbooks(at, duty.playbooks, playbooks)
        is_needed = duty.second_person or bool(duty.never)
        at.check("second_person", is_needed, "this entry says nothing", "leave it out")
    return found


def _check_playbooks(at: Where, globs: Collection[str], playbooks: Collection[str]) -> None:
    if not globs:
        at.wrong("playbooks", "the list is empty", '"*" is all')
    for glob in globs:
        if not any(fits_any(name, [glob]) for name in playbooks):
            at.wrong("playbooks", f"no playbook is called {glob}", did_you_mean(glob, playbooks))
