"""`scontrol show topology` of a tree: node -> its switches, leaf first. The text is one since 2.0.

topology/block prints BlockName and a flat cluster nothing: both have no switches to tell.
"""

import re
from collections.abc import Mapping

from healer.adapters.slurm import hostlist
from healer.adapters.slurm.parse_json import NotUnderstood

_SWITCH = re.compile(r"^SwitchName=(\S+) Level=(\d+)\b(.*)$", re.MULTILINE)
_NODES = re.compile(r"\bNodes=(\S+)")


def switches(text: str) -> Mapping[str, tuple[str, ...]]:
    """Empty where Slurm knows no tree. NotUnderstood on node names that cannot be read."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name, level, rest in _SWITCH.findall(text):
        nodes = _NODES.search(rest)
        try:
            below = hostlist.expand(nodes[1] if nodes else "")
        except ValueError as error:
            raise NotUnderstood(f"The switch {name} could not be read: {error}.") from error
        for node in below:
            found.setdefault(node, []).append((int(level), name))
    return {node: tuple(name for _, name in sorted(above)) for node, above in found.items()}
