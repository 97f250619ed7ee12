"""`scontrol show topology` of a tree: node -> its switches, leaf first. The text is one since 2.0.

topology/block prints BlockName, and a flat cluster nothing: both have no switches to tell.
"""

import re
from collections.abc import Mapping

from healer.adapters.slurm import strict_hostlist as hostlist
from healer.adapters.slurm.parse_json import NotUnderstood
from healer.model import BLOCK

_BLOCK = re.compile(r"^BlockName=(\S+)\b(.*)$", re.MULTILINE)
_SWITCH = re.compile(r"^SwitchName=(\S+) Level=(\d+)\b(.*)$", re.MULTILINE)
_NODES = re.compile(r"\bNodes=(\S+)")


def switches(text: str) -> Mapping[str, tuple[str, ...]]:
    """Empty where Slurm knows no tree. NotUnderstood on node names that cannot be read."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name, level, rest in _SWITCH.findall(text):
        for node in _nodes("switch", name, rest):
            found.setdefault(node, []).append((int(level), name))
    return {node: tuple(name for _, name in sorted(above)) for node, above in found.items()}


def blocks(text: str) -> Mapping[str, tuple[str, ...]]:
    """Node -> its block of topology/block, marked as one. An aggregate of blocks is none."""
    found: dict[str, tuple[str, ...]] = {}
    for name, rest in _BLOCK.findall(text):
        if "+" not in name and "," not in name:
            found |= {node: (f"{BLOCK}{name}",) for node in _nodes("block", name, rest)}
    return found


def _nodes(what: str, name: str, rest: str) -> tuple[str, ...]:
    nodes = _NODES.search(rest)
    try:
        return hostlist.expand(nodes[1] if nodes else "")
    except ValueError as error:
        raise NotUnderstood(f"The {what} {name} could not be read: {error}.") from error
