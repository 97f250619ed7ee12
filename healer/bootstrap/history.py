"""`healer import` and `healer report`: a site's past becomes a recording, and that a report."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from healer.bootstrap import load_site_rules
from healer.bootstrap.offline import entries_of
from healer.console.site_report import html
from healer.importing.importer import Imported, Progress, Reader, Wanted, run
from healer.importing.sources import Given
from healer.model import Mode
from healer.model.site_past import Assumptions, PastReport
from healer.model.vocabulary import UserError
from healer.recordings.recording import BadRecording, Entry
from healer.rulebook.ruleset import load
from healer.settings import Settings
from healer.signals.series import Names
from healer.sim.past_facts import PastFacts
from healer.sim.past_proposal import proposed
from healer.sim.past_report import past_report
from healer.sim.replaying import cluster_of, replay
from healer.text import say

#: Programs that print a page to PDF, the first that is installed.
BROWSERS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "chrome")
_PRINT_S = 120


class PdfImpossible(UserError):
    """The text says why."""


def imported(
    sources: Sequence[Given], how: Wanted, rules_dir: Path, settings: Settings, progress: Progress
) -> Imported:
    """Raises RulesInvalid and OSError."""
    rules = load_site_rules(rules_dir, settings, prove=False)
    return run(sources, how, Reader(rules.kernel_lines, Names(rules.catalogue), rules.version), progress)


def reported(
    recordings: Sequence[Path],
    rules_dir: Path,
    settings: Settings,
    *,
    samples: bool = True,
    assumed: Assumptions = Assumptions(),
) -> PastReport:
    """Replays the recordings as if every rule without a mode of its own were automatic. Raises RulesInvalid,
    OSError and ValueError."""
    rules = load_site_rules(rules_dir, msgspec.structs.replace(settings, mode=Mode.auto), prove=False)
    facts = PastFacts()
    clusters: list[str] = []

    def noted(entry: Entry) -> Entry:
        if not clusters and (name := cluster_of(entry)):
            clusters.append(name)
        return entry

    entries = map(noted, facts.over(entries_of(recordings, None, None, samples=samples)))
    document = replay(rules, entries)
    if facts.first is None:
        raise BadRecording(say("past.empty_recording"))
    return past_report(document, facts, rules, clusters[0] if clusters else "cluster", assumed)


def proposed_rules(
    recordings: Sequence[Path], rules_dir: Path, settings: Settings, output: Path, *, samples: bool
) -> list[str]:
    """Copies the rules to `output`, with what this past proposes; the names of the files that it changed.
    Raises RulesInvalid, OSError and ValueError."""
    report = reported(recordings, rules_dir, settings, samples=samples)
    paths = [path for path in rules_dir.rglob("*.yaml") if path.is_file()]
    files = {str(path.relative_to(rules_dir)): path.read_text("utf-8") for path in paths}
    changed = proposed(files, report, load(rules_dir).guards)
    shutil.copytree(rules_dir, output, ignore_dangling_symlinks=True)
    for name, text in changed.items():
        (output / name).write_text(text, "utf-8")
    load(output)
    return sorted(changed)


def write_report(report: PastReport, output: Path, reader: str) -> None:
    """HTML, or PDF by a browser of this machine. Raises PdfImpossible and OSError."""
    page = html(report, reader)
    if output.suffix == ".html":
        output.write_bytes(page)
        return
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise PdfImpossible(say("setup.no_chromium_installed_write"))
    with tempfile.TemporaryDirectory(prefix="healer-report-") as name:
        source = Path(name, "report.html")
        source.write_bytes(page)
        done = subprocess.run(
            [
                browser, "--headless", "--disable-gpu", "--no-sandbox", "--no-pdf-header-footer",
                f"--user-data-dir={name}/profile", f"--print-to-pdf={name}/report.pdf", source.as_uri(),
            ],
            capture_output=True, timeout=_PRINT_S, check=False,
        )  # fmt: skip
        printed = Path(name, "report.pdf")
        if done.returncode or not printed.exists():
            printed_words = done.stderr.decode("utf-8", "replace").strip()[-300:]
            raise PdfImpossible(say("setup.could_print_report", browser=browser, printed_words=printed_words))
        shutil.copyfile(printed, output)
