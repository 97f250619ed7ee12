"""What the groups of the identity provider grant a caller, and who counts as a person at such a site."""

from collections.abc import Collection, Sequence

import msgspec

from healer.api.problems import Problem
from healer.model import Role, Run
from healer.model.grants import ACTING, OWNED, AccessRules, Grant, fits_any, strongest
from healer.model.person_names import broke_glass
from healer.ports.callers import Caller, Granted
from healer.ports.directory import LOCAL, UNPROVEN
from healer.text import Said, say

#: What a token above viewer has that is neither a person's nor a service account's: it may only read.
OF_NO_PERSON = Granted(subject="", groups=(), grants=(Grant(name="", role=Role.viewer),))


class NoRole(Problem):
    """403: the caller's groups grant no role."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(403, say("api.granted_no_role", name=caller.name))
        self.caller = caller


def is_stranger(caller: Caller, user: str) -> bool:
    """Whether the caller has no role and is not this user, whose job it asks for (`access.NeedJob`)."""
    has_no_role = caller.granted is not None and not caller.granted.grants
    return has_no_role and caller.job is not None and caller.name != user


def resolved(caller: Caller, rules: AccessRules) -> Caller:
    """With the role that the groups grant now. Raises NoRole."""
    granted = caller.granted
    if granted is None:
        return caller
    grants = rules.grants_of(granted.subject, granted.groups)
    role = strongest(grants)
    if role is None:
        raise NoRole(caller)
    granted = msgspec.structs.replace(granted, grants=grants)
    return msgspec.structs.replace(caller, granted=granted, role=role)


def check_person(caller: Caller, *, provided: bool) -> Caller:
    """The caller unchanged if it acts for a person or is a service account, else as a read-only caller.
    `provided`: the site has an identity provider, and only its people are persons."""
    if caller.role not in ACTING or OWNED in caller.name or broke_glass(caller.name):
        return caller
    if caller.issuer and not (provided and caller.issuer == LOCAL):
        return caller
    return msgspec.structs.replace(caller, role=Role.viewer, granted=OF_NO_PERSON)


def narrowed(caller: Caller, roles: Collection[Role], clusters: Sequence[str]) -> Caller | None:
    """The caller bound to the clusters where it has one of these roles; None where it has none. `clusters`:
    all of the site. What a token itself is bound to stays so."""
    granted = caller.granted
    if granted is None:
        return caller if caller.role in roles else None
    if caller.cluster is not None:
        clusters = (caller.cluster,)
    grants = [grant for grant in granted.grants if grant.role in roles]
    covered = tuple(name for name in clusters if any(grant.covers(name) for grant in grants))
    role = strongest(grants)
    if role is None or not covered:
        return None
    several = covered if 1 < len(covered) < len(clusters) else None
    only = covered[0] if len(covered) == 1 < len(clusters) else None
    granted = msgspec.structs.replace(granted, clusters=several)
    return msgspec.structs.replace(caller, role=role, cluster=caller.cluster or only, granted=granted)


def has_role(caller: Caller, roles: Collection[Role], cluster: str | None, clusters: Sequence[str]) -> bool:
    """Whether the caller has one of these roles at the cluster; None: at all of the site, which are
    `clusters`. A caller's own `role` may be that of a few of them."""
    if caller.granted is None:
        return caller.role in roles and caller.cluster in (None, cluster)
    grants = [grant for grant in caller.granted.grants if grant.role in roles]
    asked = clusters if cluster is None else (cluster,)
    return all(any(grant.covers(name) for grant in grants) for name in asked)


def role_at(caller: Caller, cluster: str) -> Role:
    """The caller's strongest role at a cluster that it sees."""
    if caller.granted is None:
        return caller.role
    return strongest(grant for grant in caller.granted.grants if grant.covers(cluster)) or Role.viewer


def may_use(caller: Caller, roles: Collection[Role], cluster: str, playbook: str) -> bool:
    """Whether one of the caller's grants has such a role for this playbook there."""
    if caller.granted is None:
        return caller.role in roles
    return any(
        grant.role in roles and grant.covers(cluster) and fits_any(playbook, grant.playbooks)
        for grant in caller.granted.grants
    )


def bars_change(caller: Caller, roles: Collection[Role], run: Run) -> Said | None:
    """Why this token or session may not change the run; None if it may."""
    if may_use(caller, roles, run.cluster, run.playbook):
        return None
    return say("api.granted_not_this_playbook", playbook=run.playbook, cluster=run.cluster)


def bars_approval(caller: Caller, roles: Collection[Role], run: Run) -> Said | None:
    """Why it may not approve the run, apart from its person; None if it may."""
    if why := bars_change(caller, roles, run):
        return why
    if caller.session is not None and caller.session.proven_at == UNPROVEN:
        return say("api.host_never_approves")
    return None
