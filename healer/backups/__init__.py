"""Backup and restore of an installation: one file with the database, rules and keys."""

from healer.backups.archive import BackupUnusable, Manifest, reading
from healer.backups.load_database import HalfRestored, NotEmpty, check_stopped
from healer.backups.make import BackupFailed, Source, make_backup
from healer.backups.put_back import (
    Checked,
    Places,
    Restored,
    check_backup,
    hold_back_database,
    put_back,
    seal,
)
from healer.backups.sealed_keys import read_passphrase
