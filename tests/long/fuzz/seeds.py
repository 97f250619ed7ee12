# ruff: noqa: E501 - lines as they are printed
"""Valid inputs of every decoder, small: what mutations begin with."""

import gzip
import json
from typing import Any

import cramjam

from tests.support import collected, pushing, shipped
from tests.support import topology_samples as samples

AT = "2026-11-20T03:00:00Z"
AT_MS, AT_NS = 1_795_143_600_000, 1_795_143_600_000_000_000
NODE = "gpu0001"

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=4711, name=python, GPU has fallen off the bus."
#: One line of each kind that `healer.signals.kernel_log` reads, and of each form of prefix.
LINES = (
    f"[6781753.400584] {XID}",
    "<4>[ 1.5][ T12] NVRM: Xid (PCI:0000:9b:00.0 GPU-I:01 GPU-CI:02): 94, pid='<unknown>', name=<unknown>, "
    "Contained: SM (0x1). RST: No, D-RST: Yes",
    "Nov 20 03:00:00 gpu0001 kernel: NVRM: Xid (PCI:0000:9b:00): 74, NVLink: fatal error detected on link "
    "3 (0x0, 0x10000, 0x0)",
    "2026-11-20T03:00:00.5+01:00 gpu0001 kernel: [1.5] NVRM: Xid (PCI:0000:9b:00): 149, NETIR_LINK_EVT Fatal "
    "XC1 i0 Link 12 (0x1 0x2)",
    "[Fri Nov 20 03:00:00 2026] NVRM: Xid (PCI:0000:9b:00): 13, pid=1, Graphics SM Warp Exception on "
    "(GPC 1, TPC 2, SM 3): Illegal Address",
    "3,499,6781753400584,-,caller=T1;NVRM: Xid (PCI:0000:9b:00): 45, pid=1, name=a, caused by previous Xid 94.",
    "<3>1 2026-11-20T03:00:00Z gpu0001 kernel - - - NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action "
    "changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    "1795143600.25 gpu0001 kernel: nvidia-nvswitch3: SXid (PCI:0000:0a:00.0): 20009, Non-fatal, Link 28 RX "
    "Short Error Rate",
    "nvidia-nvswitch3: SXid (PCI:0000:0a:00.0): 20009, Severity 0 Engine instance 28 Sub-engine instance 00",
    "kernel: NVRM: GPU at PCI:0000:9b:00: GPU-0b11d014-1685-04bd-26ed-5fc0bc1c44ae",
    "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.",
    "NVRM: The NVIDIA GPU 0000:9b:00.0 (PCI ID: 10de:2330)",
    "      NVRM: installed in this system has",
    "      NVRM: fallen off the bus and is not responding to commands.",
    "[ 5.1] gpu0001 kernel: NVRM: Xid (PCI:0000:9b:00): 63, Row Remapper: New row marked for remapping",
    "[ 9.5] EXT4-fs (sda1): Remounting filesystem read-only",
    "usb 1-1: new high-speed USB device",
)


def js(value: Any) -> bytes:
    return json.dumps(value).encode()


ENTRIES = [{"time": AT, "seq": number, "line": line} for number, line in enumerate(LINES)]
KERNEL_LOG = (
    js({"cluster": "pod1", "node": NODE, "boot_id": shipped.BOOT, "entries": ENTRIES}),
    js([{"node": NODE, "entries": [{"line": XID, "job": 7, "node": "gpu0002", "cluster": "pod1"}]}]),
)
KERNEL_TEXT = ("\n".join(LINES).encode(),)
HEARTBEAT = (
    js({"node": NODE, "boot_id": shipped.BOOT, "time": AT, "lost": 3,
        "gpus": [{"index": 0, "pci": "00000000:9B:00.0", "uuid": "GPU-1"}]}),
    js([{"node": NODE}, {"node": "gpu0002", "cluster": "pod1"}]),
)  # fmt: skip
CHECKPOINTS = (
    js(
        {
            "job": "7",
            "step": 100,
            "path": "/scratch/ckpt-100",
            "durable": True,
            "sha256": "a" * 64,
            "time": AT,
        }
    ),
    js([{"job": 7, "step": 1, "path": "/x", "durable": False, "restart": 2, "cluster": "pod1"}]),
)
_STEP = {"step_s": 1.5, "compute_s": 1.0, "comm_s": 0.3, "data_s": 0.1, "work": 4096, "loss": 2.1, "step": 10,
         "grad_norm": 0.5, "rank": 3, "node": NODE, "gpu": 3, "stage": 0, "time": AT}  # fmt: skip
STEP_TIMES = (
    js({"job": "7", "samples": [_STEP, {"step_s": 2}], "restart": 1}),
    js([{"job": 7, "samples": [{"step_s": 0}, _STEP]}, {"job": "8_1", "samples": []}]),
    b'{"job": "7", "samples": [{"node": "gpu0001", "step": 2, "rank": 0, "step_s": 1, "loss": NaN}]}',
)
COLUMNAR = (
    js({"cluster": "pod1", "node": NODE, "time": AT,
        "gpu": {"gpu_temp_c": [61, 60, None, 62], "fabric_state": ["Completed", None, "In Progress"]},
        "host": {"load1": 3.1}, "links": {"nvlink_link_replay_total": [[0, 0, 5], [0, 1, 0]]},
        "ports": {"mlx5_0/1": {"ib_symbol_error_total": 7}, "eth0": {"net_carrier": 1}},
        "gpus": [{"index": 0, "pci": "0000:9b:00", "uuid": "GPU-1"}]}),
    js([{"node": NODE, "gpu": {"gpu_temp_c": [61]}}, {"node": "gpu0002", "host": {"load1": 1e9, "x": 1}}]),
    b'[{"node": "gpu0001", "gpu": {"gpu_temp_c": [61, NaN]}, "host": {"load1": -Infinity}}]',
)  # fmt: skip
EXPOSITION = (
    (
        b"# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
        b'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",pci_bus_id="00000000:9B:00.0",Hostname="gpu0001"} 61\n'
        b'DCGM_FI_DEV_GPU_TEMP{gpu="1",modelName="a \\"b\\" \\\\ \\n",Hostname="gpu0001"} 6.2e1 1795143600000\n'
        b'DCGM_FI_DEV_XID_ERRORS{gpu="1",Hostname="gpu0001.pod1.example"} NaN\n'
        b'node_load1 3.1\nnode_network_carrier{device="eth0"} 1 # {trace_id="x"} 1 1.5\n'
        b'node_hwmon_temp_celsius{chip="a",sensor="temp1",instance="gpu0001:9100"} 41\n# EOF\n'
    ),
    b'DCGM_FI_DEV_NVLINK_BANDWIDTH_L3{gpu="0",Hostname="gpu0001"} 1\nunknown_total{a="b",} +Inf 1795143600.5\n',
    b'# TYPE "node_load1" gauge\n {"node_load1","k8s.pod"="a",node="gpu0001"} 1\n{"a.\\"b"} 2\n  # c\n{a="b"} 3\n',
)
_SERIES = [
    ({"__name__": "DCGM_FI_DEV_GPU_TEMP", "gpu": "0", "Hostname": NODE, "UUID": "GPU-1"}, [(61.0, AT_MS)]),
    ({"__name__": "node_load1", "instance": "gpu0001:9100"}, [(0.0, AT_MS), (3.1, AT_MS + 15000)]),
    ({"__name__": "nobody_wants_this", "instance": "gpu0001:9100"}, [(1.0, AT_MS)]),
]
REMOTE_WRITE = (
    pushing.message(_SERIES),
    pushing.message(_SERIES[:1]) * 4,
    pushing.one(*_SERIES[0], rest=pushing.field(4, b"\x08\x01")) + pushing.field(3, b"\x08\x01"),
)
SNAPPY = tuple(pushing.snappy(one) for one in REMOTE_WRITE)
_POINTS = [
    collected.point(61.5, {"gpu": 0, "UUID": "GPU-1", "x": [1, {"a": b"b"}]}, AT_NS),
    collected.point(62, {"gpu": "1", "on": True}, AT_NS, flags=1),
]
_METRICS = collected.metrics(
    {"host.name": NODE, "service.instance.id": "gpu0001:9400"},
    collected.gauge("DCGM_FI_DEV_GPU_TEMP", *_POINTS, unit="Cel"),
    collected.total("node_network_receive", collected.point(5, {"device": "eth0"}, AT_NS), unit="By"),
    collected.total("deltas", collected.point(5), temporality=collected.DELTA),
    collected.histogram("took", 2),
)
OTLP_METRICS = (_METRICS.SerializeToString(), collected.metrics({}).SerializeToString())
OTLP_METRICS_JSON = (collected.as_json(_METRICS),)
_LOGS = collected.logs(
    {"host.name": NODE, "k8s": {"a": [1, 2.5, None]}},
    [
        collected.record(XID, {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0"}, time_unix_nano=AT_NS),
        collected.record(shipped.journalctl(), observed_time_unix_nano=AT_NS),
        collected.record("no kernel line", {"log.file.name": "syslog"}),
    ],
)
OTLP_LOGS = (_LOGS.SerializeToString(),)
OTLP_LOGS_JSON = (collected.as_json(_LOGS),)
_RECORDS = (
    shipped.journalctl(),
    shipped.journalctl(list(XID.encode()), _HOSTNAME="gpu0001.pod1.example"),
    shipped.vector(),
    shipped.fluent_bit(lower=True),
    shipped.rsyslog(),
    shipped.by_logger(),
)
LOGS_JSON = (js(list(_RECORDS)), js(_RECORDS[0]), shipped.ndjson(*_RECORDS))
JOURNAL_EXPORT = (shipped.export(*_RECORDS[:2]),)
XML = (
    b'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
    b'<attached_gpus>2</attached_gpus><gpu id="00000000:9B:00.0"><uuid>GPU-1</uuid>'
    b"<minor_number>0</minor_number><pci><pci_bus_id>00000000:9B:00.0</pci_bus_id></pci>"
    b"<clocks_event_reasons><clocks_event_reason_hw_slowdown>Active</clocks_event_reason_hw_slowdown>"
    b"</clocks_event_reasons><temperature><gpu_temp>61 C</gpu_temp></temperature></gpu>"
    b'<gpu id="00000000:9C:00.0"><uuid>GPU is lost</uuid></gpu></nvidia_smi_log>\n'
)
NVIDIA_SMI = (XML,)
HOOKS = (
    js({"node": NODE, "id": "7-0", "time": AT, "job": 7, "restarts": 0, "boot_id": shipped.BOOT,
        "kernel": [{"line": XID, "time": AT, "seq": 4}], "host": {"load1": 3.5}, "refused": "disk",
        "ports": {"eth0": {"net_carrier": 1}}, "nvidia_smi": XML.decode(),
        "checks": [{"name": "disk", "text": "full"}, {"name": "mounts"}]}),
    js([{"node": NODE, "hook": "epilog"}, {"node": "nobody"}]),
)  # fmt: skip
ALERT = {
    "status": "firing", "labels": {"alertname": "GpuHot", "instance": "gpu0001:9100", "gpu": "3"},
    "annotations": {"summary": "hot"}, "startsAt": "2026-11-20T02:55:00.123456789Z",
    "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "http://prometheus.example/g", "fingerprint": "a" * 16,
}  # fmt: skip
_GROUP = {"version": "4", "receiver": "healer", "status": "firing", "externalURL": "http://am.example",
          "truncatedAlerts": 1, "alerts": [ALERT, ALERT | {"status": "resolved", "endsAt": AT}]}  # fmt: skip
ALERTMANAGER = (
    js(_GROUP),
    js(_GROUP | {"version": "1", "orgId": 1, "title": "x", "alerts": [ALERT | {"values": {"A": 1}}]}),
)
_EVENT = {
    "specversion": "1.0",
    "id": "1",
    "source": "/x",
    "type": "io.healer.alert.v1",
    "time": AT,
    "data": ALERT,
}
_HEALTH = {"checkName": "GpuXid", "nodeName": NODE, "isFatal": True, "isHealthy": False, "message": "m",
           "errorCode": ["79"], "entitiesImpacted": [{"entityType": "GPU", "entityValue": "3"}]}  # fmt: skip
CLOUDEVENTS = (
    js(_EVENT),
    js(_EVENT | {"type": "com.nvidia.nvsentinel.health.v1", "data": {"healthEvent": _HEALTH}}),
    js(_EVENT | {"type": "a.site.s.own", "subject": NODE, "data": {"status": "resolved", "gpu": 3, "x": 1.5}}),
    js({"specversion": "1.0", "id": "2", "source": "/x", "type": "io.healer.signal.kernel-log.v1",
        "data_base64": "eyJub2RlIjoiZ3B1MDAwMSIsImVudHJpZXMiOltdfQ=="}),
)  # fmt: skip
CLOUDEVENTS_BATCH = (b"[" + b",".join(CLOUDEVENTS) + b"]",)
#: `ce-…` headers, one on each line, an empty line, the data.
CLOUDEVENTS_BINARY = (
    b"ce-specversion:1.0\nce-id:1\nce-source:/x%20y\nce-type:io.healer.alert.v1\n"
    b"content-type:application/json\n\n" + js(ALERT),
)
PROMQL = (
    js({"status": "success", "data": {"resultType": "vector", "result": [
        {"metric": {"__name__": "node_load1", "instance": "gpu0001:9100"}, "value": [AT_MS / 1000, "3.1"]}]}}),
    js({"status": "success", "data": {"resultType": "matrix", "result": [
        {"metric": {"__name__": "DCGM_FI_DEV_GPU_TEMP", "gpu": "0", "Hostname": NODE},
         "values": [[AT_MS / 1000, "61"], [AT_MS / 1000 + 15, "NaN"]]}]}}),
    js({"status": "error", "errorType": "bad_data", "error": "parse error"}),
)  # fmt: skip
PROMQL_PARTIAL = (
    js({"status": "success", "isPartial": True, "data": {"resultType": "vector", "result": []}}),
    js(
        {"status": "success", "warnings": ["a store is away"], "data": {"resultType": "vector", "result": []}}
    ),
)
PROMQL_NAMES = (js({"status": "success", "data": ["node_load1", "up"]}),)
STEP_LOGS = (
    (
        " [2025-08-01 07:19:50] iteration        2/    5000 | consumed samples:          256 | elapsed time per "
        "iteration (ms): 12936.1 | lm loss: 1.044022E+01 | grad norm: 26.305 |\n"
        "steps: 200 loss: 5.5508 lm loss: 5.5103 iter time (s): 0.936 samples/sec: 136.706\n"
        "[2024-03-07 15:27:02,646] [INFO] [timer.py:260:stop] epoch=0/micro_step=199/global_step=4, "
        "RunningAvgSamplesPerSec=58.73\n[2024-03-07 15:27:07,646] [INFO] [Rank 0] step=5, skipped=0\n"
        "Epoch 3:  50%|████     | 50/100 [00:25<00:25,  2.00it/s, v_num=0]\n"
        "Epoch 1/9  ━━━━━━━ 10/40 0:00:05 • 0:00:15 18.18it/s v_num: 0.000\n"
        "epoch,step,train_loss\n0,49,2.5\n0,99,2.4\n"
    ).encode(),
)
IBNETDISCOVER = (samples.IB.encode(),)
LLDP = (samples.LLDP_ONE.encode(), samples.LLDP_MANY.encode(), samples.LLDP_LINES.encode())
SCRAPE_YAML = (
    b"jobs:\n  - name: dcgm\n    targets: ['gpu[0001-0004]:9400']\n    interval_s: 5\n    labels: {a: b}\n"
    b"  - name: switches\n    groups:\n    - targets: ['gpu[0001-0003]:9100', '[::1]:9100']\n"
    b"      labels: {rack: a1, __scheme__: https, __param_target: tor1}\n    node: host\n"
    b"queries:\n  - signal: host_temp_c\n    query: max by (instance) (x)\n    interval_s: 15\n",
)
_PLAIN = EXPOSITION[0]
GZIP = (gzip.compress(_PLAIN, mtime=0), gzip.compress(_PLAIN, mtime=0) * 3)
ZSTD = (bytes(cramjam.zstd.compress(_PLAIN)),)
MUNGE = (
    b"STATUS:          Success (0)\nENCODE_HOST:     gpu0001 (10.0.0.1)\nENCODE_TIME:     "
    b"1795143600\nDECODE_TIME:     1795143601\nUID:             0\nGID:             0\nLENGTH:          60\n\n"
    b'{"for":"healer enroll","node":"gpu0001","nonce":"' + b"a" * 32 + b'"}',
    b"ENCODE_HOST:     10.0.0.1\nENCODE_TIME:     1795143600\nDECODE_TIME:     1795143601\nUID:   0\n\n"
    b'{"for":"x","node":"gpu0001","nonce":"a"}',
)
