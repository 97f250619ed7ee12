"""The configurations of log shippers that the documents show: their address takes what they send. The
programs themselves are not run here, but journalctl, and rsyslog in tests/e2e/test_rsyslog.py."""

import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import yaml

from tests.support.api import Api
from tests.support.loop import LOST
from tests.support.snippets import placed, snippet
from tests.unit.signals.collected import logs, metrics, record
from tests.unit.signals.shipped import fluent_bit, journalctl, vector

Served = tuple[Api, httpx.Client]
SHOWN = "https://healer.example"
NODE = "gpu0001"


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
    assert shown["storage.path"], "without it Fluent Bit does not start with a queue on disk"
    told = client.post(shown["URI"], json=[fluent_bit()], headers=api.headers("signals"))
    assert told.json()["accepted"] == 1


#: Where systemd keeps what it does not put on the path.
REMOTE = "/lib/systemd/systemd-journal-remote"


def journal_of(folder: Path, *messages: str) -> Path:
    """A journal file with these lines of the kernel, a second apart."""
    told = "".join(
        f"__REALTIME_TIMESTAMP={1763640000000000 + number * 10**6}\n"
        f"__MONOTONIC_TIMESTAMP={150000001 + number * 10**6}\n"
        "_BOOT_ID=0b11d014168544bda6ed5fc0bc1c44ae\n_MACHINE_ID=11111111111111111111111111111111\n"
        f"_TRANSPORT=kernel\nSYSLOG_FACILITY=0\nPRIORITY=3\nSYSLOG_IDENTIFIER=kernel\n_HOSTNAME={NODE}\n"
        f"_SOURCE_MONOTONIC_TIMESTAMP={150000001 + number * 10**6}\nMESSAGE={message}\n\n"
        for number, message in enumerate(messages)
    )
    journal = folder / "node.journal"
    subprocess.run([REMOTE, "-o", str(journal), "-"], input=told.encode(), check=True, timeout=60)
    return journal


def test_journald(served: Served, tmp_path: Path) -> None:
    """The script of the page on a real journal: healer is away first, and at the end nothing is new."""
    api, client = served
    journal = journal_of(tmp_path, LOST, "usb 1-1: new device", LOST.replace("9b", "9c"))
    (tmp_path / "token").write_text(api.token("signals"))

    def run(url: str) -> subprocess.CompletedProcess[str]:
        script = placed(
            snippet("signals.md", "journald"),
            {
                SHOWN: url,
                "/etc/healer/token": str(tmp_path / "token"),
                "/var/lib/healer/cursor": str(tmp_path / "cursor"),
                'journalctl "$@"': f'journalctl --file={journal} "$@"',
                "-n 4000": "-n 2",
            },
        )
        return subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=90, check=False)

    def stored() -> int:
        with api.engine.connect() as conn:
            return conn.exec_driver_sql("SELECT count(*) FROM inbox").scalar_one()

    assert run("http://127.0.0.1:1").returncode != 0
    assert not (tmp_path / "cursor").exists()
    sent = run(str(client.base_url).rstrip("/"))
    assert sent.returncode == 0, sent.stderr
    assert stored() == 2, "both faults, in two requests of two lines"
    again = run(str(client.base_url).rstrip("/"))
    assert (again.returncode, again.stdout) == (0, ""), "nothing is new, and nothing is sent"


def test_opentelemetry(served: Served) -> None:
    api, client = served
    shown = yaml.safe_load(snippet("signals.md", "OpenTelemetry"))
    assert shown["service"]["pipelines"]["logs"]["receivers"] == ["journald"]
    receiver, exporter = shown["receivers"]["journald"], shown["exporters"]["otlphttp/healer"]
    assert (receiver["start_at"], receiver["storage"]) == ("beginning", "file_storage")
    assert exporter["retry_on_failure"] == {"max_elapsed_time": 0}, "nothing is thrown away after 5 min"
    endpoint = path(shown["exporters"]["otlphttp/healer"]["endpoint"])
    headers = api.headers("signals") | {"Content-Type": "application/x-protobuf"}
    lines = logs({}, [record(journalctl())]).SerializeToString()
    # The collector puts the signal's own path behind the endpoint.
    assert client.post(f"{endpoint}/v1/logs", content=lines, headers=headers).status_code == 200
    nothing = metrics({"host.name": "gpu0001"}).SerializeToString()
    assert client.post(f"{endpoint}/v1/metrics", content=nothing, headers=headers).status_code == 200
    with api.engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM inbox").scalar_one() == 1
