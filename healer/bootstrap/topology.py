"""Slurm's own tree, for a comparison with the cables that were found."""

from collections.abc import Mapping

from healer.adapters.slurm import parse_topology
from healer.adapters.slurm.parse_json import NotUnderstood


def slurm_tree(text: str) -> Mapping[str, tuple[str, ...]]:
    """Node -> its switches, leaf first, from the output of `scontrol show topology`. Raises ValueError."""
    try:
        return parse_topology.switches(text)
    except NotUnderstood as error:
        raise ValueError(str(error)) from error
