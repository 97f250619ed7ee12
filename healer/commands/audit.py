"""`healer audit`: verifies the chain and exports it."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from healer.commands import Failed, say, say_json
from healer.commands.remote import add_group
from healer.ports.audit_store import WitnessAway
from healer.settings import load

if TYPE_CHECKING:
    from healer.audit import Report, Trail
    from healer.model import Checkpoint

_SHOWN_MAX = 200


def register(app: typer.Typer) -> None:
    add_group(app, "audit", "The record of everything that was done.", {"verify": verify, "export": export})


def verify(
    file: Path | None = typer.Option(None, help="Verify this export instead of the database; - reads it in."),
    checkpoints: Path | None = typer.Option(
        None, help="With --file: a separately stored audit-checkpoints.jsonl to compare the export with."
    ),
    key: list[str] = typer.Option(
        [],
        help="With --file or --against: a public key (64 hex digits) that may sign; repeat for more. Else "
        "the export's, or that of the witness's first checkpoint.",
    ),
    against: str | None = typer.Option(
        None, help="Compare the database with this witness: a file, or the address of a second database."
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Verify the audit chain and list every broken record; exits with 1 if there is one."""
    if file is None and (checkpoints is not None or (key and against is None)):
        raise typer.BadParameter(
            "--checkpoints and --key go with --file; the database uses the data directory's"
        )
    if file is not None and against is not None:
        raise typer.BadParameter("--against holds the database, --checkpoints an export")
    _check_keys(key)
    if against is not None:
        report = _against(against, key)
    else:
        report = _of_database() if file is None else _of_file(file, checkpoints, key)
    if json:
        import msgspec

        answer = {"ok": not report.broken, **msgspec.to_builtins(report)}
        say_json(msgspec.json.encode(answer))
    else:
        _print(report, by_itself=file is not None and not key)
    if report.broken:
        raise typer.Exit(1)


def export(
    out: Path | None = typer.Option(None, help="Output file instead of standard output."),
) -> None:
    """Export the audit chain as JSON Lines, which `healer audit verify --file` checks on any machine."""
    with _database() as trail:
        _write(trail.export(), out)


def _write(lines: Iterable[bytes], out: Path | None) -> None:
    if out is None and sys.stdout.isatty():
        # A file holds the bytes that were hashed; a terminal gets what it cannot obey.
        for line in lines:
            say_json(line.decode().removesuffix("\n"))
        return
    if out is None:
        sys.stdout.buffer.writelines(lines)
        sys.stdout.buffer.flush()
        return
    # Whole or not at all: half an export would read like a chain with its end cut off.
    fresh = out.with_name(f".{out.name}.new")
    try:
        with fresh.open("wb") as target:
            target.writelines(lines)
        fresh.rename(out)
    except OSError as error:
        raise Failed(f"{out} cannot be written: {error.strerror}.") from None
    finally:
        fresh.unlink(missing_ok=True)


def _of_database() -> "Report":
    from healer.audit import ExportError

    try:
        with _database() as trail:
            return trail.report()
    except ExportError as error:
        raise Failed(f"{error}.") from None


def _against(place: str, keys: list[str]) -> "Report":
    from healer import bootstrap
    from healer.audit import ExportError

    try:
        with _database_errors():
            return bootstrap.audit_against(load(), place, [key.lower() for key in keys])
    except (ExportError, WitnessAway) as error:
        raise Failed(f"{error}.") from None


def _check_keys(keys: list[str]) -> None:
    wrong = [key for key in keys if len(key) != 64 or set(key.lower()) - set("0123456789abcdef")]
    if wrong:
        raise typer.BadParameter(f"--key must be 64 hex digits, not {wrong[0]!r}")


@contextmanager
def _database() -> Iterator["Trail"]:
    from healer import bootstrap

    with _database_errors():
        yield bootstrap.audit_trail(load())


@contextmanager
def _database_errors() -> Iterator[None]:
    from sqlalchemy.exc import OperationalError

    try:
        yield
    except OperationalError as error:
        raise Failed(f"the database does not answer: {error.orig}".strip()) from None


def _of_file(file: Path, checkpoints: Path | None, keys: list[str]) -> "Report":
    from healer.audit import ExportError, verify_export

    trusted = {key.lower() for key in keys} or None
    try:
        kept = _kept(checkpoints)
        if str(file) == "-":
            return verify_export(sys.stdin.buffer, keys=trusted, checkpoints=kept)
        with file.open("rb") as stream:
            return verify_export(stream, keys=trusted, checkpoints=kept)
    except ExportError as error:
        raise Failed(f"{error}.") from None
    except OSError as error:
        raise Failed(f"{error.filename} cannot be read: {error.strerror}.") from None


def _kept(path: Path | None) -> "list[Checkpoint]":
    from healer.audit import read_checkpoints

    if path is None:
        return []
    with path.open("rb") as lines:
        return read_checkpoints(lines)


def _print(report: "Report", *, by_itself: bool) -> None:
    for item in report.broken[:_SHOWN_MAX]:
        say(f"broken: {item.cluster + ', ' if item.cluster else ''}{item.what}.")
    if len(report.broken) > _SHOWN_MAX:
        say(f"and {len(report.broken) - _SHOWN_MAX} more; --json names them all.")
    if report.gaps:
        from healer.audit import gap_text

        for gap in report.gaps:
            say(f"known gap: {gap_text(gap)}.")
    for cluster, head in report.heads.items():
        signed = report.signed.get(cluster, 0)
        say(f"{cluster}: {head} records chained, signed up to {signed or 'none'}.")
    if report.unsealed:
        say(f"{report.unsealed} records wait for the sealer.")
    if by_itself and report.keys:
        say(f"Signed by {', '.join(report.keys)}: compare with audit-keys.pub of the installation.")
    if not report.broken:
        say(f"The chain holds: {report.records} records." if report.records else "No record is chained yet.")
    else:
        say(f"The chain is broken in {len(report.broken)} places.")
