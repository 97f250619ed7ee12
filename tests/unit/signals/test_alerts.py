"""Alertmanager's and Grafana's webhooks, and CloudEvents, as bytes: what each alert becomes."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from healer.model import Component, Observation, ObservationKind
from healer.signals.alert_bodies import (
    ALERT,
    ALERTS_MAX,
    EVENTS_MAX,
    NVSENTINEL,
    Alerts,
    Enveloped,
    Site,
    alert_in,
    alertmanager_observations,
    attributes_of,
    enveloped_observations,
    events_of,
    repeated_alert,
)
from healer.signals.rejects import BadBody, BadEntry, Rejects

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
NODES = {("pod1", "gpu0001"), ("pod1", "gpu0002"), ("pod2", "gpu0001")}


def site(cluster: str = "pod1", served: tuple[str, ...] = ("pod1",)) -> Site:
    def known(name: str, node: str) -> bool:
        return (name, node) in NODES and name in served

    return Site(cluster, served, known, lambda name, switch: (name, switch) == ("pod1", "leaf1"))


def alert(**more: Any) -> dict[str, Any]:
    labels = {"alertname": "NodeClockNotSynchronising", "instance": "gpu0001:9100", "severity": "warning"}
    return {
        "status": "firing",
        "labels": labels | more.pop("labels", {}),
        "annotations": {"summary": "Clock not\nsynchronised."},
        "startsAt": "2026-11-20T02:55:00.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus.example/graph",
        "fingerprint": "5e9ed1c0b2d4a001",
        **more,
    }


def group(*alerts: Any, **more: Any) -> dict[str, Any]:
    return {
        "version": "4",
        "groupKey": '{}:{alertname="NodeClockNotSynchronising"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "healer",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager.example",
        "alerts": list(alerts),
        **more,
    }


def parsed(*alerts: Any, at: Site | None = None, **more: Any) -> Alerts:
    return alertmanager_observations(group(*alerts, **more), at or site(), NOW)


def one(*alerts: Any, **more: Any) -> Observation:
    found = parsed(*alerts, **more)
    assert not found.rejected
    (seen,) = found.observations
    return seen


def test_an_alert_becomes_an_observation_of_its_node() -> None:
    seen = one(alert())
    assert seen.kind is ObservationKind.alert
    assert seen.component == Component(cluster="pod1", node="gpu0001")
    assert seen.text == "NodeClockNotSynchronising"
    assert seen.event_at == datetime(2026, 11, 20, 2, 55, 0, 123456, tzinfo=UTC)
    assert seen.data["summary"] == "Clock not synchronised."
    assert seen.data["source"] == "http://alertmanager.example"


def test_a_repeat_has_the_same_digest_and_news_another() -> None:
    first = one(alert())
    later = alertmanager_observations(group(alert()), site(), NOW + timedelta(hours=4)).observations[0]
    assert later.digest == first.digest
    over = alert(status="resolved", endsAt="2026-11-20T02:58:00Z")
    again = alert(startsAt="2026-11-20T02:59:00Z")
    digests = {first.digest, one(over).digest, one(again).digest}
    assert len(digests) == 3


def test_two_alertmanagers_sharing_work_send_the_same_alert() -> None:
    # Of a pair either may send: firing came from one of them, resolved may come from the other.
    other = one(alert(), externalURL="http://alertmanager-2.example", receiver="other")
    assert other.digest == one(alert()).digest


def test_a_beginning_that_is_hours_ahead_is_not_believed_and_a_repeat_stays_one() -> None:
    ahead = group(alert(startsAt="2026-11-20T05:00:00Z"))
    first, again = (
        alertmanager_observations(ahead, site(), at).observations[0]
        for at in (NOW, NOW + timedelta(minutes=5))
    )
    assert (first.event_at, first.data["starts_at"]) == (NOW, NOW.isoformat())
    assert first.digest == again.digest


def test_that_it_goes_on_is_noted_once_an_hour() -> None:
    first = one(alert())
    later = [
        repeated_alert(
            alertmanager_observations(group(alert()), site(), NOW + timedelta(minutes=minutes)).observations[
                0
            ]
        )
        for minutes in (5, 10, 65)
    ]
    assert later[0].digest == later[1].digest != later[2].digest
    assert all(seen.data["again"] == first.digest for seen in later)


@pytest.mark.parametrize(
    ("labels", "where"),
    [
        ({"instance": "gpu0002:9400"}, Component(cluster="pod1", node="gpu0002")),
        ({"instance": "x", "Hostname": "gpu0002"}, Component(cluster="pod1", node="gpu0002")),
        ({"instance": "gpu0002.pod1.example:9100"}, Component(cluster="pod1", node="gpu0002")),
        ({"gpu": "3"}, Component(cluster="pod1", node="gpu0001", gpu=3)),
        (
            {"gpu": "3", "pci_bus_id": "00000000:9B:00.0", "device": "nvidia3"},
            Component(cluster="pod1", node="gpu0001", gpu=3, pci="0000:9b:00"),
        ),
        ({"device": "mlx5_0", "port": "1"}, Component(cluster="pod1", node="gpu0001", nic="mlx5_0/1")),
        ({"device": "eth0"}, Component(cluster="pod1", node="gpu0001", nic="eth0")),
        ({"device": "/dev/sda1"}, Component(cluster="pod1", node="gpu0001")),
        ({"instance": "10.0.0.1:9116", "sysname": "leaf1"}, Component(cluster="pod1", switch="leaf1")),
        ({"instance": "", "switch": "leaf1"}, Component(cluster="pod1", switch="leaf1")),
    ],
    ids=["instance", "hostname", "domain", "gpu", "pci", "port", "interface", "disk", "sysname", "switch"],
)
def test_labels_name_the_place(labels: dict[str, str], where: Component) -> None:
    assert one(alert(labels=labels)).component == where


@pytest.mark.parametrize(
    "labels",
    [{"instance": "web1:80"}, {"cluster": "elsewhere"}, {"instance": "", "switch": "spine9"}],
    ids=["host", "cluster", "switch"],
)
def test_an_alert_of_nothing_of_ours_is_unrecognised(labels: dict[str, str]) -> None:
    found = parsed(alert(labels=labels), alert())
    assert (found.unrecognised, len(found.observations)) == (1, 1)


def test_of_several_clusters_the_label_says_which() -> None:
    both = ("pod1", "pod2")
    assert one(alert(labels={"cluster": "pod2"}), at=site("", both)).component.cluster == "pod2"
    found = parsed(alert(), at=site("", both))
    assert "`cluster` is missing" in found.rejected[0].reason


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("text", "Expected `object`"),
        ({"status": "perhaps"}, "status"),
        ({"labels": {"alertname": ""}}, "`alertname` is missing"),
        ({"labels": {"alertname": 7}}, "labels"),
        ({"startsAt": "yesterday"}, "startsAt: not an RFC 3339"),
        ({"startsAt": "0001-01-01T00:00:00Z"}, "not a plausible start time"),
        ({"labels": {f"l{number}": "x" for number in range(70)}}, "more than 64 labels"),
        ({"labels": {"long": "x" * 2000}}, "more than 1024 characters"),
    ],
    ids=["text", "status", "no-name", "number", "word", "year-1", "many", "long"],
)
def test_one_bad_alert_never_loses_the_good_ones(wrong: Any, reason: str) -> None:
    bad = alert(**wrong) if isinstance(wrong, dict) else wrong
    found = parsed(alert(), bad, alert(labels={"instance": "gpu0002:1"}, fingerprint="5e9ed1c0b2d4a002"))
    assert len(found.observations) == 2
    assert [entry.index for entry in found.rejected] == [1]
    assert reason in found.rejected[0].reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ([], "expected an object"),
        ({"version": "3", "alerts": []}, "version: '3'"),
        ({"version": "1", "alerts": []}, "version: '1'"),
        ({"version": "4"}, "alerts: expected a list"),
        ({"version": "4", "alerts": [], "truncatedAlerts": -1}, "truncatedAlerts"),
        ({"version": "4", "alerts": [None] * (ALERTS_MAX + 1)}, f"at most {ALERTS_MAX}"),
    ],
    ids=["list", "old", "no-grafana", "no-alerts", "truncated", "many"],
)
def test_a_body_of_a_wrong_shape_is_refused_whole(body: Any, reason: str) -> None:
    with pytest.raises(BadBody, match=reason):
        alertmanager_observations(body, site(), NOW)


def test_grafanas_variant_is_read() -> None:
    # Its form as its documentation shows it, not seen from a running Grafana.
    own = {"values": {"B": 92}, "valueString": "[ var='B' ]", "silenceURL": "https://g/s", "dashboardURL": ""}
    found = parsed(alert(**own), version="1", orgId=1, title="[FIRING:1]", state="alerting", message="text")
    assert found.observations[0].component.node == "gpu0001"


def test_a_count_that_the_sender_leaves_empty_costs_no_alert() -> None:
    """As Grafana's documentation shows a webhook with a payload of the site's own."""
    found = parsed(alert(), version="1", orgId=1, truncatedAlerts=None)
    assert len(found.observations) == 1 and found.lost == 0


@pytest.mark.parametrize("field", ["annotations", "generatorURL", "endsAt"])
def test_a_field_that_the_sender_leaves_empty_costs_no_alert(field: str) -> None:
    """A map or text that a Go program never set is null in JSON."""
    found = parsed(alert(**{field: None}))
    assert len(found.observations) == 1 and found.rejected == ()


def test_fields_left_out_by_the_sender_are_reported() -> None:
    assert parsed(alert(), truncatedAlerts=7).lost == 7


def test_an_address_that_is_no_web_address_is_not_kept() -> None:
    assert one(alert(generatorURL="javascript:alert(1)")).data["url"] == ""
    assert one(alert(generatorURL="https://p.example/g")).data["url"] == "https://p.example/g"


def test_without_a_fingerprint_the_labels_are_one() -> None:
    first, second = one(alert(fingerprint="")), one(alert(fingerprint=""))
    other = one(alert(fingerprint="", labels={"mountpoint": "/scratch"}))
    assert first.digest == second.digest != other.digest
    assert len(one(alert(fingerprint="x" * 200)).data["fingerprint"]) == 32


# --- CloudEvents ---


def event(**more: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": "e-1",
        "source": "/monitor/1",
        "type": ALERT,
        "time": "2026-11-20T02:59:00Z",
        "data": {"labels": {"alertname": "DiskFull", "node": "gpu0001"}},
        **more,
    }


def taken(*events: Any, named: tuple[str, ...] = ()) -> tuple[Alerts, Rejects]:
    rejects = Rejects()
    items = []
    for read in events_of(list(events), batch=True, rejects=rejects):
        try:
            items.append(alert_in(read, named, NOW))
        except BadEntry as error:
            rejects.add(read.index, error)
    return enveloped_observations([one for one in items if one is not None], site(), NOW), rejects


def test_an_alert_in_an_event_is_known_by_source_and_id() -> None:
    first, _ = taken(event())
    again, _ = taken(event(data={"labels": {"alertname": "DiskFull", "node": "gpu0001"}, "startsAt": None}
                           | {"startsAt": "2026-11-20T02:00:00Z"}))  # fmt: skip
    other, _ = taken(event(id="e-2"), event(source="/monitor/2"))
    assert first.observations[0].digest == again.observations[0].digest
    assert len({one.digest for one in (*first.observations, *other.observations)}) == 3


@pytest.mark.parametrize("name", ["specversion", "id", "source", "type"])
def test_each_required_attribute_is_missed_by_name(name: str) -> None:
    wrong = event()
    del wrong[name]
    found, rejects = taken(wrong, event(**{name: ""}), event(id="good"))
    assert len(found.observations) == 1
    assert [entry.index for entry in rejects.listed] == [0, 1]
    assert all(entry.reason.startswith(f"{name}: ") for entry in rejects.listed)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"specversion": "0.3"}, "specversion: 0.3"),
        ({"time": "noon"}, "time: "),
        ({"id": 7}, "id: must be a string"),
        ({"id": "x" * 1025}, "id: more than 1024"),
        ({"datacontenttype": "text/xml"}, "datacontenttype: text/xml"),
        ({"data_base64": "%%%"}, "data_base64"),
        ({"data": 7}, "data: expected an object"),
    ],
    ids=["version", "time", "number", "long", "xml", "base64", "data"],
)
def test_rejected_event_names_its_reason(wrong: dict[str, Any], reason: str) -> None:
    _, rejects = taken(event(**wrong))
    assert reason in rejects.listed[0].reason


def test_data_may_come_in_base64() -> None:
    import base64

    packed = base64.b64encode(json.dumps(event()["data"]).encode()).decode()
    plain = event()
    del plain["data"]
    found, _ = taken(plain | {"data_base64": packed})
    assert found.observations[0].text == "DiskFull"


def test_attributes_are_in_headers_in_binary_mode() -> None:
    headers = {"ce-id": "a%20b", "ce-source": "/x", "content-type": "application/json"}
    assert attributes_of(headers) == {"id": "a b", "source": "/x"}


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ('"/a b"', "/a b"),
        ('"a\\"b\\\\c"', 'a"b\\c'),
        ('"Euro %E2%82%AC"', "Euro €"),
        ('"%22"', '"'),
        ("%22a%22", '"a"'),
        ('a"b', 'a"b'),
        ('"a', '"a'),
        ('"a\\"', '"a\\"'),
        ('""', ""),
    ],
    ids=["quotes", "escapes", "percent", "once", "told", "within", "open", "no-end", "empty"],
)
def test_a_header_in_quotes_is_unquoted_before_it_is_decoded(header: str, value: str) -> None:
    assert attributes_of({"ce-source": header}) == {"source": value}


def nvsentinel(*, healthy: bool = False, **more: Any) -> dict[str, Any]:
    health = {
        "agent": "syslog-health-monitor",
        "componentClass": "GPU",
        "checkName": "SysLogsXIDError",
        "isFatal": True,
        "isHealthy": healthy,
        "message": "a GPU told of an error",
        "recommendedAction": 15,
        "errorCode": ["79"],
        "entitiesImpacted": [{"entityType": "PCI", "entityValue": "0000:9b:00.0"}],
        "nodeName": "gpu0002",
    }
    return event(type=NVSENTINEL, data={"metadata": {"cluster": "k8s"}, "healthEvent": health | more})


def fingerprint(**data: Any) -> str:
    found, rejects = taken(event(type="org.example.gpu", data=data), named=("org.example.gpu",))
    assert not rejects.count
    return found.observations[0].data["fingerprint"]


@pytest.mark.parametrize(
    "place",
    [{"gpu": 5}, {"UUID": "GPU-5"}, {"pci_bus_id": "0000:9b:00.0"}, {"device": "mlx5_1"}, {"port": 2},
     {"nvlink": 3}, {"hostname": "gpu0002", "node": ""}],
    ids=["gpu", "uuid", "pci", "device", "port", "link", "host"],
)  # fmt: skip
def test_the_end_of_an_alert_of_one_place_is_not_that_of_another(place: dict[str, Any]) -> None:
    here = {"node": "gpu0001", "gpu": 3, "pci_bus_id": "0000:18:00.0", "device": "mlx5_0", "port": 1}
    firing = fingerprint(**here, message="too hot", status="firing")
    assert fingerprint(**here, message="cool", status="resolved") == firing
    assert fingerprint(**(here | place), status="resolved") != firing


def test_two_adapters_of_one_node_are_two_alerts_of_nvsentinel() -> None:
    def of(nic: str) -> str:
        entities = [{"entityType": "NIC", "entityValue": nic}]
        found, _ = taken(nvsentinel(entitiesImpacted=entities))
        return found.observations[0].data["fingerprint"]

    assert of("mlx5_0") == of("mlx5_0") != of("mlx5_1")


def test_nvsentinels_events_are_alerts_of_their_node() -> None:
    found, rejects = taken(nvsentinel(), nvsentinel(healthy=True) | {"id": "e-2"})
    assert not rejects.count
    firing, over = found.observations
    assert firing.component == Component(cluster="pod1", node="gpu0002", pci="0000:9b:00")
    assert (firing.text, firing.data["labels"]["error_code"]) == ("SysLogsXIDError", "79")
    assert (firing.data["status"], over.data["status"]) == ("firing", "resolved")
    assert firing.data["fingerprint"] == over.data["fingerprint"]


def test_a_type_that_the_rules_name_is_an_alert_and_any_other_is_nothing() -> None:
    own = event(type="com.example.pdu.v1", subject="gpu0001", data={"status": "tripped", "outlet": 7})
    found, _ = taken(own, named=("com.example.pdu.v1",))
    assert found.observations[0].text == "com.example.pdu.v1"
    assert found.observations[0].data["labels"]["outlet"] == "7"
    assert taken(own)[0] == Alerts()


def test_a_batch_is_bounded() -> None:
    with pytest.raises(BadBody, match=f"at most {EVENTS_MAX}"):
        events_of([{}] * (EVENTS_MAX + 1), batch=True, rejects=Rejects())
    with pytest.raises(BadBody, match="a list of events"):
        events_of({}, batch=True, rejects=Rejects())
    with pytest.raises(BadBody, match="expected one event"):
        events_of([], batch=False, rejects=Rejects())


# --- anything ---

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
_NAMES = st.sampled_from(["alertname", "instance", "node", "gpu", "cluster", "switch", "device", "port"])
_WORDS = st.sampled_from(["gpu0001", "gpu0001:9100", "leaf1", "eth0", "3", "pod1", ""]) | st.text(max_size=30)
_ALERTS = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from(["firing", "resolved"]) | _JSON,
        "labels": st.dictionaries(_NAMES | st.text(max_size=8), _WORDS, max_size=8) | _JSON,
        "annotations": st.dictionaries(st.text(max_size=8), st.text(max_size=40), max_size=3) | _JSON,
        "startsAt": st.datetimes().map(lambda at: at.isoformat() + "Z") | st.text(max_size=30) | _JSON,
        "endsAt": st.datetimes().map(lambda at: at.isoformat() + "Z") | _JSON,
        "fingerprint": st.text(max_size=70) | _JSON,
        "generatorURL": st.text(max_size=40) | _JSON,
    },
)


def _whole(count: int, found: Alerts) -> None:
    assert len(found.observations) + found.unrecognised + len(found.rejected) + found.rejected_more == count


@pytest.mark.heavy
@given(st.lists(_ALERTS | _JSON, max_size=5), _JSON)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_alerts_fall_into_one_heap_each(alerts: list[Any], lost: Any) -> None:
    try:
        found = alertmanager_observations(group(*alerts, truncatedAlerts=lost), site(), NOW)
    except BadBody:
        return
    _whole(len(alerts), found)


@given(_JSON)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_body_is_read_or_refused(body: Any) -> None:
    for version in ("4", None):
        wrong = {**body, "version": version} if isinstance(body, dict) and version else body
        try:
            alertmanager_observations(wrong, site(), NOW)
        except BadBody:
            continue


_EVENTS = st.fixed_dictionaries(
    {"specversion": st.just("1.0"), "id": st.text(min_size=1), "source": st.text(min_size=1)},
    optional={
        "type": st.sampled_from([ALERT, NVSENTINEL, "com.example.v1"]) | _JSON,
        "time": st.datetimes().map(lambda at: at.isoformat() + "Z") | _JSON,
        "subject": _WORDS | _JSON,
        "data": _ALERTS | st.fixed_dictionaries({"healthEvent": _JSON}) | _JSON,
        "data_base64": st.text(max_size=20) | _JSON,
        "datacontenttype": _JSON,
    },
)


@pytest.mark.heavy
@given(st.lists(_EVENTS | _JSON, max_size=5))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_events_fall_into_one_heap_each(events: list[Any]) -> None:
    found, rejects = taken(*events, named=("com.example.v1",))
    assert len(found.observations) + found.unrecognised + len(found.rejected) + rejects.count <= len(events)
    for one in found.observations:
        assert len(one.digest) == 64


@given(_ALERTS | _JSON, st.text(max_size=10), st.text(min_size=1, max_size=10))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_enveloped_alert_is_one_heap(item: Any, source: str, name: str) -> None:
    _whole(1, enveloped_observations([Enveloped(index=0, alert=item, source=source, id=name)], site(), NOW))


def test_another_place_with_the_same_fingerprint_is_another_alert() -> None:
    """Both are chosen by the sender: a fingerprint, and the id and source of an envelope."""
    repeats = [
        alert(labels={"instance": "gpu0001:9100"}),
        alert(labels={"instance": "gpu0002:9100"}),
        alert(labels={"instance": "gpu0001:9100", "gpu": "3"}),
    ]
    by_fingerprint = [one(repeat).digest for repeat in repeats]
    by_envelope = [
        enveloped_observations([Enveloped(index=0, alert=repeat, source="s", id="1")], site(), NOW)
        .observations[0]
        .digest
        for repeat in repeats
    ]
    assert len({*by_fingerprint, *by_envelope}) == 6
