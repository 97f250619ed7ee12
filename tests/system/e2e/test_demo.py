"""`healer demo` from outside, on the simulated Slurm: its first story, its measures, and its end; in a shell
with the settings of a real site."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from tests.support.processes import clean_environ, descendants, free_port, living
from tests.support.signing_in import press_sign_in
from tests.support.sink import Sink, serve_sink
from tests.support.wait import wait_until

ROOT = Path(__file__).parents[3]
#: For a machine that does much else; a free one takes a tenth of it.
READY_S, STORY_S, STOP_S = 90.0, 90.0, 40.0


class Demo:
    """The process tree, what it printed, and a user who signed in with its link. `site`: the settings of a
    real site, where nothing of the demo may arrive."""

    def __init__(self, folder: Path, site: Mapping[str, str]) -> None:
        self.port = free_port()
        self.output = folder / "demo.txt"
        command = (sys.executable, "-m", "healer", "demo", "--slurm", "sim")
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=clean_environ(TMPDIR=str(folder), HEALER_LISTEN=f"127.0.0.1:{self.port}", **site),
                cwd=ROOT,
                start_new_session=True,
            )
        self.seen: set[int] = set()

    def said(self) -> str:
        self.seen |= descendants(self.process.pid)
        assert self.process.poll() is None, self.output.read_text()
        return self.output.read_text()

    def signed_in(self) -> httpx.Client:
        link = re.search(r"Open\s+(\S+)", self.said())
        assert link is not None
        client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", follow_redirects=True, timeout=20)
        assert press_sign_in(client, link[1]).status_code == 200
        return client

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_S)


@pytest.fixture
def sink() -> Iterator[Sink]:
    with serve_sink() as one:
        yield one


@pytest.fixture
def site(sink: Sink) -> dict[str, str]:
    return {
        "HEALER_CLUSTER": "pod9",
        "HEALER_DATABASE_URL": "postgresql://healer:s3cret@127.0.0.1:1/site",
        "HEALER_EVENTS_WEBHOOK_URL": f"{sink.url}/events?key=s3cret",
        "HEALER_MODE": "shadow",
        "HEALER_NOTIFY_WEBHOOK_URL": f"{sink.url}/pages?key=s3cret",
        "HEALER_RECORDING": "",
        "HEALER_REDIS_URL": "redis://:s3cret@127.0.0.1:1/0",
        "HEALER_SLURM_ADAPTERS": "rest",
        "HEALER_TICKET_WEBHOOK_URL": f"{sink.url}/tickets?key=s3cret",
        "HEALER_WEBHOOK_SECRET": "s3cret",
    }


@pytest.fixture
def demo(scratch: Path, site: dict[str, str]) -> Iterator[Demo]:
    one = Demo(scratch, site)
    yield one
    if one.process.poll() is None:
        one.process.terminate()
        one.process.wait(STOP_S)
    for pid in living(one.seen):
        os.kill(pid, signal.SIGKILL)


def test_the_demo_heals_its_first_fault_and_leaves_nothing(
    demo: Demo, site: dict[str, str], sink: Sink, scratch: Path
) -> None:
    wait_until(lambda: "healer is ready" in demo.said(), READY_S, what="the demo is ready")
    names = ", ".join(name for name, value in site.items() if value)
    assert f"healer: ignored here, as the demo has servers and settings of its own: {names}\n" in demo.said()
    wait_until(
        lambda: "off the bus under job" in demo.said(), STORY_S, what="the demo prints its first fault"
    )
    match = re.search(r"breaking (\S+) GPU (\d)", demo.said())
    assert match is not None
    node = match[1]
    with contextlib.closing(demo.signed_in()) as console:
        wait_until(
            lambda: any(
                one["root"].get("node") == node and one["rule"] == "gpu-lost"
                for one in console.get("/api/v1/incidents?state=resolved").json()["items"]
            ),
            STORY_S,
            what="the node is repaired and back",
        )
        shown = console.get(f"/api/v1/nodes/pod1/{node}").json()
    assert len(shown["gpus"]) == 8
    assert demo.stop() == 0
    assert sink.asked == []
    assert "s3cret" not in demo.output.read_text()
    assert living(demo.seen) == set()
    assert [one.name for one in scratch.iterdir()] == ["demo.txt"]
