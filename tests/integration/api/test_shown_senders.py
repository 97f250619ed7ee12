"""The configurations of log shippers that the documents show: their address takes what they send. The
programs themselves are not run here, but journalctl, and rsyslog in tests/system/e2e/test_rsyslog.py."""

import json
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from tests.support.api import Api
from tests.support.collected import logs, metrics, record
from tests.support.loop import LOST
from tests.support.shipped import fluent_bit, journalctl, vector
from tests.support.snippets import placed, snippet

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
    answer = client.post(path(sink["uri"]), json=[vector()], headers=api.headers("signals"))
    assert answer.json()["accepted"] == 1


def test_fluent_bit(served: Served) -> None:
    api, client = served
    shown = dict(re.findall(r"^ +(\S+) +(\S.*)$", snippet("signals.md", "Fluent Bit"), re.MULTILINE))
    assert (shown["Systemd_Filter"], shown["Format"]) == ("_TRANSPORT=kernel", "json")
    assert "Strip_Underscores" not in shown
    assert shown["storage.path"], "without it Fluent Bit does not start with a queue on disk"
    answer = client.post(shown["URI"], json=[fluent_bit()], headers=api.headers("signals"))
    assert answer.json()["accepted"] == 1


#: Where systemd keeps what it does not put on the path.
REMOTE = "/lib/systemd/systemd-journal-remote"


KERNEL = "_TRANSPORT=kernel\nSYSLOG_FACILITY=0\nPRIORITY=3\nSYSLOG_IDENTIFIER=kernel\n"
#: What a user's `logger -p kern.err -t kernel` leaves: all but what begins with `_` is the user's word.
BY_LOGGER = (
    KERNEL.replace("=kernel\nSYSLOG_FACILITY", "=syslog\nSYSLOG_FACILITY")
    + "_PID=4711\n_UID=1001\n_COMM=logger\n"
)
FORGED = LOST.replace("9b", "9d")


def journal_of(folder: Path, *records: tuple[str, str]) -> Path:
    """A journal file with these records, (what journald knows, MESSAGE), a second apart."""
    journal_text = "".join(
        f"__REALTIME_TIMESTAMP={1763640000000000 + number * 10**6}\n"
        f"__MONOTONIC_TIMESTAMP={150000001 + number * 10**6}\n"
        "_BOOT_ID=0b11d014168544bda6ed5fc0bc1c44ae\n_MACHINE_ID=11111111111111111111111111111111\n"
        f"{fields}_HOSTNAME={NODE}\n"
        f"_SOURCE_MONOTONIC_TIMESTAMP={150000001 + number * 10**6}\nMESSAGE={message}\n\n"
        for number, (fields, message) in enumerate(records)
    )
    journal = folder / "node.journal"
    subprocess.run([REMOTE, "-o", str(journal), "-"], input=journal_text.encode(), check=True, timeout=60)
    return journal


@dataclass
class Journal:
    """The page's script, on a journal file and with a place of its own."""

    api: Api
    folder: Path
    file: Path

    def run(self, url: str, **places: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "token").write_text(self.api.token("signals"))
        script = placed(
            snippet("signals.md", "journald"),
            {
                SHOWN: url,
                "/etc/healer/token": str(self.folder / "token"),
                "/var/lib/healer/cursor": str(self.folder / "cursor"),
                'journalctl "$@"': f'journalctl --file={self.file} "$@"',
                **places,
            },
        )
        return subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=90, check=False)

    def stored(self) -> int:
        with self.api.engine.connect() as conn:
            return conn.exec_driver_sql("SELECT count(*) FROM inbox").scalar_one()


@pytest.fixture
def journal(served: Served, tmp_path: Path) -> Journal:
    records = [
        (KERNEL, LOST),
        (BY_LOGGER, FORGED),
        (KERNEL, "usb 1-1: new device"),
        (KERNEL, LOST.replace("9b", "9c")),
    ]
    return Journal(served[0], tmp_path, journal_of(tmp_path, *records))


def sums(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """What healer answered to all requests of the script together."""
    assert done.returncode == 0, done.stderr
    decoder, text, found = json.JSONDecoder(), done.stdout.strip(), Counter[str]()
    while text:
        answer, end = decoder.raw_decode(text)
        found.update({name: answer[name] for name in ("accepted", "duplicates", "unrecognised")})
        text = text[end:].strip()
    return dict(found)


def test_journald(served: Served, journal: Journal) -> None:
    """The script of the page on a real journal: healer is away first, and at the end nothing is new. What a
    user wrote with `logger` is not sent."""
    url = str(served[1].base_url).rstrip("/")
    few = {"-n 4000": "-n 2"}
    assert journal.run("http://127.0.0.1:1", **few).returncode != 0
    assert not (journal.folder / "cursor").exists()
    sent = journal.run(url, **few)
    assert sums(sent) == {"accepted": 2, "duplicates": 0, "unrecognised": 1}
    assert sent.stdout.count("accepted") == 2, "two requests of two lines"
    assert journal.stored() == 2, "both faults of the kernel"
    again = journal.run(url, **few)
    assert (again.returncode, again.stdout) == (0, ""), "nothing is new, and nothing is sent"


def test_a_journal_that_is_sent_without_the_filter_forges_nothing(served: Served, journal: Journal) -> None:
    sent = journal.run(str(served[1].base_url).rstrip("/"), **{" _TRANSPORT=kernel": ""})
    assert sums(sent) == {"accepted": 2, "duplicates": 0, "unrecognised": 2}
    assert journal.stored() == 2
    with served[0].engine.connect() as conn:
        kept = conn.exec_driver_sql("SELECT string_agg(inbox::text, '') FROM inbox").scalar_one()
    assert ":9c:" in kept
    assert ":9d:" not in kept


def test_opentelemetry(served: Served) -> None:
    api, client = served
    shown = yaml.safe_load(snippet("signals.md", "OpenTelemetry", 1))
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
