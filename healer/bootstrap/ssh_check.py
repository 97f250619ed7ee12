"""What `healer doctor` tells of the way to nodes themselves: one node of each cluster is asked who it is."""

from collections.abc import Sequence

from healer import bootstrap
from healer.bootstrap.slurm_check import Look
from healer.model import SlurmNode
from healer.ports.node_exec import NodeError
from healer.ports.slurm import SchedulerError
from healer.settings import Settings, SettingsError

NAME = "node actions"


def look(settings: Settings) -> list[Look]:
    """Nothing is changed on the node. A site need not let healer work on nodes: then people do it."""
    return [
        found._replace(name=f"{one.cluster}: {NAME}") if settings.clusters else found
        for one in settings.each()
        for found in [_of_cluster(one)]
    ]


def _of_cluster(settings: Settings) -> Look:
    try:
        bootstrap.node_exec(settings)
    except SettingsError as error:
        return Look(NAME, False, str(error), "Take one of the two away.")
    if settings.sim_nodes_socket is not None:
        return Look(NAME, True, f"simulated nodes at {settings.sim_nodes_socket}")
    if settings.ssh_key_file is None:
        way_out = "Set HEALER_SSH_KEY_FILE, and install healer-node on the nodes: docs/nodes.md."
        return Look(NAME, True, "none is configured: steps on a node itself are handed to a person", way_out)
    try:
        nodes = bootstrap.scheduler(settings, cluster=settings.cluster).snapshot().gpu_nodes
    except SchedulerError:
        return Look(NAME, True, "not tried: Slurm names no node", "Correct what is said of Slurm.")
    node = chosen(nodes)
    if node is None:
        return Look(NAME, True, "not tried: no node of Slurm answers")
    return _asked(settings, node)


def chosen(nodes: Sequence[SlurmNode]) -> str | None:
    """One that Slurm reaches, as the first by name: the same at each look."""
    return min((one.name for one in nodes if one.responding), default=None)


def _asked(settings: Settings, node: str) -> Look:
    assert settings.ssh_key_file is not None
    try:
        told = bootstrap.ssh_nodes(settings, settings.ssh_key_file).identify(node)
    except NodeError as error:
        return Look(NAME, False, str(error), "docs/nodes.md says how a node is set up.")
    gpus = told.get("gpus") or []
    return Look(NAME, True, f"{node} answers by SSH: driver {told.get('driver', '?')}, {len(gpus)} GPUs")
