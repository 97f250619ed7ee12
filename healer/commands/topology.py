"""`healer topology`: imports the fabric's cables into `rules/topology-found.yaml`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from healer.commands import Failed, print_line, reading
from healer.commands.remote import RulesFolder, add_group
from healer.settings import load, rules_folder
from healer.text import joined, said_by, say

if TYPE_CHECKING:
    from healer.model import Topology
    from healer.topology.found import Found


def register(app: typer.Typer) -> None:
    add_group(app, "topology", "Where nodes and switches are.", {"import": import_})


def import_(
    cables: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Output of ibnetdiscover, or JSON of lldpctl; - is standard input."
        ),
    ],
    *,
    host: Annotated[
        str, typer.Option("--host", help="The node of the LLDP data, if the data does not name it.")
    ] = "",
    slurm: Annotated[
        Path | None, typer.Option("--slurm", help="Output of `scontrol show topology`, to compare with.")
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Keep what was found before.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Write it.")] = False,
    rules: RulesFolder = None,
) -> None:
    """Show the cabling and the changes it implies; with --yes write topology-found.yaml."""
    from healer.topology.found import FOUND, as_yaml, by_hand_first, changes, merged, topology_of

    found = _read_cables(cables, host)
    folder = rules or rules_folder(load())
    hand, before = _read_folder(folder)
    after = merged(before, topology_of(found)) if merge else topology_of(found)
    _print_summary(found, after)
    if slurm is not None:
        _compare(_read(slurm), by_hand_first(hand, after))
    # Entries written by hand are merged into both, so that only effective changes are shown.
    lines = changes(by_hand_first(hand, before), by_hand_first(hand, after))
    target = folder / FOUND
    if as_yaml(before) == as_yaml(after) and target.exists():
        print_line(say("commands.nothing_changes"))
        return
    for line in lines:
        print_line(line)
    if not yes:
        print_line(say("commands.would_write", file=str(target)))
        return
    _write(target, as_yaml(after))
    print_line(say("commands.topology_written", file=str(target)))


def _read_cables(path: Path, host: str) -> "Found":
    """Reads LLDP if the text is JSON, else ibnetdiscover's format."""
    from healer.topology.infiniband import read_ibnetdiscover
    from healer.topology.lldp import read_lldp

    text = _read(path)
    return read_lldp(text, host) if text.lstrip()[:1] in ("{", "[") else read_ibnetdiscover(text)


def _read(path: Path) -> str:
    """The text of the file. Raises Failed. Only typed descriptions hold non-UTF-8 bytes: these are
    replaced."""
    with reading(path):
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    return raw.decode("utf-8", "replace")


def _read_folder(folder: Path) -> "tuple[Topology, Topology]":
    """The topologies written by hand and found before. Raises Failed for an invalid file."""
    from healer.rulebook.rule_checks import read_topology
    from healer.rulebook.source import Problem, Source
    from healer.topology.found import FOUND

    if not folder.is_dir():
        raise Failed(say("commands.missing_folder", folder=str(folder)))
    problems: list[Problem] = []
    both = [
        read_topology(Source.if_there(folder / name, name, problems)) for name in ("topology.yaml", FOUND)
    ]
    if problems:
        raise Failed(joined([problem.sentence(folder) for problem in problems], "line"))
    return both[0], both[1]


def _print_summary(found: "Found", topology: "Topology") -> None:
    nodes = {cable.peer for cable in found.cables if not cable.is_switch}
    to_nodes = sum(not cable.is_switch for cable in found.cables)
    switches = {cable.switch for cable in found.cables} | set(found.guids)
    print_line(say("commands.cables_read", switches=len(switches), cables=to_nodes, nodes=len(nodes)))
    for what, count in sorted(found.skipped.items()):
        print_line(say("commands.cables_skipped", n=count, what=what))
    ends = [(name, peer.name) for name, ports in topology.links.items() for peer in ports.values()]
    leaves = {name for name, peer in ends if peer not in topology.switches}
    print_line(say("commands.cables_all", nodes=len(topology.places), leaves=len(leaves)))


def _compare(text: str, topology: "Topology") -> None:
    from healer.bootstrap import slurm_tree
    from healer.topology.found import differences_to_slurm

    try:
        tree = slurm_tree(text)
    except ValueError as error:
        raise Failed(said_by(error)) from None
    if not tree:
        print_line(say("commands.no_tree"))
        return
    for line in differences_to_slurm(topology, tree) or [say("commands.tree_agrees")]:
        print_line(line)


def _write(target: Path, text: str) -> None:
    """Replaces the file atomically: a running healer may read it at any moment."""
    half = target.with_name(f".{target.name}.new")
    with reading(target, writes=True):
        half.write_text(text, encoding="utf-8")
        half.replace(target)
