"""The recordings of an installation, for its commands, its API and `healer doctor`."""

import os
from datetime import UTC, datetime, timedelta

from healer.model.recordings import Recordings
from healer.recordings.recording_read import recordings
from healer.settings import Settings

#: The detector ends a frame every ten seconds where anything is told at all; heartbeats are.
SILENT = timedelta(minutes=10)


def recordings_of(settings: Settings) -> Recordings:
    """Those of one cluster."""
    return recordings(settings.recording)


def look(settings: Settings) -> list[tuple[str, bool, str, str]]:
    """For `healer doctor`: whether each cluster is recorded, how much and since when, and what is wrong."""
    return [_looked(one, one.cluster if settings.clusters else None) for one in settings.each()]


def _looked(settings: Settings, cluster: str | None) -> tuple[str, bool, str, str]:
    name = f"recording {cluster}" if cluster else "recording"
    folder = settings.recording
    if folder is None:
        return name, True, "off (HEALER_RECORDING=on records for `healer replay`)", ""
    found = recordings(folder)
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if found.problem or not os.access(nearest, os.W_OK | os.X_OK):
        why = found.problem or f"{nearest} cannot be written by this user"
        return name, False, why, f"Let healer's user write {folder}, or set another HEALER_RECORDING."
    if found.oldest is None or found.newest is None:
        return name, True, f"on, nothing in {folder} yet", ""
    lost = sum(one.lost for one in found.files)
    holes = f", {lost} entries lost" if lost else ""
    since = f"{found.oldest:%Y-%m-%d %H:%M} UTC"
    text = f"on, {found.bytes / 1e6:.1f} MB since {since} in {folder}{holes}"
    if datetime.now(UTC) - found.newest > SILENT:
        return name, False, f"{text}; nothing since {found.newest:%Y-%m-%d %H:%M} UTC", _SILENT_REPAIR
    return name, True, text, ""


_SILENT_REPAIR = "The detector records: look whether it runs, and into its log."
