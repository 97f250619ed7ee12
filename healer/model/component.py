"""Where something is: the part of a cluster that a word is about."""

from datetime import datetime

import msgspec

#: Stands before a device's name where a node's may stand too: no node's name begins so.
DEVICE_MARK = "@"


class Component(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A part of a cluster, as far as it is known.

    `gpu` is the index that Slurm and nvidia-smi use (0-based), `pci` the bus id in the form `0000:9b:00`,
    `link` an NVLink number, `switch` a leaf switch or an NVSwitch, `job` Slurm's job id as text.
    `device` is what is no node (a switch's own telemetry, a PDU, a storage server), `part` a port, outlet or
    target of it.
    """

    cluster: str
    node: str | None = None
    gpu: int | None = None
    pci: str | None = None
    link: int | None = None
    nic: str | None = None
    switch: str | None = None
    job: str | None = None
    rank: int | None = None
    device: str | None = None
    part: str | None = None

    def __str__(self) -> str:
        """For people: `gpu0017 GPU 3 (0000:9b:00)`."""
        words = [self.node or self.switch or self.device or self.cluster]
        if self.gpu is not None:
            words.append(f"GPU {self.gpu}")
        if self.pci:
            words.append(f"({self.pci})")
        if self.link is not None:
            words.append(f"link {self.link}")
        if self.switch and self.node:
            words.append(self.switch)
        if self.part and self.device and not self.node:
            words.append(self.part)
        if self.job and not self.node:
            words = [f"job {self.job}"]
        return " ".join(words)


def device_named(subject: str) -> str | None:
    """The device of a report's subject; None for a node."""
    return subject[len(DEVICE_MARK) :] if subject.startswith(DEVICE_MARK) else None


class JobCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A durable checkpoint that a job told. `at` is the job's clock, `arrived_at` ours; both are UTC."""

    job: str
    restart: int
    step: int
    path: str
    at: datetime
    arrived_at: datetime
