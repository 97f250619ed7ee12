"""Which GPUs and NVLinks of a node are taken: a forged index would be a series of its own for ever."""

from collections.abc import Callable

from healer.signals.gpu_names import Where

#: (cluster, node) -> how many GPUs Slurm shows there; None where it does not tell.
Shown = Callable[[str, str], int | None]

#: A node has so many GPUs at least: a site may leave one that is broken out of Slurm's configuration.
GPUS_LEAST = 8
#: Of a node of which Slurm tells no number, as HGX-2 has.
GPUS_UNKNOWN = 16
#: Of any node: what a label of two digits can say, and more than any machine has.
GPUS_MOST = 64
#: NVLinks of one GPU: 12 on A100, 18 on H100, H200 and B200, and room for the next model.
NVLINKS_MAX = 36

GPU_BEYOND = "a GPU beyond those that Slurm shows of this node"
LINK_BEYOND = f"an NVLink beyond the {NVLINKS_MAX} that a GPU can have"


def unknown_shape(cluster: str, node: str) -> int | None:
    """Where nobody asks Slurm."""
    return None


class Parts:
    """What of a node may be told."""

    def __init__(self, shown: Shown = unknown_shape) -> None:
        self._shown = shown

    def gpus(self, where: Where) -> int:
        """Indexes below this are taken."""
        shown = self._shown(*where)
        return GPUS_UNKNOWN if not shown else min(max(shown, GPUS_LEAST), GPUS_MOST)

    def wrong(self, where: Where, gpu: int | None, link: int | None) -> str | None:
        """Why this GPU, or this NVLink of it, is not taken."""
        if link is not None and link >= NVLINKS_MAX:
            return LINK_BEYOND
        # Most are asked for one of the first GPUs: then no picture is looked at.
        if gpu is not None and gpu >= GPUS_LEAST and gpu >= self.gpus(where):
            return GPU_BEYOND
        return None
