"""What PostgreSQL's text and JSONB cannot hold is replaced, and the rest stays."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from healer.adapters.postgres.engine import storable, storable_text
from healer.audit import canonical
from tests.support.audit import START, record

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.heavy
@given(st.dictionaries(st.text(), _json, max_size=4))
def test_stored_data_reads_back_to_the_same_bytes(data):
    kept = storable(data)
    assert canonical(msgspec.json.decode(canonical(kept))) == canonical(kept)
    assert b"\\u0000" not in canonical(kept)


@given(st.text(st.characters(codec=None)))
def test_any_text_becomes_text_that_can_be_stored(text):
    kept = storable_text(text)
    assert "\x00" not in kept
    kept.encode()
    if "\x00" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text):
        assert kept == text


def test_structs_times_and_sets_in_data_become_json():
    assert storable({"at": START, "of": record(1), 3: b"\0"})["at"] == "2026-11-20T03:00:00.250000Z"
