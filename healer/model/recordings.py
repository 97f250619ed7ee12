"""What a file of a recording holds, as its index file describes it."""

from datetime import datetime

import msgspec

#: By whether it holds samples: what is judged at once and Slurm's picture, and what was measured.
KINDS = ("events", "samples")


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One file. `lines` by `routes`; `bytes` as packed; `lost`: lines that the disk refused while it was
    written. `first` and `last` are moments of arrival."""

    file: str
    kind: str
    first: datetime
    last: datetime
    lines: int = 0
    bytes: int = 0
    lost: int = 0
    routes: dict[str, int] = {}


class Recordings(msgspec.Struct, frozen=True, kw_only=True):
    """The recordings of one cluster. `on`: the setting names a folder. `problem`: why it cannot be read."""

    on: bool
    folder: str = ""
    problem: str = ""
    files: tuple[Recorded, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def oldest(self) -> datetime | None:
        return min((file.first for file in self.files), default=None)

    @property
    def newest(self) -> datetime | None:
        return max((file.last for file in self.files), default=None)
