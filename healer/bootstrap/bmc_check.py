"""What `healer doctor` tells of the BMCs: the power of one node of each cluster is read."""

from healer import bootstrap
from healer.adapters.bmc.redfish import kinds_missing
from healer.bootstrap.slurm_check import Look
from healer.bootstrap.ssh_check import chosen
from healer.ports.bmc import BmcError
from healer.ports.slurm import SchedulerError
from healer.settings import Settings, SettingsError

NAME = "BMCs"


def look(settings: Settings) -> list[Look]:
    """Nothing is switched. Where no BMC is configured there is nothing to look at."""
    return [
        found._replace(name=f"{one.cluster}: {NAME}") if settings.clusters else found
        for one in settings.each()
        if one.bmc_url is not None
        for found in [_of_cluster(one)]
    ]


def _of_cluster(settings: Settings) -> Look:
    try:
        bmc = bootstrap.bmc(settings)
    except SettingsError as error:
        return Look(NAME, False, str(error))
    assert bmc is not None  # it has an address
    try:
        nodes = bootstrap.scheduler(settings, cluster=settings.cluster).snapshot().gpu_nodes
    except SchedulerError:
        return Look(NAME, True, "not tried: Slurm names no node", "Correct what is said of Slurm.")
    node = chosen(nodes)
    if node is None:
        return Look(NAME, True, "not tried: no node of Slurm answers")
    repair = "docs/runbooks/power-cycle.md says what a BMC needs; until then a person switches power."
    try:
        power = bmc.power(node)
    except BmcError as error:
        return Look(NAME, False, str(error), repair)
    if lacks := kinds_missing(power.kinds):
        return Look(NAME, False, f"the BMC of {node} takes no PowerCycle, nor {' and '.join(lacks)}", repair)
    return Look(
        NAME, True, f"{node} answers by Redfish: system {power.system}, power {power.state or 'unknown'}"
    )
