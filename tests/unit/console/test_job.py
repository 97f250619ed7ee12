"""The job page's picture and its words."""

import base64

import numpy as np

from healer.console.views import job_view
from healer.engine.records import JobHistory
from healer.model import SlurmJob
from healer.observations.step_grid import deviation, grid
from tests.support.console_sample import node_name
from tests.support.console_telemetry import SLOW_GPU, SLOW_NODE, steps_of

NODES = tuple(node_name(number) for number in range(5, 9))


def unpacked(body: dict, name: str, kind: str) -> np.ndarray:
    flat = np.frombuffer(base64.b64decode(body[name]), kind)
    return flat.reshape(len(body["rows"]), len(body["steps"]))


def test_chart_holds_the_reported_values() -> None:
    made = grid(steps_of("1", NODES, steps=130))
    assert made is not None
    body = job_view.picture(made, deviation(made), [int(made.step[7]), 1], "pod1")
    row = next(i for i, one in enumerate(body["rows"]) if (one["n"], one["g"]) == (SLOW_NODE, SLOW_GPU))
    dev, sec = unpacked(body, "dev", "<i2"), unpacked(body, "sec", "<u2") * body["scale_s"]
    assert 150 < dev[row, -1] < 210
    assert abs(dev[row, 0]) < 25
    assert abs(sec[row, -1] - made.compute_s[made.rank == body["rows"][row]["r"], -1][0]) < 0.001
    assert body["checkpoints"] == [7]


def test_many_ranks_are_drawn_as_nodes_with_the_slowest_rank_of_each() -> None:
    made = grid(steps_of("1", NODES, ranks_per_node=80, steps=130))
    assert made is not None
    body = job_view.picture(made, deviation(made), [], "pod1")
    assert [row["n"] for row in body["rows"]] == list(NODES)
    assert body["rows"][0] == {"r": 0, "to": 79, "c": 80, "n": NODES[0], "s": 0}
    assert unpacked(body, "dev", "<i2")[NODES.index(SLOW_NODE), -1] > 150


def test_missing_values_are_marked() -> None:
    batches = steps_of("1", NODES, steps=3, whole_only=True)
    made = grid(batches)
    assert made is not None
    made.step_s[0, 1], made.step_s[0, 2] = np.nan, np.inf
    body = job_view.picture(made, deviation(made), [], "pod1")
    assert body["mode"] == "step"
    assert unpacked(body, "dev", "<i2")[0].tolist()[1:] == [-32_768] * 2
    assert unpacked(body, "sec", "<u2")[0].tolist()[1:] == [65_535] * 2


def test_whole_steps_name_no_rank() -> None:
    made = grid(steps_of("1", NODES, whole_only=True))
    assert made is not None
    view = job_view.steps_view(made, JobHistory())
    assert view.whole_only and view.slowest == ()
    assert [line["l"] for line in view.chart.data["s"]] == ["step"]


def test_the_slowest_rank_is_named_first() -> None:
    made = grid(steps_of("1", NODES))
    assert made is not None
    first, second, *_ = job_view.steps_view(made, JobHistory()).slowest
    assert (first.node, first.gpu, first.is_slow, second.is_slow) == (SLOW_NODE, str(SLOW_GPU), True, False)
    assert first.slower.startswith("+1") and first.slower.endswith("%") and " " not in first.slower


def test_a_plain_job_has_no_special_facts() -> None:
    assert job_view.facts(SlurmJob(id="7", state="RUNNING", nodes=NODES)) == []


def test_partial_data_of_jobs_is_explained() -> None:
    shown = SlurmJob(
        id="7", state="PENDING", array_job="5", array_task=0, het_job="11", het_offset=1, held_by="admin",
        why="launch failed requeued held", origin="pod1", siblings=("pod1", "pod2"), excluded=("n1", "n2"),
        reservation="healer_1", dependency="afterok:3", no_kill=True,
    )  # fmt: skip
    assert dict(job_view.facts(shown)) == {
        "Array": "5, task 0",
        "Heterogeneous job": "11, component 1",
        "Held by": "an administrator or Slurm",
        "Slurm reason": "launch failed requeued held",
        "Federation": "from pod1, copies in pod1, pod2",
        "Excluded nodes": "n1, n2",
        "Reservation": "healer_1",
        "Dependency": "afterok:3",
        "Continues without a failed node": "yes",
    }
    waiting = SlurmJob(id="5", state="PENDING", array_job="5")
    assert job_view.facts(waiting) == [("Array", "5, pending tasks")]
    ended = SlurmJob(id="8", state="FAILED", exit_code="0:9", failed_node="n1")
    assert dict(job_view.facts(ended)) == {"Failed node": "n1", "Exit code": "0:9"}
