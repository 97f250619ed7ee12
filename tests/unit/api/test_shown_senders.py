"""The configurations of log shippers that the documents show: their address takes what they send. The
programs themselves are not run here, but rsyslog (tests/e2e/test_rsyslog.py)."""

import re
from urllib.parse import urlsplit

import httpx
import yaml

from tests.support.api import Api
from tests.support.snippets import snippet
from tests.unit.signals.collected import logs, metrics, record
from tests.unit.signals.shipped import fluent_bit, journalctl, ndjson, vector

Served = tuple[Api, httpx.Client]
SHOWN = "https://healer.example"


def path(address: str) -> str:
    assert address.startswith(SHOWN)
    return urlsplit(address).path


def test_vector(served: Served) -> None:
    api, client = served
    shown = yaml.safe_load(snippet("signals.md", "Vector"))
    assert shown["sources"]["kernel"]["include_matches"] == {"_TRANSPORT": ["kernel"]}
    sink = shown["sinks"]["healer"]
    told = client.post(path(sink["uri"]), json=[vector()], headers=api.headers("signals"))
    assert told.json()["accepted"] == 1


def test_fluent_bit(served: Served) -> None:
    api, client = served
    shown = dict(re.findall(r"^ +(\S+) +(\S.*)$", snippet("signals.md", "Fluent Bit"), re.MULTILINE))
    assert (shown["Systemd_Filter"], shown["Format"]) == ("_TRANSPORT=kernel", "json")
    assert "Strip_Underscores" not in shown
    told = client.post(shown["URI"], json=[fluent_bit()], headers=api.headers("signals"))
    assert told.json()["accepted"] == 1


def test_journald(served: Served) -> None:
    api, client = served
    shown = snippet("signals.md", "journald")
    (address,) = re.findall(rf"{SHOWN}\S+", shown)
    (kind,) = re.findall(r"Content-Type: (\S+)'", shown)
    headers = api.headers("signals") | {"Content-Type": kind}
    told = client.post(path(address), content=ndjson(journalctl()), headers=headers)
    assert told.json()["accepted"] == 1


def test_opentelemetry(served: Served) -> None:
    api, client = served
    shown = yaml.safe_load(snippet("signals.md", "OpenTelemetry"))
    assert shown["service"]["pipelines"]["logs"]["receivers"] == ["journald"]
    endpoint = path(shown["exporters"]["otlphttp/healer"]["endpoint"])
    headers = api.headers("signals") | {"Content-Type": "application/x-protobuf"}
    lines = logs({}, [record(journalctl())]).SerializeToString()
    # The collector puts the signal's own path behind the endpoint.
    assert client.post(f"{endpoint}/v1/logs", content=lines, headers=headers).status_code == 200
    nothing = metrics({"host.name": "gpu0001"}).SerializeToString()
    assert client.post(f"{endpoint}/v1/metrics", content=nothing, headers=headers).status_code == 200
    with api.engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM inbox").scalar_one() == 1
