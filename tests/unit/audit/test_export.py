"""Exports that were damaged or forged, read without a database."""

import msgspec
import pytest

from healer.audit import (
    ExportError,
    Head,
    Header,
    checkpoint_line,
    export_lines,
    read_checkpoints,
    sign_checkpoint,
    verify_export,
)
from tests.support.audit import START, chain_of, signer

SIGNER = signer()
CHAIN = [*chain_of(6, "pod1"), *chain_of(4, "pod2")]
SIGNED = [sign_checkpoint(SIGNER, "pod1", 5, CHAIN[4].hash, START)]
HEADER = Header(
    healer_audit=1,
    at=START,
    clusters={"pod1": Head(seq=6, hash=CHAIN[5].hash.hex()), "pod2": Head(seq=4, hash=CHAIN[9].hash.hex())},
    keys=[SIGNER.key],
    checkpoints=1,
)


def lines() -> list[bytes]:
    return list(export_lines(HEADER, SIGNED, CHAIN))


def test_it_holds_by_itself():
    seen = verify_export(lines())
    assert (seen.broken, seen.records) == ([], 10)
    assert (seen.heads, seen.signed) == ({"pod1": 6, "pod2": 4}, {"pod1": 5, "pod2": 0})
    assert verify_export(lines(), keys={SIGNER.key}).broken == []


def test_export_verifies_after_another_program_rewrote_the_json():
    formatted = [
        msgspec.json.format(msgspec.json.encode(msgspec.json.decode(line)), indent=0) for line in lines()
    ]
    assert verify_export(formatted).broken == []


def test_the_key_that_is_known_from_elsewhere_decides():
    assert "unknown key" in verify_export(lines(), keys={signer().key}).broken[0].what


def test_a_head_kept_apart_shows_an_export_made_of_another_history():
    forged = [*chain_of(3, "pod1")]
    header = msgspec.structs.replace(HEADER, clusters={"pod1": Head(seq=3, hash=forged[2].hash.hex())})
    rewritten = list(export_lines(header, [], forged))
    assert verify_export(rewritten).broken == []
    assert [item.seq for item in verify_export(rewritten, checkpoints=SIGNED, keys={SIGNER.key}).broken] == [
        5
    ]


@pytest.mark.parametrize("dropped", range(2, 12))
def test_missing_line_is_detected_anywhere(dropped):
    left = lines()
    del left[dropped]
    assert verify_export(left).broken


def test_a_line_that_cannot_be_read_is_named_and_the_rest_still_verified():
    damaged = lines()
    damaged[4] = damaged[4][:40] + b"\n"
    assert_names_line_5(damaged)
    damaged[4] = lines()[4].replace(b'"actor":"', b'"actor":"\xe4')
    assert_names_line_5(damaged)


@pytest.mark.parametrize("more", [b'"approved_by":"ann",', b'"seq":7,', b'"hash":"00",'])
def test_what_was_added_to_a_record_is_named(more):
    damaged = lines()
    damaged[4] = damaged[4].replace(b'"record":{', b'"record":{' + more)
    assert_names_line_5(damaged)


def assert_names_line_5(damaged):
    broken = verify_export(damaged).broken
    assert broken[0].what.startswith("line 5 of the export cannot be read: ")
    assert [item.seq for item in broken[1:]] == [3]


@pytest.mark.parametrize(
    "first", [b"", b"\n", b"{}\n", b'{"healer_audit":2,"at":"2026-11-20T03:00:00Z","clusters":{}}']
)
def test_file_that_is_no_audit_export_is_refused(first):
    with pytest.raises(ExportError, match="line 1"):
        verify_export([first])


def test_a_checkpoint_file_survives_a_write_that_was_cut_short():
    whole = checkpoint_line(SIGNED[0])
    assert read_checkpoints([whole, whole[:30]]) == SIGNED
    assert read_checkpoints([whole[:30] + b"\n", whole]) == SIGNED
    with pytest.raises(ExportError, match="line 2 of the checkpoint file"):
        read_checkpoints([whole, whole.replace(b'"seq":5', b'"seq":"5"')])
    with pytest.raises(ExportError, match="line 2 of the checkpoint file"):
        read_checkpoints([whole, whole.replace(b'"cluster":"', b'"cluster":"\xe4')])
