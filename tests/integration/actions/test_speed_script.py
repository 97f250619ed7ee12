"""How fast nodes are: the slowest GPU of the slowest node is reported, and it is never a failure."""

from pathlib import Path

import pytest

from tests.integration.actions.test_pair_scripts import PAIR, SRUN
from tests.support.node_tests import Bench

pytestmark = pytest.mark.heavy

#: As much of PyTorch as the script asks for; nothing is computed.
TORCH = """\
import os
bfloat16 = uint8 = None
class Tensor:
    def to(self, _): return self
    def copy_(self, _): return self
def rand(*_, **__): return Tensor()
ones = rand
def empty_like(_): return Tensor()
def matmul(a, b, out): return out
class cuda:
    def is_available(): return True
    def device_count(): return int(os.environ.get("TORCH_GPUS", "2"))
    def synchronize(_): pass
    class device:
        def __init__(self, _): pass
        def __enter__(self): pass
        def __exit__(self, *_): pass
"""
#: Replaces the measurement itself where several nodes report.
TELLS = """\
case $SLURMD_NODENAME in
gpu0001) echo "healer-speed 698.20 4012.5 gpu0001" ;;
*) {other} ;;
esac
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    found = Bench(tmp_path)
    (tmp_path / "torch.py").write_text(TORCH)
    found.env["PYTHONPATH"] = str(tmp_path)
    return found


def test_single_node_reports_two_rates(bench: Bench) -> None:
    said = bench.run("speed", SLURMD_NODENAME="gpu0007")
    assert said.code == 0 and set(said.results) == {"gemm_tflop_per_s", "memory_gb_per_s"}
    assert all(float(value) > 0 for value in said.results.values()) and "gpu0007" in said.says


def test_without_a_gpu_or_pytorch_it_could_not_be_made(bench: Bench) -> None:
    said = bench.run("speed", TORCH_GPUS="0")
    assert said.code == 77 and "no GPU for PyTorch" in said.says and said.results == {}
    (bench.folder / "torch.py").write_text("raise ImportError('no torch here')\n")
    assert bench.run("speed").code == 77


def test_each_figure_is_the_slowest_of_several_nodes(bench: Bench) -> None:
    bench.env |= PAIR
    bench.put("srun", SRUN)
    bench.put("python3", TELLS.format(other='echo "healer-speed 560.00 4100.0 gpu0002"'))
    said = bench.run("speed")
    assert said.results == {"gemm_tflop_per_s": "560.00", "memory_gb_per_s": "4012.5"}
    assert said.says == "560.00 TFLOP/s (gpu0002), 4012.5 GB/s of memory (gpu0001)"


def test_node_without_output_leaves_the_group_untested(bench: Bench) -> None:
    bench.env |= PAIR
    bench.put("srun", SRUN)
    bench.put("python3", TELLS.format(other='echo "healer-none no GPU for PyTorch on gpu0002"'))
    said = bench.run("speed")
    assert (said.code, said.results) == (77, {})
    assert said.says.startswith("1 of 2 nodes were measured: healer-none no GPU")


@pytest.mark.parametrize(("depth", "name"), [("full", "pair"), ("together", "group")])
def test_a_groups_bandwidth_has_a_name_of_its_own(bench: Bench, depth: str, name: str) -> None:
    rows = "2147483648 536870912 float sum -1 8001.0 268.40 46.75 0 8010.0 268.10 46.10 0"
    bench.env |= PAIR
    bench.put("srun", f"echo '#  Rank  3 Group  0'; echo '{rows}'")
    bench.put("all_reduce_perf", "exit 0")
    said = bench.run("nccl_pair", HEALER_TEST_DEPTH=depth)
    assert said.results == {f"nccl_{name}_busbw_gb_per_s": "46.75"}
