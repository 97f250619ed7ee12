"""Which GPU a PCI address is: the index that Slurm and nvidia-smi use; and whose job a GPU works for."""

from collections.abc import Mapping, Sequence

from healer.model import SlurmSnapshot


def jobs_by_gpu(snapshot: SlurmSnapshot, node: str) -> dict[int, str]:
    """GPU index -> the job that holds it, as far as Slurm tells. A PCI address gets its index by `GpuMap`."""
    return {index: job.id for job in snapshot.jobs_on(node) for index in job.gpus.get(node, ())}


class GpuMap:
    """PCI address -> index on one node, learned from what the node tells.

    Three sources, the strongest first: an inventory the node sends with its heartbeat; the site's topology
    file, by GPU model; the complete set of identity lines of one boot, in PCI order (the order in which
    nvidia-smi and Slurm's autodetection count). An incomplete set says nothing: a wrong index would requeue
    the wrong job.
    """

    def __init__(self) -> None:
        self._inventory: dict[str, int] = {}
        self._listed: str | None = None
        self._seen: dict[str, str] = {}
        self._boot: str | None = None

    def inventory(self, gpus: Sequence[Mapping[str, object]], boot_id: str | None = None) -> None:
        """What the node itself listed: `[{"index": 0, "pci": "0000:18:00", "uuid": "GPU-…"}, …]`."""
        self._listed = boot_id
        told = {str(gpu["pci"]): gpu["index"] for gpu in gpus if gpu.get("pci") is not None}
        self._inventory = {pci: index for pci, index in told.items() if isinstance(index, int)}

    def heard(self, gpus: Sequence[Mapping[str, object]]) -> None:
        """What telemetry's labels told: it may be some of the node's GPUs, and does not speak of the rest.

        A GPU that has an index now takes it from the one that had it: counting begins anew when one is lost.
        """
        for gpu in gpus:
            pci, index = gpu.get("pci"), gpu.get("index")
            if isinstance(pci, str) and isinstance(index, int):
                self._inventory = {p: i for p, i in self._inventory.items() if i != index}
                self._inventory[pci] = index

    def identity(self, pci: str, uuid: str, boot_id: str | None) -> None:
        """One `NVRM: GPU at PCI:…` line, printed once per GPU and boot."""
        if boot_id != self._boot:
            self._seen, self._boot = {}, boot_id
        self._seen[pci] = uuid

    def address(self, gpu: int | None) -> str | None:
        """The PCI address of the GPU with this index, where the node has told it."""
        return next((pci for pci, index in self._inventory.items() if index == gpu), None)

    def is_seen(self, pci: str, boot_id: str) -> bool:
        """Whether the node has told of the GPU at this address in this boot."""
        named = self._boot == boot_id and pci in self._seen
        return named or (self._listed == boot_id and pci in self._inventory)

    def index(self, pci: str, *, expected: int, from_topology: Sequence[str] = ()) -> int | None:
        """Index of the GPU at `pci`, None when it is not known. `expected`: GPUs that Slurm configures."""
        if pci in self._inventory:
            return self._inventory[pci]
        if pci in from_topology:
            return list(from_topology).index(pci)
        if expected > 0 and len(self._seen) == expected and pci in self._seen:
            return sorted(self._seen).index(pci)
        return None
