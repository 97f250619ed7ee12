"""A rehearsal of a rule change in a process of its own: `python -m healer.bootstrap.rehearse FOLDER`, at the
lowest priority.

The folder holds the request, both rule sets, the progress, and in the end the result.
"""

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from healer.adapters.system_clock import SystemClock
from healer.bootstrap import load_site_rules, log_to_stderr
from healer.bootstrap.offline import Span, compare, entries_of, replayed
from healer.model import Mode, Ruleset
from healer.model.run import Opened, Rehearsal
from healer.processes.scheduler import Rehearsing, share_of
from healer.recordings.recording_folder import recordings
from healer.settings import Settings, load, rules_folder
from healer.text import Said, say, to_text

#: A replay of 1,250 nodes takes about a tenth of it.
MEMORY_BYTES = 8 * 1024**3
#: Most items of each list of a result; the counts by rule include all.
SHOWN = 500
FOLDER = "rehearsals"
_ASK, _PROGRESS, _RESULT, _ERRORS = "ask.json", "progress", "result.json", "errors"


class Ask(msgspec.Struct, frozen=True):
    """The request to the process."""

    cluster: str
    recordings: str
    since: datetime
    until: datetime
    samples: bool
    #: Of rules, set while running: before those of the files, as at the gate.
    modes: dict[str, Mode] = {}


class Process:
    """`healer.processes.scheduler.RehearsalChild`: this module as a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        command = [sys.executable, "-m", "healer.bootstrap.rehearse", str(folder)]
        with (folder / _ERRORS).open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
            )

    def progress(self) -> float:
        try:
            return float((self._folder / _PROGRESS).read_text())
        except (OSError, ValueError):
            return 0.0

    def result(self) -> Mapping[str, Any] | Said | None:
        status = self._process.poll()
        if status is None:
            return None
        if status == 0:
            return msgspec.json.decode((self._folder / _RESULT).read_bytes())
        lines = (self._folder / _ERRORS).read_text(errors="replace").strip().splitlines()
        if lines:
            return say("processes.rehearsal_failed", line=lines[-1][:500])
        return say("processes.rehearsal_ended", status=status)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def begin(settings: Settings, cluster: str, asked: Rehearsal, modes: dict[str, Mode]) -> Process:
    """Starts the process. Raises ValueError if nothing is recorded, OSError if its folder cannot be
    written."""
    found = recordings(settings.recording)
    if found.newest is None or found.oldest is None:
        raise ValueError(found.problem or say("processes.nothing_recorded"))
    folder = settings.data_dir / FOLDER / asked.id
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    rules = rules_folder(settings)
    shutil.copytree(rules, folder / "old", ignore_dangling_symlinks=True)
    overlaid(rules, folder / "new", asked.file, asked.text)
    since = max(found.oldest, found.newest - timedelta(days=asked.days))
    ask = Ask(cluster, found.folder, since, found.newest, asked.samples, modes)
    (folder / _ASK).write_bytes(msgspec.json.encode(ask))
    return Process(folder)


def overlaid(rules: Path, into: Path, file: str, text: str) -> None:
    """Copies the rules into `into`, with one file replaced."""
    shutil.copytree(rules, into, ignore_dangling_symlinks=True)
    (into / file).parent.mkdir(parents=True, exist_ok=True)
    (into / file).write_text(text)


def main(folder: Path) -> None:
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    log_to_stderr()
    ask = msgspec.json.decode((folder / _ASK).read_bytes(), type=Ask)
    settings = load().of(ask.cluster or None)
    before, after = (load_site_rules(folder / name, settings, prove=False) for name in ("old", "new"))
    result = rehearsed(ask, before, after, lambda share: _write_progress(folder, share))
    (folder / _RESULT).write_bytes(msgspec.json.encode(result, enc_hook=to_text))


def rehearsed(ask: Ask, before: Ruleset, after: Ruleset, report: Callable[[float], None]) -> dict[str, Any]:
    """Compares both replays. `report` is called with the share done, at most once a second."""
    documents, span = [], None
    for done, rules in enumerate((before, after)):
        watch = _Progress(ask, done, report)
        entries = entries_of([Path(ask.recordings)], ask.since, ask.until, samples=ask.samples)
        document, span = replayed(rules, entries, ask.since, watch, ask.modes)
        documents.append(document)
    old, new = documents
    found = compare(old, new)
    return {
        "span": span or Span(cluster=ask.cluster, since=ask.since, until=ask.until),
        "rules": found["rules"],
        "incidents": {name: rows[:SHOWN] for name, rows in found["incidents"].items()},
        "actions": {name: rows[:SHOWN] for name, rows in found["actions"].items()},
        "held": found["held"][:SHOWN],
        "opened": opened(before, after, old, new),
        "cpu_s": round(time.process_time(), 1),
    }


def opened(before: Ruleset, after: Ruleset, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Opened]:
    """For each changed rule: the incidents that it opens now, and those that it no longer opens."""
    found = []
    for name, digest in sorted(after.texts.items()):
        kind, _, rule = name.partition("/")
        if kind != "rule" or before.texts.get(name) == digest:
            continue
        after_ids, was = (
            tuple(incident["id"] for incident in document["incidents"] if incident["rule"] == rule)
            for document in (new, old)
        )
        missed = tuple(name for name in was if name not in set(after_ids))
        found.append(Opened(rule=rule, digest=digest, incidents=after_ids, missed=missed))
    return found


class _Progress:
    """Reports progress; ends the process if its parent has ended."""

    def __init__(self, ask: Ask, done: int, report: Callable[[float], None]) -> None:
        self._ask, self._done, self._report = ask, done, report
        self._parent, self._reported_at = os.getppid(), 0.0

    def __call__(self, at: datetime) -> None:
        now = time.monotonic()
        if now - self._reported_at < 1:
            return
        if os.getppid() != self._parent:
            sys.exit(1)
        self._reported_at = now
        self._report((self._done + share_of(at, (self._ask.since, self._ask.until))) / 2)


def _write_progress(folder: Path, share: float) -> None:
    temporary = folder / f"{_PROGRESS}.tmp"
    temporary.write_text(f"{share:.4f}")
    temporary.replace(folder / _PROGRESS)


def duty(settings: Settings, engine: Any, cluster: str) -> Any:
    """For the scheduler: see `healer.processes.scheduler`."""
    from healer.adapters.postgres.rehearsals import PostgresRehearsals

    book = PostgresRehearsals(engine)

    def start(asked: Rehearsal) -> Process:
        return begin(settings, cluster, asked, book.modes())

    return Rehearsing(book, cluster, start, SystemClock())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
