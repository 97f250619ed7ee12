"""`healer topology`: imports the fabric's cables into `rules/topology-found.yaml`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from healer.commands import Failed
from healer.settings import load, rules_folder

if TYPE_CHECKING:
    from healer.model import Topology
    from healer.topology.found import Found

_File = Path | None


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Where nodes and switches are.", rich_markup_mode=None)

    @group.callback()
    def _group() -> None: ...

    group.command("import")(import_)
    app.add_typer(group, name="topology")


def import_(
    *,
    ibnetdiscover: Annotated[
        _File, typer.Option("--ibnetdiscover", help="Output of ibnetdiscover; - is standard input.")
    ] = None,
    lldp: Annotated[
        _File, typer.Option("--lldp", help="JSON of lldpctl, one document or one for each host and line.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Whose LLDP it is, where it does not say.")] = "",
    slurm: Annotated[
        _File, typer.Option("--slurm", help="Output of `scontrol show topology`, to compare with.")
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Keep what was found before.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Write it.")] = False,
    rules: Annotated[
        Path | None, typer.Option("--rules", help="The folder; HEALER_RULES_DIR if left out.")
    ] = None,
) -> None:
    """Show what the cables say and what changes by it; with --yes write topology-found.yaml."""
    from healer.topology.found import FOUND, as_yaml, by_hand_first, changes, merged, topology_of

    found = _read_cables(ibnetdiscover, lldp, host)
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
        typer.echo("nothing changes")
        return
    for line in lines:
        typer.echo(line)
    if not yes:
        typer.echo(f"nothing is written: --yes writes {target}")
        return
    _write(target, as_yaml(after))
    typer.echo(f"written: {target}")


def _read_cables(ibnetdiscover: Path | None, lldp: Path | None, host: str) -> "Found":
    from healer.topology.found import Unreadable
    from healer.topology.infiniband import read_ibnetdiscover
    from healer.topology.lldp import read_lldp

    path = lldp if ibnetdiscover is None else ibnetdiscover
    if path is None or (lldp is not None and ibnetdiscover is not None):
        raise Failed("give one of --ibnetdiscover and --lldp; take the other one with --merge afterwards")
    text = _read(path)
    try:
        return read_ibnetdiscover(text) if ibnetdiscover is not None else read_lldp(text, host)
    except Unreadable as error:
        raise Failed(f"{path}: {error}") from None


def _read(path: Path) -> str:
    """The text of the file. Raises Failed. Only typed descriptions hold non-UTF-8 bytes: these are
    replaced."""
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise Failed(f"{path} cannot be read: {error.strerror}") from None
    return raw.decode("utf-8", "replace")


def _read_folder(folder: Path) -> "tuple[Topology, Topology]":
    """The topologies written by hand and found before. Raises Failed for an invalid file."""
    from healer.rulebook.rule_checks import read_topology
    from healer.rulebook.source import Problem, Source
    from healer.topology.found import FOUND

    if not folder.is_dir():
        raise Failed(f"there is no folder {folder}")
    problems: list[Problem] = []
    both = [
        read_topology(Source.if_there(folder / name, name, problems)) for name in ("topology.yaml", FOUND)
    ]
    if problems:
        raise Failed("\n".join(str(folder / str(problem)) for problem in problems))
    return both[0], both[1]


def _print_summary(found: "Found", topology: "Topology") -> None:
    nodes = {cable.peer for cable in found.cables if not cable.is_switch}
    to_nodes = sum(not cable.is_switch for cable in found.cables)
    switches = {cable.switch for cable in found.cables} | set(found.guids)
    typer.echo(f"read: {len(switches)} switches, {to_nodes} cables to {len(nodes)} nodes")
    for what, count in sorted(found.skipped.items()):
        typer.echo(f"left out: {count} {what}")
    ends = [(name, peer.name) for name, ports in topology.links.items() for peer in ports.values()]
    leaves = {name for name, peer in ends if peer not in topology.switches}
    typer.echo(f"in all: {len(topology.places)} nodes below {len(leaves)} leaves")


def _compare(text: str, topology: "Topology") -> None:
    from healer.bootstrap import slurm_tree
    from healer.topology.found import differences_to_slurm

    try:
        tree = slurm_tree(text)
    except ValueError as error:
        raise Failed(str(error)) from None
    if not tree:
        typer.echo("Slurm has no tree of switches to compare with")
        return
    for line in differences_to_slurm(topology, tree) or ["Slurm's tree agrees"]:
        typer.echo(line)


def _write(target: Path, text: str) -> None:
    """Replaces the file atomically: a running healer may read it at any moment."""
    half = target.with_name(f".{target.name}.new")
    try:
        half.write_text(text, encoding="utf-8")
        half.replace(target)
    except OSError as error:
        raise Failed(f"{target} cannot be written: {error.strerror}") from None
