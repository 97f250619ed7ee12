"""Permissions by the identity provider's groups: the entries of `rules/access.yaml`."""

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

import msgspec

from healer.model.vocabulary import Role

#: From the strongest to the weakest; auditor is separate, and sees what a viewer sees.
STRONGEST = (Role.admin, Role.operator, Role.responder, Role.auditor, Role.viewer)
#: Roles above viewer: such a token belongs to a person, or is a service account.
ACTING = frozenset({Role.responder, Role.operator, Role.admin})
#: Roles that may approve runs, and start any.
APPROVING = frozenset({Role.operator, Role.admin})
#: Separates the owner from the name of a service account; no person's name contains it.
OWNED = "/"


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """People in one of these groups or with one of these subjects have this role, at these clusters, for
    these playbooks.

    Clusters and playbooks are names or globs. A subject is the provider's `sub`, which people cannot
    choose."""

    name: str
    role: Role
    groups: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ("*",)
    playbooks: tuple[str, ...] = ("*",)

    def covers(self, cluster: str) -> bool:
        return fits_any(cluster, self.clusters)

    @property
    def everywhere(self) -> bool:
        return "*" in self.clusters


class Duty(msgspec.Struct, frozen=True, kw_only=True):
    """Who may approve a run of these playbooks. `second_person`: not the requester, which always holds for
    steps that cannot be undone. `never`: groups whose people approve none."""

    playbooks: tuple[str, ...]
    second_person: bool = True
    never: tuple[str, ...] = ()


class AccessRules(msgspec.Struct, frozen=True, kw_only=True):
    """`claim`: the provider's claim with a person's groups. `job_owners`: people without a role see the jobs
    of the Slurm user with their name."""

    claim: str = "groups"
    job_owners: bool = False
    grants: tuple[Grant, ...] = ()
    duties: tuple[Duty, ...] = ()

    def grants_of(self, subject: str, groups: Collection[str]) -> tuple[Grant, ...]:
        return tuple(
            grant for grant in self.grants if subject in grant.subjects or set(groups) & set(grant.groups)
        )

    def duties_of(self, playbook: str) -> tuple[Duty, ...]:
        return tuple(duty for duty in self.duties if fits_any(playbook, duty.playbooks))

    def needs_second(self, playbook: str) -> bool:
        """Whether each run of this playbook needs approval by another person than the requester."""
        return any(duty.second_person for duty in self.duties_of(playbook))


def fits_any(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def strongest(grants: Iterable[Grant]) -> Role | None:
    """The strongest role of these; None if there are none."""
    given = {grant.role for grant in grants}
    return next((role for role in STRONGEST if role in given), None)
