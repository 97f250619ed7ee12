# ruff: noqa: E501 - lines of exporters are long
"""Text of exporters: both generations of dcgm-exporter, node_exporter, and whatever else a line may be."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from healer.model import ObservationKind, Part
from healer.signals.series import Measured
from healer.signals.wire import BadBody
from tests.support.measuring import NOW, Bench, gpu, known

OLD = """\
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-aa",device="nvidia0",modelName="NVIDIA A100-SXM4-80GB",Hostname="gpu0001",DCGM_FI_DRIVER_VERSION="550.127.08"} 61
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-bb",device="nvidia1",modelName="NVIDIA A100-SXM4-80GB",Hostname="gpu0001",DCGM_FI_DRIVER_VERSION="550.127.08"} 2147483632
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-aa",device="nvidia0",modelName="NVIDIA A100-SXM4-80GB",Hostname="gpu0001",err_code="79",err_msg="GPU has fallen off the bus"} 79
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-aa",device="nvidia0",modelName="NVIDIA A100-SXM4-80GB",Hostname="gpu0001",GPU_I_PROFILE="1g.6gb",GPU_I_ID="3"} 100
"""
NEW = """\
DCGM_FI_DEV_GPU_TEMP_CELSIUS{gpu="3",UUID="GPU-cc",pci_bus_id="00000000:9B:00.0",device="nvidia3",modelName="NVIDIA H100 80GB HBM3",hostname="gpu0002.cluster.local",hpc_job="1234"} 58
DCGM_FI_DEV_NVLINK_RX_ERROR_TOTAL{nvlink="14",nvswitch="",gpu="3",gpu_uuid="GPU-cc",pci_bus_id="00000000:9B:00.0",device="nvidia3",model_name="NVIDIA H100 80GB HBM3",hostname="gpu0002"} 5
DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL{gpu_uuid="GPU-cc",hostname="gpu0002"} 9
DCGM_EXP_XID_ERRORS_COUNT{gpu="3",UUID="GPU-cc",hostname="gpu0002",window_size_in_ms="300000",xid="79"} 1
DCGM_EXP_XID_ERRORS_COUNT{gpu="3",UUID="GPU-cc",hostname="gpu0002",window_size_in_ms="300000",xid="45"} 4
# EOF
"""
NODE = """\
node_load1 3.5
node_infiniband_link_downed_total{device="mlx5_0",port="1"} 2
node_infiniband_state_id{device="mlx5_0",port="1"} 4
node_network_receive_errs_total{device="eth0"} 7
node_network_receive_errs_total{device="veth12ab"} 8
node_edac_uncorrectable_errors_total{controller="0"} 1
node_edac_uncorrectable_errors_total{controller="1"} 2
node_hwmon_temp_celsius{chip="a",sensor="temp1"} 41
node_hwmon_temp_celsius{chip="a",sensor="temp2"} 55.5
node_hwmon_fan_rpm{chip="a",sensor="fan1"} 9000
node_hwmon_fan_rpm{chip="a",sensor="fan2"} 300
node_filesystem_avail_bytes{device="/dev/sda1",fstype="ext4",mountpoint="/"} 1.5e+09
node_filesystem_avail_bytes{device="/dev/sda2",fstype="ext4",mountpoint="/boot"} 7
node_systemd_unit_state{name="nvidia-fabricmanager.service",state="active",type="simple"} 1
node_systemd_unit_state{name="nvidia-fabricmanager.service",state="failed",type="simple"} 0
node_systemd_unit_state{name="cron.service",state="active",type="simple"} 1
go_goroutines 12
http_request_duration_seconds_bucket{le="+Inf"} 5 # {trace_id="x} y"} 0.5
"""


@pytest.fixture
def bench() -> Bench:
    return Bench()


def take(bench: Bench, text: str, node: str | None = None) -> Measured:
    return bench.translator.exposition(text.encode(), known, NOW, node=node)


def test_dcgm_exporter_before_4(bench: Bench) -> None:
    taken = take(bench, OLD)
    (report,) = taken.reports
    assert (report.node, report.at) == ("gpu0001", NOW)
    assert bench.values(report) == {("gpu_temp_c", gpu(0)): 61, ("xid_last", gpu(0)): 79}
    assert taken.unknown["DCGM_FI_DEV_FB_USED"].why == "MIG instance"
    assert (taken.samples, taken.unrecognised) == (2, 1)


def test_dcgm_exporter_since_4_6(bench: Bench) -> None:
    taken = take(bench, NEW)
    assert {one.node for one in taken.reports} == {"gpu0002"}
    assert bench.values(taken.reports[0]) == {
        ("gpu_temp_c", gpu(3)): 58,
        ("nvlink_link_rx_error_total", gpu(3, 14)): 5,
        ("nvlink_crc_flit_total", gpu(3)): 9,  # its UUID was sent with an index before
        ("xid_window_count", gpu(3)): 5,
    }


def test_the_second_time_gives_the_same(bench: Bench) -> None:
    for text in (OLD, NEW, NODE):
        node = "gpu0001" if text is NODE else None
        first, second = take(bench, text, node), take(bench, text, node)
        assert bench.values(first.reports[0]) == bench.values(second.reports[0])
        assert (first.samples, first.unrecognised) == (second.samples, second.unrecognised)
        assert {name: one.count for name, one in first.unknown.items()} == {
            name: one.count for name, one in second.unknown.items()
        }


def test_node_exporter(bench: Bench) -> None:
    taken = take(bench, NODE, "gpu0001")
    port, eth = Part(port="mlx5_0/1"), Part(port="eth0")
    assert bench.values(taken.reports[0]) == {
        ("load1", Part()): 3.5,
        ("ib_link_downed_total", port): 2,
        ("ib_state", port): 4,
        ("net_rx_error_total", eth): 7,
        ("edac_uncorrectable_total", Part()): 3,
        ("host_temp_c", Part()): 55.5,
        ("fan_rpm", Part()): 300,
        ("root_available_bytes", Part()): 1.5e9,
        ("fabric_manager_active", Part()): 1,
    }
    assert taken.unknown["node_network_receive_errs_total"].why == "virtual interface"
    assert taken.unknown["node_systemd_unit_state"].count == 2
    assert taken.unknown["node_systemd_unit_state"].example["type"] == "simple"
    assert taken.unknown["go_goroutines"].count == 1
    assert taken.unknown["http_request_duration_seconds_bucket"].example == {"le": "+Inf"}
    assert taken.unknown["http_request_duration_seconds_bucket"].count == 1
    assert taken.rejected == ()


def test_node_in_the_url_overrides_labels(bench: Bench) -> None:
    taken = take(bench, OLD, "gpu0009")
    assert [one.node for one in taken.reports] == ["gpu0009"]


def test_gpus_with_only_an_address_are_separated_by_node(bench: Bench) -> None:
    def learn(node: str, index: int) -> str:
        return f'DCGM_FI_DEV_SM_CLOCK{{gpu="{index}",UUID="GPU-{node}",pci_bus_id="00000000:18:00.0",hostname="{node}"}} 1\n'

    by_address = 'DCGM_FI_DEV_GPU_TEMP{pci_bus_id="00000000:18:00.0"} 61\n'
    take(bench, learn("gpu0001", 0) + learn("gpu0002", 5))
    for _ in range(2):
        assert bench.values(take(bench, by_address, "gpu0001").reports[0]) == {("gpu_temp_c", gpu(0)): 61}
        assert bench.values(take(bench, by_address, "gpu0002").reports[0]) == {("gpu_temp_c", gpu(5)): 61}
    unknown = take(bench, by_address, "gpu0003")
    assert unknown.reports == []
    assert unknown.unknown["DCGM_FI_DEV_GPU_TEMP"].why == "its labels match no known GPU"


def test_a_gpu_that_changed_its_index_is_followed(bench: Bench) -> None:
    by_uuid = 'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-aa",hostname="gpu0001"} 61\n'

    def learn(index: int) -> None:
        take(bench, f'DCGM_FI_DEV_SM_CLOCK{{gpu="{index}",UUID="GPU-aa",hostname="gpu0001"}} 1\n')

    for index in (2, 1):  # GPU 0 was lost, indices start from 0
        learn(index)
        assert bench.values(take(bench, by_uuid).reports[0]) == {("gpu_temp_c", gpu(index)): 61}


def test_conflicting_gpu_mapping_of_another_node_has_no_effect(bench: Bench) -> None:
    def learn(node: str, index: int) -> str:
        return f'DCGM_FI_DEV_SM_CLOCK{{gpu="{index}",UUID="GPU-{node}",hostname="{node}"}} 1\n'

    for node in ("gpu0001", "gpu0002"):
        take(bench, learn(node, 0) + f'DCGM_FI_DEV_GPU_TEMP{{UUID="GPU-{node}",hostname="{node}"}} 1\n')
    slots = bench.translator._exposition._of_labels.slots
    before = dict(slots.by_key)
    take(bench, learn("gpu0002", 5))
    slots.forget(NOW)
    gone = before.keys() - slots.by_key.keys()
    assert {"gpu0002" in key and "GPU_TEMP" in key for key in gone} == {True}
    assert all(slots.by_key[key] == slot for key, slot in before.items() if key not in gone)


def test_gpu_reported_later_is_found_at_once(bench: Bench) -> None:
    line = 'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-aa",hostname="gpu0001"} 61\n'
    assert take(bench, line).samples == 0
    learn = 'DCGM_FI_DEV_SM_CLOCK{gpu="2",UUID="GPU-aa",hostname="gpu0001"} 1\n'
    assert take(bench, learn + line).samples == 2


def test_a_label_of_another_cluster_is_believed(bench: Bench) -> None:
    text = "".join(
        f'node_load1{{{label}="{cluster}",node="gpu000{place}"}} 1\n'
        for place, (label, cluster) in enumerate(
            (("cluster", "pod2"), ("slurm_cluster", "pod2"), ("cluster_name", "x"), ("cluster", "pod1")), 1
        )
    )
    for _ in range(2):
        taken = take(bench, text)
        assert [one.node for one in taken.reports] == ["gpu0004"]
        assert (taken.unknown["node_load1"].why, taken.unknown["node_load1"].count) == (
            "belongs to another cluster",
            3,
        )


def test_a_domain_that_names_another_cluster_is_believed(bench: Bench) -> None:
    def two(cluster: str, node: str) -> bool:
        return known("pod1" if cluster == "pod2" else cluster, node)

    text = b'node_load1{node="gpu0001.pod2.example"} 1\nnode_load1{node="gpu0002.pod1.example"} 1\n'
    taken = bench.translator.exposition(text, two, NOW, node=None)
    assert [one.node for one in taken.reports] == ["gpu0002"]
    assert taken.unknown["node_load1"].why == "belongs to another cluster"


def test_of_a_node_the_newest_64_moments_are_taken(bench: Bench) -> None:
    ms = int(NOW.timestamp() * 1000)
    text = "".join(f'node_load1{{node="gpu0001"}} 1 {ms - 1000 * age}\n' for age in range(70))
    taken = take(bench, text + f'node_load1{{node="gpu0002"}} 1 {ms}\n')
    assert [one.node for one in taken.reports].count("gpu0001") == 64
    assert min(one.at for one in taken.reports) == NOW - timedelta(seconds=63)
    assert [one.index for one in taken.rejected] == list(range(64, 70))
    assert taken.rejected[0].reason.startswith("too many timesta")
    assert taken.samples == 65


def test_bad_lines_are_counted_and_a_few_listed(bench: Bench) -> None:
    taken = take(bench, "<html>\n" * 1500)
    assert (len(taken.rejected), taken.rejected_more) == (1000, 500)


def test_series_that_name_no_known_node_are_not_kept(bench: Bench) -> None:
    taken = take(bench, 'node_load1{instance="cpu7:9100"} 3\nnode_load1 4\n')
    assert taken.reports == []
    assert (taken.unknown["node_load1"].why, taken.unknown["node_load1"].count) == (
        "names no node of this cluster",
        2,
    )
    wrong = take(bench, "node_load1 3\n", "cpu7")
    assert wrong.rejected[0].reason == "node: cpu7 is not a node of cluster pod1"


def test_a_new_node_is_heard_within_a_minute(bench: Bench) -> None:
    text = b'node_load1{node="gpu0001"} 3\n'

    def heard(after_s: float, there: bool) -> int:
        now = NOW + timedelta(seconds=after_s)
        return bench.translator.exposition(text, lambda *_: there, now, node=None).samples

    assert [heard(0, False), heard(61, True), heard(62, False)] == [0, 1, 0]


@pytest.mark.parametrize(
    ("stamp", "at"),
    [
        ("1795143590000", NOW - timedelta(seconds=10)),  # Prometheus' own: ms
        ("1795143590.5", NOW - timedelta(seconds=9.5)),  # OpenMetrics: s
        ("1795143700000", NOW),  # ahead
    ],
)
def test_time_stamps(bench: Bench, stamp: str, at: object) -> None:
    for _ in range(2):
        (report,) = take(bench, f'node_load1{{node="gpu0001"}} 3 {stamp}\n').reports
        assert report.at == at


def test_old_samples_are_named_by_their_line(bench: Bench) -> None:
    taken = take(bench, 'node_load1{node="gpu0001"} 3\n\nnode_load5{node="gpu0001"} 3 1795140000000\n')
    assert [(one.index, one.reason) for one in taken.rejected] == [
        (2, "time: older than 15 min (node gpu0001)")
    ]
    assert taken.samples == 1


def test_escapes_in_labels(bench: Bench) -> None:
    line = r'node_filesystem_avail_bytes{device="a\"b\\",note="x} 1\n",mountpoint="/"} 12' + "\n"
    for _ in range(2):
        assert bench.values(take(bench, line, "gpu0001").reports[0]) == {("root_available_bytes", Part()): 12}


@pytest.mark.parametrize(
    "line",
    [
        "  node_load1 3",
        "\t node_load1\t3",
        '{"node_load1"} 3',
        ' { "node_load1" , } 3',
        '{note="a","node_load1","k8s.pod"="b"} 3',
        r'{"node_load1",note="a\"b}\\"} 3',
    ],
)
def test_name_may_be_quoted_with_leading_blanks(bench: Bench, line: str) -> None:
    body = f'# TYPE "node_load1" gauge\n  # a note\n \n{line}\n'
    for _ in range(3):  # the third time as a whole
        taken = take(bench, body, "gpu0001")
        assert bench.values(taken.reports[0]) == {("load1", Part()): 3}
        assert taken.rejected == ()


def test_unknown_quoted_name_is_reported_like_any_other(bench: Bench) -> None:
    for _ in range(2):
        taken = take(bench, '{"http.server.\\"active\\"",node="gpu0001"} 3\n')
        assert (list(taken.unknown), taken.unrecognised) == (['http.server."active"'], 1)


def test_an_index_that_is_written_otherwise_names_no_gpu(bench: Bench) -> None:
    body = "".join(
        f'DCGM_FI_DEV_GPU_TEMP{{gpu="{index}"}} {value}\n' for index, value in (("0", 61), ("00", 62))
    )
    taken = take(bench, body, "gpu0001")
    assert bench.values(taken.reports[0]) == {("gpu_temp_c", gpu(0)): 61}
    assert taken.unrecognised == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("<html>", "not a sample"),
        ('{a="b"} 3', "not a sample"),
        ('{"node_load1","node_load5"} 3', "the labels of node_load1 cannot be parsed"),
        ('node_load1{"node_load5"} 3', "the labels of node_load1 cannot be parsed"),
        ('{"",node="gpu0001"} 3', "not a sample"),
        ('node_load1{node="gpu0001"} 1_000', "'1_000' is not a number"),
        ('node_load1{node="gpu0001"} \uff13', "is not a number"),
        ("node_load1", "not a sample"),
        ('node_load1{node="gpu0001} 3', "the labels of node_load1 cannot be parsed"),
        ('node_load1{node="gpu0001"} three', "'three' is not a number"),
        ('node_load1{node="gpu0001"} 3 4e99', "the timestamp is not a time"),
        ('node_load1{node="gpu0001"}', "no value"),
        ("node_load1{" + "a" * 20_000, "a line of more than"),
    ],
)
def test_a_bad_line_is_named_and_loses_no_other(bench: Bench, line: str, reason: str) -> None:
    good = 'node_load1{node="gpu0001"} 3\n'
    for _ in range(2):  # the second time the series are known
        taken = take(bench, good + line + "\n" + good)
        ((index, why),) = [(one.index, one.reason) for one in taken.rejected]
        assert index == 1
        assert reason in why
        assert taken.samples == 1


def test_no_number_is_no_sample(bench: Bench) -> None:
    for word in ("NaN", "+Inf", "-Inf", "nan"):
        assert take(bench, f'node_load1{{node="gpu0001"}} {word}\n').samples == 0
    assert take(bench, 'node_load1{node="gpu0001"} 0x1p-2\n').rejected[0].index == 0


def test_inventory_is_sent_when_new_and_every_ten_minutes(bench: Bench) -> None:
    def inventory_after(after_s: float) -> list[object]:
        now = NOW + timedelta(seconds=after_s)
        heard = bench.translator.exposition(NEW.encode(), known, now, node=None).inventory
        return [one.data for one in heard if one.kind is ObservationKind.gpu_inventory]

    first, made_of = bench.translator.exposition(NEW.encode(), known, NOW, node=None).inventory
    assert made_of.data == {"facts": {"gpu": "NVIDIA H100 80GB HBM3"}}
    assert (first.kind, first.component.node) == (ObservationKind.gpu_inventory, "gpu0002")
    assert first.data == {"gpus": [{"index": 3, "pci": "0000:9b:00", "uuid": "GPU-cc"}]}
    assert (inventory_after(5), inventory_after(610)) == ([], [first.data])


def test_without_addresses_there_is_no_inventory_of_gpus(bench: Bench) -> None:
    inventories = take(bench, OLD).inventory
    assert [one.data for one in inventories] == [
        {"facts": {"driver": "550.127.08", "gpu": "NVIDIA A100-SXM4-80GB"}}
    ]


def test_a_label_that_is_not_utf_8_loses_its_own_line_alone(bench: Bench) -> None:
    good = OLD.splitlines()[2].encode()
    bad = good.replace(b'gpu="0"', b'gpu="1"').replace(b"NVIDIA A100-SXM4-80GB", b"NVIDIA \xffA100")
    comment = b"# HELP node_load1 \xe9"
    for _ in range(3):  # first seen, then known, then as a template
        taken = bench.translator.exposition(b"\n".join([bad, good, comment, b""]), known, NOW, node="gpu0001")
        assert [(one.index, one.reason) for one in taken.rejected] == [
            (0, f"not UTF-8: byte {bad.index(0xFF)} of the line")
        ]
        assert taken.samples == 1
        ((reported,),) = [bench.values(one).values() for one in taken.reports]
        assert reported == 61


@pytest.mark.parametrize("node", [None, "gpu0001", "nobody"])
def test_a_body_that_is_no_text(bench: Bench, node: str | None) -> None:
    with pytest.raises(BadBody, match="the body is not UTF-8: byte 11"):
        bench.translator.exposition(b"node_load1 \xff\n", known, NOW, node=node)


_PIECES = 'node_load1|DCGM_FI_DEV_GPU_TEMP|{|}|"|\\|,|=| |\n|#|gpu|gpu="1"|node="gpu0001"|3|1e3|NaN|1795143590000|_|é|\t|\r'
_pieces = st.sampled_from(_PIECES.split("|"))


@settings(deadline=None)
@given(st.lists(_pieces, max_size=40).map("".join))
def test_any_text_gets_an_answer_and_the_same_one_twice(text: str) -> None:
    bench = Bench()
    for node in (None, "gpu0001"):
        first, second = take(bench, text, node), take(bench, text, node)
        assert [bench.values(one) for one in first.reports] == [bench.values(one) for one in second.reports]
        assert [one.index for one in first.rejected] == [one.index for one in second.rejected]
        assert first.unrecognised == second.unrecognised
