"""Which tests a node has to pass before it returns, by how much was done to it."""

import msgspec

from healer.model.words import REMEDY_LADDER, Remedy

#: The depth that follows from the incident's remedy.
FIT = "fit"


class Depth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tests` of `rules/validation` in their order, the first of which decides whether the node was tested at
    all; `limit_s` is the time limit of their one job. `same_facts`: versions other than on the good node of
    its kind fail it; else they are only told (drift has incidents of its own). `pair`: tests of it and an
    idle node together, once it has passed alone."""

    tests: tuple[str, ...]
    limit_s: int
    same_facts: bool = False
    pair: tuple[str, ...] = ()


class Validation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`fits`: the depth for a remedy of the ladder; one that is not in it takes that of the next lower one.
    `otherwise` is it where no remedy is known."""

    depths: dict[str, Depth] = {}
    fits: dict[Remedy, str] = {}
    otherwise: str = ""

    def depth_for(self, remedy: Remedy | None) -> str:
        if remedy is None or remedy not in REMEDY_LADDER:
            return self.otherwise
        upto = REMEDY_LADDER[: REMEDY_LADDER.index(remedy) + 1]
        return next((self.fits[one] for one in reversed(upto) if one in self.fits), self.otherwise)
