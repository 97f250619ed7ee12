"""Requests: each entry falls into one heap, and one bad entry never loses the good ones."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from healer.model import ObservationKind
from healer.signals.wire import (
    Accepted,
    BadBody,
    NodeBoot,
    heartbeat_observations,
    kernel_log_body,
    kernel_log_observations,
    kernel_text_observations,
    nodes_of_heartbeats,
    nodes_of_kernel_log,
)

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
LOST = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=a, GPU has fallen off the bus."


def known(cluster: str, node: str) -> bool:
    return cluster in {"pod1", "pod2"} and node.startswith("gpu")


def take(*entries: Any, **outer: Any) -> Accepted:
    body = {"node": "gpu0001", "entries": list(entries)} | outer
    return kernel_log_observations(body, known, NOW, cluster="pod1")


def test_the_form_of_the_contract() -> None:
    entry = {"time": "2026-11-20T02:59:58Z", "seq": 123, "line": LOST, "job": 4711}
    (seen,) = take(entry, cluster="pod2", boot_id="b1").observations
    assert (seen.kind, seen.code, seen.boot_id) == (ObservationKind.xid, 79, "b1")
    where = seen.component
    assert (where.cluster, where.node, where.pci) == ("pod2", "gpu0001", "0000:9b:00")
    assert (seen.event_at, seen.arrived_at) == (NOW - timedelta(seconds=2), NOW)
    assert (seen.line, seen.data["job"]) == (LOST, "4711")


def test_every_entry_falls_into_one_heap() -> None:
    taken = take({"line": LOST}, {"line": "usb 1-1: new device"}, {"line": 5}, {"line": LOST, "seq": 2})
    assert (len(taken.observations), taken.unrecognised) == (2, 1)
    assert [one.index for one in taken.rejected] == [2]


@pytest.mark.parametrize("time", ["2026-11-20T04:00:01Z", "2026-11-20T11:00:00+00:00"])
def test_a_clock_that_is_hours_ahead_costs_no_line(time: str) -> None:
    (seen,) = take({"line": LOST, "time": time}).observations
    assert (seen.event_at, seen.arrived_at) == (NOW, NOW), "it counts as of its arrival"
    later = kernel_log_observations(
        {"node": "gpu0001", "entries": [{"line": LOST, "time": time}]},
        known,
        NOW + timedelta(minutes=20),
        cluster="pod1",
    )
    assert later.observations[0].digest == seen.digest, "sent again it is the same"


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({}, "line"),
        ({"line": None}, "line"),
        (7, "object"),
        ({"line": LOST, "seq": -1}, "seq"),
        ({"line": LOST, "seq": "7"}, "seq"),
        ({"line": LOST, "time": "yesterday"}, "time: not an RFC 3339 time"),
        ({"line": LOST, "time": 1763607600}, "time"),
        ({"line": LOST, "time": "2026-11-20T03:00:00"}, "time: has no time zone"),
        ({"line": LOST, "job": "4711\0"}, "job: "),
        ({"line": LOST, "boot_id": "b 1"}, "boot_id: "),
        ({"line": "x" * 4097}, "line: 4097 bytes"),
        ({"line": "é" * 2049}, "line: 4098 bytes"),
        ({"line": LOST, "node": "login1"}, "login1 is not a node of cluster pod1"),
        ({"line": LOST, "cluster": "pod9"}, "gpu0001 is not a node of cluster pod9"),
        ({"line": LOST, "node": "-gpu; rm"}, "not a valid node name"),
    ],
)
def test_a_bad_entry_is_rejected_with_its_reason_alone(entry: Any, reason: str) -> None:
    taken = take({"line": LOST}, entry, {"line": LOST, "seq": 2})
    assert len(taken.observations) == 2
    assert [one.index for one in taken.rejected] == [1]
    assert reason in taken.rejected[0].reason


def test_a_time_that_no_zone_explains_is_none() -> None:
    (seen,) = take({"line": LOST, "time": "2099-01-01T00:00:00Z"}).observations
    assert seen.event_at == seen.arrived_at == NOW


def test_entries_may_name_their_own_node() -> None:
    body = {"entries": [{"line": LOST, "node": "gpu0002", "boot_id": "b2"}, {"line": LOST}]}
    taken = kernel_log_observations(body, known, NOW, cluster="pod1")
    assert [(one.component.node, one.boot_id) for one in taken.observations] == [("gpu0002", "b2")]
    assert [(one.index, one.reason) for one in taken.rejected] == [
        (1, "node: missing; set it in the entry or in the body around it")
    ]


def test_a_list_of_bodies_counts_its_entries_through() -> None:
    body = [
        {"node": "gpu0001", "entries": [{"line": LOST}]},
        {"node": "gpu0002", "entries": [{}, {"line": LOST}]},
    ]
    taken = kernel_log_observations(body, known, NOW, cluster="pod1")
    assert [one.component.node for one in taken.observations] == ["gpu0001", "gpu0002"]
    assert [one.index for one in taken.rejected] == [1]


def test_all_wrong_entries_are_counted_and_a_few_listed() -> None:
    odd = {"line": LOST, "time": "9999-12-31T23:59:59-14:00"}
    taken = take(*[7] * 1200, odd, {"line": LOST})
    assert [one.index for one in taken.rejected] == list(range(1000))
    assert (taken.rejected_more, len(taken.observations)) == (201, 1)


def test_a_body_of_far_too_many_entries_is_refused_whole() -> None:
    with pytest.raises(BadBody, match="100002 entries"):
        kernel_log_observations([{"entries": [1] * 50_001}] * 2, known, NOW, cluster="pod1")
    with pytest.raises(BadBody, match="100001 entries"):
        heartbeat_observations([1] * 100_001, known, NOW, cluster="pod1")
    with pytest.raises(BadBody, match="250001 lines"):
        kernel_text_observations("\n" * 250_001, known, NOW, NodeBoot("pod1", "gpu0001"))


@pytest.mark.parametrize(
    ("time", "counts"),
    [
        ("2026-11-20T02:59:00z", "2026-11-20T02:59:00+00:00"),
        ("2026-11-20t03:59:00.5+01:00", "2026-11-20T02:59:00.500000+00:00"),
        ("2026-11-20 02:59:00.123456789-00:00", "2026-11-20T02:59:00.123456+00:00"),
        ("2026-11-20T03:59:00+0100", "2026-11-20T02:59:00+00:00"),
        ("2026-11-20 03:59:00+01", "2026-11-20T02:59:00+00:00"),
        ("2026-11-20T03:59:00,5+01:00", "2026-11-20T02:59:00.500000+00:00"),
        ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59.999999+00:00"),
        ("2015-06-30T15:59:60.25-08:00", "2015-06-30T23:59:59.999999+00:00"),
    ],
)
def test_a_time_is_read_as_rfc_3339_writes_it(time: str, counts: str) -> None:
    for _ in range(2):  # sent again it is the same event
        (seen,) = take({"line": LOST, "time": time}).observations
        assert seen.event_at.isoformat() == counts
        assert seen.digest == take({"line": LOST, "time": counts}).observations[0].digest


@pytest.mark.parametrize(
    "time",
    [
        "2026-W47-5T02:59:00Z",
        "2026-11-20T02Z",
        "2026-11-20T02:59Z",
        "20261120T025900Z",
        "2026-11-20_02:59:00Z",
        "2026-11-20T02:59:00+05:30:15",
        "2026-11-20T24:00:00Z",
        "2026-11-20T02:59:00+24:00",
        "2026-11-20T02:59:60Z",
        "2026-11-20T23:59:60Z",
        "9999-12-31T23:59:60Z",
        "2026-11-31T02:59:00Z",
        "\uff12026-11-20T02:59:00Z",
    ],
)
def test_time_that_is_not_rfc_3339_is_rejected(time: str) -> None:
    taken = take({"line": LOST, "time": time}, {"line": LOST})
    assert [(one.index, one.reason[:23]) for one in taken.rejected] == [(0, "time: not an RFC 3339 t")]
    assert len(taken.observations) == 1


def test_a_time_that_has_no_utc_is_rejected_alone() -> None:
    taken = take({"line": LOST, "time": "0001-01-01T00:00:00+14:00"}, {"line": LOST})
    assert [(one.index, one.reason[:22]) for one in taken.rejected] == [(0, "time: not an RFC 3339 ")]
    beat = {"node": "gpu0001", "time": "0001-01-01T00:00:00+14:00"}
    assert len(heartbeat_observations(beat, known, NOW, cluster="pod1").rejected) == 1


@pytest.mark.parametrize(
    "body",
    [{}, "x", 7, None, [7], {"entries": {}}, {"node": 5, "entries": []}, [{"node": "gpu0001"}]],
)
def test_a_wrong_outer_shape_is_refused_whole(body: Any) -> None:
    with pytest.raises(BadBody):
        kernel_log_observations(body, known, NOW, cluster="pod1")


def test_the_three_lines_of_a_loss_join_per_node_even_when_mixed() -> None:
    def lines(node: str, pci: str) -> list[dict[str, str]]:
        said = [
            f"NVRM: The NVIDIA GPU {pci}.0",
            "NVRM: (PCI ID: 10de:26b5) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
        ]
        return [{"node": node, "line": line} for line in said]

    both = zip(lines("gpu0001", "0000:18:00"), lines("gpu0002", "0000:2a:00"), strict=True)
    taken = take(*[entry for pair in both for entry in pair])
    events = [one for one in taken.observations if not one.data.get("follow_up")]
    assert [(one.component.node, one.component.pci) for one in events] == [
        ("gpu0001", "0000:18:00"),
        ("gpu0002", "0000:2a:00"),
    ]
    assert len(taken.observations) == 6


def test_the_same_signal_by_two_routes_has_one_digest() -> None:
    by_dmesg = take({"line": f"[    3.400584] {LOST}"}, boot_id="b1").observations[0]
    by_syslog = take(
        {"line": f"Nov 20 03:00:00 gpu0001 kernel: [    3.400584] {LOST}"}, boot_id="b1"
    ).observations[0]
    assert by_dmesg.digest == by_syslog.digest


def test_one_boot_in_the_forms_of_proc_and_of_journald() -> None:
    dashed = "0b11d014-1685-04bd-26ed-5fc0bc1c44ae"
    for form in (dashed, dashed.upper(), dashed.replace("-", "")):
        seen = take({"line": LOST, "seq": 1}, boot_id=form).observations[0]
        assert seen.boot_id == dashed
        beat = heartbeat_observations({"node": "gpu0001", "boot_id": form}, known, NOW, cluster="pod1")
        assert beat.observations[0].boot_id == dashed


def test_alternatives_only_where_arrival_is_all_there_is() -> None:
    taken = take({"line": LOST}, {"line": LOST, "time": "2026-11-20T03:00:00Z"})
    assert list(taken.alternatives) == [taken.observations[0].digest]


@pytest.mark.parametrize(
    ("line", "event_at"),
    [
        (LOST, NOW),
        (f"2026-11-19T03:00:00+00:00 gpu0001 kernel: {LOST}", NOW - timedelta(days=1)),
        (f"Nov 19 03:00:00 gpu0001 kernel: {LOST}", NOW - timedelta(days=1)),
        (f"Nov 21 12:00:00 gpu0001 kernel: {LOST}", datetime(2025, 11, 21, 12, 0, tzinfo=UTC)),
        (f"[Wed Nov 18 03:00:00 2026] {LOST}", NOW - timedelta(days=2)),
        # Six hours may be a zone: the line is taken as new.
        (f"Nov 19 21:00:00 gpu0001 kernel: {LOST}", NOW),
    ],
)
def test_old_stamp_is_old_even_without_a_send_time(line: str, event_at: datetime) -> None:
    assert take({"line": line}).observations[0].event_at == event_at


def test_plain_text() -> None:
    taken = kernel_text_observations(
        f"{LOST}\n\nhello\r\n{LOST[:-1]}\n", known, NOW, NodeBoot("pod1", "gpu0001")
    )
    assert (len(taken.observations), taken.unrecognised, taken.rejected) == (2, 1, ())


def test_plain_text_of_an_unknown_node_rejects_line_by_line() -> None:
    taken = kernel_text_observations(f"{LOST}\n\n{LOST}", known, NOW, NodeBoot("pod1", "login1"))
    assert [one.index for one in taken.rejected] == [0, 2]


def test_heartbeat() -> None:
    body = {
        "cluster": "pod1",
        "node": "gpu0001",
        "boot_id": "b1",
        "gpus": [{"index": 0, "pci": "00000000:18:00.0"}],
    }
    (seen,) = heartbeat_observations(body, known, NOW, cluster="pod2").observations
    assert (seen.kind, seen.boot_id, seen.event_at) == (ObservationKind.heartbeat, "b1", NOW)
    assert seen.data["gpus"] == [{"index": 0, "pci": "0000:18:00", "uuid": ""}]


@pytest.mark.parametrize(
    ("serial", "kept"),
    [
        ("1650522005114", "1650522005114"),
        (" 0324a-17004211 ", "0324A-17004211"),
        ("N/A", None),
        ("[N/A]", None),
        ("0", None),
        ("0000000000000", None),
        ("Unknown", None),
        ("GPU is lost", None),
        ("1650522\x005114", None),
        ("1" * 33, None),
    ],
)
def test_a_serial_number_of_a_heartbeat(serial: str, kept: str | None) -> None:
    body = {"node": "gpu0001", "gpus": [{"index": 0, "pci": "00000000:18:00.0", "serial": serial}]}
    (seen,) = heartbeat_observations(body, known, NOW, cluster="pod1").observations
    assert seen.data["gpus"][0].get("serial") == kept


@pytest.mark.parametrize(
    "body",
    [
        7,
        {},
        {"node": ""},
        {"node": "login1"},
        {"node": "gpu1", "gpus": [{"index": 0, "pci": "x"}]},
        {"node": 5},
    ],
)
def test_a_bad_heartbeat_is_rejected(body: Any) -> None:
    taken = heartbeat_observations([body, {"node": "gpu0001"}], known, NOW, cluster="pod1")
    assert [one.index for one in taken.rejected] == [0]
    assert len(taken.observations) == 1


@pytest.mark.parametrize(
    ("host", "node"),
    [
        ("n1.pod1.example", "n1"),
        ("n1.example", "n1"),
        ("n2.example", "n2.example"),
        ("n1.pod2.example", None),
    ],
)
def test_a_full_host_name_is_the_node_of_its_first_part(host: str, node: str | None) -> None:
    """Unless Slurm knows the full name, or the domain is another cluster's: both number their nodes alike."""

    def has_node(cluster: str, name: str) -> bool:
        return (cluster, name) in {("pod1", "n1"), ("pod1", "n2"), ("pod1", "n2.example"), ("pod2", "n1")}

    line = {"node": host, "entries": [{"line": LOST}]}
    seen = kernel_log_observations(line, has_node, NOW, cluster="pod1").observations
    beats = heartbeat_observations({"node": host}, has_node, NOW, cluster="pod1").observations
    expected = [node] if node else []
    assert [one.component.node for one in seen] == [one.component.node for one in beats] == expected


def test_nodes_named_in_a_body_are_listed_with_their_cluster() -> None:
    body = {
        "node": "gpu0001",
        "entries": [{"line": LOST}, {"line": LOST, "node": "gpu0002", "cluster": "pod2"}],
    }
    assert nodes_of_kernel_log(body, cluster="pod1") == {("pod1", "gpu0001"), ("pod2", "gpu0002")}
    assert nodes_of_heartbeats([{"node": "gpu0003"}], cluster="pod1") == {("pod1", "gpu0003")}


def test_heartbeat_names_its_node_regardless_of_other_words() -> None:
    """A word of the other form must not hide the node from the check of a token's bounds."""
    body = [{"node": "gpu0003", "entries": []}, None, 7]
    assert nodes_of_heartbeats(body, cluster="pod1") == {("pod1", "gpu0003")}


def test_an_entry_without_a_node_of_its_own_names_the_one_around_it() -> None:
    body = {"node": "gpu0001", "entries": [{"line": "x", "node": None}, None]}
    assert nodes_of_kernel_log(body, cluster="pod1") == {("pod1", "gpu0001")}


@pytest.mark.parametrize("body", [None, True, 7, "gpu0001"])
def test_a_heartbeat_body_that_is_no_object_is_refused_whole(body: object) -> None:
    with pytest.raises(BadBody, match="expected an object"):
        nodes_of_heartbeats(body, cluster="pod1")


_words = st.sampled_from(
    ["gpu0001", "gpu0002", "pod1", "pod2", "b1", "", " ", "x" * 300, "gpu\u00e9", "\U0001f600"]
)
_lines = st.sampled_from([LOST, f"[    3.400584] {LOST}", "usb 1-1: new device", "", "x" * 5000])
_odd = st.sampled_from([None, True, -1, 0, 7, 2**63, 2**70, 1.0, 1.5, [], {}, "7"])
_entries = st.one_of(
    st.fixed_dictionaries(
        {"line": _lines},
        optional={
            "seq": st.integers(0, 5),
            "time": st.sampled_from(["2026-11-20T02:59:58Z", "2026-11-20", "never"]),
            "boot_id": _words,
            "node": _words,
            "cluster": _words,
            "job": st.sampled_from([4711, "4711_1", "a b", 2**70]),
            "more": _odd,
        },
    ),
    st.dictionaries(st.sampled_from(["line", "seq", "time", "boot_id", "node", "job"]), _odd, max_size=3),
    _odd,
)
_bodies = st.one_of(
    st.fixed_dictionaries(
        {"entries": st.lists(_entries, max_size=3)},
        optional={"node": _words | st.none(), "cluster": _words | st.none(), "boot_id": _words, "more": _odd},
    ),
    st.dictionaries(st.sampled_from(["entries", "node", "cluster", "boot_id"]), _odd, max_size=3),
)


@pytest.mark.heavy
@settings(deadline=None, max_examples=300)
@given(body=_bodies)
def test_a_body_read_at_once_says_what_its_json_says(body: Any) -> None:
    """The short way of a body that is all as it should be gives what the long way gives."""
    raw = json.dumps(body).encode()
    whole = kernel_log_body(raw)
    if whole is None:
        return
    plain = msgspec.json.decode(raw)
    assert nodes_of_kernel_log(whole, cluster="pod1") == nodes_of_kernel_log(plain, cluster="pod1")
    assert kernel_log_observations(whole, known, NOW, cluster="pod1") == kernel_log_observations(
        plain, known, NOW, cluster="pod1"
    )


def test_only_plain_kernel_log_bodies_take_the_fast_path() -> None:
    good = {"node": "gpu0001", "entries": [{"line": LOST, "seq": 1}]}
    assert kernel_log_body(msgspec.json.encode(good)) is not None
    for other in ([good], {**good, "node": 5}, {"node": "gpu0001"}, {**good, "entries": [{"line": 5}]}):
        assert kernel_log_body(msgspec.json.encode(other)) is None
    assert kernel_log_body(b"{") is None and kernel_log_body(b"\xff") is None
    assert kernel_log_body(b'{"entries":' + b"[" * 100_000) is None
