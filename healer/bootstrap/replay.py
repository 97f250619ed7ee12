"""`healer replay`: a recording through the walk on simulated parts."""

import sys
from collections.abc import Iterable
from typing import Any

import structlog

from healer.model import Ruleset
from healer.sim.recording import read
from healer.sim.replay import replay


def replayed(rules: Ruleset, lines: Iterable[str]) -> dict[str, Any]:
    """The document of the contract. Raises ValueError that names the line for a recording that is none."""
    # Standard output is the document's, and the same for the same input; warnings bear the time of day.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    return replay(rules, read(lines))
