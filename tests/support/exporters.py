# ruff: noqa: E501 - lines as the exporters print them
"""What exporters print of one healthy node with one H100, in short: dcgm-exporter before and since 4.6,
node_exporter, and nvidia-smi."""

from tests.support.pushing import message, snappy

DCGM_OLD = """\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{{gpu="4",UUID="GPU-4a4a4a4a-0000-4000-8000-000000000004",pci_bus_id="00000000:9A:00.0",device="nvidia4",modelName="NVIDIA H100 80GB HBM3",Hostname="{node}",DCGM_FI_DRIVER_VERSION="550.127.08"}} 1755
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{{gpu="4",UUID="GPU-4a4a4a4a-0000-4000-8000-000000000004",pci_bus_id="00000000:9A:00.0",device="nvidia4",modelName="NVIDIA H100 80GB HBM3",Hostname="{node}",DCGM_FI_DRIVER_VERSION="550.127.08"}} 58
# HELP DCGM_FI_DEV_MEMORY_TEMP Memory temperature (in C).
# TYPE DCGM_FI_DEV_MEMORY_TEMP gauge
DCGM_FI_DEV_MEMORY_TEMP{{gpu="4",UUID="GPU-4a4a4a4a-0000-4000-8000-000000000004",pci_bus_id="00000000:9A:00.0",device="nvidia4",modelName="NVIDIA H100 80GB HBM3",Hostname="{node}",DCGM_FI_DRIVER_VERSION="550.127.08"}} 2147483632
# HELP DCGM_FI_DEV_FUTURE_FIGURE A field that no one knows yet.
# TYPE DCGM_FI_DEV_FUTURE_FIGURE gauge
DCGM_FI_DEV_FUTURE_FIGURE{{gpu="4",UUID="GPU-4a4a4a4a-0000-4000-8000-000000000004",pci_bus_id="00000000:9A:00.0",device="nvidia4",modelName="NVIDIA H100 80GB HBM3",Hostname="{node}",DCGM_FI_DRIVER_VERSION="550.127.08"}} 1
"""

NODE_EXPORTER = """\
# HELP node_load1 1m load average.
# TYPE node_load1 gauge
node_load1 3.07
# HELP node_memory_MemAvailable_bytes Memory information field MemAvailable_bytes.
# TYPE node_memory_MemAvailable_bytes gauge
node_memory_MemAvailable_bytes 1.904e+12
# HELP node_infiniband_symbol_error_total Number of minor link errors detected on one or more physical lanes.
# TYPE node_infiniband_symbol_error_total counter
node_infiniband_symbol_error_total{device="mlx5_0",port="1"} 7
# HELP node_textfile_scrape_error 1 if there was an error opening or reading a file, 0 otherwise
# TYPE node_textfile_scrape_error gauge
node_textfile_scrape_error 0
"""

NVIDIA_SMI = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <timestamp>Fri Nov 20 03:00:00 2026</timestamp>
  <driver_version>550.127.08</driver_version>
  <attached_gpus>8</attached_gpus>
{gpus}</nvidia_smi_log>
"""
_GPU = """\
  <gpu id="00000000:{bus}:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <uuid>GPU-{index}b{index}b{index}b{index}b-0000-4000-8000-000000000000</uuid>
    <pci><pci_bus_id>00000000:{bus}:00.0</pci_bus_id></pci>
    <remapped_rows>
      <remapped_row_unc>1</remapped_row_unc>
      <remapped_row_pending>No</remapped_row_pending><remapped_row_failure>No</remapped_row_failure>
    </remapped_rows>
    <temperature><gpu_temp>{temp_c} C</gpu_temp><memory_temp>N/A</memory_temp></temperature>
    <fabric><state>Completed</state><status>Success</status></fabric>
  </gpu>
"""
BUSES = ("18", "2A", "3A", "5D", "9A", "AB", "BA", "DB")


def nvidia_smi() -> bytes:
    """`nvidia-smi -q -x` of a node with 8 GPUs: GPU i has 30 + i °C."""
    gpus = (_GPU.format(bus=bus, index=index, temp_c=30 + index) for index, bus in enumerate(BUSES))
    return NVIDIA_SMI.format(gpus="".join(gpus)).encode()


def remote_write(node: str, at_ms: int) -> bytes:
    """One body of Prometheus: names since DCGM 4.6 on GPU 2, a port, and an unknown name."""
    gpu = {
        "UUID": "GPU-2b2b2b2b-0000-4000-8000-000000000000",
        "gpu": "2",
        "hostname": node,
        "instance": f"{node}.hall:9400",
        "job": "dcgm",
        "model_name": "NVIDIA H100 80GB HBM3",
        "pci_bus_id": "00000000:3A:00.0",
    }
    host = {"instance": f"{node}.hall:9100", "job": "node"}
    series = [
        ({"__name__": "DCGM_FI_DEV_GPU_TEMP_CELSIUS", **gpu}, [(44.0, at_ms)]),
        ({"__name__": "DCGM_FI_DEV_PCIE_REPLAY_TOTAL", **gpu}, [(3.0, at_ms)]),
        (
            {
                "__name__": "node_infiniband_port_errors_received_total",
                "device": "mlx5_1",
                "port": "1",
                **host,
            },
            [(2.0, at_ms)],
        ),
        ({"__name__": "prometheus_strange_thing", **host}, [(1.0, at_ms)]),
    ]
    return snappy(message(series))
