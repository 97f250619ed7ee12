"""The same event sent twice has one digest; two events have two."""
# ruff: noqa: E501 - one event per line

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from healer.signals.identity import Identity, Origin, digest_of, identify

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)


def of(**changes: Any) -> Identity:
    fields: dict[str, Any] = {
        "cluster": "pod1", "node": "gpu0001", "content": "NVRM: x", "boot_id": None, "seq": None, "stamp": None,
        "event_at": None, "arrived_at": NOW,
    } | changes  # fmt: skip
    times = {name: fields.pop(name) for name in ("event_at", "arrived_at")}
    return identify(content=fields.pop("content"), origin=Origin(**fields), **times)


def test_boot_and_sequence_are_enough() -> None:
    one = of(boot_id="b", seq=7)
    assert one == of(
        boot_id="b", seq=7, content="other", stamp="1.2", event_at=NOW, arrived_at=NOW + timedelta(days=9)
    )
    assert one.alternatives == ()


@pytest.mark.parametrize("change", [{"seq": 8}, {"boot_id": "c"}, {"node": "gpu0002"}, {"cluster": "pod2"}])
def test_another_boot_sequence_or_node_is_another_event(change: dict[str, Any]) -> None:
    assert of(boot_id="b", seq=7).digest != of(**({"boot_id": "b", "seq": 7} | change)).digest


def test_boot_and_stamp_and_content() -> None:
    one = of(boot_id="b", stamp="1.2", event_at=NOW)
    assert one == of(boot_id="b", stamp="1.2", event_at=NOW + timedelta(hours=1))
    assert one != of(boot_id="b", stamp="1.3", event_at=NOW)
    assert one != of(boot_id="b", stamp="1.2", event_at=NOW, content="NVRM: y")


def test_stamp_without_its_boot_is_ignored_when_the_time_is_given() -> None:
    assert of(stamp="1.2", event_at=NOW) == of(event_at=NOW)


def test_event_time_and_content() -> None:
    assert of(event_at=NOW) == of(event_at=NOW, arrived_at=NOW + timedelta(days=1))
    assert of(event_at=NOW) != of(event_at=NOW + timedelta(microseconds=1))


@pytest.mark.parametrize(
    ("later", "same"), [(1, True), (300, True), (600, True), (660, False), (3600, False)]
)
def test_content_and_arrival_within_ten_minutes(later: int, same: bool) -> None:
    first, again = of(), of(arrived_at=NOW + timedelta(seconds=later))
    assert (first.digest in {again.digest, *again.alternatives}) is same


def test_the_same_content_of_another_boot_is_another_event() -> None:
    """A node that fails again minutes after its reboot: the sender knows the boot, and no time."""
    first, later = of(boot_id="b"), NOW + timedelta(seconds=90)
    again, repeated = of(boot_id="c", arrived_at=later), of(boot_id="b", arrived_at=later)
    assert first.digest not in {again.digest, *again.alternatives}
    assert first.digest in repeated.alternatives


def test_words_without_separators_are_split() -> None:
    assert digest_of("ab", "c") != digest_of("a", "bc")
    assert len(digest_of("a")) == 64
