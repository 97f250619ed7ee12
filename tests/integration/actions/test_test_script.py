"""The job that healer submits: its tests in their order, and what comes back of them. Real processes."""

import os
import signal
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from healer.actions.test_form import ROOM, TestOutcome, TestReport, batch, compare, parse_report, report_text
from healer.model import Reference, figures_in
from tests.support.node_tests import SMI, VALIDATION, Bench, shipped
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy

PASSES = "#!/bin/sh\necho healer-result driver 580.65.06\necho noise\necho healer-says all well\n"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    found = Bench(tmp_path)
    found.slurm()
    return found


def ending(code: int) -> str:
    return f"#!/bin/sh\nexit {code}\n"


def test_results_come_back_and_the_exit_code_decides(bench: Bench) -> None:
    code, report = bench.job({"versions": PASSES, "bare": ending(0)})
    assert code == 0 and report is not None
    assert report.tests == {"versions": TestOutcome.passed, "bare": TestOutcome.passed}
    assert (report.results, report.says, report.whole) == (
        {"driver": "580.65.06"},
        {"versions": "all well"},
        True,
    )


def test_the_first_that_fails_ends_it_with_its_code(bench: Bench) -> None:
    code, report = bench.job({"a": ending(0), "b": ending(3), "c": ending(0)})
    assert code == 3 and report is not None
    assert report.tests == {"a": TestOutcome.passed, "b": TestOutcome.failed}
    assert "; ".join(report_text(report, ["a", "b", "c"])) == "a passed; b failed; c not run"


def test_untestable_items_are_reported_and_the_first_decides(bench: Bench) -> None:
    code, report = bench.job({"a": ending(0), "b": ending(77)})
    assert code == 0 and report is not None and report.tests["b"] is TestOutcome.untested
    code, report = bench.job({"a": ending(77), "b": ending(0)})
    assert code == 77 and report is not None and report.tests == {"a": TestOutcome.untested}


def test_unreadable_results_prove_nothing(bench: Bench) -> None:
    bench.put("scontrol", "exit 1")
    assert bench.job({"versions": PASSES})[0] == 77
    assert bench.job({"bare": ending(0)})[0] == 0, "a test without results has its exit code alone"
    assert bench.job({"bare": ending(5)})[0] == 5


def test_a_test_that_is_killed_has_failed_and_one_that_reads_does_not_eat_the_others(bench: Bench) -> None:
    assert bench.job({"a": "#!/bin/sh\nkill -9 $$\n"})[0] == 137
    assert bench.job({"a": "#!/bin/sh\ncat\n", "b": ending(4)})[0] == 4


def test_a_job_that_slurm_ends_leaves_no_file_on_the_node(bench: Bench) -> None:
    temporary, begun = bench.folder / "tmp", bench.folder / "begun"
    temporary.mkdir()
    test = f"#!/bin/sh\nmktemp && : >{begun}\nexec sleep 600\n"
    job = subprocess.Popen(
        ["/bin/sh", "-c", batch({"a": test, "b": ending(0)})],
        env=bench.env | {"TMPDIR": str(temporary)}, start_new_session=True,
    )  # fmt: skip
    wait_until(begun.exists, what="the test runs")
    os.killpg(job.pid, signal.SIGTERM)
    assert job.wait(30) == 143
    assert list(temporary.iterdir()) == []
    assert not (bench.folder / "comment").exists(), "a test that was ended has no result"


def test_any_test_output_stays_within_the_form(bench: Bench) -> None:
    body = "\n".join(
        [
            "#!/bin/sh",
            "echo 'healer-result Driver 1'",
            "echo 'healer-result driver two words'",
            "echo 'healer-result driver $(id);x'",
            "echo 'healer-says a; b=1 | \"c\" \\\\ d'",
            "i=0; while [ $i -lt 400 ]; do echo healer-result r$i 12345678; i=$((i+1)); done",
        ]
    )
    code, report = bench.job({"a": body + "\n"})
    assert code == 0 and report is not None
    assert "driver" not in report.results and not report.whole
    assert report.says["a"].startswith("a  b=1") and ";" not in report.says["a"]
    assert len((bench.folder / "comment").read_text()) <= ROOM + len("AdminComment=")


def test_bytes_that_are_no_text_hide_no_result(bench: Bench) -> None:
    """Of output with a NUL byte grep alone says no more than that it is binary."""
    body = "printf 'x\\000\\377\\n'\necho healer-result driver 580.65.06\n"
    code, report = bench.job({"a": f"#!/bin/sh\n{body}"})
    assert code == 0 and report is not None and report.results == {"driver": "580.65.06"}


def test_a_test_runs_by_its_own_first_line_and_asks_slurm_for_what_it_needs() -> None:
    script = batch({"a": "#!/usr/bin/env python3\n#SBATCH --mem=0\nprint()\n#SBATCH --no\n", "b": ending(0)})
    assert script.splitlines()[:2] == ["#!/bin/sh", "#SBATCH --mem=0"]
    assert "run a /usr/bin/env python3" in script and "run b /bin/sh" in script


def test_the_depth_that_ships_runs_whole(bench: Bench) -> None:
    bench.put("nvidia-smi", SMI)
    code, report = bench.job(shipped("gpus", "versions", "links", "dcgm"), "soft")
    assert code == 0 and report is not None and report.whole
    assert [str(one) for one in report.tests.values()] == ["passed", "passed", "passed", "untested"]
    assert (report.results["gpu_count"], report.results["vbios"]) == ("2", "96.00.CF.00.01")


def test_the_demos_pretended_gpus_pass(bench: Bench) -> None:
    code, report = bench.job({"gpus": (VALIDATION.parents[1] / "demo" / "gpus.sh").read_text()})
    assert code == 0 and report is not None and report.results == {"gpu_count": "2"}


# --- the form ---


@pytest.mark.parametrize("text", ["", "healer: requeued", "healer-test/2; a:passed:1", "x healer-test/1"])
def test_text_of_another_format_gives_no_report(text: str) -> None:
    assert parse_report(text) is None


def test_a_part_that_is_not_of_the_form_is_left_out_and_said() -> None:
    report = parse_report("healer-test/1; a:passed:1; a:great:1; b=x y; c=1; says")
    assert report == TestReport(
        tests={"a": TestOutcome.passed}, took_s={"a": 1}, results={"c": "1"}, whole=False
    )


# --- compared with a good node ---

GOOD = Reference(
    cluster="c",
    kind="h100",
    node="gpu0001",
    at=datetime(2026, 11, 1, tzinfo=UTC),
    by="ann",
    facts={"driver": "580.65.06", "vbios": "96.00.CF, 96.00.D0", "nvlink_domain": "a"},
    figures={"nccl_busbw_gb_per_s": 360.0, "gpu_count": 8.0},
)


@pytest.mark.parametrize(
    ("name", "value", "worse"),
    [
        ("driver", "580.65.06", None),
        ("driver", "575.57.08", "NVIDIA driver 575.57.08, gpu0001 has 580.65.06"),
        ("vbios", "96.00.CF,96.00.D0", None),
        ("nccl_busbw_gb_per_s", "324", None),
        ("nccl_busbw_gb_per_s", "323.9", "nccl_busbw_gb_per_s 323.9 is 90% of 360 on gpu0001"),
        ("gpu_count", "8", None),
        ("gpu_count", "7", "gpu_count 7 is 88% of 8 on gpu0001"),
    ],
)
def test_a_fact_is_the_same_a_count_as_high_and_a_rate_nine_tenths(
    name: str, value: str, worse: str | None
) -> None:
    found = compare({name: value}, GOOD)
    assert found.worse + found.other == ((worse,) if worse else ()) and found.alike == (
        () if worse else (name,)
    )
    assert bool(found.other) is (worse is not None and name in GOOD.facts)


@pytest.mark.parametrize(
    ("name", "value"),
    [("kernel", "6.1"), ("nvlink_domain", "b"), ("ecc_uncorrected_total", "9"), ("gpu_count", "many")],
)
def test_figures_without_a_bound_are_not_compared(name: str, value: str) -> None:
    found = compare({name: value}, GOOD)
    assert (found.worse, found.alike) == ((), ())
    assert compare({name: value}, None) == found


def test_only_numeric_measurements_become_the_figures_of_a_good_node() -> None:
    results = {
        "nccl_busbw_gb_per_s": "360.75",
        "gpu_count": "8",
        "driver": "580",
        "ecc_total": "1",
        "a_count": "x",
    }
    assert figures_in(results) == {"nccl_busbw_gb_per_s": 360.75, "gpu_count": 8.0}
