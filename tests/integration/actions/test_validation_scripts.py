"""Each test that ships: what passes, what fails, and what is neither because it could not be read."""

import re
import shutil
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from healer.rulebook.ruleset import load
from tests.support import torch_stand_in
from tests.support.node_tests import SMI, VALIDATION, Bench, Said

pytestmark = pytest.mark.heavy

TORCH = Path(torch_stand_in.__file__)
#: The node's python3 has to be one for which NumPy was built.
PYTHON = Path(sys.executable).parent


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    found = Bench(tmp_path)
    found.put("nvidia-smi", SMI)
    return found


def changed(bench: Bench, old: str, new: str) -> None:
    assert old in SMI
    bench.put("nvidia-smi", SMI.replace(old, new))


# --- gpus ---


def test_gpus_that_are_all_there_pass(bench: Bench) -> None:
    said = bench.run("gpus")
    assert (said.code, said.results["gpu_count"], said.results["ecc"]) == (0, "2", "Enabled")
    assert said.results["ecc_uncorrected_total"] == "2"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("1, 00000000:3B:00.0, Enabled, Enabled, [N/A], 2\n", "", "1 GPUs respond, Slurm expects 2"),
        ("Enabled, Enabled, [N/A], 2", "Enabled, Disabled, [N/A], 2", "GPU 1: ECC Enabled, Disabled"),
        ("Enabled, Enabled, [N/A], 2", "Disabled, Disabled, [N/A], 2", "GPU 1: ECC Disabled, others Enabled"),
        ("[N/A], 2", "Yes, 2", "GPU 1: a page retirement is pending"),
        ("3B:00.0, No, No", "3B:00.0, Yes, No", "a row remap is pending"),
        ("3B:00.0, No, No", "3B:00.0, 0, 1", "a row could not be remapped"),
    ],
)
def test_a_gpu_that_is_missing_or_worn_fails(bench: Bench, old: str, new: str, says: str) -> None:
    changed(bench, old, new)
    said = bench.run("gpus")
    assert said.code == 1 and says in said.says


@pytest.mark.parametrize(("status", "code"), [(9, 1), (15, 1), (2, 77), (255, 77)])
def test_exit_status_of_nvidia_smi_decides_the_result_of_the_gpu_check(
    bench: Bench, status: int, code: int
) -> None:
    bench.put("nvidia-smi", f"echo 'No devices'; exit {status}")
    assert bench.run("gpus").code == code


def test_unreadable_gpus_are_not_tested_and_zero_gpus_is_none(tmp_path: Path) -> None:
    bare = Bench(tmp_path)
    assert bare.run("gpus").code == 77
    assert bare.run("gpus", SLURM_GPUS_ON_NODE="0").code == 0


# --- versions ---


def test_versions_are_reported_as_config_drift_names_them(bench: Bench) -> None:
    bench.port("mlx5_0", "4: ACTIVE")
    said = bench.run("versions")
    assert said.code == 0
    assert said.results["driver"] == said.results["gsp_firmware"] == "580.65.06"
    assert (said.results["vbios"], said.results["nic_firmware"]) == ("96.00.CF.00.01", "28.41.1000")
    assert (said.results["cuda"], "fabric_manager" in said.results) == ("13.0", False)


@pytest.mark.parametrize(("version", "code"), [("580.65.06", 0), ("575.57.08", 1)])
def test_a_fabric_manager_has_the_drivers_version(bench: Bench, version: str, code: int) -> None:
    bench.put("nv-fabricmanager", f"echo 'Fabric Manager version is : {version}'")
    said = bench.run("versions")
    assert (said.code, said.results["fabric_manager"]) == (code, version)


def test_without_nvidia_smi_the_versions_are_not_tested(tmp_path: Path) -> None:
    assert Bench(tmp_path).run("versions").code == 77


# --- links ---


def test_links_that_are_up_are_counted(bench: Bench) -> None:
    bench.port("mlx5_0", "4: ACTIVE")
    bench.port("mlx5_1", "4: ACTIVE", rate="200 Gb/sec (4X HDR)")
    bench.port("mlx5_2", "1: DOWN", "3: Disabled")
    said = bench.run("links")
    assert (said.code, said.results) == (
        0,
        {"nvlink_count": "4", "ib_port_count": "2", "ib_rate_gbit_per_s": "200"},
    )


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("1, 16, 16", "1, 8, 16", "GPU 1: PCIe x8 instead of x16"),
        (
            "GPU-2)\\n\\t Link 0: 26.562 GB/s",
            "GPU-2)\\n\\t Link 0: <inactive>",
            "GPU 1: 1 NVLinks up, others 2",
        ),
    ],
)
def test_a_link_that_is_less_than_its_neighbours_fails(bench: Bench, old: str, new: str, says: str) -> None:
    changed(bench, old, new)
    said = bench.run("links")
    assert (said.code, said.says) == (1, says)


def test_a_port_that_is_plugged_in_and_not_active_fails(bench: Bench) -> None:
    bench.port("mlx5_0", "2: INIT")
    said = bench.run("links")
    assert said.code == 1 and "mlx5_0/ports/1" in said.says


def test_without_anything_to_look_at_links_are_not_tested(tmp_path: Path) -> None:
    assert Bench(tmp_path).run("links").code == 77


# --- dcgm ---

FOUR = (
    '{"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [{"name": "memory",'
    ' "results": [{"entity_group": "GPU", "entity_id": 3, "status": "%s"}],'
    ' "test_summary": {"status": "%s"}}]}]}}'
)
THREE = (
    '{"DCGM GPU Diagnostic": {"test_categories": [{"category": "Deployment", "tests": [{"name":'
    ' "NVML Library", "results": [{"gpu_id": "3", "status": "%s"}]}]}]}}'
)


@pytest.mark.parametrize(
    ("prints", "status", "code", "says"),
    [
        (FOUR % ("Pass", "Pass"), 0, 0, "level 1: 1 results passed"),
        (FOUR % ("Fail", "Fail"), 226, 1, "level 1: memory of GPU 3 failed"),
        (THREE % "Fail", 226, 1, "level 1: NVML Library of GPU 3 failed"),
        (THREE % "Skip", 0, 77, "dcgmi exited with 0 and reported 0 passed tests"),
        (FOUR % ("Pass", "Pass"), 226, 77, "dcgmi exited with 226 and reported 1 passed tests"),
        ("Error: Unable to connect to host engine.", 255, 77, "dcgmi exited with 255"),
    ],
)
def test_dcgm_fails_by_a_result_alone(bench: Bench, prints: str, status: int, code: int, says: str) -> None:
    bench.put("dcgmi", f"cat <<'END'\n{prints}\nEND\nexit {status}")
    said = bench.run("dcgm", HEALER_TEST_DEPTH="soft")
    assert said.code == code and says in said.says


def test_dcgm_runs_the_level_of_the_depth(bench: Bench) -> None:
    bench.put("dcgmi", f'echo "$3" >>{bench.folder}/levels; echo {{}}')
    for depth in ("soft", "full", "acceptance"):
        bench.run("dcgm", HEALER_TEST_DEPTH=depth)
    assert (bench.folder / "levels").read_text().split() == ["1", "2", "3"]


def test_a_test_program_that_hangs_fails_its_check(bench: Bench) -> None:
    bench.put("timeout", "exit 124")
    bench.put("dcgmi", "exit 0")
    bench.put("all_reduce_perf", "exit 0")
    bench.put("nvbandwidth", "exit 0")
    assert [bench.run(one).code for one in ("gpus", "dcgm", "nccl", "p2p", "burn")] == [1] * 5


# --- bandwidth ---

NCCL = """cat <<'END'
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
   536870912     134217728     float     sum      -1   2100.1  255.60  255.60      0   2101.3  255.50  255.50      0
  2147483648     536870912     float     sum      -1   8001.0  268.40  360.75      WRONG   8010.0  268.10  360.10      0
# Avg bus bandwidth    : 300.1
END"""  # noqa: E501


def test_nccl_reports_bandwidth_of_the_largest_message(bench: Bench) -> None:
    bench.put("all_reduce_perf", NCCL.replace("WRONG", "0"))
    said = bench.run("nccl")
    assert (said.code, said.results) == (0, {"nccl_busbw_gb_per_s": "360.75"})


def test_wrong_sums_fail_with_any_exit_code(bench: Bench) -> None:
    bench.put("all_reduce_perf", NCCL.replace("WRONG", "12") + "\nexit 1")
    assert bench.run("nccl").code == 1


@pytest.mark.parametrize(
    "body", ["echo 'Test NCCL failure: no shared memory' ; exit 3", "echo nothing", "exit 127"]
)
def test_nccl_that_says_nothing_proves_nothing(bench: Bench, body: str) -> None:
    bench.put("all_reduce_perf", body)
    assert bench.run("nccl").code == 77


def test_slowest_gpu_pair_is_reported(bench: Bench) -> None:
    bench.put(
        "nvbandwidth",
        "cat <<'END'\nmemcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1\n"
        " 0       N/A    276.07\n 1    270.50       N/A\nSUM device_to_device 546.57\nEND",
    )
    said = bench.run("p2p")
    assert (said.code, said.results) == (0, {"p2p_gb_per_s": "270.50"})
    bench.put("nvbandwidth", "echo waived")
    assert bench.run("p2p").code == 77


def test_slowest_port_pair_is_reported(bench: Bench) -> None:
    for number in range(4):
        bench.port(f"mlx5_{number}", "4: ACTIVE")
    bench.put("sleep", "exit 0")
    # The one with an address is the client; between the last two it is slower.
    bench.put(
        "ib_write_bw",
        'case "$*" in *127.0.0.1) ;; *) exit 0 ;; esac\n'
        'case "$2" in mlx5_1) rate=391.20 ;; *) rate=310.00 ;; esac\n'
        'printf " #bytes #iterations BW peak BW average MsgRate\\n 65536 100 395.1 $rate 0.7\\n"',
    )
    said = bench.run("ib")
    assert (said.code, said.results) == (0, {"ib_write_bw_gbit_per_s": "310.00"})


@pytest.mark.parametrize("test", ["dcgm", "nccl", "p2p", "ib"])
def test_a_program_that_is_missing_is_no_failure(bench: Bench, test: str) -> None:
    said = bench.run(test)
    assert said.code == 77 and said.says.startswith("no ")


# --- computations with known answers ---


def test_every_core_computes_what_is_known(bench: Bench) -> None:
    said = bench.run("burn", SLURM_GPUS_ON_NODE="0")
    assert said.code == 0 and int(said.results["burnt_cores"]) >= 1


def test_gpus_without_pytorch_are_not_tested_and_that_is_said(bench: Bench) -> None:
    (bench.folder / "torch.py").write_text("raise ImportError\n")
    said = bench.run("burn", PYTHONPATH=str(bench.folder))
    assert said.code == 77 and "not 2 GPUs (no PyTorch: ImportError)" in said.says


def test_a_wrong_answer_fails(bench: Bench) -> None:
    """A hashlib with a wrong digest simulates a faulty core."""
    (bench.folder / "hashlib.py").write_text(
        "class sha256:\n    def __init__(self, _): pass\n    def hexdigest(self): return '00'\n"
    )
    said = bench.run("burn", PYTHONPATH=str(bench.folder))
    assert said.code == 1 and "a wrong SHA-256" in said.says


def test_a_check_that_breaks_off_is_no_answer(bench: Bench) -> None:
    (bench.folder / "multiprocessing.py").write_text("raise MemoryError\n")
    assert bench.run("burn", PYTHONPATH=str(bench.folder)).code == 77


# --- answers ---


def answered(bench: Bench, **env: str) -> Said:
    """GPUs simulated by NumPy."""
    shutil.copy(TORCH, bench.folder / "torch.py")
    numpy_at = str(Path(np.__file__).parents[1])
    python = {"PYTHONPATH": f"{bench.folder}:{numpy_at}", "PATH": f"{PYTHON}:{bench.env['PATH']}"}
    return bench.run("answers", **(python | env))


def test_right_answers_have_the_digests_that_the_file_knows(bench: Bench) -> None:
    """Reckoned here by another way: whole numbers, and the text of the file."""
    text = (VALIDATION / "answers.sh").read_text()
    known = dict(re.findall(r'^ {4}"(\w+)": "([0-9a-f]{64})",$', text, re.MULTILINE))
    i = j = np.arange(2048)
    k = np.arange(256)

    def whole(side: int, inner: int) -> np.ndarray:
        """Rows repeat after 5 and columns after 7."""
        k = np.arange(inner)
        few = ((3 * i[:5, None] + 7 * k) % 11 - 5) @ ((5 * k[:, None] + 2 * j[:7]) % 13 - 6)
        return few[i[:side] % 5][:, j[:side] % 7].astype("<i4")

    units = ((i[:3, None] + 2 * k) % 3 - 1) @ ((2 * k[:, None] + j[:3]) % 3 - 1)
    made = {
        "whole": whole(2048, 512),
        "units": units[i % 3][:, j % 3].astype("<i4"),
        "sums": np.cumsum(np.arange(1 << 22) * 7919 % 8191).astype("<i8"),
        "core": whole(48, 48),
    }
    assert known == {
        name: sha256(np.ascontiguousarray(one).tobytes()).hexdigest() for name, one in made.items()
    }


def test_gpus_that_give_the_known_answers_pass(bench: Bench) -> None:
    said = answered(bench)
    assert said.code == 0, said.says
    assert said.results["answered_gpus"] == "2" and len(said.results["fractions_sha256"]) == 64


@pytest.mark.parametrize(
    ("wrong", "gpus", "says"),
    [
        ("exact:1", "2", "GPU 1: a wrong answer in fp64"),
        ("flaky:0", "2", "GPU 0: fp32 differs in 1 of 2 repeats"),
        ("fractions:2", "3", "GPU 2: fractions is not as on the others"),
        ("fractions:1", "2", "GPUs 0 1 do not agree in fractions"),
    ],
)
def test_a_gpu_that_computes_wrong_fails(bench: Bench, wrong: str, gpus: str, says: str) -> None:
    said = answered(bench, TORCH_WRONG=wrong, TORCH_GPUS=gpus, SLURM_GPUS_ON_NODE=gpus)
    assert said.code == 1 and says in said.says


def test_cores_alone_are_asked_where_there_are_no_gpus(tmp_path: Path) -> None:
    said = Bench(tmp_path).run("answers", SLURM_GPUS_ON_NODE="0")
    assert said.code == 0 and int(said.results["answered_cores"]) >= 1


def test_unavailable_answers_are_left_out(bench: Bench) -> None:
    (bench.folder / "torch.py").write_text("raise ImportError\n")
    said = bench.run("answers", PYTHONPATH=str(bench.folder))
    assert said.code == 77 and "not 2 GPUs (no PyTorch: ImportError)" in said.says


def test_a_core_that_answers_wrong_fails(bench: Bench) -> None:
    (bench.folder / "hashlib.py").write_text(
        "class sha256:\n    def __init__(self, _): pass\n    def hexdigest(self): return '00'\n"
    )
    said = bench.run("answers", PYTHONPATH=str(bench.folder), SLURM_GPUS_ON_NODE="0")
    assert said.code == 1 and "a wrong product" in said.says


# --- the depths that ship ---


def test_every_test_belongs_to_a_depth_and_begins_with_the_gpus() -> None:
    found = load(VALIDATION.parent, prove=False).validation
    assert {one for depth in found.depths.values() for one in (*depth.tests, *depth.pair)} == {
        path.stem for path in VALIDATION.glob("*.sh")
    }
    alone = {name: depth.tests[0] for name, depth in found.depths.items() if name != "together"}
    assert set(alone.values()) == {"gpus"}
