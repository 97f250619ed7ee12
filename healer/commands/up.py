"""`healer up` and `healer demo`: the whole product in one process tree; the demo adds a cluster that
breaks."""

import os
import re
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from healer.commands import Failed, say
from healer.settings import SIM_FOLDER, Settings, check_listener, load, own_sim_socket, shipped_rules

if TYPE_CHECKING:
    from healer.embedded.embedded_slurm import RealSlurm
    from healer.embedded.running import Running


#: Size of the simulated cluster: one small pod.
SIM_NODES = 32
#: The longest path of a unix socket is 107 bytes; it is made as NAME.PID.
SOCKET_MAX = 107 - len(".reads.4194304") + len(".sock")


def register(app: typer.Typer) -> None:
    app.command("up")(up)
    app.command("demo")(demo)


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
    from setproctitle import setproctitle

    from healer.bootstrap import tree_parts
    from healer.commands.cli import main
    from healer.embedded.tree import Calls, Tree, healer_parts
    from healer.embedded.user import FolderUnusable

    setproctitle("healer up")
    parts, environ = healer_parts(settings, main), dict(os.environ)
    several = bool(settings.clusters)
    for cluster in settings.each():
        name = cluster.cluster or "" if several else ""
        socket = own_sim_socket(cluster.data_dir, name)
        if cluster.slurm_adapters[0] != "sim" or str(cluster.sim_socket) != str(socket):
            continue
        if len(os.fsencode(socket)) > SOCKET_MAX:
            raise FolderUnusable(cluster.data_dir, "has too long a name to hold the simulated Slurm's socket")
        # No simulated Slurm runs elsewhere: it becomes one of the parts.
        parts = tree_parts.with_slurm(parts, socket, SIM_NODES, cluster.cluster, several=several)
        say_own(
            f"no Slurm is used {f'for {name}' if name else 'here'}: "
            f"a simulated cluster of {SIM_NODES} nodes stands in"
        )
    Tree(settings, environ, parts, Calls(say=say_own, load=tree_parts.preload)).run()


def say_own(text: str) -> None:
    say(f"healer: {text}" if not text.startswith("healer is ready") else text)


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
    from healer.embedded.embedded_slurm import SlurmNotStarted
    from healer.embedded.tree import check_port
    from healer.embedded.user import FolderUnusable, system_users, usable

    if not _CONFIG.is_file():
        raise Failed("run it in healer's own folder: it reads demo/healer.toml there.")
    _forget_settings()
    os.environ["HEALER_CONFIG"] = str(_CONFIG.resolve())
    wanted = load(listen=listen)
    have_users()
    check_port(wanted.listen, system_users().service)
    folder = temporary_folder("demo")
    real = None
    try:
        with usable(folder):
            real = _slurm(slurm, folder, nodes, wanted)
            os.environ.update(_environ(folder, wanted, real))
            if real is not None:
                real.start()
                os.environ.update(real.env)
        _run_demo(load(), nodes, real)
    except FolderUnusable as error:
        raise no_place(f"{folder} {error.why}") from None
    except SlurmNotStarted as error:
        raise Failed(str(error)) from None
    finally:
        if real is not None:
            real.stop()
        shutil.rmtree(folder, ignore_errors=True)


def have_users() -> None:
    """What root starts runs as system users: makes those that are missing, and says how to remove them."""
    from healer.embedded import user

    if os.geteuid() != 0 or not (made := user.make_users()):
        return
    say_own(f"made the system users {', '.join(made)}, as root runs no part itself")
    say_own(f"to remove them afterwards: {' && '.join(f'userdel {name}' for name in made)}")


def _forget_settings() -> None:
    """Drops the caller's settings except HEALER_LISTEN: the demo does not use the site's database, sinks and
    Slurm."""
    names = [name for name in os.environ if name.startswith("HEALER_") and name != "HEALER_LISTEN"]
    ignored = sorted(name for name in names if os.environ.pop(name))
    if ignored:
        say_own(f"ignored here, as the demo has servers and settings of its own: {', '.join(ignored)}")


def temporary_folder(name: str) -> Path:
    """A folder with a short path that the servers' user can enter; a checkout may be in a private home."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"healer-{name}-"))
    except OSError as error:
        raise no_place(f"cannot be made: {error.strerror}") from None
    folder.chmod(0o711)
    return folder


def copy_rules(source: Path, folder: Path) -> Path:
    """The copy below `folder`. Raises FolderUnusable."""
    from healer.embedded.user import FolderUnusable

    rules = folder / "rules"
    try:
        shutil.copytree(source, rules)
    except shutil.Error as error:  # it lists every file that could not be copied
        raise FolderUnusable(folder, f"cannot be filled: {error.args[0][0][2]}") from None
    return rules


def no_place(why: str) -> Failed:
    return Failed(f"healer's folder {why}; TMPDIR=FOLDER chooses another place for it.")


def _slurm(wanted: str, folder: Path, nodes: int, settings: Settings) -> "RealSlurm | None":
    from healer.embedded.embedded_slurm import CLUSTER, RealSlurm, SlurmNotStarted, available, install

    if wanted not in {"auto", "real", "sim", "install"}:
        raise typer.BadParameter(f"--slurm and SLURM are auto, real, sim or install, not {wanted}")
    if wanted == "install" and available() is not None:
        say_own("installing Debian's Slurm")
        try:
            install()
        except SlurmNotStarted as error:
            say_own(str(error))
    why = available()
    if wanted == "sim" or (wanted != "real" and why is not None):
        say_own(f"cluster: {nodes} nodes of the built-in SIMULATED Slurm ({why or 'as asked'})")
        return None
    if why is not None:
        raise Failed(why)
    say_own(f"cluster: {nodes} nodes of a REAL Slurm on this machine, 8 pretended GPUs each")
    return RealSlurm(folder / "slurm", nodes, conf={"ClusterName": settings.cluster or CLUSTER})


def _environ(folder: Path, settings: Settings, real: "RealSlurm | None") -> dict[str, str]:
    rules = copy_rules(shipped_rules(), folder)
    shutil.copy(_CONFIG.with_name("topology.yaml"), rules / "topology.yaml")
    shutil.copy(_CONFIG.with_name("gpus.sh"), rules / "validation" / "gpus.sh")
    say_own(f"modes and guards: {_CONFIG}")
    return {
        "HEALER_DATA_DIR": str(folder / "data"),
        "HEALER_LISTEN": str(settings.listen),
        "HEALER_RULES_DIR": str(rules),
        "HEALER_SLURM_ADAPTERS": "cli" if real else "sim",
        "HEALER_SIM_NODES_SOCKET": str(folder / "data" / SIM_FOLDER / "nodes.sock"),
    }


def _run_demo(settings: Settings, nodes: int, real: "RealSlurm | None") -> None:
    from setproctitle import setproctitle

    from healer.bootstrap import tree_parts
    from healer.commands.cli import main
    from healer.embedded.tree import Calls, Tree, healer_parts

    parts = healer_parts(settings, main)
    if real is None:
        socket = settings.sim_socket or own_sim_socket(settings.data_dir)
        parts = tree_parts.with_slurm(parts, socket, nodes, settings.cluster)
    sim_nodes, faults = tree_parts.demo_parts(settings.sim_nodes_socket)
    parts = [sim_nodes, *parts, faults]
    setproctitle("healer demo")
    story = _Story(settings.data_dir / "log" / "demo-cluster.log")
    calls = Calls(
        say=say_own, load=tree_parts.preload, on_tick=story.print_new, on_ready=partial(_ready, settings)
    )
    Tree(settings, os.environ, parts, calls).run()


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
                    say(f"  {line.rstrip()}")


def _ready(settings: Settings, running: "Running") -> None:
    from healer.bootstrap import demo_tokens, sign_in_link

    demo_tokens(settings, running.database_url)
    link = sign_in_link(settings, running.database_url, running.url, name="demo admin")
    say(f"\n  Open   {link}\n  (signs you in as an administrator, once)\n", lines=True)
    say_own("in a few seconds a GPU falls off the bus; watch it being healed. A slow node and a dead fabric")
    say_own("manager follow, and more; each is told here before healer finds it. Ctrl-C stops everything.")
