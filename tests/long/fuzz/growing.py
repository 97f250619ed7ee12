# ruff: noqa: E501 - one shape, one line
"""Inputs of a size that is chosen: whatever grows in them, the work may grow as much and no more.

Each shape makes an input of some `n` of something: lines, labels, members, levels, characters of a name.
"""

import gzip
import json
from collections.abc import Callable
from typing import Any

from tests.long.fuzz import seeds
from tests.support import collected, pushing, shipped

Make = Callable[[int], bytes]


def _js(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _points(n: int, resource: dict[str, Any], label: str = "x") -> bytes:
    points = [collected.point(1, {"gpu": 0, label: f"{number}"}, seeds.AT_NS) for number in range(n)]
    return collected.metrics(resource, collected.gauge("DCGM_FI_DEV_GPU_TEMP", *points)).SerializeToString()


def _many_metrics(n: int) -> bytes:
    """A resource as large as it may be, and metrics that all have it."""
    one = [collected.gauge("m", collected.point(1)) for _ in range(n)]
    return collected.metrics({"a": "b" * 8000}, *one).SerializeToString()


def _keys_alone(n: int) -> bytes:
    """A resource of `n` attributes without values, and `n` records."""
    names = b"".join(pushing.field(1, pushing.field(1, f"k{number}".encode())) for number in range(n))
    records = pushing.field(2, b"") * n
    return pushing.field(1, pushing.field(1, names) + pushing.field(2, records))


def _logs(n: int) -> bytes:
    request = collected.logs({"host.name": seeds.NODE}, [])
    one = collected.record("no line of the kernel", {"log.file.name": "syslog"})
    request.resource_logs[0].scope_logs[0].log_records.extend([one] * n)
    return request.SerializeToString()


def _alerts(n: int, **more: Any) -> bytes:
    return _js({"version": "4", "alerts": [seeds.ALERT | more] * n})


def _events(n: int) -> bytes:
    return b"[" + b",".join([seeds.CLOUDEVENTS[0]] * n) + b"]"


def _labels(n: int) -> bytes:
    return ("node_load1{" + ",".join(f'l{number}="v"' for number in range(n)) + "} 1\n").encode()


def _labels_pushed(n: int) -> bytes:
    return pushing.one({f"l{number}": "v" for number in range(n)}, [(1.0, seeds.AT_MS)])


def _xml(inner: str) -> bytes:
    return f'<nvidia_smi_log><gpu id="0">{inner}</gpu></nvidia_smi_log>'.encode()


def _xid(text: str) -> bytes:
    return f"NVRM: Xid (PCI:0000:9b:00): {text}".encode()[:4000]


def _lines(text: bytes) -> Make:
    """The same line, n times."""
    return lambda n: (text + b"\n") * n


def _ib(n: int) -> bytes:
    ports = "".join(
        f'[{number % 40 + 1}] "H-{number:016x}"[1](0) # "gpu{number:05} HCA-1" lid 1\n' for number in range(n)
    )
    return ('Switch 41 "S-b8cef60300112200" # "leaf1" enhanced port 0 lid 5 lmc 0\n' + ports).encode()


def _switches(n: int) -> bytes:
    return "".join(
        f'Switch 41 "S-{number:016x}" # "leaf" port 0\n[1] "S-{number + 1:016x}"[2] # "leaf"\n'
        for number in range(n)
    ).encode()


def _lldp(n: int) -> bytes:
    one = {"chassis": {"tor1": {}}, "port": {"id": {"type": "ifname", "value": "Ethernet1"}}}
    return _js({"lldp": {"interface": [{f"ens{number}": one} for number in range(n)]}})


def _nested_value(n: int) -> bytes:
    """A log record whose body is lists within each other, n deep: lengths are written from within."""
    value = b""
    for _ in range(n):
        value = pushing.field(5, pushing.field(1, value))
    return pushing.field(1, pushing.field(2, pushing.field(2, pushing.field(5, value))))


#: (decoder, what grows) -> its input of n. At n = 1,000 all are of 1 to 100 kB.
SHAPES: dict[tuple[str, str], Make] = {
    ("kernel_log", "entries"): lambda n: _js({"node": seeds.NODE, "entries": [{"line": seeds.XID}] * n}),
    ("kernel_log", "nodes"): lambda n: _js([{"node": f"gpu{number:04}", "entries": [{"line": seeds.XID}]} for number in range(n)]),
    ("kernel_log", "levels"): lambda n: b'{"node":"gpu0001","entries":' + b"[" * n,
    ("kernel_log", "lost_gpus"): lambda n: _js({"node": seeds.NODE, "entries": [{"line": seeds.LINES[11]}] * n}),
    ("kernel_text", "lines"): _lines(b"x"),
    ("kernel_text", "driver_lines"): _lines(seeds.XID.encode()),
    ("kernel_text", "one_line"): lambda n: b"NVRM: " + b"a" * n,
    ("heartbeat", "beats"): lambda n: _js([{"node": seeds.NODE}] * n),
    ("heartbeat", "gpus"): lambda n: _js({"node": seeds.NODE, "gpus": [{"index": 1, "pci": "0000:9b:00"}] * n}),
    ("checkpoints", "checkpoints"): lambda n: _js([{"job": 7, "step": 1, "path": "/x", "durable": True}] * n),
    ("step_times", "samples"): lambda n: _js({"job": "7", "samples": [{"step_s": 1.5, "rank": 1}] * n}),
    ("step_times", "wrong_samples"): lambda n: _js({"job": "7", "samples": [{"step_s": "x"}] * n}),
    ("step_times", "bodies"): lambda n: _js([{"job": "7", "samples": [{"step_s": 1}]}] * n),
    ("hooks", "reports"): lambda n: _js([{"node": seeds.NODE, "host": {"load1": 1}}] * n),
    ("hooks", "lines"): lambda n: _js({"node": seeds.NODE, "kernel": [{"line": seeds.XID}] * n}),
    ("columnar", "entries"): lambda n: _js([{"node": f"gpu{number % 1000:04}", "gpu": {"gpu_temp_c": [1, 2]}} for number in range(n)]),
    ("columnar", "moments_of_a_node"): lambda n: _js([{"node": seeds.NODE, "host": {"load1": number}} for number in range(n)]),
    ("columnar", "unknown_names"): lambda n: _js({"node": seeds.NODE, "host": {f"x{number}": 1 for number in range(n)}}),
    ("columnar", "wrong_entries"): lambda n: _js([{"node": 1}] * n),
    ("columnar", "levels"): lambda n: b'{"node":' + b"[" * n,
    ("exposition", "lines"): _lines(b'DCGM_FI_DEV_GPU_TEMP{gpu="0",Hostname="gpu0001"} 61'),
    ("exposition", "series"): lambda n: b"".join(b'DCGM_FI_DEV_GPU_TEMP{gpu="0",x="%d",Hostname="gpu0001"} 61\n' % number for number in range(n)),
    ("exposition", "unknown_names"): lambda n: b"".join(b"x%d 1\n" % number for number in range(n)),
    ("exposition", "wrong_lines"): _lines(b"node_load1 x"),
    ("exposition", "empty_lines"): _lines(b""),
    ("exposition", "labels"): _labels,
    ("exposition", "quoted"): lambda n: b'{"' + b'\\"' * n + b'",' + b'"a"="b",' * n + b" " * n + b"x 1\n",
    ("exposition", "name"): lambda n: b"n" * n + b" 1\n",
    ("exposition", "digits"): lambda n: b"node_load1 " + b"1" * n + b"\n",
    ("exposition", "spaces"): lambda n: b"node_load1" + b" " * n + b"1" + b" " * n + b"x\n",
    ("remote_write", "series"): lambda n: b"".join(pushing.one({"__name__": "node_load1", "instance": f"gpu{number % 1000:04}", "x": str(number)}, [(1.0, seeds.AT_MS)]) for number in range(n)),
    ("remote_write", "samples"): lambda n: pushing.one({"__name__": "node_load1", "instance": seeds.NODE}, [(1.0, seeds.AT_MS + number) for number in range(n)]),
    ("remote_write", "labels"): _labels_pushed,
    ("remote_write", "empty_series"): lambda n: b"\x0a\x00" * n,
    ("remote_write", "name"): lambda n: pushing.one({"__name__": "n" * n}, [(1.0, seeds.AT_MS)]),
    ("snappy", "samples"): lambda n: pushing.snappy(pushing.message([({"__name__": "node_load1"}, [(1.0, seeds.AT_MS)])]) * n),
    ("otlp_metrics", "points"): lambda n: _points(n, {"host.name": seeds.NODE}),
    ("otlp_metrics", "metrics_of_a_resource"): _many_metrics,
    ("otlp_metrics", "resources"): lambda n: pushing.field(1, b"") * n,
    ("otlp_metrics", "attributes"): lambda n: _points(1, {f"a{number}": "x" for number in range(n)}),
    ("otlp_metrics", "name"): lambda n: collected.metrics({}, collected.gauge("n" * n, *[collected.point(1)] * n)).SerializeToString(),
    ("otlp_metrics_json", "points"): lambda n: _js({"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "node_load1", "gauge": {"dataPoints": [{"asDouble": 1}] * n}}]}]}]}),
    ("otlp_metrics_json", "levels"): lambda n: b'{"x":' + b"[" * n,
    ("otlp_logs", "records"): _logs,
    ("otlp_logs", "records_of_a_resource"): _keys_alone,
    ("otlp_logs", "levels"): _nested_value,
    ("otlp_logs_json", "records"): lambda n: _js({"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "x"}}] * n}]}]}),
    ("logs_json", "records"): lambda n: shipped.ndjson(*[shipped.by_logger()] * n),
    ("logs_json", "kernel_records"): lambda n: _js([shipped.journalctl()] * n),
    ("logs_json", "names_told_twice"): lambda n: b"[" + b",".join([b'{"_TRANSPORT":"kernel","_TRANSPORT":"kernel","msg":"x"}'] * n) + b"]",
    ("logs_json", "one_name"): lambda n: b"{" + b'"_TRANSPORT":"kernel",' * n + b'"msg":"x"}',
    ("logs_json", "wrong_lines"): lambda n: b"{}\n" + b"x\n" * n,
    ("logs_json", "fields"): lambda n: _js({f"f{number}": 1 for number in range(n)}),
    ("journal_export", "records"): lambda n: shipped.export(shipped.by_logger()) * n,
    ("journal_export", "short_records"): lambda n: b"A=1\n\n" * n,
    ("journal_export", "same_field"): lambda n: b"A=1\n" * min(n, 1000) + b"\n",
    ("nvidia_smi", "elements"): lambda n: _xml("<a>1</a>" * n),
    ("nvidia_smi", "different_elements"): lambda n: _xml("".join(f"<a{number}>1</a{number}>" for number in range(n))),
    ("nvidia_smi", "name"): lambda n: _xml(f"<{'a' * n}>" + "<a>1</a>" * n + f"</{'a' * n}>"),
    ("nvidia_smi", "comments"): lambda n: _xml("<uuid>" + "x<!---->" * n + "</uuid>"),
    ("nvidia_smi", "levels"): lambda n: _xml("<a>" * n),
    ("alertmanager", "alerts"): _alerts,
    ("alertmanager", "labels"): lambda n: _alerts(1, labels={f"l{number}": "v" for number in range(n)}),
    ("alertmanager", "text"): lambda n: _alerts(1, annotations={"summary": "a " * n}),
    ("cloudevents_batch", "events"): _events,
    ("cloudevents", "fields"): lambda n: _js({"specversion": "1.0", "id": "1", "source": "/x", "type": "a.site.s.own", "data": {f"l{number}": 1 for number in range(n)}}),
    ("cloudevents_binary", "headers"): lambda n: b"ce-x:1\n" * n + b"\n{}",
    ("promql", "series"): lambda n: _js({"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"__name__": "node_load1", "instance": "gpu0001", "x": str(number)}, "value": [1795143600, "1"]} for number in range(n)]}}),
    ("promql", "samples"): lambda n: _js({"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {"__name__": "node_load1", "instance": "gpu0001"}, "values": [[1795143600 + number, "1"] for number in range(n)]}]}}),
    ("promql_partial", "warnings"): lambda n: _js({"status": "success", "warnings": ["x"] * n}),
    ("promql_partial", "levels"): lambda n: b'{"x":' + b"[" * n,
    ("promql_names", "names"): lambda n: _js({"status": "success", "data": ["x"] * n}),
    ("promql_names", "levels"): lambda n: b'{"x":' + b"[" * n,
    ("step_logs", "lines"): _lines(b" iteration 2/ 5000 | elapsed time per iteration (ms): 12936.1 | lm loss: 1.0 |"),
    ("step_logs", "rows"): lambda n: b"epoch,step,train_loss\n" + b"0,49,2.5\n" * n,
    ("ibnetdiscover", "ports"): _ib,
    ("ibnetdiscover", "switches_of_one_name"): _switches,
    ("lldp", "interfaces"): _lldp,
    ("scrape_yaml", "targets"): lambda n: b"jobs:\n- name: a\n  targets:\n" + b"".join(b"  - a%d:1\n" % number for number in range(n)),
    ("scrape_yaml", "groups"): lambda n: b"jobs:\n- name: a\n  groups:\n" + b"  - targets: [a:1]\n" * n,
    ("gzip", "members"): lambda n: gzip.compress(b"x", mtime=0) * n,
    ("gzip", "bytes"): lambda n: gzip.compress(b"x" * 100 * n, mtime=0),
    ("munge", "lines"): lambda n: b"A: 1\n" * n,
}  # fmt: skip


#: Words at which a careless pattern goes back and forth; lines that hold nothing else, as long as a line may be.
#: The text before the repeated part decides which pattern is tried.
HARD = (
    "a", " ", "1", "0x0 ", "a ", " a", "[", "]", "[1]", "(", ")", "\\", '\\"', "_", ":", ".", "-", ",", "=", "|", "/", "%|",
    "kernel: ", "Link 1 ", "on link 1 (", "on link 1(0", "RST: Yes, D-RST: No ", "(GPC 1, TPC 1", "name=a, ", "MF0;a:",
    "caused by previous Xid 1", "to (", "changed from (a) to (", "step=1,", "iteration 1/1 ", "steps: 1 loss: 1 ",
    "Epoch 1: 1%|", "Epoch 1/1 a", "global_step=1", "fallen off the bus ", 'l="v",', 'l="', "<", "#", '# "', "1.",
)  # fmt: skip
HEADS = (
    "", "NVRM: Xid (PCI:0000:9b:00): 79, ", "NVRM: Xid (PCI:0000:9b:00): 13, ", "NVRM: Xid (PCI:0000:9b:00): 45, ",
    "NVRM: Xid (PCI:0000:9b:00): 74, ", "NVRM: Xid (PCI:0000:9b:00): 94, ", "NVRM: Xid (PCI:0000:9b:00): 149, a",
    "NVRM: Xid (PCI:0000:9b:00): 149, a Fatal XC1 i0 Link 1 (", "NVRM: Xid (PCI:0000:9b:00): 154, recovery action ",
    "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=", "nvidia-nvswitch1: SXid (PCI:0000:9b:00): 20009, ",
    "NVRM: The NVIDIA GPU 0000:9b:00", "NVRM: GPU 0000:9b:00: ", "node_load1{", 'node_load1{a="', "node_load1 ",
    "node_load1 1 ", " iteration 1/1 | ", "steps: 1 loss: 1 ", "Epoch 1: 1%|", "Epoch 1/1 ", "[2025-08-01 07:19:50] ",
    '[1] "S-0"[1]', 'Switch 41 "S-0"', "<3>1 2026-11-20T03:00:00Z gpu0001 kernel - - [",
)  # fmt: skip
#: And what makes the pattern that matched so far fail at the end, or a driver's line behind a hard prefix.
TAILS = ("", "\x01x", " NVRM: Xid (PCI:0000:9b:00): 79")
