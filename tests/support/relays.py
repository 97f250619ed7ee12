"""Tokens for signals in tests: the site's own relay, which vouches for the kernel unless a test says else."""

from typing import Any

from healer.model import Role
from healer.ports.callers import NewToken


def new_token(role: Role | str, **bound: Any) -> NewToken:
    """`vouches=""`: a relay that nothing vouches for."""
    relays = Role(role) is Role.signals and not (bound.get("node") or bound.get("job"))
    return NewToken(role=Role(role), **({"vouches": "kernel"} if relays else {}) | bound)


def relay_options(role: str, options: tuple[str, ...]) -> tuple[str, ...]:
    """The same as options of `healer token create`."""
    bound = {"--node", "--job", "--vouches"} & set(options)
    return options if role != "signals" or bound else (*options, "--vouches", "kernel")
