"""What a code means may differ by the generation of GPU and driver. An unknown one changes nothing."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from healer.model import CatalogueEntry, GpuModel, SlurmNode

_MAJOR = re.compile(r"(\d{3})\.")
_OF_ROW = ("text", "fault_class", "remedy", "cause", "unusable")


def gpu_model(models: Sequence[GpuModel], shown: SlurmNode | None) -> str | None:
    """The name in `gpu_models.yaml` of the node's GPUs, as Slurm names them; the first entry that fits."""
    name = shown.gpu_model.lower() if shown is not None else ""
    if not name:
        return None
    fits = (one.name for one in models if any(fnmatchcase(name, glob.lower()) for glob in one.match))
    return next(fits, None)


def driver_major(shown: SlurmNode | None) -> int | None:
    """580 of `580.65.06`."""
    match = _MAJOR.match(shown.driver) if shown is not None else None
    return int(match[1]) if match else None


def row_of(entry: CatalogueEntry, model: str | None) -> CatalogueEntry:
    """The row as it is on this GPU model."""
    if model is None:
        return entry
    for one in entry.by_model:
        if any(fnmatchcase(model, glob) for glob in one.models):
            told = {name: value for name in _OF_ROW if (value := getattr(one, name)) is not None}
            return msgspec.structs.replace(entry, **told)
    return entry
