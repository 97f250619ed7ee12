"""Reports by several senders at several times, on a real Slurm: one event is one incident, what follows
from it is none, and each job that it hits is restarted once.

One `healer up` for all of them: each has nodes of its own, and all faults come at once.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from healer.embedded.embedded_slurm import RealSlurm
from healer.observations.rings import SLOT_S
from tests.support import slurm as slurm_support
from tests.support.right_act import MEASURES, rules_with
from tests.support.site import CLUSTER, PCI, WIDE_GUARDS, XID_79, Site, boot_of, site_on, stays
from tests.support.stack import scratch_folder
from tests.support.wait import in_background, wait_until

pytestmark = pytest.mark.slurm

CONTAINED = "NVRM: Xid (PCI:{pci}): 94, pid=7, name=python, Contained: DRAM. RST: No, D-RST: No"
BREAKS = "NVRM: Xid (PCI:{pci}): 149, NETIR_LINK_EVT  Fatal   XC1 i0 Link 14 (0x0215c5c6 0x0 0x0 0x0 0x0 0x0)"
LOSES = (
    "NVRM: Xid (PCI:{pci}): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 10 "
    "(0x04082907 0x00000008 0x0 0x0 0x0 0x0)"
)
PORT = "mlx5_core 0000:5e:00.0 ib0: Link {}"
HOT, COOL = (
    f"nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): {code}, OSFP Thermal Warn {word}"
    for code, word in ((28001, "Activated"), (28002, "Deactivated"))
)
CORRECTED = "pcieport 0000:4a:00.0: AER: PCIe Bus Error: severity=Corrected, type=Data Link Layer"
#: One record of the kernel over several lines.
RECORD = (
    "NVRM: The NVIDIA GPU {pci}.0\n"
    "NVRM: (PCI ID: 10de:2330) installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands."
)

# By what happens there.
LOST_REPORTED, CONTAINED_REPORTED, RECORD_OF, EXPORTED = "gpu0001", "gpu0002", "gpu0003", "gpu0004"
ALL_LOST, AGREED, NOT_AGREED = "gpu0005", "gpu0006", "gpu0007"
LINK, *PEERS = (f"gpu{number:04d}" for number in range(8, 12))
STRANGER = "gpu0012"
ALL_WAYS = "gpu0013"
LATE, LATE_PEER = "gpu0014", "gpu0015"
PASTED, WARM, DOWN, PAUSED, SLOWLY = (f"gpu{number:04d}" for number in range(16, 21))


class Story:
    """The site; `jobs` by the (first) node that they run on."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.jobs: dict[str, str] = {}
        self.tasks: list[str] = []
        #: What the exporter of a paused node says of a GPU's memory, all the time.
        self.remap_failed = 1

    def submit(self, node: str, *options: str, gpus: int = 8) -> None:
        job = slurm_support.sbatch(self.site.slurm, f"--nodelist={node}", *options, gpus=gpus)
        self.site.jobs.append(job)
        self.jobs[node] = job

    def begin(self) -> None:
        for node in (EXPORTED, ALL_WAYS):
            self.exported(node, 0)
        first_figure = time.monotonic()
        for node in (LOST_REPORTED, CONTAINED_REPORTED, RECORD_OF, NOT_AGREED, STRANGER, ALL_WAYS, DOWN):
            self.submit(node)
        self.submit(AGREED, "--comment=healer:requeue")
        self.submit(LINK, "--nodes=4", f"--nodelist={LINK},{','.join(PEERS)}")
        self.submit(LATE, "--nodes=2", f"--nodelist={LATE},{LATE_PEER}")
        self.submit(ALL_LOST, "--array=0-3", "--ntasks=1", gpus=2)
        wait_until(lambda: len(self.running()) == len(self.jobs) + 3, 30, what="all run", every_s=0.2)
        self.tasks = [one.id for one in self.site.scheduler.jobs_on(ALL_LOST)]
        assert len(self.tasks) == 4
        for job in self.running():
            wait_until(lambda job=job: self.is_seen(job), 20, what=f"healer sees job {job}", every_s=0.1)
        # A gauge's last value of each slot is kept: the Xid that a test sends must not be in this one.
        time.sleep(max(0.0, first_figure + SLOT_S - time.monotonic()))

    def running(self) -> list[str]:
        jobs = self.site.scheduler.snapshot().jobs.values()
        return [one.id for one in jobs if one.state == "RUNNING"]

    def is_seen(self, job: str) -> bool:
        """At work by the picture that healer acts on."""
        answer = self.site.api("viewer").get(f"/jobs/{CLUSTER}/{job}")
        return answer.status_code == 200 and answer.json()["job"]["state"] == "RUNNING"

    def job(self, node: str) -> Any:
        return self.site.job(self.jobs[node])

    def text(self, node: str, line: str) -> None:
        """As a person pastes dmesg."""
        answer = self.site.api("signals").post(
            f"/signals/kernel-log?node={node}", content=f"{line}\n", headers={"Content-Type": "text/plain"}
        )
        assert answer.status_code == 202, answer.text

    def export_remaps(self) -> None:
        self.exported(PAUSED, self.remap_failed, "ROW_REMAP_FAILURE")

    def exported(self, node: str, value: int, field: str = "XID_ERRORS") -> None:
        """dcgm-exporter: a figure of a GPU, by default its last Xid."""
        labels = f'gpu="6",pci_bus_id="0000{PCI[6].upper()}.0",Hostname="{node}"'
        text = f"DCGM_FI_DEV_{field}{{{labels}}} {value}\n"
        answer = self.site.api("signals").post(
            "/signals/openmetrics", content=text, headers={"Content-Type": "text/plain; version=0.0.4"}
        )
        assert answer.status_code == 202, answer.text


@pytest.fixture(scope="module")
def story(real_slurm: RealSlurm) -> Iterator[Story]:
    with scratch_folder() as folder:
        rules = rules_with(folder, MEASURES)
        with site_on(
            real_slurm,
            program=("-m", "tests.support.hurried", "plans", "ports"),
            HEALER_RULES_DIR=str(rules),
            **WIDE_GUARDS,
        ) as site:
            one = Story(site)
            site.post("/pauses", {"scope": "node", "name": PAUSED, "reason": "we look at it"}, status=201)
            with in_background(one.export_remaps, 2.0):
                one.begin()
                yield one


def by_all_senders(story: Story, node: str, line: str, at: datetime) -> None:
    """A follower, a relay that knows no boot, one that knows no time either, and dmesg as text."""
    line = line.format(pci=PCI[0])
    full = {"time": at.isoformat(), "seq": 123, "line": line}
    for boot, entry in (
        (boot_of(node), full),
        (boot_of(node), {"seq": 123, "line": line}),
        (None, {"time": at.isoformat(), "line": line}),
        (None, {"line": line}),
    ):
        body = {"cluster": CLUSTER, "node": node, "entries": [entry]}
        story.site.signal("kernel-log", body | ({"boot_id": boot} if boot else {}))
    story.text(node, f"[  812.250000] {line}")
    story.text(node, f"{at:%b %d %H:%M:%S} {node} kernel: {line}")


def requeued(story: Story, node: str) -> None:
    wait_until(lambda: story.job(node).restarts == 1, 30, what=f"the job of {node} is requeued", every_s=0.1)


# --- one event is one incident from any sender ------------------------------------------------------------


def test_lost_gpu_reported_by_six_senders_is_one_incident_and_one_drain(story: Story) -> None:
    at = datetime.now(UTC)
    by_all_senders(story, LOST_REPORTED, XID_79, at)
    wait_until(lambda: story.site.drained_by_us(LOST_REPORTED), 20, what="drained", every_s=0.1)
    requeued(story, LOST_REPORTED)
    by_all_senders(story, LOST_REPORTED, XID_79, at)
    assert len(story.site.incidents(LOST_REPORTED)) == story.site.drains(LOST_REPORTED) == 1


def test_error_reported_by_six_senders_is_not_counted_twice(story: Story) -> None:
    """Twice in a day would drain the node. Who knows no time reports it as of now, which is minutes later."""
    by_all_senders(story, CONTAINED_REPORTED, CONTAINED, datetime.now(UTC) - timedelta(minutes=10))
    wait_until(lambda: story.site.runs(CONTAINED_REPORTED), 30, what="its plan", every_s=0.1)
    assert [one["rule"] for one in story.site.incidents(CONTAINED_REPORTED)] == ["gpu-contained"]
    assert story.site.drains(CONTAINED_REPORTED) == 0


def test_a_lost_gpu_by_its_log_its_gauge_and_the_hook_is_one_incident_and_one_drain(story: Story) -> None:
    story.site.kernel(ALL_WAYS, XID_79, gpu=6)
    requeued(story, ALL_WAYS)
    check = {"name": "gpu-lost", "text": "nvidia-smi: a GPU is lost"}

    def is_one() -> bool:
        story.exported(ALL_WAYS, 79)
        story.site.signal("hooks/health-check", {"node": ALL_WAYS, "checks": [check]})
        return len(story.site.incidents(ALL_WAYS)) == 1

    # The gauge alone takes a node out within this time.
    stays(is_one, 15.0, what="one incident")
    assert story.site.drains(ALL_WAYS) == 1
    assert story.job(ALL_WAYS).restarts == 1


# --- equal facts by each route -----------------------------------------------------------------------------


def test_a_record_of_several_lines_is_read_like_one_line(story: Story) -> None:
    story.site.kernel(RECORD_OF, RECORD)
    wait_until(lambda: story.site.drained_by_us(RECORD_OF), 20, what="drained", every_s=0.1)
    requeued(story, RECORD_OF)
    assert [(one["rule"], one["root"]["pci"]) for one in story.site.incidents(RECORD_OF)] == [
        ("gpu-lost", PCI[0])
    ]


def test_pasted_multi_line_record_is_read_as_one(story: Story) -> None:
    stamped = [f"[  812.25000{number}] {line}" for number, line in enumerate(RECORD.splitlines())]
    story.text(PASTED, "\n".join(stamped).format(pci=PCI[0]))
    wait_until(lambda: story.site.drained_by_us(PASTED), 20, what="drained", every_s=0.1)
    assert [one["rule"] for one in story.site.incidents(PASTED)] == ["gpu-lost"]


def test_a_dead_gpu_that_the_exporter_alone_knows_takes_its_node_out(story: Story) -> None:
    def drained_after_export() -> bool:
        story.exported(EXPORTED, 79)
        return story.site.drained_by_us(EXPORTED)

    wait_until(drained_after_export, 60, what="drained", every_s=1)
    (incident,) = story.site.incidents(EXPORTED)
    assert (incident["rule"], incident["nodes"]) == ("gpu-lost", {EXPORTED: "isolate"})


# --- what follows from a fault, and whom it hits ----------------------------------------------------------


def test_peer_reports_after_a_requeue_open_nothing(story: Story) -> None:
    story.site.kernel(LINK, BREAKS)
    requeued(story, LINK)
    for node in (*PEERS, STRANGER):
        story.site.kernel(node, LOSES)
    assert story.site.incident(STRANGER)["rule"] == "gpu-degraded", "alone the same line is a fault"
    assert [story.site.incidents(node) for node in PEERS if story.site.incidents(node)] == []
    assert [story.site.drains(node) for node in (LINK, *PEERS)] == [1, 0, 0, 0]


def test_a_root_that_comes_late_takes_its_effects_with_it(story: Story) -> None:
    began = datetime.now(UTC)
    story.site.kernel(LATE_PEER, LOSES)
    assert story.site.incident(LATE_PEER)["rule"] == "gpu-degraded"
    entry = {"time": began.isoformat(), "seq": 7, "line": BREAKS.format(pci=PCI[0])}
    story.site.signal(
        "kernel-log", {"cluster": CLUSTER, "node": LATE, "boot_id": boot_of(LATE), "entries": [entry]}
    )
    requeued(story, LATE)
    (effect,) = story.site.incidents(LATE_PEER)
    (root,) = [one for one in story.site.incidents(LATE) if one["root"].get("node") == LATE]
    assert (effect["state"], effect["merged_into"]) == ("resolved", root["id"])
    stays(lambda: not story.site.node(LATE_PEER).drain, 3.0, what="the peer stays in service")
    assert [story.site.drains(node) for node in (LATE, LATE_PEER)] == [1, 0]


def test_when_all_gpus_of_a_node_are_gone_each_of_its_array_tasks_is_requeued_once(story: Story) -> None:
    """One after the other; the GPUs' addresses are unknown."""
    for gpu in range(8):
        story.site.kernel(ALL_LOST, XID_79, gpu=gpu)
    for task in story.tasks:
        wait_until(lambda task=task: story.site.job(task).restarts == 1, 40, what=f"{task} is requeued")
    assert len(story.site.incidents(ALL_LOST)) == story.site.drains(ALL_LOST) == 1
    stays(lambda: [story.site.job(task).restarts for task in story.tasks] == [1] * 4, 3.0, what="once each")


def test_a_job_that_lost_its_data_is_restarted_where_it_agreed_and_held_where_not(story: Story) -> None:
    for node in (AGREED, NOT_AGREED):
        story.site.kernel(node, CONTAINED)
    requeued(story, AGREED)
    assert story.site.incident(NOT_AGREED)["remedy"][-1] == "requeue_job"

    wait_until(lambda: "healer:requeue" in restart_of(story, NOT_AGREED), 20, what="it is held for consent")
    assert (story.job(NOT_AGREED).state, story.job(NOT_AGREED).restarts) == ("RUNNING", 0)
    assert story.site.drains(NOT_AGREED) == 0


def restart_of(story: Story, node: str) -> str:
    """What became of the restart of the node's job, beside the plan of its GPU."""
    incident = story.site.get(f"/incidents/{story.site.incident(node)['id']}")
    runs = [one["id"] for one in incident["runs"] if one["playbook"] == "requeue"]
    return story.site.steps(runs[0])["requeue"]["text"] if runs else ""


# --- what lasts, what ends, and what adds up ---------------------------------------------------------------


def test_heat_ends_by_its_own_end_and_nothing_is_taken(story: Story) -> None:
    story.site.kernel(WARM, HOT)
    assert story.site.incident(WARM)["state"] != "resolved"
    story.site.kernel(WARM, COOL)
    wait_until(lambda: story.site.incident(WARM)["state"] == "resolved", 20, what="it is over", every_s=0.1)
    assert story.site.drains(WARM) == 0


def test_a_port_that_stays_down_under_a_job_is_a_ticket_until_it_is_up(story: Story) -> None:
    story.site.kernel(DOWN, PORT.format("down"))
    run = story.site.run_in(DOWN, "done", timeout_s=40)
    assert story.site.steps(run["id"])["ticket"]["state"] == "done"
    assert story.site.incident(DOWN)["rule"] == "port-stays-down"
    story.site.kernel(DOWN, PORT.format("up"))
    wait_until(lambda: story.site.incident(DOWN)["state"] == "resolved", 20, what="it is over", every_s=0.1)
    assert (story.job(DOWN).state, story.job(DOWN).restarts, story.site.drains(DOWN)) == ("RUNNING", 0, 0)


def test_corrected_errors_that_go_on_for_hours_are_a_fault(story: Story) -> None:
    """Ten times, ten minutes apart: each of them is none."""
    last = datetime.now(UTC)
    for number in range(10):
        assert story.site.incidents(SLOWLY) == []
        at = last - timedelta(minutes=10 * (9 - number))
        entry = {"time": at.isoformat(), "seq": number, "line": CORRECTED}
        body = {"cluster": CLUSTER, "node": SLOWLY, "boot_id": boot_of(SLOWLY), "entries": [entry]}
        story.site.signal("kernel-log", body)
    run = story.site.run_in(SLOWLY, "done", timeout_s=30)
    assert story.site.steps(run["id"])["ticket"]["state"] == "done"
    assert (story.site.incident(SLOWLY)["rule"], story.site.drains(SLOWLY)) == ("pcie-corrected-storm", 0)


def test_fatal_fault_that_recovers_while_held_pages_no_one_and_stays_open(story: Story) -> None:
    def is_at(severity: str) -> bool:
        shown = [(one["severity"], one["state"]) for one in story.site.incidents(PAUSED)]
        return shown == [(severity, "open")]

    wait_until(lambda: is_at("P0"), 60, what="it is held", every_s=0.2)
    story.remap_failed = 0
    wait_until(lambda: is_at("P1"), 30, what="it is urgent no more", every_s=0.2)
    stays(lambda: is_at("P1"), 3.0, what="it is a person's to close")
    assert story.site.drains(PAUSED) == 0


def test_no_other_node_was_touched_and_the_chain_is_whole(story: Story) -> None:
    out = {node for node in story.site.scheduler.snapshot().nodes if story.site.drains(node)}
    # The plan of a GPU whose job has left may have come to its moment.
    assert out - {AGREED} == {
        LOST_REPORTED, RECORD_OF, PASTED, EXPORTED, ALL_WAYS, ALL_LOST, LINK, LATE,
    }  # fmt: skip
    story.site.audit_holds()
