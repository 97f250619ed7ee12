"""The chain as pure data: formats that outsiders rely on, and tampering of every kind found."""

from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from healer.audit import (
    examine,
    extend,
    genesis,
    link,
    moment,
    record_bytes,
    sign_checkpoint,
)
from tests.support.audit import START, chain_of, record, signer

CHAIN = chain_of(12)
SIGNER = signer()


def verify(links, **options):
    return examine(links, **options).broken


def what(links, **options) -> list[str]:
    return [item.what for item in verify(links, **options)]


def test_the_hashed_bytes_are_those_of_the_documentation():
    example = msgspec.structs.replace(record(7), data={"b": [1.0, None], "a": "é"})
    data = b'"data":{"a":"\xc3\xa9","b":[1.0,null]}'
    expected = (
        b'{"actor":"healer","at":"2026-11-20T03:00:07.250000Z","cluster":"pod1",' + data
        + b',"id":7,"subject":"node/gpu0007","verb":"node.drained"}'
    )  # fmt: skip
    assert record_bytes(example) == expected
    prev = sha256(b"healer audit pod1").digest()
    assert genesis("pod1") == prev
    assert link(prev, 1, example) == sha256(prev + b"\0\0\0\0\0\0\0\x01" + expected).digest()


def test_times_are_utc_with_six_digits_for_any_input_zone():
    assert moment(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02T03:04:05.000000Z"
    east = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2)))
    assert moment(east) == "2026-01-02T01:04:05.000006Z"
    with pytest.raises(ValueError, match="needs a zone"):
        moment(datetime(2026, 1, 2))  # noqa: DTZ001


def test_a_record_without_an_id_is_not_chained():
    with pytest.raises(ValueError, match="no id"):
        record_bytes(record(1, stored=False))


def test_a_whole_chain_holds():
    assert verify(CHAIN) == []
    assert verify([]) == []
    assert verify([*chain_of(3, "pod1"), *chain_of(3, "pod2")]) == []


def test_a_chain_of_another_cluster_does_not_pass_as_ours():
    renamed = [msgspec.structs.replace(at, cluster="pod2") for at in CHAIN]
    assert verify(renamed)[0].seq == 1


@given(st.integers(0, 11), st.sampled_from(["actor", "verb", "subject", "cluster", "at", "data", "id"]))
def test_every_changed_field_is_named_by_its_seq_alone(index, field):
    old = CHAIN[index].record
    assert old is not None and old.id is not None
    new = {
        "actor": "somebody", "verb": "node.resumed", "subject": "node/gpu9999", "cluster": "pod2",
        "at": old.at + timedelta(microseconds=1), "data": {**old.data, "x": None}, "id": old.id + 1000,
    }[field]  # fmt: skip
    changed = msgspec.structs.replace(CHAIN[index], record=msgspec.structs.replace(old, **{field: new}))
    broken = verify([*CHAIN[:index], changed, *CHAIN[index + 1 :]])
    assert [item.seq for item in broken] == [index + 1]
    assert "was changed after it was sealed" in broken[0].what


@given(st.data())
def test_missing_links_are_named(data):
    first = data.draw(st.integers(0, 10))
    last = data.draw(st.integers(first, 10))  # the twelfth stays: a cut end needs a checkpoint
    broken = verify([*CHAIN[:first], *CHAIN[last + 1 :]])
    assert [item.seq for item in broken] == [first + 1]
    assert "missing" in broken[0].what


@settings(max_examples=60)
@given(st.data())
def test_two_exchanged_records_are_named_together_in_every_way_of_exchanging(data):
    one = data.draw(st.integers(0, 10))
    other = data.draw(st.integers(one + 1, 11))
    way = data.draw(st.sampled_from(["contents", "pointers", "places"]))
    links = list(CHAIN)
    a, b = links[one], links[other]
    assert a.record is not None and b.record is not None
    if way == "contents":
        links[one] = msgspec.structs.replace(a, record=msgspec.structs.replace(b.record, id=a.record_id))
        links[other] = msgspec.structs.replace(b, record=msgspec.structs.replace(a.record, id=b.record_id))
    elif way == "pointers":
        links[one] = msgspec.structs.replace(a, record=b.record, record_id=b.record_id)
        links[other] = msgspec.structs.replace(b, record=a.record, record_id=a.record_id)
    else:
        links[one] = msgspec.structs.replace(b, seq=a.seq)
        links[other] = msgspec.structs.replace(a, seq=b.seq)
    assert what(links) == [
        f"seq {a.seq} was swapped with seq {b.seq} after both were sealed",
        f"seq {b.seq} was swapped with seq {a.seq} after both were sealed",
    ]


def test_a_link_made_to_fit_its_changed_record_leaves_the_next_one_loose():
    old = CHAIN[4]
    assert old.record is not None
    forged = msgspec.structs.replace(old.record, actor="somebody")
    changed = msgspec.structs.replace(old, record=forged, hash=link(old.prev, old.seq, forged))
    assert what([*CHAIN[:4], changed, *CHAIN[5:]]) == [
        "seq 6 does not follow seq 5: the record there was replaced later"
    ]


@pytest.mark.parametrize("field", ["hash", "prev"])
def test_a_changed_hash_or_pointer_is_one_broken_place(field):
    changed = msgspec.structs.replace(CHAIN[4], **{field: b"\1" * 32})
    assert [item.seq for item in verify([*CHAIN[:4], changed, *CHAIN[5:]])] == [5]


def test_a_repeated_link_is_named():
    assert what([*CHAIN[:5], CHAIN[4], *CHAIN[5:]]) == ["seq 5 appears twice"]


def test_a_cut_end_is_named_by_the_newest_checkpoint():
    signed = [sign_checkpoint(SIGNER, "pod1", seq, CHAIN[seq - 1].hash, START) for seq in (5, 10)]
    assert verify(CHAIN, checkpoints=signed, keys={SIGNER.key}) == []
    assert what(CHAIN[:8], checkpoints=signed) == [
        "seq 10 was signed on 2026-11-20T03:00:00.250000Z, but the chain ends at seq 8: its end is cut off"
    ]
    assert [item.seq for item in verify([], checkpoints=signed)] == [10]


def test_recomputed_chain_is_caught_by_the_signature():
    forged = [msgspec.structs.replace(record(number), actor="somebody") for number in range(1, 13)]
    recomputed = extend("pod1", 0, genesis("pod1"), forged)
    assert verify(recomputed) == []
    signed = sign_checkpoint(SIGNER, "pod1", 5, CHAIN[4].hash, START)
    assert [item.seq for item in verify(recomputed, checkpoints=[signed])] == [5]
    strange = sign_checkpoint(signer(), "pod1", 5, recomputed[4].hash, START)
    assert "unknown key" in what(recomputed, checkpoints=[strange], keys={SIGNER.key})[0]


@pytest.mark.parametrize("field", ["seq", "hash", "at", "signature", "key"])
def test_a_changed_checkpoint_does_not_fit_its_signature(field):
    good = sign_checkpoint(SIGNER, "pod1", 5, CHAIN[4].hash, START)
    new = {"seq": 6, "hash": "00" * 32, "at": START + timedelta(1), "signature": "zz", "key": "00"}[field]
    bad = msgspec.structs.replace(good, **{field: new})
    assert "has an invalid signature" in what(CHAIN, checkpoints=[bad])[0]


def test_very_many_broken_places_are_counted_not_listed():
    links = chain_of(3000)
    bad = [msgspec.structs.replace(at, record=None) for at in links]
    broken = verify(bad)
    assert len(broken) == 1001
    assert broken[-1].what == "and 2000 more places"
