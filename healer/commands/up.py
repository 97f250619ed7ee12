"""`healer up`: the whole product in one process tree."""

import os

import typer

from healer.settings import Settings, load, own_sim_socket

#: Size of the simulated cluster: one small pod.
SIM_NODES = 32
#: The longest path of a unix socket is 107 bytes; it is made as NAME.PID.
SOCKET_MAX = 107 - len(".4194304")


def register(app: typer.Typer) -> None:
    app.command("up")(up)


def up(
    data_dir: str = typer.Option(None, "--data-dir", help="Logs, keys and the embedded servers' files."),
    listen: str = typer.Option(None, "--listen", help="Address and port, like 127.0.0.1:8080."),
) -> None:
    """Run everything: database, broker, API and console, detector, scheduler, worker. Ctrl-C stops it."""
    run_tree(load(data_dir=data_dir, listen=listen))


def run_tree(settings: Settings) -> None:
    """Blocks until a signal asks for the end."""
    from setproctitle import setproctitle

    from healer.bootstrap import simulated
    from healer.bootstrap.preload import preload
    from healer.commands.cli import main
    from healer.embedded.tree import Tree, healer_parts
    from healer.embedded.user import FolderUnusable

    setproctitle("healer up")
    parts, environ = healer_parts(settings, main), dict(os.environ)
    several = bool(settings.clusters)
    for one in settings.each():
        name = one.cluster or "" if several else ""
        socket = own_sim_socket(one.data_dir, name)
        if one.slurm_adapters[0] != "sim" or str(one.sim_socket) != str(socket):
            continue
        if len(os.fsencode(socket)) > SOCKET_MAX:
            raise FolderUnusable(one.data_dir, "has too long a name to hold the simulated Slurm's socket")
        # Nobody else has a simulated Slurm to offer: ours runs beside the parts.
        parts = simulated.with_slurm(parts, socket, SIM_NODES, one.cluster, several=several)
        _say(
            f"no Slurm is used {f'for {name}' if name else 'here'}: "
            f"a simulated cluster of {SIM_NODES} nodes stands in"
        )
    Tree(settings, environ, parts=parts, say=_say, load=preload).run()


def _say(text: str) -> None:
    print(f"healer: {text}" if not text.startswith("healer is ready") else text, flush=True)
