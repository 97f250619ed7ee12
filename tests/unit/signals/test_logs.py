"""What log shippers send: the kernel's lines count by their shipper's mark alone, and meet by every route."""

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from healer.signals import logs
from healer.signals.logs import (
    KernelRecords,
    export_records,
    fields_and_marks,
    is_kernel_record,
    json_records,
    kernel_records,
    message_text,
    record_of,
    relevant_fields,
)
from healer.signals.rejects import BadBody, BadEntry
from healer.signals.wire import NodeBoot, kernel_log_observations, kernel_text_observations
from tests.support.shipped import (
    BOOT,
    LOST,
    by_logger,
    export,
    fluent_bit,
    journalctl,
    ndjson,
    rsyslog,
    vector,
)

NOW = datetime(2026, 11, 20, 3, 1, tzinfo=UTC)
AT = datetime(2026, 11, 20, 3, 0, 0, 123456, tzinfo=UTC)
BOOT_ID = "0b11d014-1685-04bd-26ed-5fc0bc1c44ae"


def known(cluster: str, node: str) -> bool:
    return cluster == "pod1" and node in {"gpu0001", "gpu0002"}


def take(*records: Any, **around: Any) -> KernelRecords:
    parsed = [record_of(index, record) for index, record in enumerate(records)]
    return kernel_records(parsed, known, NOW, cluster="pod1", **around)


def body(raw: bytes) -> KernelRecords:
    return kernel_records(json_records(raw), known, NOW, cluster="pod1")


FORMS = {
    "journalctl": journalctl(),
    "journalctl, message as bytes": journalctl(list(LOST.encode())),
    "vector": vector(),
    "fluent-bit": fluent_bit(),
    "fluent-bit, small letters": fluent_bit(lower=True),
    "rsyslog imkmsg": rsyslog(),
    "rsyslog imjournal": rsyslog(
        " " + LOST, "imjournal", _TRANSPORT="kernel", _SOURCE_MONOTONIC_TIMESTAMP="6781753400584"
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", list(FORMS))
def test_every_form_gives_the_same_event(form: str) -> None:
    logged = take(FORMS[form])
    (seen,) = logged.accepted.observations
    assert (seen.code, seen.component.node, seen.component.pci) == (79, "gpu0001", "0000:9b:00")
    assert (seen.boot_id, abs(seen.event_at - AT) < timedelta(milliseconds=1)) == (BOOT_ID, True)
    assert seen.digest == take(journalctl()).accepted.observations[0].digest
    assert (logged.not_kernel, logged.accepted.rejected) == (0, ())
    assert logged.nodes == {("pod1", "gpu0001")}


def test_the_export_format_gives_it_too() -> None:
    records = list(export_records(export(journalctl(), journalctl(b"NVRM: \xff", _HOSTNAME="gpu0002"))))
    first, second = records
    assert first == journalctl()
    assert (second["MESSAGE"], second["_HOSTNAME"]) == (b"NVRM: \xff", "gpu0002")
    logged = take(*records)
    assert logged.accepted.observations == take(journalctl()).accepted.observations
    assert logged.accepted.unrecognised == 1


def test_a_line_that_came_as_text_or_by_the_follower_is_the_same_event() -> None:
    stamped = f"[6781753.400584] {LOST}"
    text = kernel_text_observations(stamped, known, NOW, NodeBoot("pod1", "gpu0001", BOOT))
    followed = {"node": "gpu0001", "boot_id": BOOT_ID, "entries": [{"line": stamped, "time": AT.isoformat()}]}
    by_follower = kernel_log_observations(followed, known, NOW, cluster="pod1")
    digests = {one.observations[0].digest for one in (text, by_follower, take(journalctl()).accepted)}
    assert len(digests) == 1


def test_a_line_of_dev_kmsg_is_the_same_event_by_its_number() -> None:
    by_imkmsg = take(rsyslog(LOST, "imkmsg", sequnum=812)).accepted.observations[0]
    followed = {"node": "gpu0001", "boot_id": BOOT, "entries": [{"line": LOST, "seq": 812}]}
    assert (
        kernel_log_observations(followed, known, NOW, cluster="pod1").observations[0].digest
        == by_imkmsg.digest
    )


FORGED = {
    "logger, as journald marks it": by_logger(),
    "a program's standard output": by_logger(transport="stdout"),
    "by journald's own protocol": by_logger(transport="journal"),
    "audit": journalctl(transport="audit"),
    "an own field": {"MESSAGE": LOST, "TRANSPORT": "kernel", "_HOSTNAME": "gpu0001"},
    "the facility alone": {"msg": LOST, "facility": "0", "hostname": "gpu0001"},
    "the facility in words alone": {
        "message": LOST,
        "facility": "kern",
        "host": "gpu0001",
        "appname": "kernel",
    },
    "logger, by imuxsock": rsyslog(inputname="imuxsock"),
    "from the network": rsyslog(inputname="imudp"),
    "imjournal without the transport": rsyslog(inputname="imjournal"),
    "imjournal, another transport": rsyslog(inputname="imjournal", _TRANSPORT="syslog"),
    "imklog, which splits records": rsyslog(inputname="imklog"),
    "imkmsg, another facility": rsyslog(facility="1"),
    "imkmsg without the facility": {"msg": LOST, "inputname": "imkmsg", "hostname": "gpu0001"},
    "written to /dev/kmsg": journalctl(SYSLOG_FACILITY="1"),
    "two words for one thing": {**journalctl(), "_transport": "syslog"},
    "an input that is no kernel, and the transport": rsyslog(inputname="imuxsock", _TRANSPORT="kernel"),
    "the transport in a list": journalctl(transport=["kernel", "syslog"]),  # type: ignore[arg-type]
    "a mark that is true": rsyslog(inputname=True),  # type: ignore[arg-type]
    "a facility that is false": rsyslog(facility=False),
    "fields of one's own, underscores stripped": {
        "TRANSPORT": "journal",
        "UID": "1000",
        "INPUTNAME": "imkmsg",
        "SYSLOG_FACILITY": "0",
        "MESSAGE": LOST,
        "HOSTNAME": "gpu0001",
    },
    "an input in capitals": {
        "MESSAGE": LOST,
        "INPUTNAME": "imkmsg",
        "SYSLOG_FACILITY": "0",
        "HOSTNAME": "gpu0001",
    },
    "an input, and the transport of a program": rsyslog(transport="journal"),
    "an input, and a user": rsyslog(uid="1000"),
    "read from a file": rsyslog(source_type="file", file="/home/u/x.log"),
    "read from a file, whose source is not told": rsyslog(file="/home/u/x.log"),
    "from another of Vector's sources": {**vector(), "source_type": "http_server"},
    "a container's output": {**journalctl(), "container_id": "abc"},
    "a container's stream": {**journalctl(), "stream": "stdout"},
    "a pod's output": {**journalctl(), "kubernetes": {"pod_name": "x"}},
    "a pod's output, flat": {**journalctl(), "kubernetes_pod_name": "x"},
    "a process's": {**journalctl(), "_PID": "4711"},
    "a user's": {**journalctl(), "_UID": "1000"},
    "a unit's": {**journalctl(), "_SYSTEMD_UNIT": "job.service"},
    "a file that the collector read": {**journalctl(), "log.file.path": "/home/u/x.log"},
    "within the message": {"MESSAGE": json.dumps(journalctl()), "_TRANSPORT": "syslog"},
    "nothing": {},
}


@pytest.mark.parametrize("form", list(FORGED))
def test_log_record_that_is_not_marked_as_kernel_is_only_counted(form: str) -> None:
    logged = take(FORGED[form])
    assert (logged.accepted.observations, logged.not_kernel) == ((), 1)
    assert (logged.accepted.unrecognised, logged.accepted.rejected, logged.nodes) == (0, (), frozenset())
    assert logged.example


def test_a_mark_is_never_overruled_by_another_place() -> None:
    said = ({"_TRANSPORT": "syslog"}, {**journalctl()})
    assert kernel_records([logs.Record(0, said)], known, NOW, cluster="pod1").not_kernel == 1
    assert kernel_records([logs.Record(0, said[::-1])], known, NOW, cluster="pod1").not_kernel == 1


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        ('"_TRANSPORT":"syslog","_TRANSPORT":"kernel"', 0),
        ('"_TRANSPORT":"syslog","_TRANSPOR\\u0054":"kernel"', 0),
        ('"_TRANSPORT":"kernel","_TRANSPORT":"kernel"', 1),
        ('"_TRANSPORT":"kernel","facility":1,"facility":0', 0),
        ('"inputname":"imuxsock","facility":"kern","inputname":"imkmsg"', 0),
        ('"inputname":"imkmsg","facility":0,"x":[{"_TRANSPORT":"a","_TRANSPORT":"b"}]', 1),
    ],
)
def test_a_mark_is_not_overruled_by_another_of_its_name(said: str, stored: int) -> None:
    forged = f'{{"MESSAGE":"{LOST}","host":"gpu0001",{said}}}'
    other = json.dumps({"MESSAGE": LOST, "_TRANSPORT": "syslog"})
    for raw in (forged, f"[{other}, {forged} ]", f"{other}\n\n {forged}\n"):
        logged = body(raw.encode())
        assert len(logged.accepted.observations) == stored
        assert logged.not_kernel == raw.count("MESSAGE") - stored


def test_journald_fields_identify_kernel_lines() -> None:
    """systemd.journal-fields(7): trusted fields of every record, and those of the kernel's."""
    more = {
        "_RUNTIME_SCOPE": "system",
        "_KERNEL_DEVICE": "+pci:0000:9b:00.0",
        "_KERNEL_SUBSYSTEM": "pci",
        "_UDEV_SYSNAME": "0000:9b:00.0",
        "_UDEV_DEVNODE": "/dev/nvidia3",
        "_UDEV_DEVLINK": "/dev/char/195:3",
    }
    for record in (
        journalctl(**more),
        vector(journalctl(**more)),
        fluent_bit(journalctl(**more), lower=True),
    ):
        _, marks = fields_and_marks((record,))
        assert is_kernel_record(marks), marks


def test_resource_from_another_origin_applies_to_its_records() -> None:
    resource = {"kubernetes_pod": "a", "kubernetes_b": "c", "container_id": "d", "x": "y", "host": "z"}
    around = relevant_fields(resource)
    assert set(around) == {"kubernetes_pod", "host"}
    _, marks = fields_and_marks((around, journalctl()))
    assert not is_kernel_record(marks)


def test_a_lines_end_within_a_record_begins_no_line() -> None:
    sneaky = journalctl(f"x[1]: segfault at 0 in a\n{LOST}")
    assert take(sneaky).accepted.observations == ()
    assert take(journalctl(list(sneaky["MESSAGE"].encode()))).accepted.observations == ()
    assert message_text("a\nb") == "a\\x0ab"


def test_a_lost_gpu_in_three_records_is_one_event_with_its_address() -> None:
    words = ("NVRM: The NVIDIA GPU 0000:9b:00.0", "NVRM: (PCI ID: 10de:2330) installed in this system has",
             "NVRM: fallen off the bus and is not responding to commands.")  # fmt: skip
    logged_lines = take(
        *(journalctl(line, _SOURCE_MONOTONIC_TIMESTAMP=str(5_000_000 + n)) for n, line in enumerate(words))
    )
    assert [
        one.component.pci for one in logged_lines.accepted.observations if not one.data.get("follow_up")
    ] == ["0000:9b:00"]


def test_each_wrong_record_is_reported_by_index_and_loses_no_other() -> None:
    records = (
        journalctl(),
        7,
        journalctl(None),
        journalctl(["a", "b"]),
        journalctl(_HOSTNAME="nosuch"),
        journalctl(_HOSTNAME=5),
        by_logger(),
        journalctl(_HOSTNAME="gpu0002"),
        journalctl("x" * 4097),
        journalctl(__REALTIME_TIMESTAMP="9" * 18),
    )
    logged = take(*records)
    assert len(logged.accepted.observations) == 2
    assert [(one.index, one.reason.partition(":")[0]) for one in logged.accepted.rejected] == [
        (1, "not an object"),
        (2, "MESSAGE"),
        (3, "MESSAGE"),
        (4, "node"),
        (5, "_hostname"),
        (8, "line"),
        (9, "time"),
    ]
    assert logged.not_kernel == 1


def test_a_full_host_name_is_the_node_before_its_first_dot() -> None:
    assert take(journalctl(_HOSTNAME="gpu0002.pod1.example")).nodes == {("pod1", "gpu0002")}
    unnamed = journalctl()
    del unnamed["_HOSTNAME"]
    assert take(unnamed, node="gpu0002").nodes == {("pod1", "gpu0002")}
    assert take(unnamed).accepted.rejected[0].reason.startswith("node: missing")


def test_a_body_is_a_list_an_object_or_lines() -> None:
    other = journalctl(_HOSTNAME="gpu0002")
    both = json.dumps([journalctl(), other]).encode()
    pretty = json.dumps(journalctl(), indent=1).encode()
    assert len(body(both).accepted.observations) == 2
    assert len(body(pretty).accepted.observations) == 1
    lines = body(ndjson(journalctl()) + b"\n{broken\n5\n" + ndjson(other))
    assert len(lines.accepted.observations) == 2
    assert [(one.index, one.reason) for one in lines.accepted.rejected] == [
        (2, "not JSON"),
        (3, "not an object"),
    ]
    for wrong in (b"", b"hello", b"[{]", b'"a"x', b"\xff"):
        with pytest.raises(BadBody):
            json_records(wrong)


def test_too_much_is_refused() -> None:
    with pytest.raises(BadBody, match="objects"):
        json_records(b"[" + b"{}," * 400_000 + b"{}]")
    with pytest.raises(BadBody, match="lists"):
        json_records(b"[" + b"[]," * 400_000 + b"{}]")
    with pytest.raises(BadBody, match="100001 lines"):
        json_records(b"{}\n" * 100_001)
    with pytest.raises(BadBody, match="100001 entries"):
        json_records(b"[" + b"0," * 100_000 + b"0]")
    with pytest.raises(BadBody, match="more than 1024 fields"):
        list(export_records(b"A=1\n" * 1025))
    with pytest.raises(BadBody, match="not JSON"):
        json_records(b"[" * 10_000 + b"]" * 10_000)


@pytest.mark.parametrize(
    "raw", [b"A=1", b"MESSAGE\n\x05", b"MESSAGE\n" + b"\xff" * 8 + b"x\n", b"A\n" + bytes(8) + b"x"]
)
def test_a_torn_export_is_refused_whole(raw: bytes) -> None:
    with pytest.raises(BadBody):
        list(export_records(raw))


def test_repeated_field_is_a_list() -> None:
    (record,) = export_records(b"A=1\nA=2\nA=3\n\n\n")
    assert record == {"A": ["1", "2", "3"]}


@given(st.binary(max_size=400))
@example(b"NAME\n" + (2**63).to_bytes(8, "little"))
def test_no_bytes_break_the_export_format(raw: bytes) -> None:
    with suppress(BadBody):
        kernel_records(map(record_of, range(10_000), export_records(raw)), known, NOW, cluster="pod1")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["MESSAGE", "msg", "_TRANSPORT", "_transport", "inputname", "facility", "SYSLOG_FACILITY", "_BOOT_ID",
     "time", "_HOSTNAME", "__REALTIME_TIMESTAMP", "_SOURCE_MONOTONIC_TIMESTAMP", "sequnum", "date", "cluster",
     "seq"]
)  # fmt: skip


@given(st.dictionaries(NAMES, JSON, max_size=8), st.booleans())
def test_no_record_breaks_the_reader(fields: dict[str, Any], as_kernel: bool) -> None:
    record = fields | ({"_TRANSPORT": "kernel", "_HOSTNAME": "gpu0001"} if as_kernel else {})
    logged = take(record)
    accepted = logged.accepted
    in_all = len(accepted.observations) + accepted.unrecognised + len(accepted.rejected) + logged.not_kernel
    assert in_all == 1
    logs.json_records(json.dumps([record]).encode())


@given(st.binary(max_size=300))
def test_no_bytes_break_the_json_reader(raw: bytes) -> None:
    with suppress(BadBody):
        body(raw)


@given(
    st.lists(
        st.tuples(st.sampled_from(["A", "MESSAGE", "_B"]), st.binary(max_size=30)), min_size=1, max_size=8
    )
)
def test_journal_export_is_read_back_unchanged(fields: list[tuple[str, bytes]]) -> None:
    record = {name: value for name, value in fields}
    (read,) = export_records(export(record))
    encoded = {name: value.encode() if isinstance(value, str) else value for name, value in read.items()}
    assert encoded == record


def test_numbers_of_the_journal() -> None:
    assert [logs.number(one) for one in ("12", 12, "-1", "1e3", "", None, True, 2**63, "9" * 20)] == [
        12, 12, None, None, None, None, None, None, None,
    ]  # fmt: skip
    with pytest.raises(BadEntry):
        message_text(7)


@pytest.mark.parametrize(
    "time", [10**400, -(10**400), 1e300], ids=["huge", "hugely negative", "beyond all calendars"]
)
def test_a_time_that_no_calendar_has_costs_its_record_alone(time: float) -> None:
    logged_lines = take({**fluent_bit(), "date": time}, fluent_bit())
    assert [one.index for one in logged_lines.accepted.rejected] == [0]
    assert "not a time" in logged_lines.accepted.rejected[0].reason
    assert len(logged_lines.accepted.observations) == 1
