"""`healer demo`: the whole product beside a cluster that breaks."""

import os
import re
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from healer.commands import Failed
from healer.settings import Settings, load, own_sim_socket

if TYPE_CHECKING:
    from healer.embedded.running import Running
    from healer.embedded.slurm import RealSlurm


#: A line of the story begins with the time of day.
_STORY = re.compile(r"\d\d:\d\d:\d\d ")


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    listen: str = typer.Option("127.0.0.1:8080", "--listen", help="Address and port of the console."),
    nodes: int = typer.Option(32, "--nodes", min=4, max=500, help="Nodes of the cluster."),
    slurm: str = typer.Option("auto", "--slurm", help="auto: real where it is installed; real; sim."),
) -> None:
    """Start everything and a faulty cluster to heal. SLURM=install installs Debian's Slurm first."""
    config = Path("demo/healer.toml")
    if not config.is_file():
        raise Failed("run it in healer's own folder: it reads demo/healer.toml there.")
    # Short, and where the servers' own user can enter: a checkout may lie in a private home.
    folder = Path(tempfile.mkdtemp(prefix="healer-demo-"))
    folder.chmod(0o711)
    real = _slurm(slurm, folder, nodes)
    try:
        environ = _environ(folder, config, listen, real)
        os.environ.update(environ)
        settings = load()
        if real is not None:
            real.start()
            os.environ.update(real.env)
        _run(settings, nodes, real)
    finally:
        if real is not None:
            real.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _slurm(wanted: str, folder: Path, nodes: int) -> "RealSlurm | None":
    from healer.embedded.slurm import RealSlurm, SlurmNotStarted, available, install

    if wanted not in {"auto", "real", "sim"}:
        raise typer.BadParameter(f"--slurm is auto, real or sim, not {wanted}")
    if wanted != "sim" and os.environ.get("SLURM") == "install" and available() is not None:
        _say("installing Debian's Slurm")
        try:
            install()
        except SlurmNotStarted as error:
            _say(str(error))
    why = available()
    if wanted == "sim" or (wanted == "auto" and why is not None):
        _say(f"cluster: {nodes} nodes of the built-in SIMULATED Slurm ({why or 'as asked'})")
        return None
    if why is not None:
        raise Failed(why)
    _say(f"cluster: {nodes} nodes of a REAL Slurm on this machine, 8 pretended GPUs each")
    return RealSlurm(folder / "slurm", nodes=nodes)


def _environ(folder: Path, config: Path, listen: str, real: "RealSlurm | None") -> dict[str, str]:
    from healer.settings import rules_folder

    rules = folder / "rules"
    shutil.copytree(rules_folder(load({})), rules)
    shutil.copy(config.with_name("topology.yaml"), rules / "topology.yaml")
    shutil.copy(config.with_name("gpus.sh"), rules / "validation" / "gpus.sh")
    _say(f"modes and guards: {config}")
    return {
        "HEALER_CONFIG": str(config.resolve()),
        "HEALER_DATA_DIR": str(folder / "data"),
        "HEALER_LISTEN": listen,
        "HEALER_RULES_DIR": str(rules),
        "HEALER_SLURM_ADAPTERS": "cli" if real else "sim",
        "HEALER_SIM_NODES_SOCKET": str(folder / "nodes.sock"),
        **({} if real else {"HEALER_SIM_SOCKET": str(folder / "slurm.sock")}),
    }


def _run(settings: Settings, nodes: int, real: "RealSlurm | None") -> None:
    from setproctitle import setproctitle

    from healer.bootstrap import simulated
    from healer.bootstrap.preload import preload
    from healer.cli import main
    from healer.embedded.tree import Part, Tree, healer_parts

    parts = healer_parts(settings, main)
    if real is None:
        parts = simulated.with_slurm(parts, settings.sim_socket or own_sim_socket(settings.data_dir), nodes)
    parts.insert(
        0, Part("sim-nodes", partial(simulated.run_nodes, ["--socket", str(settings.sim_nodes_socket)]))
    )
    parts.append(Part("demo-cluster", _faulty_cluster))
    setproctitle("healer demo")
    story = _Story(settings.data_dir / "log" / "demo-cluster.log")
    Tree(settings, os.environ, parts=parts, say=_say, load=preload, on_tick=story.tell, on_ready=_ready).run()


def _faulty_cluster() -> None:
    from healer.bootstrap.demo import main

    main()


class _Story:
    """What the cluster's part says of what it breaks; its errors stay in its log."""

    def __init__(self, log: Path) -> None:
        self._log, self._told = log, 0

    def tell(self) -> None:
        """Prints what is new."""
        if not self._log.is_file():
            return
        with self._log.open(encoding="utf-8", errors="replace") as file:
            file.seek(self._told)
            while (line := file.readline()).endswith("\n"):
                self._told = file.tell()
                if _STORY.match(line):
                    print(f"  {line.rstrip()}", flush=True)


def _ready(running: "Running") -> None:
    from healer.bootstrap import sign_in_link

    link = sign_in_link(running.database_url, running.url, name="demo admin")
    print(f"\n  Open   {link}\n  (signs you in as an administrator, once)\n", flush=True)
    _say("in a few seconds a GPU falls off the bus; watch it being healed. A slow node and a dead fabric")
    _say("manager follow, and more; each is told here before healer finds it. Ctrl-C stops everything.")


def _say(text: str) -> None:
    print(f"healer: {text}" if not text.startswith("healer is ready") else text, flush=True)
