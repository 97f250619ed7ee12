"""What a node is made of and set to, and what a good one is: drift is the difference."""

import re
from collections.abc import Mapping
from datetime import datetime

import msgspec

from healer.model.slurm_node import SlurmNode

#: What is compared, with its words for people. Each value is a text; of several GPUs or cards all different
#: ones, sorted and joined by a comma.
FACTS = {
    "driver": "NVIDIA driver",
    "cuda": "CUDA of the driver",
    "vbios": "VBIOS of the GPUs",
    "gsp_firmware": "GSP firmware of the GPUs",
    "inforom": "InfoROM image of the GPUs",
    "fabric_manager": "fabric manager",
    "nic_firmware": "firmware of the network cards",
    "nic_driver": "driver of the network cards",
    "bios": "BIOS",
    "bmc": "firmware of the BMC",
    "kernel": "Linux kernel",
    "os": "operating system",
    "mtu": "MTU of the network cards",
    "nccl": "NCCL",
    "container": "container settings",
    "slurm": "Slurm",
    "nvlink_domain": "NVLink domain",
}
#: Where a node is, and not what it is: it is another one on each rack.
NOT_COMPARED = frozenset({"nvlink_domain"})
#: Of one value, in characters.
FACT_MAX = 128
#: What a test measures and a good node's figure bounds: by the end of its name.
FIGURES = ("_per_s", "_count")
#: A rate has to reach this share of the good node's.
FIGURE_SHARE = 0.9
_NUMBER = re.compile(r"\d{1,18}(\.\d{1,9})?")


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """What nodes of one kind (a GPU model as Slurm names it) should be, taken from one that is good.

    `by` is who took it. A fact that is not in it is not compared. `figures` are what the node's newest test
    that passed measured, by the name of the result.
    """

    cluster: str
    kind: str
    node: str
    at: datetime
    by: str
    facts: dict[str, str]
    figures: dict[str, float] = {}


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """What a node told of itself, and when something of it changed last.

    `changed`: what a fact became while healer looked, and when. `booted_at`: when healer heard
    of a new boot; None: of none since it began to look.
    """

    node: str
    at: datetime
    facts: dict[str, str]
    changed: dict[str, tuple[str, datetime]] = {}
    booted_at: datetime | None = None


def figures_in(results: Mapping[str, str]) -> dict[str, float]:
    """What of a test's results bounds others, by name; what is no number is left out."""
    return {
        name: float(value)
        for name, value in results.items()
        if name.endswith(FIGURES) and _NUMBER.fullmatch(value)
    }


def rates_in(results: Mapping[str, str]) -> dict[str, float]:
    """What of a test's results is a rate, the higher the better, by name."""
    return {name: value for name, value in figures_in(results).items() if name.endswith("_per_s")}


def kind_of(gpu_model: str) -> str:
    """The kind of a node, by which references are kept; nodes without GPUs are of the kind `cpu`."""
    return gpu_model.lower() or "cpu"


def facts_with(shown: SlurmNode | None, told: Mapping[str, str] | None) -> dict[str, str]:
    """What is known of a node: what it told, and the driver as Slurm's picture has it."""
    by_slurm = {"driver": shown.driver} if shown is not None and shown.driver else {}
    return by_slurm | dict(told or {})


def differences(facts: Mapping[str, str], reference: Reference) -> dict[str, str]:
    """What the node told and the reference has otherwise, by fact."""
    wanted = reference.facts
    compared = wanted.keys() - NOT_COMPARED
    return {name: value for name, value in facts.items() if name in compared and value != wanted[name]}
