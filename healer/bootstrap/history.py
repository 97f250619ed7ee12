"""`healer import` and `healer report`: a site's past becomes a recording, and that a report."""

from collections.abc import Sequence
from pathlib import Path

from healer.bootstrap import load_site_rules
from healer.importing.importer import Imported, Progress, Reader, Wanted, run
from healer.importing.sources import Given
from healer.settings import Settings
from healer.signals.series import Names


def wanted(output: Path, cluster: str, pseudonymise: bool, processes: int) -> Wanted:
    return Wanted(output=output, cluster=cluster, pseudonymise=pseudonymise, processes=processes)


def imported(
    sources: Sequence[Given], how: Wanted, rules_dir: Path, settings: Settings, progress: Progress
) -> Imported:
    """Raises RulesInvalid and OSError."""
    rules = load_site_rules(rules_dir, settings, prove=False)
    return run(sources, how, Reader(rules.kernel_lines, Names(rules.catalogue)), progress)
