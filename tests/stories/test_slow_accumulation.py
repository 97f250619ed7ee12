"""Signs that are nothing once, over hours and days: link drops, corrected errors, boots under jobs."""

from typing import Any

import pytest

from healer.model import Mode
from tests.stories.test_judged_contexts import beats, text
from tests.stories.test_replay import actions, clock, job, jobs, kernel, nodes, played, row
from tests.support.loop import CLUSTER, LOST, later, name

pytestmark = pytest.mark.heavy

Row = dict[str, Any]
HOUR, DAY = 3600, 86400
AER = "pcieport 0000:13:00.0: AER: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)"
NIC_DOWN = "mlx5_core 0000:5e:00.0 ib0: Link down"


def opened_rules(document: Row) -> list[str]:
    return [one["rule"] for one in document["incidents"]]


def logged(at: float, node: int, line: str) -> Row:
    entry = {"time": later(at).isoformat().replace("+00:00", "Z"), "line": line}
    body = {"cluster": CLUSTER, "node": name(node), "boot_id": "b1", "entries": [entry]}
    return row(at, "signals/kernel-log", body)


def on(job_id: str, *numbers: int, started: float | None = None, **fields: Any) -> Row:
    began = {} if started is None else {"start_at": later(started).isoformat().replace("+00:00", "Z")}
    return job(job_id, *(name(number) for number in numbers), **(began | fields))


def booted(at: float, boot: str, *numbers: int, **state: Any) -> Row:
    return nodes(at, **{name(number): {"boot_id": boot} | state for number in numbers})


def test_a_storm_of_corrected_pcie_errors_is_one_fault_of_its_slot() -> None:
    storm = [logged(60 + 30 * number, 1, AER) for number in range(110)]
    few = [logged(60 + 30 * number, 2, AER.replace("13:00", "15:00")) for number in range(40)]
    rows = sorted([*storm, *few], key=lambda one: one["at"])
    document = played(nodes(), *rows, clock(HOUR))
    (found,) = document["incidents"]
    assert (found["rule"], found["severity"], found["root"]["node"]) == (
        "pcie-corrected-storm",
        "P3",
        name(1),
    )
    assert "100 lines within 1 h" in found["evidence"][0]["text"]
    assert [act["action"] for act in document["actions"]] == ["ticket"]


@pytest.mark.parametrize(
    ("every_h", "wanted"), [(5, ["link-flaps-told"]), (20, ["link-flaps-told"]), (40, [])]
)
def test_a_link_that_drops_every_few_hours(every_h: int, wanted: list[str]) -> None:
    drops = [logged(at * HOUR, 1, NIC_DOWN) for at in range(1, 7 * 24, every_h)]
    assert opened_rules(played(nodes(), *drops, clock(8 * DAY))) == wanted


def test_a_port_whose_counter_rises_once_in_two_hours() -> None:
    labels = '{device="mlx5_0",port="1"}'
    rows = [
        text(at, 1, f"node_infiniband_link_downed_total{labels} {at // (2 * HOUR)}")
        for at in range(60, 7 * HOUR, 60)
    ]
    document = played(nodes(), *rows, clock(7 * HOUR))
    assert opened_rules(document) == ["port-flaps-again"]


# --- boots --------------------------------------------------------------------------------------------------


def test_a_boot_under_a_running_job_is_a_fault_of_its_own() -> None:
    document = played(nodes(), jobs(0, on("4711", 1, 2)), booted(HOUR, "b2", 1), clock(HOUR + 60))
    (found,) = document["incidents"]
    assert (found["rule"], found["severity"], found["root"]["node"]) == ("rebooted-under-job", "P2", name(1))
    assert found["jobs_hit"] == ["4711"]
    assert found["nodes"] == {name(1): "suspect"}
    assert "drain" not in {one[0] for one in actions(document)}


def test_boot_is_reported_by_the_node_though_slurm_already_requeued_the_job() -> None:
    back = on("4711", 3, 4, restarts=1)
    document = played(
        nodes(),
        jobs(0, on("4711", 1, 2)),
        *beats(0, 600, (1,)),
        jobs(640, back),
        *beats(660, 720, (1,), boot="b2"),
        clock(800),
    )
    assert "rebooted-under-job" in opened_rules(document)


@pytest.mark.parametrize(
    "rows",
    [
        # No job is on the node.
        [nodes(), booted(HOUR, "b2", 1)],
        # Its job began after the boot, which was heard of late.
        [nodes(), jobs(HOUR, on("4711", 1, started=HOUR - 30)), booted(HOUR + 30, "b2", 1)],
        # Slurm was asked for the reboot.
        [
            nodes(),
            jobs(0, on("4711", 1)),
            booted(60, "b1", 1, state=["MIXED", "REBOOT_ISSUED"]),
            booted(HOUR, "b2", 1, state=["MIXED", "REBOOT_ISSUED"]),
        ],
        # A person has the node.
        [
            nodes(),
            jobs(0, on("4711", 1)),
            booted(60, "b1", 1, state=["MIXED", "DRAIN"], reason="driver", reason_user="ann"),
            booted(HOUR, "b2", 1, state=["MIXED", "DRAIN"], reason="driver", reason_user="ann"),
        ],
        # The work is planned.
        [
            nodes(),
            jobs(0, on("4711", 1)),
            booted(60, "b1", 1, state=["MIXED", "MAINTENANCE"]),
            booted(HOUR, "b2", 1, state=["MIXED", "MAINTENANCE"]),
        ],
        # The detector hears of the node for the first time.
        [nodes(), jobs(0, on("4711", 1)), *beats(60, 120, (1,))],
        # The job was requeued while the node was still in its old boot.
        [
            nodes(),
            jobs(0, on("4711", 1, 2)),
            *beats(0, 640, (1,)),
            jobs(640, on("4711", 3, 4, restarts=1)),
            *beats(645, 670, (1,)),
            *beats(670, 720, (1,), boot="b2"),
        ],
    ],
)  # fmt: skip
def test_a_boot_that_is_no_fault(rows: list[Row]) -> None:
    assert not {"rebooted-under-job", "reboots-under-jobs"} & set(
        opened_rules(played(*rows, clock(2 * HOUR)))
    )


def test_a_loop_of_boots_under_jobs_takes_the_node_out() -> None:
    rows = [nodes(), jobs(0, on("4711", 1, 2)), booted(HOUR, "b2", 1)]
    rows += [jobs(2 * HOUR, on("4712", 1, started=2 * HOUR)), booted(5 * HOUR, "b3", 1)]
    document = played(*rows, clock(5 * HOUR + 60))
    assert opened_rules(document)[-1] == "reboots-under-jobs"
    assert ("drain", name(1), None) in actions(document)


def test_a_lost_gpu_explains_the_boot_after_it() -> None:
    rows = [nodes(), jobs(0, on("4711", 1, 2)), kernel(60, 1, LOST), booted(300, "b2", 1), clock(600)]
    document = played(*rows, mode=Mode.shadow)
    assert opened_rules(document) == ["gpu-lost"]


def test_the_boots_of_one_rack_are_one_fault_of_its_power() -> None:
    def racked(at: float, boot: str) -> Row:
        places = {name(number): {"rack": f"r{number // 5}"} for number in range(1, 21)}
        for number in range(5, 10):
            places[name(number)]["boot_id"] = boot
        return nodes(at, **places)

    document = played(
        racked(0, "b1"), jobs(0, on("4711", *range(5, 10))), racked(HOUR, "b2"), clock(HOUR + 60)
    )
    still = [one["rule"] for one in document["incidents"] if one["closed"] is None]
    assert still == ["rack-power"]


# --- where no sender names its boot, only Slurm's BootTime shows it -----------------------------------------


def timed(at: float, boot: float, **state: Any) -> Row:
    """Node 1 with its boot time, and no boot id of any node."""
    shown = nodes(at, gpu0001={"boot_at": later(boot).isoformat()} | state)
    for node in shown["body"]["nodes"]:
        del node["boot_id"]
    return shown


REBOOTED = {"state": ["DOWN"], "reason": "Node unexpectedly rebooted", "reason_user": "slurm"}


def test_slurms_boot_time_under_a_job_that_it_put_back_is_the_same_fault() -> None:
    put_back = on("4711", restarts=1) | {"state": "PENDING"}
    rows = [timed(0, -9 * HOUR), jobs(5, on("4711", 1, 2)), jobs(HOUR, put_back), timed(HOUR, HOUR - 20)]
    assert opened_rules(played(*rows, clock(HOUR + 60))) == ["rebooted-under-job"]


@pytest.mark.parametrize(
    "rows",
    [
        # Its job goes on: the clock was set.
        [timed(0, -9 * HOUR), jobs(5, on("4711", 1, started=-HOUR)), timed(HOUR, HOUR - 20)],
        # Slurm was asked for it when the job had left, and shows the boot when it has forgotten that.
        [
            timed(0, -9 * HOUR),
            jobs(5, on("4711", 1)),
            timed(HOUR - 30, -9 * HOUR, state=["IDLE", "REBOOT_ISSUED"]),
            jobs(HOUR - 30, on("4711", restarts=1) | {"state": "PENDING"}),
            timed(HOUR, HOUR - 20),
        ],
    ],
)
def test_a_boot_time_that_is_no_fault(rows: list[Row]) -> None:
    assert opened_rules(played(*rows, clock(2 * HOUR))) == []


PUT_BACK = on("4711", restarts=1) | {"state": "PENDING"}


@pytest.mark.parametrize(
    "rows",
    [
        [jobs(HOUR, PUT_BACK), timed(HOUR, HOUR + 1), timed(HOUR + 5, HOUR + 1)],
        [timed(HOUR, HOUR - 2), jobs(HOUR + 1, PUT_BACK)],
    ],
    ids=["time", "job"],
)
def test_a_boot_in_the_middle_of_a_reading_is_found_with_the_next(rows: list[Row]) -> None:
    """Nodes and jobs are read one after the other, and the reading's own time is that of its begin."""
    before = [timed(0, -9 * HOUR), jobs(5, on("4711", 1, 2, started=0))]
    assert opened_rules(played(*before, *rows, clock(HOUR + 60))) == ["rebooted-under-job"]


def test_slurms_drain_after_such_a_boot_names_the_job_and_the_boot() -> None:
    put_back = on("4711", restarts=1) | {"state": "PENDING"}
    down = timed(HOUR, HOUR - 20, **REBOOTED)
    (found,) = played(
        timed(0, -9 * HOUR), jobs(5, on("4711", 1, 2)), jobs(HOUR, put_back), down, clock(HOUR + 9)
    )["incidents"]
    assert (found["rule"], found["jobs_hit"], found["nodes"]) == (
        "slurm-drain",
        ["4711"],
        {name(1): "suspect"},
    )
    assert any("rebooted while running job 4711" in one["text"] for one in found["evidence"])


@pytest.mark.parametrize("every_s", [240, 2 * HOUR])
def test_a_loop_that_only_slurm_shows_takes_the_node_out(every_s: float) -> None:
    rows = [timed(0, -9 * HOUR)]
    for at in (HOUR, HOUR + every_s):
        rows += [
            jobs(at - 100, on("4711", 1, started=at - 100)),
            jobs(at, on("4711", restarts=1) | {"state": "PENDING"}),
            timed(at, at - 20, **REBOOTED),
            timed(at + 60, at - 20),  # a person resumes it
        ]
    document = played(*rows, clock(4 * HOUR))
    assert "reboots-under-jobs" in opened_rules(document)
    assert ("drain", name(1), None) in actions(document)
