"""`healer backup` and `healer restore`."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from healer.commands import Failed, check_output, database_problem, local, person, print_line, say_json
from healer.commands.remote import AS_JSON
from healer.settings import SettingsError, load, load_executor
from healer.text import Said, joined, quoted, say

if TYPE_CHECKING:
    from healer.backups import Manifest, Restored

#: The names that backups get in a folder; --keep deletes no others.
_NAME = re.compile(r"healer-\d{8}T\d{6}Z\.tar")
_PASSPHRASE = typer.Option(
    None, "--passphrase-file", help="A file whose first line is the passphrase of the keys in the backup."
)


def backup(
    dest: Path = typer.Argument(help="The file to write, or a folder for a file named by the time."),
    *,
    passphrase_file: Path | None = _PASSPHRASE,
    without_keys: bool = typer.Option(False, "--without-keys", help="Leave audit-key and token-key out."),
    keep: int | None = typer.Option(
        None, "--keep", min=1, help="In a folder: keep the newest N backups, delete older ones."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Back up database, rules and keys to one file while healer runs."""
    if (passphrase_file is None) is not without_keys:
        raise typer.BadParameter(say("commands.backup_keys"))
    if keep is not None and not dest.is_dir():
        raise typer.BadParameter(say("commands.backup_keep", path=str(dest)))
    from healer.backups import make_backup, read_passphrase
    from healer.bootstrap.backups import source_of

    settings = load_executor()
    target = (dest / f"healer-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar" if dest.is_dir() else dest).absolute()
    check_output(target)
    with _failing():
        passphrase = None if passphrase_file is None else read_passphrase(passphrase_file)
        with _progress("backup") as progress:
            manifest = make_backup(source_of(settings), target, passphrase, by=person(), progress=progress)
        deleted = rotate(target, keep) if keep is not None else []
    _print_made(target, manifest, deleted, as_json=as_json)


def rotate(made: Path, keep: int) -> list[Path]:
    """Deletes all but the newest in the folder of the one just made, which stays though a clock that was
    ahead gave others a later name; returns what it deleted."""
    others = {path for path in made.parent.iterdir() if _NAME.fullmatch(path.name)} - {made}
    gone = sorted(others)[: max(0, len(others) + 1 - keep)]
    for path in gone:
        path.unlink(missing_ok=True)
    return gone


def _print_made(target: Path, manifest: "Manifest", deleted: list[Path], *, as_json: bool) -> None:
    size = target.stat().st_size
    if as_json:
        import msgspec

        document = {"file": str(target), "bytes": size, "deleted": [str(path) for path in deleted]}
        say_json(msgspec.json.encode(document | msgspec.to_builtins(manifest)))
        return
    clusters = joined(manifest.clusters, "comma") or say("commands.no_cluster")
    print_line(say("commands.backup_made", file=str(target), mb=size / 1e6, clusters=clusters))
    for name in manifest.missing:
        print_line(say("commands.backup_lacks", name=name))
    for path in deleted:
        print_line(say("commands.deleted", path=str(path)))


def restore(
    file: Path | None = typer.Argument(None, help="The backup."),
    *,
    data_dir: str | None = typer.Option(None, "--data-dir", help="Data directory of the new installation."),
    passphrase_file: Path | None = _PASSPHRASE,
    replace: bool = typer.Option(False, "--replace", help="Drop the current content of the database."),
    in_place: bool = typer.Option(
        False, "--in-place", help="Without a backup: after a recovery by other means, hold all actions."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Restore a backup. healer is paused afterwards, and runs in progress ask before they continue.

    The database is that of HEALER_DATABASE_URL (its owner's login), else the embedded one of the data
    directory. All parts must be stopped.
    """
    if (file is None) is not in_place:
        raise typer.BadParameter(say("commands.restore_which"))
    settings = load(data_dir=data_dir)
    from healer.backups import check_backup, put_back, read_passphrase, reading
    from healer.bootstrap.backups import database, hold_back_in_place, places_of

    places = places_of(settings)
    with _failing():
        if file is None:
            with database(settings) as url:
                _print_restored(hold_back_in_place(url, places, by=person()), as_json=as_json)
            return
        passphrase = None if passphrase_file is None else read_passphrase(passphrase_file)
        with reading(file) as archive:
            checked = check_backup(archive, passphrase)
            with database(settings) as url, _progress("restore") as progress:
                done = put_back(
                    url, checked, places, by=person(), replace=replace, progress=progress
                )  # fmt: skip
            missing = archive.manifest.missing
    _print_restored(done, missing, as_json=as_json)


def _print_restored(done: "Restored", missing: list[str] | None = None, *, as_json: bool) -> None:
    missing = missing or []
    if as_json:
        document = {
            "pause": done.pause, "asking": done.asking, "ended": done.ended, "missing": missing,
            "revision": done.revision[1], "left": [str(path) for path in done.left],
        }  # fmt: skip
        say_json(json.dumps(document))
        return
    for line in _restored_lines(done, missing):
        print_line(line)


def _restored_lines(done: "Restored", missing: list[str]) -> Iterator[Said]:
    before, after = done.revision
    if before == after:
        yield say("commands.restored")
    else:
        yield say("commands.restored_upgraded", before=before, after=after)
    yield say("commands.restored_asking", count=done.asking)
    ended = [
        say("commands.amount_of", n=count, what=quoted(name)) for name, count in done.ended.items() if count
    ]
    yield say("commands.restored_ended", what=joined(ended, "comma") or say("commands.nothing"))
    yield say("commands.restored_tokens")
    if done.left:
        yield say("commands.restored_left", paths=joined([str(path) for path in _tops(done.left)], "comma"))
    for name in missing:
        yield say("commands.backup_lacked", name=name)
    for statement in done.statements:
        yield say("commands.restored_statement", statement=statement)
    yield say("commands.restored_next", pause=done.pause)


def _tops(paths: list[Path]) -> list[Path]:
    """The folder of the rules for all of them, and each other file."""
    found = dict[Path, None]()
    for path in paths:
        inner = next((parent for parent in path.parents if parent.name == "rules"), path)
        found[inner] = None
    return list(found)


@contextmanager
def _failing() -> Iterator[None]:
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        away = say("commands.database_away", why=" ".join(str(error.orig).split()))
        raise Failed(database_problem(error) or away) from None
    except PermissionError as error:
        raise SettingsError(say("commands.needs_root", path=str(error.filename))) from None


@contextmanager
def _progress(verb: str) -> Iterator[Callable[[int, int], None]]:
    """A line on a terminal, which counts megabytes."""
    shown = -1
    is_terminal = sys.stderr.isatty()

    def show(done: int, of: int) -> None:
        nonlocal shown
        if is_terminal and done // 1_000_000 > shown:
            shown = done // 1_000_000
            sys.stderr.write("\r" + local(say(f"commands.progress_{verb}", mb=shown, whole=of / 1e6)))
            sys.stderr.flush()

    yield show
    if is_terminal:
        sys.stderr.write("\r\x1b[K")
