"""Every decoder that takes bytes from outside, with what it may raise and valid inputs to begin with.

`tests/integration/signals/test_every_decoder.py` finds readers of `healer.signals` that are not called here.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from healer.adapters import munge
from healer.api import enroll_routes, request_preamble
from healer.api.problems import Problem
from healer.api.request_preamble import decoded
from healer.model import LineBook, Observation, packed
from healer.model.telemetry import Report, StepBatch
from healer.ports.callers import CredentialRefused
from healer.processes.scraper import list_targets
from healer.rulebook.signal_rules import read_scrape
from healer.rulebook.source import Problem as FileProblem
from healer.rulebook.source import Source
from healer.signals import (
    alert_bodies,
    hook_reports,
    logs,
    otlp_logs,
    promql,
    step_logs,
    step_times,
    wire,
)
from healer.signals.rejects import BadBody, BadEntry, Rejects
from healer.topology.found import Unreadable, as_yaml, topology_of
from healer.topology.infiniband import read_ibnetdiscover
from healer.topology.lldp import read_lldp
from tests.long.fuzz import seeds
from tests.support.loop import shipped as shipped_rules
from tests.support.measuring import NOW, Bench, known, shipped

Take = Callable[[bytes], Any]
CLUSTER = "pod1"
#: What a body may have unpacked, for gzip and zstd.
UNPACKED_MAX = 1 << 20
_SITE = alert_bodies.Site(CLUSTER, (CLUSTER,), known, lambda cluster, name: name == "leaf1")


class Decoder(NamedTuple):
    """`make` gives a decoder that has seen nothing yet; `answers` are all that it may raise. `text`: inputs
    are words or JSON rather than binary."""

    name: str
    make: Callable[[], Take]
    seeds: tuple[bytes, ...]
    answers: tuple[type[Exception], ...] = (BadBody,)
    text: bool = True


def words(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


# --- one function for each -------------------------------------------------------------------------------


def _plain(take: Take) -> Callable[[], Take]:
    return lambda: take


def shapes() -> LineBook:
    """What ships of lines without a code."""
    return shipped_rules().kernel_lines


def kernel_log(raw: bytes) -> Any:
    """Both ways of the route: read at once, and as any JSON. They must agree."""
    fast = wire.kernel_log_body(raw)
    body = decoded(raw)
    nodes = wire.nodes_of_kernel_log(body, cluster=CLUSTER)
    taken = wire.kernel_log_observations(body, known, NOW, cluster=CLUSTER, book=shapes())
    if fast is not None:
        assert wire.nodes_of_kernel_log(fast, cluster=CLUSTER) == nodes, "the two ways differ in nodes"
        again = wire.kernel_log_observations(fast, known, NOW, cluster=CLUSTER, book=shapes())
        assert again == taken, "the two ways differ"
    return taken


def kernel_text(raw: bytes) -> Any:
    return wire.kernel_text_observations(
        words(raw), known, NOW, wire.NodeBoot(CLUSTER, seeds.NODE), book=shapes()
    )


def heartbeat(raw: bytes) -> Any:
    body = decoded(raw)
    wire.nodes_of_heartbeats(body, cluster=CLUSTER)
    return wire.heartbeat_observations(body, known, NOW, cluster=CLUSTER)


def checkpoint(raw: bytes) -> Any:
    body = decoded(raw)
    return wire.checkpoint_observations(body, NOW, cluster=CLUSTER)


def step_time(raw: bytes) -> Any:
    batches = step_times.step_batches(raw, known, NOW, cluster=CLUSTER)
    for one in batches.batches:
        blob = packed.pack_steps(one)
        packed.unpack_steps(blob, cluster=one.cluster, job=one.job, arrived_at=NOW)
    return batches


def hook_report(raw: bytes) -> Any:
    body = decoded(raw)
    hook_reports.nodes_of_hooks(body, cluster=CLUSTER)
    seen = hook_reports.hook_reports(body, "prolog", known, NOW, cluster=CLUSTER)
    return list(hook_reports.arrivals(seen))


def _reported(take: Callable[[Bench, bytes], Any]) -> Callable[[], Take]:
    """What translates metrics remembers series: one translator for all inputs."""

    def make() -> Take:
        bench = Bench()

        def once(raw: bytes) -> Any:
            measured = take(bench, raw)
            for one in getattr(measured, "reports", ()):
                row = packed.PackedReport(one.node, one.at, NOW, packed.pack_report(one))
                if isinstance(back := packed.unpack_reports(one.cluster, [row])[0], packed.BadBlock):
                    raise AssertionError("what was packed cannot be unpacked") from back
            return measured

        return once

    return make


def _exposed(bench: Bench, raw: bytes) -> Any:
    bench.translator.exposition(raw, known, NOW, node=seeds.NODE)
    bench.translator.exposition(raw, known, NOW, node="@leaf1")
    return bench.translator.exposition(raw, known, NOW, node=None)


def _queried(bench: Bench, raw: bytes) -> Any:
    measured = bench.translator.queried(raw, known, NOW)
    bench.translator.queried(raw, known, NOW, signal="host_temp_c")
    bench.translator.charted(raw, known)
    return measured


def _xml(bench: Bench, raw: bytes) -> Any:
    return bench.translator.nvidia_smi(raw, known, NOW, node=seeds.NODE)


def json_logs(raw: bytes) -> Any:
    return logs.kernel_records(logs.json_records(raw), known, NOW, cluster=CLUSTER, node=seeds.NODE)


def export_logs(raw: bytes) -> Any:
    records = (logs.record_of(number, one) for number, one in enumerate(logs.export_records(raw)))
    return logs.kernel_records(records, known, NOW, cluster=CLUSTER, node=seeds.NODE)


def otlp_log(raw: bytes) -> Any:
    return logs.kernel_records(otlp_logs.records(raw), known, NOW, cluster=CLUSTER)


def otlp_log_json(raw: bytes) -> Any:
    return logs.kernel_records(otlp_logs.json_records(raw), known, NOW, cluster=CLUSTER)


def alertmanager(raw: bytes) -> Any:
    alerts = alert_bodies.alertmanager_observations(decoded(raw), _SITE, NOW)
    return alerts, [alert_bodies.repeated_alert(one) for one in alerts.observations]


def _events(body: Any, *, batch: bool) -> Any:
    rejects = Rejects()
    named = ["a.site.s.own"]
    found: list[alert_bodies.Enveloped] = []
    for event in alert_bodies.events_of(body, batch=batch, rejects=rejects):
        if event.type in alert_bodies.ROUTES:
            msgspec.json.encode(event.data)
            continue
        try:
            one = alert_bodies.alert_in(event, named, NOW)
        except BadEntry as error:
            rejects.add(event.index, error)
            continue
        found += [one] if one is not None else []
    return alert_bodies.enveloped_observations(found, _SITE, NOW)


def event(raw: bytes) -> Any:
    return _events(decoded(raw), batch=False)


def event_batch(raw: bytes) -> Any:
    return _events(decoded(raw), batch=True)


def event_binary(raw: bytes) -> Any:
    head, _, data = raw.partition(b"\n\n")
    lines = (line.partition(":") for line in head.decode("latin-1").split("\n"))
    attributes = alert_bodies.attributes_of({name.lower(): value for name, _, value in lines})
    return _events(attributes | ({"data": decoded(data)} if data else {}), batch=False)


def step_log(raw: bytes) -> Any:
    at = NOW
    for form in step_logs.FORMATS:
        reader = step_logs.LogReader(form)
        parsed = [reader.line(line, at) for line in words(raw).split("\n")]
        for one in filter(None, parsed):
            assert 0 < one.step_s <= step_logs.SECONDS_MAX
            msgspec.json.encode(one._asdict())


def ibnetdiscover(raw: bytes) -> Any:
    as_yaml(topology_of(read_ibnetdiscover(words(raw))))


def lldp(raw: bytes) -> Any:
    as_yaml(topology_of(read_lldp(words(raw), "gpu0001")))


def _in_file(suffix: str, take: Callable[[Path], Any]) -> Callable[[], Take]:
    """Of decoders that read a file."""

    def make() -> Take:
        folder = tempfile.TemporaryDirectory(prefix="healer-fuzz-")
        path = Path(folder.name, f"file{suffix}")

        def once(raw: bytes, keep: object = folder) -> Any:
            path.write_bytes(raw)
            return take(path)

        return once

    return make


def scrape_yaml(path: Path) -> Any:
    problems: list[FileProblem] = []
    rules = read_scrape(Source(path, path.name, problems), shipped(), path.parent)
    list_targets(rules, CLUSTER)
    return [str(one) for one in problems]


def munge_answer(raw: bytes) -> Any:
    parsed = munge._read(raw)
    return None if parsed is None else enroll_routes._payload(parsed)


def enroll_body(raw: bytes) -> Any:
    return enroll_routes.EnrollBody.model_validate(decoded(raw))


def packed_report(raw: bytes) -> Any:
    (one,) = packed.unpack_reports(CLUSTER, [packed.PackedReport(seeds.NODE, NOW, NOW, raw)])
    if isinstance(one, packed.BadBlock):
        raise one
    return one


def packed_steps(raw: bytes) -> Any:
    return packed.unpack_steps(raw, cluster=CLUSTER, job="7", arrived_at=NOW)


def _blocks() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """(of reports, of steps)."""
    report = Bench().translator.columnar(seeds.COLUMNAR[0], known, NOW).reports[0]
    steps = step_times.step_batches(seeds.STEP_TIMES[0], known, NOW, cluster=CLUSTER).batches[0]
    return (packed.pack_report(report),), (packed.pack_steps(steps),)


_REPORTS, _STEPS = _blocks()

# --- the list --------------------------------------------------------------------------------------------

_JSON = (BadBody, Problem)

DECODERS = (
    Decoder("kernel_log", _plain(kernel_log), seeds.KERNEL_LOG, _JSON),
    Decoder("kernel_text", _plain(kernel_text), seeds.KERNEL_TEXT),
    Decoder("heartbeat", _plain(heartbeat), seeds.HEARTBEAT, _JSON),
    Decoder("checkpoints", _plain(checkpoint), seeds.CHECKPOINTS, _JSON),
    Decoder("step_times", _plain(step_time), seeds.STEP_TIMES),
    Decoder("hooks", _plain(hook_report), seeds.HOOKS, _JSON),
    Decoder("columnar", _reported(lambda b, raw: b.translator.columnar(raw, known, NOW)), seeds.COLUMNAR),
    Decoder("exposition", _reported(_exposed), seeds.EXPOSITION),
    Decoder(
        "remote_write",
        _reported(lambda b, raw: b.translator.remote_write(raw, known, NOW, packed=False)),
        seeds.REMOTE_WRITE,
        text=False,
    ),
    Decoder(
        "snappy",
        _reported(lambda b, raw: b.translator.remote_write(raw, known, NOW)),
        seeds.SNAPPY,
        text=False,
    ),
    Decoder(
        "otlp_metrics",
        _reported(lambda b, raw: b.translator.otlp(raw, known, NOW, json=False)),
        seeds.OTLP_METRICS,
        text=False,
    ),
    Decoder(
        "otlp_metrics_json",
        _reported(lambda b, raw: b.translator.otlp(raw, known, NOW, json=True)),
        seeds.OTLP_METRICS_JSON,
    ),
    Decoder("otlp_logs", _plain(otlp_log), seeds.OTLP_LOGS, text=False),
    Decoder("otlp_logs_json", _plain(otlp_log_json), seeds.OTLP_LOGS_JSON),
    Decoder("logs_json", _plain(json_logs), seeds.LOGS_JSON),
    Decoder("journal_export", _plain(export_logs), seeds.JOURNAL_EXPORT, text=False),
    Decoder("nvidia_smi", _reported(_xml), seeds.NVIDIA_SMI),
    Decoder("alertmanager", _plain(alertmanager), seeds.ALERTMANAGER, _JSON),
    Decoder("cloudevents", _plain(event), seeds.CLOUDEVENTS, _JSON),
    Decoder("cloudevents_batch", _plain(event_batch), seeds.CLOUDEVENTS_BATCH, _JSON),
    Decoder("cloudevents_binary", _plain(event_binary), seeds.CLOUDEVENTS_BINARY, _JSON),
    Decoder("promql", _reported(_queried), seeds.PROMQL),
    Decoder("promql_partial", _plain(promql.result_and_lack), seeds.PROMQL_PARTIAL),
    Decoder("promql_names", _plain(promql.decode_names), seeds.PROMQL_NAMES),
    Decoder("step_logs", _plain(step_log), seeds.STEP_LOGS, ()),
    Decoder("ibnetdiscover", _plain(ibnetdiscover), seeds.IBNETDISCOVER, (Unreadable,)),
    Decoder("lldp", _plain(lldp), seeds.LLDP, (Unreadable,)),
    Decoder("scrape_yaml", _in_file(".yaml", scrape_yaml), seeds.SCRAPE_YAML, ()),
    Decoder(
        "gzip",
        _plain(lambda raw: request_preamble.unpacked(raw, "gzip", UNPACKED_MAX)),
        seeds.GZIP,
        (Problem,),
        False,
    ),
    Decoder(
        "zstd",
        _plain(lambda raw: request_preamble.unpacked(raw, "zstd", UNPACKED_MAX)),
        seeds.ZSTD,
        (Problem,),
        False,
    ),
    Decoder("munge", _plain(munge_answer), seeds.MUNGE, (Problem, CredentialRefused)),
    Decoder("packed_report", _plain(packed_report), _REPORTS, (packed.BadBlock,), False),
    Decoder("packed_steps", _plain(packed_steps), _STEPS, (packed.BadBlock,), False),
)
BY_NAME = {one.name: one for one in DECODERS}


# --- what comes out --------------------------------------------------------------------------------------


def problem_with(decoder: Decoder, take: Take, raw: bytes) -> Exception | None:
    """What a decoder may not raise, or may not give: None when all is well."""
    try:
        check(take(raw))
    except decoder.answers:
        return None
    except Exception as error:
        return error
    return None


def check(value: Any) -> None:
    """Raises AssertionError for what the store could not hold."""
    for one in _parts(value):
        if isinstance(one, Observation):
            msgspec.json.encode(one)
            # The store replaces a NUL in texts; in a name it would be another name then.
            assert "\0" not in "".join(map(str, msgspec.structs.astuple(one.component))), "a NUL in a name"
            assert one.event_at.tzinfo is not None and one.arrived_at == NOW
        elif isinstance(one, Report):
            assert len(one.columns) == len(one.values), "a report of two lengths"
            assert one.at.tzinfo is not None
        elif isinstance(one, StepBatch):
            assert len(one.step) == len(one.step_s) == len(one.rank)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Observation | Report | StepBatch):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _parts(one)
    else:
        for name in ("observations", "reports", "batches", "inventory", "accepted"):
            inner = getattr(value, name, ())
            if not isinstance(inner, int):
                yield from _parts(inner) if inner != () else ()
