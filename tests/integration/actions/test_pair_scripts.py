"""The tests that take two nodes, beside a stand-in of srun that plays both."""

from pathlib import Path

import pytest

from tests.support.node_tests import Bench

pytestmark = pytest.mark.heavy

PAIR = {
    "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "gpu[0001-0002]", "SLURMD_NODENAME": "gpu0001",
}  # fmt: skip
#: Runs what it is given once for each task, as the node that the task is on.
SRUN = """\
each=1 nodes="gpu0001 gpu0002"
while :; do
    case $1 in
    --ntasks-per-node=*) each=${1#*=} ;;
    --nodelist=*) nodes=${1#*=} ;;
    --*) ;;
    *) break ;;
    esac
    shift
done
for SLURMD_NODENAME in $nodes; do
    export SLURMD_NODENAME
    for _ in $(seq "$each"); do "$@" || exit; done
done
"""
ALL_REDUCE = """\
[ "$SLURMD_NODENAME" = gpu0002 ] && [ ! -e {folder}/told ] || exit 0
touch {folder}/told
cat <<'END'
#  Rank  0 Group  0 Pid  1 on gpu0001 device  0 [0000:19:00] NVIDIA H100
#  Rank  {last} Group  0 Pid  4 on gpu0002 device  1 [0000:3b:00] NVIDIA H100
  536870912     134217728     float     sum      -1   2100.1  255.60  45.60      0   2101.3  255.50  45.50      0
 2147483648     536870912     float     sum      -1   8001.0  268.40  46.75      {wrong}   8010.0  268.10  46.10      0
END
"""  # noqa: E501
IB = (
    'case "$*" in *gpu0001) ;; *) exit 0 ;; esac\n[ "$SLURMD_NODENAME" = gpu0002 ] || exit 1\n'
    'case "$2" in mlx5_1) rate=391.20 ;; *) rate=310.00 ;; esac\n'
    'printf " #bytes #iterations BW peak BW average MsgRate\\n 65536 100 395.1 $rate 0.7\\n"'
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    found = Bench(tmp_path)
    found.env |= PAIR
    found.put("srun", SRUN)
    found.put("sleep", "exit 0")
    return found


def all_reduce(bench: Bench, last: int = 3, wrong: int = 0) -> None:
    bench.put("all_reduce_perf", ALL_REDUCE.format(folder=bench.folder, last=last, wrong=wrong))


def test_two_nodes_that_answer_are_a_pair(bench: Bench) -> None:
    assert bench.run("pair").code == 0


@pytest.mark.parametrize("srun", ["echo 'task launch failed' >&2; exit 1", "echo gpu0001"])
def test_nodes_that_do_not_both_answer_were_not_tested(bench: Bench, srun: str) -> None:
    bench.put("srun", srun)
    assert bench.run("pair").code == 77


def test_bandwidth_between_two_nodes_is_reported(bench: Bench) -> None:
    all_reduce(bench)
    said = bench.run("nccl_pair")
    assert (said.code, said.results) == (0, {"nccl_pair_busbw_gb_per_s": "46.75"})


def test_wrong_sums_between_two_nodes_fail(bench: Bench) -> None:
    all_reduce(bench, wrong=7)
    said = bench.run("nccl_pair")
    assert said.code == 1 and "gpu[0001-0002]" in said.says


def test_binary_without_mpi_reports_no_fabric_figures(bench: Bench) -> None:
    all_reduce(bench, last=0)
    said = bench.run("nccl_pair")
    assert (said.code, said.results, said.says) == (77, {}, "all_reduce_perf was built without MPI")


def test_slowest_port_between_two_nodes_is_reported(bench: Bench) -> None:
    bench.port("mlx5_0", "4: ACTIVE")
    bench.port("mlx5_1", "4: ACTIVE")
    bench.port("mlx5_2", "1: DOWN", "3: Disabled")
    bench.put("scontrol", "printf 'gpu0001\\ngpu0002\\n'")
    bench.put("ib_write_bw", IB)
    said = bench.run("ib_pair")
    assert (said.code, said.results) == (0, {"ib_pair_bw_gbit_per_s": "310.00"})


@pytest.mark.parametrize("test", ["pair", "nccl_pair", "ib_pair"])
def test_one_node_is_no_pair_and_no_failure(bench: Bench, test: str) -> None:
    said = bench.run(test, SLURM_JOB_NUM_NODES="1")
    assert (said.code, said.says) == (77, "needs two nodes")


@pytest.mark.parametrize("test", ["nccl_pair", "ib_pair"])
def test_a_missing_program_is_no_failure(bench: Bench, test: str) -> None:
    said = bench.run(test)
    assert said.code == 77 and said.says.startswith("no ")
