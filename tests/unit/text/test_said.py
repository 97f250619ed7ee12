"""Sentences by key: their English, how they are stored, and how they read in another language."""

import copy
import pickle
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pytest

from healer.text import (
    NO_WORDS,
    Said,
    at,
    capital,
    from_stored,
    in_language,
    joined,
    name_some,
    quoted,
    read_said,
    said_by,
    say,
    stored_json,
    to_plain,
    to_stored,
    unstopped,
)

MOMENT = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)


class Held(msgspec.Struct, frozen=True, omit_defaults=True):
    why: Said
    more: tuple[Said, ...] = ()
    note: Said = NO_WORDS
    question: Said | None = None


def test_a_sentence_is_its_english_text():
    said = at(MOMENT)
    assert said == "03:00 on 20 Nov UTC" and hash(said) == hash(str(said))
    assert said.key == "words.moment"
    assert in_language(said, "zh") == "11 月 20 日 03:00 UTC"


def test_stored_sentences_read_in_both_languages():
    held = Held(at(MOMENT), (joined([say("words.hours", n=3), "gpu1"], "and"), quoted("site's own")))
    doc = to_stored(held)
    assert doc["why"]["text"] == "03:00 on 20 Nov UTC" and doc["why"]["key"] == "words.moment"
    assert doc["more"][1] == "site's own" and "note" not in doc and "question" not in doc
    back = from_stored(msgspec.json.decode(msgspec.json.encode(doc)), Held)
    assert back == held
    assert in_language(back.why, "zh") == "11 月 20 日 03:00 UTC"
    assert in_language(back.more[0], "zh") == "3 小时 和 gpu1"
    assert msgspec.json.decode(stored_json(held), type=Held, dec_hook=read_said) == held


def test_a_row_of_an_older_version_is_its_text():
    back = from_stored({"why": "GPU 3 is gone.", "question": "Go on?"}, Held)
    assert back == Held(Said("GPU 3 is gone."), question=Said("Go on?"))
    assert in_language(back.why, "zh") == "GPU 3 is gone."


@pytest.mark.parametrize("bad", [7, {"key": "words.hours"}, ["x"], None])
def test_a_damaged_row_is_refused_and_names_its_field(bad: object):
    with pytest.raises(msgspec.ValidationError, match=r"\$\.why"):
        from_stored({"why": bad}, Held)


def test_a_key_of_another_version_keeps_its_text():
    back = from_stored({"why": {"text": "Later words.", "key": "later.words", "args": {}}}, Held)
    assert back.why == "Later words." and in_language(back.why, "zh") == "Later words."


def test_plain_form_of_a_sentence_is_text():
    assert to_plain(Held(at(MOMENT))) == {"why": "03:00 on 20 Nov UTC"}
    assert type(to_plain(Held(at(MOMENT)))["why"]) is str


def test_no_sentence_is_lost_for_a_missing_key_or_argument():
    assert say("words.no_such_key", n=3) == "words.no_such_key(n=3)"
    assert say("words.hours", m=3) == "words.hours(m=3)"


def test_parts_are_translated_each():
    both = joined([quoted("An optical module is too hot"), say("words.minutes", n=4)], "semicolon")
    assert both == "An optical module is too hot; 4 min"
    assert in_language(both, "zh") == "光模块过热；4 分钟"


def test_words_of_others_are_looked_up_after_they_were_stored_too():
    said = from_stored(to_stored(joined([quoted("An optical module is too hot"), "open"], "comma")), Said)
    assert in_language(said, "zh") == "光模块过热，open"


@pytest.mark.parametrize(
    ("parts", "text"), [((), ""), (("a",), "a"), (("a", "b"), "a and b"), (("a", "b", "c"), "a, b and c")]
)
def test_and(parts: tuple[str, ...], text: str):
    assert joined(parts, "and") == text


def test_names_are_cut():
    assert name_some(["a", "b"], 3) == "a, b"
    assert name_some([str(number) for number in range(64)], 3) == "0, 1, 2 and 61 more"


def test_forms_hold_in_every_language():
    assert unstopped(quoted("It is on.")) == "It is on"
    assert in_language(unstopped(say("decisions.no_pause")), "zh") == "没有与此相关的暂停"
    assert capital(say("words.hours", n="some")) == "Some h"


def test_numbers_of_numpy_are_stored():
    said = say("words.hours", n=np.float64(1.5))
    assert to_stored(said)["args"] == {"n": 1.5}
    counts: dict[str, Any] = to_stored(say("words.hours", n=np.int64(2)))["args"]  # pyright: ignore
    assert counts == {"n": 2} and type(counts["n"]) is int


def test_it_is_copied_whole():
    said = say("words.hours", n=3)
    for same in (copy.deepcopy(said), pickle.loads(pickle.dumps(said))):
        assert same == said and same.key == said.key and same.args == said.args


def test_a_stored_sentence_whose_arguments_do_not_fit_keeps_its_english():
    stored = {"text": "It was 3.0 s old.", "key": "decisions.picture_old", "args": {"age_s": None}}
    assert in_language(from_stored(stored, Said), "zh") == "It was 3.0 s old."


def test_sentence_with_an_infinite_value_can_be_stored():
    said = say("decisions.picture_old", age_s=float("inf"), limit_s=30.0)
    assert "inf" in said and "decisions." not in said
    assert msgspec.json.encode(to_stored(said)) and to_stored(said)["args"]["age_s"] == "inf"


def test_an_error_says_its_sentence_or_its_text():
    assert said_by(Exception(say("words.hours", n=3))).key == "words.hours"
    assert said_by(OSError(2, "no such file")) == "[Errno 2] no such file"
    assert said_by(Exception()) is NO_WORDS


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    n: Annotated[int, msgspec.Meta(ge=0)]
    name: Annotated[str, msgspec.Meta(max_length=2)] = ""
    kind: Literal["a", "b"] = "a"
    at: datetime | None = None


@pytest.mark.parametrize(
    "raw",
    [
        '{"n": "1"}', '{"n": -1}', '{"n": 1, "name": "abc"}', '{"n": 1, "kind": "c"}',
        '{"n": 1, "at": "now"}', '{"n": 1, "m": 2}', '{"n": 1e400}', "{}",
        '{"n": ', '{"n": 1} 2', "{n}", "[1,]",
    ],
)  # fmt: skip
def test_decoder_errors_are_in_both_languages(raw: str) -> None:
    with pytest.raises(msgspec.MsgspecError) as failed:
        msgspec.json.decode(raw, type=_Entry)
    sentence = said_by(failed.value)
    assert sentence == str(failed.value)
    assert re.match(r"[\u4e00-\u9fff]|JSON [\u4e00-\u9fff]", in_language(sentence, "zh"))
