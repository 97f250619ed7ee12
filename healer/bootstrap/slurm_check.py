"""What `healer doctor` looks at in Slurm: each adapter in its order, then what they can do together."""

from datetime import UTC, datetime
from typing import NamedTuple

from healer import bootstrap
from healer.adapters.slurm import rights
from healer.adapters.slurm.preferred import PreferredScheduler
from healer.adapters.slurm.token import ends_at, user_of
from healer.model import Mode
from healer.ports.slurm import SchedulerError
from healer.settings import Settings

#: How to come out of an adapter that does not answer.
_WAYS_OUT = {
    "rest": "Is slurmrestd up at HEALER_SLURM_REST_URL, and the token good? Its log says why it refused.",
    "cli": "Is slurmctld up? SLURM_CONF right? munge running? May this user call scontrol?",
    "pyslurm": "Is slurmctld up? SLURM_CONF right? munge running? pyslurm and libslurm of the same release?",
    "sim": "Start `healer up`, or correct HEALER_SIM_SOCKET.",
}


class Look(NamedTuple):
    """As `healer.commands.doctor.Check`."""

    name: str
    ok: bool
    text: str
    repair: str = ""


def look(settings: Settings) -> list[Look]:
    """Nothing is changed in Slurm. An adapter of the list that does not answer is a fault of its own."""
    return [
        found._replace(name=f"{one.cluster}: {found.name}") if settings.clusters else found
        for one in settings.each()
        for found in _of_cluster(one)
    ]


def _of_cluster(settings: Settings) -> list[Look]:
    chain = bootstrap.scheduler(settings, cluster=settings.cluster)
    found: list[Look] = []
    answered = False
    for adapter in chain.adapters:
        name = f"slurm {adapter.name}"
        user = "" if adapter.name == "sim" else rights.own_account()
        if adapter.name == "rest":
            token, user = _token(settings)
            found.append(token)
        try:
            text = f"{adapter.describe()}, cluster {adapter.cluster_name()}"
            # slurmrestd tells both also to a token that slurmctld does not take.
            adapter.controller()
            found.append(Look(name, True, text))
        except SchedulerError as error:
            found.append(Look(name, False, str(error), _WAYS_OUT[adapter.name]))
            continue
        answered = True
        if user:
            found.append(_rights(adapter.name, user, settings))
    return found + _together(chain) if answered else found


def _together(chain: PreferredScheduler) -> list[Look]:
    try:
        cluster, nodes = chain.cluster_name(), chain.snapshot().nodes.values()
        lacks = chain.unavailable()
    except SchedulerError as error:
        return [Look("slurm", False, str(error), "Correct what is said of its adapters.")]
    gpus = sum(1 for node in nodes if node.gpus)
    text = f"cluster {cluster}, {len(nodes)} nodes, {gpus} with GPUs"
    found = [Look("slurm", gpus > 0, text, "" if gpus else "healer only looks after nodes with Gres=gpu.")]
    if lacks:
        calls = "; ".join(f"{call} ({why})" for call, why in lacks.items())
        hint = (
            "What one adapter lacks another may have: `cli` has all of it, add it to HEALER_SLURM_ADAPTERS."
        )
        found.append(Look("slurm verbs", True, f"not available here: {calls}", hint))
    return found


def _token(settings: Settings) -> tuple[Look, str]:
    """How long slurmrestd's token lasts, and whom it is for; empty where that is not told."""
    now = datetime.now(UTC)
    try:
        token = bootstrap.slurm_token(settings).current(now)
        end, user = ends_at(token), settings.slurm_user or user_of(token)
    except SchedulerError as error:
        return Look("slurm rest token", False, str(error), "Correct the token's file or command."), ""
    whose = f"for {user}" if user else "for a user that it does not name"
    if end is None:
        return Look("slurm rest token", True, f"{whose}, without an end"), user
    left_s = end - now.timestamp()
    if left_s > 0:
        return Look("slurm rest token", True, f"{whose}, {left_s / 60:.0f} minutes left by this clock"), user
    way_out = "Renew it; if it is new, this clock and slurmctld's differ: synchronise them by NTP."
    return Look("slurm rest token", False, f"{whose}, ended {-left_s / 60:.0f} minutes ago", way_out), user


def _rights(adapter: str, user: str, settings: Settings) -> Look:
    may, text, way_out = rights.of_account(user, settings.slurm_bin_dir, settings.slurm_conf)
    if may is False and settings.mode in (Mode.off, Mode.shadow):
        return Look(f"slurm {adapter} rights", True, f"{text}; enough for mode {settings.mode}", way_out)
    return Look(f"slurm {adapter} rights", may is not False, text, way_out)
