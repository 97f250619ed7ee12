"""`healer replay`: a recording through the walk on simulated parts."""

from collections.abc import Iterable
from typing import Any

from healer.model import Ruleset
from healer.sim.recording import read
from healer.sim.replay import replay


def replayed(rules: Ruleset, lines: Iterable[str]) -> dict[str, Any]:
    """The document of the contract. Raises ValueError that names the line for a recording that is none."""
    return replay(rules, read(lines))
