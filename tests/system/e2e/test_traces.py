"""A signal's trace, from its request to the drain that was read back, as a collector receives it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from healer.adapters.tracing import OtlpTraces
from healer.bootstrap.traced_parts import traces_of
from healer.ports.traces import Span
from healer.settings import SettingsError, load
from tests.support.collector import Collector, Received, collector
from tests.support.processes import free_port
from tests.support.stack import scratch_folder
from tests.support.up import Stack
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy
NODE = "gpu0003"
#: Name, service, and the span above it.
WANTED = {
    ("api request", "healer-api", ""),
    ("inbox commit", "healer-api", "api request"),
    ("walk", "healer-detector", "api request"),
    ("decision", "healer-worker", "api request"),
    ("run gpu-fatal", "healer-worker", "decision"),
    ("step drain", "healer-worker", "run gpu-fatal"),
    ("slurm drain", "healer-worker", "step drain"),
    ("slurm node", "healer-worker", "step drain"),
}


def site(folder: Path, url: str) -> Stack:
    return Stack(
        folder,
        HEALER_SLURM_ADAPTERS="sim", HEALER_MODE="auto", HEALER_SETTLE_S="0", HEALER_TRACES_URL=url,
    )  # fmt: skip


def lose_a_gpu(stack: Stack) -> None:
    line = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', GPU has fallen off the bus."
    body = {"cluster": "pod1", "node": NODE, "boot_id": "b", "entries": [{"line": line, "seq": 1}]}
    headers = stack.headers("signals", "--vouches", "kernel")
    sent = stack.http.post(f"{stack.url}/api/v1/signals/kernel-log", headers=headers, json=body)
    assert sent.status_code == 202, sent.text


def rows(trace: list[Received]) -> set[tuple[str, str, str]]:
    names = {each.span.span_id: each.span.name for each in trace}
    return {(each.span.name, each.service, names.get(each.span.parent_span_id, "")) for each in trace}


def whole(found: Collector) -> list[Received]:
    trace = found.trace_of("slurm drain")
    return trace if rows(trace) >= WANTED else []


def test_a_signal_s_trace_goes_from_its_request_to_the_drain_that_was_read_back() -> None:
    with scratch_folder() as folder, collector() as (found, url):
        with site(folder, url) as stack:
            lose_a_gpu(stack)
            wait_until(lambda: whole(found), 40, what=f"the whole trace, of {rows(found.received)}")
        trace = whole(found)
    assert len({each.span.trace_id for each in trace}) == 1
    by_name = {each.span.name: each for each in trace}
    assert by_name["api request"].about["healer.node"] == by_name["decision"].about["healer.node"] == NODE
    steps = [by_name[name].span for name in ("api request", "walk", "run gpu-fatal", "slurm drain")]
    begun = [step.start_time_unix_nano for step in steps]
    assert begun == sorted(begun)
    [drain] = [each.span for each in trace if each.span.name == "slurm drain"]
    within = by_name["step drain"].span
    after = [
        each.span
        for each in trace
        if each.span.name == "slurm node" and each.span.start_time_unix_nano >= drain.end_time_unix_nano
    ]
    read_back = after[0]
    assert within.start_time_unix_nano <= drain.start_time_unix_nano
    assert read_back.end_time_unix_nano <= within.end_time_unix_nano
    known = {each.span.span_id for each in trace}
    assert {each.span.name for each in trace if each.span.parent_span_id not in known} == {"api request"}


def test_a_collector_that_is_away_holds_nothing_up() -> None:
    """Far more spans than are kept for it; their part ends soon afterwards."""
    traces = OtlpTraces(f"http://127.0.0.1:{free_port()}/v1/traces", "worker", "pod1", "0.1.0")
    begun = time.monotonic()
    for number in range(10_000):
        traces.put(Span("trace", str(number), "step drain", number, number + 1))
    # To wait for the collector takes 2 s each time, and 40 s if each batch of spans waited.
    assert time.monotonic() - begun < 30
    traces.close()
    assert time.monotonic() - begun < 60


def test_without_the_setting_no_exporter_is_imported() -> None:
    """FastAPI itself imports OpenTelemetry's API where it is installed."""
    program = (
        "import sys, healer.bootstrap.web, healer.bootstrap.detector_part, healer.bootstrap.executor\n"
        "ours = ('opentelemetry.sdk', 'opentelemetry.exporter', 'healer.adapters.tracing')\n"
        "print(*(name for name in sys.modules if name.startswith(ours)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_without_the_extra_the_start_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "healer.adapters.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    settings = load({"HEALER_TRACES_URL": "http://127.0.0.1:4318/v1/traces"})
    with pytest.raises(SettingsError, match=r"^HEALER_TRACES_URL .*install healer\[otel\]"):
        traces_of(settings, "api", "pod1")
