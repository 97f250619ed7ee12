"""What a test job told of its tests, and how that compares with a good node of its kind. Pure.

The form, one line of at most 2,000 characters, parts divided by `; `:

    healer-test/1; gpus:passed:2; gpu_count=8; versions:failed:1; driver=580.65.06; says versions …
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from healer.actions.test_script import FORM
from healer.model import FACTS, FIGURE_SHARE, NOT_COMPARED, Reference, figures_in

_TEST = re.compile(r"([a-z0-9][A-Za-z0-9_-]{0,39}):(passed|failed|untested):(\d{1,6})")
_RESULT = re.compile(r"([a-z][a-z0-9_]{0,39})=([A-Za-z0-9_.,:+/-]{1,128})")
_SAYS = re.compile(r"says (\S+) (.{1,160})")


class Ended(StrEnum):
    passed = "passed"
    failed = "failed"
    #: Its program is missing, or there was nothing to be tested.
    untested = "untested"


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """By test how it ended, and its seconds; the results by name; by test what it said. `whole` is False
    where results were left out or a part could not be read."""

    tests: dict[str, Ended] = {}
    took_s: dict[str, int] = {}
    results: dict[str, str] = {}
    says: dict[str, str] = {}
    whole: bool = True


def told_in(comment: str) -> Told | None:
    """None: it holds no results of ours."""
    head, *parts = comment.split("; ")
    if head != FORM:
        return None
    tests: dict[str, Ended] = {}
    took_s: dict[str, int] = {}
    results: dict[str, str] = {}
    says: dict[str, str] = {}
    whole = True
    for part in parts:
        if found := _TEST.fullmatch(part):
            tests[found[1]], took_s[found[1]] = Ended(found[2]), int(found[3])
        elif found := _RESULT.fullmatch(part):
            results[found[1]] = found[2]
        elif found := _SAYS.fullmatch(part):
            says[found[1]] = found[2].strip()
        else:
            whole = False
    return Told(tests=tests, took_s=took_s, results=results, says=says, whole=whole)


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Sentences: `worse` of figures below those of the good node, `other` of facts that are not the same
    there. `alike`: the names of what is as good."""

    worse: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()


def compared(results: Mapping[str, str], reference: Reference | None) -> Compared:
    """A fact has to be the same, a count (`_count`) at least as high, a rate (`_per_s`) at least 90 % of it.
    What the reference does not have, or is no number where one belongs, is not compared."""
    if reference is None:
        return Compared()
    worse, other, alike = [], [], []
    for name, value in results.items():
        if name in FACTS:
            found, said = other, _other(name, value, reference)
        else:
            found, said = worse, _worse(name, value, reference)
        if said is not None:
            (found if said else alike).append(said or name)
    return Compared(worse=tuple(worse), other=tuple(other), alike=tuple(alike))


def _other(name: str, value: str, reference: Reference) -> str | None:
    """Empty: the same as there; None: not compared."""
    good = reference.facts.get(name)
    if good is None or name in NOT_COMPARED:
        return None
    return "" if value == written(good) else f"{FACTS[name]} {value}, {reference.node} has {good}"


def _worse(name: str, value: str, reference: Reference) -> str | None:
    """Empty: as good as there; None: not compared."""
    wanted, told = reference.figures.get(name), figures_in({name: value}).get(name)
    if wanted is None or told is None:
        return None
    share = FIGURE_SHARE if name.endswith("_per_s") else 1.0
    if told >= share * wanted:
        return ""
    of = f"{100 * told / wanted:.0f} % of " if wanted else ""
    return f"{name} {value} is {of}{wanted:g} on {reference.node}"


def written(fact: str) -> str:
    """A fact as a test writes it: results hold no blanks."""
    return re.sub(r"[^A-Za-z0-9_.,:+/-]+", "_", fact.replace(", ", ","))[:128]


def sentence(told: Told, wanted: Sequence[str]) -> str:
    """`gpus and links passed, dcgm untested (no dcgmi here), burn failed (…); not run: nccl`"""
    parts = []
    for outcome in Ended:
        names = [
            name + (f" ({told.says[name]})" if outcome is not Ended.passed and name in told.says else "")
            for name, one in told.tests.items()
            if one is outcome
        ]
        if names:
            parts.append(f"{', '.join(names)} {outcome}")
    left = [name for name in wanted if name not in told.tests]
    return "; ".join([*parts, *([f"{', '.join(left)} not run"] if left else [])])
