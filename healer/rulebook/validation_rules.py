"""Loads and checks `rules/validation/depths.yaml`: which tests each depth runs.

Format: docs/validation.md.
"""

from collections.abc import Mapping

from healer.model import FIT, REMEDY_LADDER, Validation
from healer.rulebook.source import Source, did_you_mean

#: A job of tests ends within a day.
_LIMIT_MAX_S = 86400


def read_validation(source: Source | None, scripts: Mapping[str, str]) -> Validation:
    """What is wrong goes to the source's problems; without the file there are no depths."""
    read = source.convert((), source.data, Validation) if source is not None else None
    if source is None or read is None:
        return Validation()
    for name, depth in read.depths.items():
        where = ("depths", name)
        if name == FIT:
            source.problem(where, f"depths: {FIT} is what follows from the remedy", "take another name")
        if not depth.tests or len(set(depth.tests)) != len(depth.tests):
            source.problem((*where, "tests"), "tests: a list of different tests, not empty")
        if len(set(depth.pair)) != len(depth.pair):
            source.problem((*where, "pair"), "pair: a list of different tests")
        for key, tests in (("tests", depth.tests), ("pair", depth.pair)):
            for index, test in enumerate(tests):
                if test not in scripts:
                    hint = did_you_mean(test, list(scripts)) or "a file rules/validation/NAME.sh"
                    source.problem((*where, key, index), f"{key}: there is no script {test}", hint)
        if not 0 < depth.limit_s <= _LIMIT_MAX_S:
            source.problem((*where, "limit_s"), f"limit_s: above 0, and at most {_LIMIT_MAX_S}")
    for remedy, name in read.fits.items():
        if remedy not in REMEDY_LADDER:
            source.problem(("fits", str(remedy)), f"fits: {remedy} is no rung of the ladder")
        if name not in read.depths:
            source.problem(("fits", str(remedy)), f"fits: there is no depth {name}")
    if read.otherwise not in read.depths:
        source.problem(("otherwise",), f"otherwise: there is no depth {read.otherwise!r}")
    return read
