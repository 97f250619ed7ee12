"""`healer up` and `healer demo`: the whole product in one process tree; the demo adds a cluster that
breaks."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from healer.commands import Failed, print_line
from healer.settings import SIM_FOLDER, Settings, check_listener, load, own_sim_socket, shipped_rules
from healer.text import Said, joined, quoted, said_by, say

if TYPE_CHECKING:
    from healer.embedded.embedded_slurm import RealSlurm
    from healer.embedded.running import Running
    from healer.embedded.tree import Part


#: Size of the simulated cluster: one small pod.
SIM_NODES = 32
#: The longest path of a unix socket is 107 bytes; it is made as NAME.PID.
SOCKET_MAX = 107 - len(".reads.4194304") + len(".sock")


def up(
    data_dir: str = typer.Option(None, "--data-dir", help="Logs, keys and the embedded servers' files."),
    listen: str = typer.Option(None, "--listen", help="Address and port, like 127.0.0.1:8080."),
) -> None:
    """Run everything: database, broker, API and console, detector, scheduler, worker. Ctrl-C stops it."""
    from healer.embedded.executor_environ import withhold

    withhold()
    settings = load(data_dir=data_dir, listen=listen)
    check_listener(settings)
    run_tree(settings)


def run_tree(settings: Settings) -> None:
    """Blocks until a signal asks for the end."""
    from healer.bootstrap import tree_parts
    from healer.embedded.user import FolderUnusable

    parts = parts_of(settings)
    several = bool(settings.clusters)
    for cluster in settings.each():
        name = cluster.cluster or "" if several else ""
        socket = own_sim_socket(cluster.data_dir, name)
        if cluster.slurm_adapters[0] != "sim" or str(cluster.sim_socket) != str(socket):
            continue
        if len(os.fsencode(socket)) > SOCKET_MAX:
            raise FolderUnusable(cluster.data_dir, say("commands.socket_too_long"))
        # No simulated Slurm runs elsewhere: it becomes one of the parts.
        parts = tree_parts.with_slurm(parts, socket, SIM_NODES, cluster.cluster, several=several)
        where = say("commands.no_slurm_for", name=name) if name else say("commands.no_slurm")
        say_own(say("commands.slurm_simulated", where=where, count=SIM_NODES))
    start("up", settings, parts)


def parts_of(settings: Settings) -> "list[Part]":
    from healer.commands.cli import main
    from healer.embedded.tree import healer_parts

    return healer_parts(settings, main)


def start(name: str, settings: Settings, parts: "Sequence[Part]", **calls: Any) -> None:
    """Runs the tree of `healer NAME` until a signal asks for its end. `calls`: more of its callbacks."""
    from setproctitle import setproctitle

    from healer.bootstrap import tree_parts
    from healer.embedded.tree import Calls, Tree

    setproctitle(f"healer {name}")
    preload = partial(tree_parts.preload, settings)
    Tree(settings, dict(os.environ), parts, Calls(say=say_own, load=preload, **calls)).run()


def say_own(text: str) -> None:
    """A line of a process that is ours; programs wait for `healer is ready`, in each language."""
    print_line(text if text.startswith("healer is ready") else say("commands.own", text=quoted(text)))


_CONFIG = Path("demo/healer.toml")
#: A line of the story begins with the time of day.
_STORY = re.compile(r"\d\d:\d\d:\d\d ")


def demo(
    listen: str = typer.Option(None, "--listen", help="Address and port, like 127.0.0.1:8080."),
    nodes: int = typer.Option(32, "--nodes", min=4, max=500, help="Nodes of the cluster."),
    slurm: str = typer.Option(
        "auto",
        "--slurm",
        envvar="SLURM",
        help="auto (real if installed), real, sim, or install (installs Debian's first).",
    ),
) -> None:
    """Start everything and a simulated faulty cluster."""
    from healer.embedded.tree import check_port
    from healer.embedded.user import system_users

    if not _CONFIG.is_file():
        raise Failed(say("commands.demo_folder"))
    # The demo does not use the site's database, sinks and Slurm.
    forget_settings(("HEALER_LISTEN",), say("commands.demo_own"))
    os.environ["HEALER_CONFIG"] = str(_CONFIG.resolve())
    wanted = load(listen=listen)
    have_users()
    check_port(wanted.listen, system_users().service)
    with temporary_folder("demo") as folder:
        real = _slurm(slurm, folder, nodes, wanted)
        try:
            os.environ.update(_environ(folder, wanted, real))
            if real is not None:
                real.start()
                os.environ.update(real.env)
            _run_demo(load(), nodes, real)
        finally:
            if real is not None:
                real.stop()


def have_users() -> None:
    """What root starts runs as system users: makes those that are missing, and says how to remove them."""
    from healer.embedded import user

    if os.geteuid() != 0 or not (made := user.make_users()):
        return
    say_own(say("commands.users_made", names=joined(made, "comma")))
    remove = " && ".join(f"userdel {name}" for name in made)
    say_own(say("commands.users_remove", command=remove))


def forget_settings(kept: tuple[str, ...], why: Said) -> None:
    """Drops the caller's settings except those that begin with one of `kept`."""
    names = [name for name in os.environ if name.startswith("HEALER_") and not name.startswith(kept)]
    ignored = sorted(name for name in names if os.environ.pop(name))
    if ignored:
        say_own(say("commands.settings_ignored", why=why, names=joined(ignored, "comma")))


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """A folder with a short path that the servers' user can enter; a checkout may be in a private home."""
    from healer.embedded.user import FolderUnusable, usable

    try:
        folder = Path(tempfile.mkdtemp(prefix=f"healer-{name}-"))
    except OSError as error:
        raise Failed(say("commands.folder_unmade", why=str(error.strerror))) from None
    try:
        folder.chmod(0o711)
        with usable(folder):
            yield folder
    except FolderUnusable as error:
        raise Failed(say("commands.folder_unusable", folder=str(folder), why=quoted(error.why))) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_rules(source: Path, folder: Path) -> Path:
    """The copy below `folder`. Raises FolderUnusable."""
    from healer.embedded.user import FolderUnusable

    rules = folder / "rules"
    try:
        shutil.copytree(source, rules)
    except shutil.Error as error:  # it lists every file that could not be copied
        raise FolderUnusable(folder, say("commands.folder_unfilled", why=str(error.args[0][0][2]))) from None
    return rules


def _slurm(wanted: str, folder: Path, nodes: int, settings: Settings) -> "RealSlurm | None":
    from healer.embedded.embedded_slurm import CLUSTER, RealSlurm, SlurmNotStarted, available, install

    if wanted not in {"auto", "real", "sim", "install"}:
        raise typer.BadParameter(say("commands.demo_slurm", given=wanted))
    if wanted == "install" and available() is not None:
        say_own(say("commands.slurm_installing"))
        try:
            install()
        except SlurmNotStarted as error:
            say_own(said_by(error))
    why = available()
    if wanted == "sim" or (wanted != "real" and why is not None):
        reason = quoted(why) if why else say("commands.as_asked")
        say_own(say("commands.demo_sim", count=nodes, why=reason))
        return None
    if why is not None:
        raise Failed(quoted(why))
    say_own(say("commands.demo_real", count=nodes))
    return RealSlurm(folder / "slurm", nodes, conf={"ClusterName": settings.cluster or CLUSTER})


def _environ(folder: Path, settings: Settings, real: "RealSlurm | None") -> dict[str, str]:
    rules = copy_rules(shipped_rules(), folder)
    shutil.copy(_CONFIG.with_name("topology.yaml"), rules / "topology.yaml")
    shutil.copy(_CONFIG.with_name("gpus.sh"), rules / "validation" / "gpus.sh")
    say_own(say("commands.demo_config", file=str(_CONFIG)))
    return {
        "HEALER_DATA_DIR": str(folder / "data"),
        "HEALER_LISTEN": str(settings.listen),
        "HEALER_RULES_DIR": str(rules),
        "HEALER_SLURM_ADAPTERS": "cli" if real else "sim",
        "HEALER_SIM_NODES_SOCKET": str(folder / "data" / SIM_FOLDER / "nodes.sock"),
    }


def _run_demo(settings: Settings, nodes: int, real: "RealSlurm | None") -> None:
    from healer.bootstrap import tree_parts

    parts = parts_of(settings)
    if real is None:
        socket = settings.sim_socket or own_sim_socket(settings.data_dir)
        parts = tree_parts.with_slurm(parts, socket, nodes, settings.cluster)
    sim_nodes, faults = tree_parts.demo_parts(settings.sim_nodes_socket)
    story = _Story(settings.data_dir / "log" / "demo-cluster.log")
    on_ready = partial(_ready, settings)
    start("demo", settings, [sim_nodes, *parts, faults], on_tick=story.print_new, on_ready=on_ready)


class _Story:
    """The story in the log of the demo's cluster; errors in it are not printed."""

    def __init__(self, log: Path) -> None:
        self._log, self._read_up_to = log, 0

    def print_new(self) -> None:
        """Prints new lines of the story."""
        if not self._log.is_file():
            return
        with self._log.open(encoding="utf-8", errors="replace") as file:
            file.seek(self._read_up_to)
            while (line := file.readline()).endswith("\n"):
                self._read_up_to = file.tell()
                if _STORY.match(line):
                    print_line(f"  {line.rstrip()}")


def _ready(settings: Settings, running: "Running") -> None:
    from healer.bootstrap import demo_tokens, sign_in_link

    demo_tokens(settings, running.database_url)
    link = sign_in_link(settings, running.database_url, running.url, name="demo admin")
    print_line(say("commands.demo_open", link=link), lines=True)
    say_own(say("commands.demo_story"))
    say_own(say("commands.demo_more"))
