"""`healer audit`: verifies the chain and exports it."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from healer.commands import check_output, print_line, reading, say_json
from healer.commands.remote import add_group
from healer.settings import load
from healer.text import joined, say, to_plain

if TYPE_CHECKING:
    from healer.audit import Report
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
    json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Verify the audit chain and list every broken record; exits with 1 if there is one."""
    if file is None and (checkpoints is not None or (key and against is None)):
        raise typer.BadParameter(say("commands.audit_of_file"))
    if file is not None and against is not None:
        raise typer.BadParameter(say("commands.audit_against"))
    _check_keys(key)
    if file is not None:
        report = _of_file(file, checkpoints, key)
    else:
        from healer import bootstrap

        report = (
            bootstrap.audit_trail(load()).report()
            if against is None
            else bootstrap.audit_against(load(), against, [each.lower() for each in key])
        )
    if json:
        import msgspec

        answer = {"ok": not report.broken, **to_plain(report)}
        say_json(msgspec.json.encode(answer))
    else:
        _print(report, by_itself=file is not None and not key)
    if report.broken:
        raise typer.Exit(1)


def export(
    out: Path | None = typer.Option(None, help="Output file instead of standard output."),
) -> None:
    """Export the audit chain as JSON Lines, which `healer audit verify --file` checks on any machine."""
    from healer import bootstrap

    if out is not None:
        check_output(out)
    _write(bootstrap.audit_trail(load()).export(), out)


def _write(lines: Iterable[bytes], out: Path | None) -> None:
    if out is None and sys.stdout.isatty():
        # A file gets the bytes that were hashed; a terminal gets text without control sequences.
        for line in lines:
            say_json(line.decode().removesuffix("\n"))
        return
    if out is None:
        sys.stdout.buffer.writelines(lines)
        sys.stdout.buffer.flush()
        return
    # Whole or not at all: half an export would read like a chain with its end cut off.
    fresh = out.with_name(f".{out.name}.new")
    with reading(out, writes=True):
        try:
            with fresh.open("wb") as target:
                target.writelines(lines)
            fresh.rename(out)
        finally:
            fresh.unlink(missing_ok=True)


def _check_keys(keys: list[str]) -> None:
    wrong = [key for key in keys if len(key) != 64 or set(key.lower()) - set("0123456789abcdef")]
    if wrong:
        raise typer.BadParameter(say("commands.audit_key", key=wrong[0]))


def _of_file(file: Path, checkpoints: Path | None, keys: list[str]) -> "Report":
    from healer.audit import verify_export

    trusted = {key.lower() for key in keys} or None
    with reading(file):
        kept = _kept(checkpoints)
        if str(file) == "-":
            return verify_export(sys.stdin.buffer, keys=trusted, checkpoints=kept)
        with file.open("rb") as stream:
            return verify_export(stream, keys=trusted, checkpoints=kept)


def _kept(path: Path | None) -> "list[Checkpoint]":
    from healer.audit import read_checkpoints

    if path is None:
        return []
    with path.open("rb") as lines:
        return read_checkpoints(lines)


def _print(report: "Report", *, by_itself: bool) -> None:
    for item in report.broken[:_SHOWN_MAX]:
        what = joined([*filter(None, [item.cluster]), item.what], "comma")
        print_line(say("commands.audit_broken", what=what))
    if len(report.broken) > _SHOWN_MAX:
        print_line(say("commands.audit_more", count=len(report.broken) - _SHOWN_MAX))
    if report.gaps:
        from healer.audit import gap_text

        for gap in report.gaps:
            print_line(say("commands.audit_gap", what=gap_text(gap)))
    for cluster, head in report.heads.items():
        name = cluster or say("commands.audit_no_cluster")
        chained = say("commands.audit_chained", cluster=name, count=head)
        signed = report.signed.get(cluster, 0)
        print_line(
            say("commands.audit_signed", chained=chained, last=signed)
            if signed
            else say("commands.audit_unsigned", chained=chained)
        )
    if report.unsealed:
        print_line(say("commands.audit_unsealed", count=report.unsealed))
    if by_itself and report.keys:
        print_line(say("commands.audit_keys", keys=joined(report.keys, "comma")))
    if report.broken:
        print_line(say("commands.audit_breaks", count=len(report.broken)))
    elif report.records:
        print_line(say("commands.audit_holds", count=report.records))
    else:
        print_line(say("commands.audit_empty"))
