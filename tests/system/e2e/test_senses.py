"""Every sense from outside: `healer up` beside a real Slurm of 32 nodes, measured each 5 s over HTTP.

One site plays all stories, and the tests need their order: faults are planted together, on different nodes,
and mature while the tests before theirs run. Only the isolation forest is hurried (`tests.support.hurried`).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.forest_rows import PostgresFeatures
from healer.embedded import running
from healer.embedded.embedded_slurm import RealSlurm
from healer.embedded.user import system_users
from healer.rulebook import ruleset
from healer.sim.nodes import NodesClient
from tests.support import exporters
from tests.support.forked import run
from tests.support.processes import clean_environ
from tests.support.sensors import Sensors, healthy_history
from tests.support.signing_in import press_sign_in
from tests.support.site import CLUSTER, WIDE_GUARDS, Site, site_on
from tests.support.stack import scratch_folder
from tests.support.up import ROOT
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

# Idle nodes, each with its own trouble.
REMAP, FABRIC, COUNT, REPLAYS, ODD, CROWDED = (f"gpu{number:04d}" for number in range(20, 26))
REMAP_GPU, REPLAYS_GPU, HOT_GPU, SLOW_GPU = 2, 1, 5, 3
#: Measured by the other routes alone.
TEXT, PUSHED = "gpu0031", "gpu0032"

CROWDED_RULE = """\
- name: site-crowded
  title: Too many processes can run
  when: procs_running > {limit}
  scope: node
  severity: P3
  fault_class: degraded
  cause: unclear
  signal: procs_running
  threshold: {limit}
  remedy: [none]
  source: the site's own figure
"""
CROWDED_CASES = """\
- {name: a crowd, rule: site-crowded, fires: [n1], series: {procs_running: 9000}}
- {name: a few, rule: site-crowded, series: {procs_running: 12}}
"""


class House:
    """The site with its sensors, and what is planted in them."""

    def __init__(self, site: Site, rules: Path, nodes: NodesClient) -> None:
        self.site, self.rules, self.nodes = site, rules, nodes
        #: Two jobs of four nodes: one agreed to be requeued.
        self.hot_job = site.sbatch("--nodes=4", "--comment=healer:requeue")
        self.slow_job = site.sbatch("--nodes=4", "--comment=healer:requeue")
        self.hot, self.slow = (site.job(job).nodes[1] for job in (self.hot_job, self.slow_job))
        self.measured = [f"gpu{number:04d}" for number in range(1, 31)]
        self.sensors = Sensors(site, self.measured, nodes)
        self.sensors.bend(ODD, odd)
        self.sensors.bend(CROWDED, lambda body: body["host"].update(procs_running=700))

    def steps(self, job: str) -> int:
        """0 also where no poll has seen the job yet: it has no page."""
        answer = self.site.api("viewer").get(f"/jobs/{CLUSTER}/{job}")
        if answer.status_code == 404:
            return 0
        assert answer.status_code == 200, answer.text
        times = answer.json()["step_times"]
        return len(times["steps"]) if times else 0

    def break_all(self) -> None:
        self.planted_at = datetime.now(UTC)
        plant = self.sensors.plant
        self.nodes.plant(self.hot, f"GPU {HOT_GPU} throttles by heat")
        plant("thermal-throttle", self.hot, HOT_GPU)
        plant("slow-gpu", self.slow, SLOW_GPU)
        plant("remap-failed", REMAP, REMAP_GPU)
        plant("gpu-missing", COUNT, 6)
        plant("pcie-replays", REPLAYS, REPLAYS_GPU)
        self.sensors.break_fabric_manager(FABRIC)

    def incident(self, node: str, rule: str, timeout_s: float = 60) -> dict[str, Any]:
        """The node's incident of that rule, whole."""

        def found() -> Any:
            return next((one for one in self.site.incidents(node) if one["rule"] == rule), None)

        one = wait_until(found, timeout_s, what=f"{rule} on {node}", every_s=0.2)
        return self.site.get(f"/incidents/{one['id']}")

    def console(self) -> httpx.Client:
        """A user who signed in with a link."""
        made = self.site.stack.run("token", "create", "--role", "viewer", "--once").stdout
        link = next(word for word in made.split() if word.startswith("http"))
        client = httpx.Client(base_url=self.site.stack.url, follow_redirects=True, timeout=20)
        assert press_sign_in(client, link).status_code == 200
        return client


def odd(body: dict[str, Any]) -> None:
    """Warm and awake without work: far from its peers, and past no rule's limit."""
    gpu = body["gpu"]
    for name, more in (("GPU_TEMP", 25), ("MEMORY_TEMP", 25), ("POWER_USAGE", 150)):
        gpu[f"DCGM_FI_DEV_{name}"] = [value + more for value in gpu[f"DCGM_FI_DEV_{name}"]]
    body["host"]["node_load1"] = 40.0
    for port in body["ports"].values():  # a symbol error each other second
        port["node_infiniband_symbol_error_total"] += int(datetime.now(UTC).timestamp()) % 10**6 // 2


@pytest.fixture(scope="module")
def unmeasured(real_slurm: RealSlurm) -> Iterator[House]:
    """The site with two jobs at work; no measurements yet."""
    with ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder())
        rules, socket = scratch / "rules", scratch / "nodes.sock"
        shutil.copytree(ROOT / "rules", rules)
        (rules / "detection" / "site.yaml").write_text(CROWDED_RULE.format(limit=5000))
        (rules / "cases" / "detection-site.yaml").write_text(CROWDED_CASES)
        stack.callback(stop, simulated_nodes(socket))
        wait_until(socket.exists, 20, what="the simulated nodes answer")
        os.chown(socket, system_users().worker.uid, -1)
        site = stack.enter_context(
            site_on(
                real_slurm,
                program=("-m", "tests.support.hurried", "forest"),
                HEALER_RULES_DIR=str(rules),
                HEALER_SIM_NODES_SOCKET=str(socket),
                **WIDE_GUARDS,
            )
        )
        yield House(site, rules, NodesClient(socket))


@pytest.fixture(scope="module")
def house(unmeasured: House) -> Iterator[House]:
    """The site whose nodes and jobs measure, with all faults planted."""
    one = unmeasured
    with one.sensors.sending():
        for job in (one.hot_job, one.slow_job):
            wait_until(lambda job=job: one.steps(job) >= 8, 60, what=f"{job} makes steps", every_s=0.5)
        one.break_all()
        yield one


def simulated_nodes(socket: Path) -> subprocess.Popen[bytes]:
    program = (sys.executable, "-m", "healer.sim.nodes", "--socket", str(socket), "--diagnosis-s", "2")
    return subprocess.Popen(program, cwd=ROOT, env=clean_environ())


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(10)


@pytest.fixture
def site(house: House) -> Site:
    return house.site


# --- models of what is usual --------------------------------------------------------------------------------


def test_models_are_trained_on_enough_history_only(unmeasured: House) -> None:
    site = unmeasured.site
    # Of a time before the faults: a node with an incident is not attested healthy for an hour around it.
    until = datetime.now(UTC) - timedelta(hours=2)
    rules, shown = ruleset.load(unmeasured.rules, prove=False), site.scheduler.snapshot()
    history = healthy_history(rules, shown, unmeasured.measured, until=until)
    first, *rest = [row for row in history if row.load == "idle"]
    db = sa.create_engine(running.find(site.stack.data_dir).database_url)

    def logged() -> str:
        return (site.stack.data_dir / "log/detector.log").read_text(errors="replace")

    try:
        store = PostgresFeatures(db, CLUSTER)
        store.put(first)
        refused = f"{len(first.nodes)} healthy samples; 200 are needed"
        wait_until(lambda: refused in logged(), 30, what="too little is refused", every_s=0.5)
        for row in rest:
            store.put(row)
        wait_until(lambda: "node model trained" in logged(), 60, what="a model is made", every_s=0.5)
    finally:
        db.dispose()


# --- the routes, with real bytes ----------------------------------------------------------------------------


def now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def measured(site: Site, node: str) -> tuple[dict[str, float], dict[int, dict[str, float]], dict[str, Any]]:
    """What the node's page shows: of the node, of its GPUs, of its ports."""
    shown = site.get(f"/nodes/{CLUSTER}/{node}")
    gpus = {gpu["index"]: gpu["signals"] for gpu in shown["gpus"]}
    return shown["signals"], gpus, {link["port"]: link["signals"] for link in shown["links"]}


def test_each_route_takes_what_exporters_send(site: Site) -> None:
    api, now = site.api("signals"), datetime.now(UTC)
    text = {"Content-Type": "text/plain; version=0.0.4"}
    snappy = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    dcgm = exporters.DCGM_OLD.format(node=TEXT).encode()
    answers = [
        api.post("/signals/openmetrics", content=dcgm, headers=text),
        api.post(f"/signals/openmetrics?node={TEXT}", content=exporters.NODE_EXPORTER.encode(), headers=text),
        api.post(
            f"/signals/nvidia-smi?node={PUSHED}",
            content=exporters.nvidia_smi(),
            headers={"Content-Type": "text/xml"},
        ),
        api.post(
            "/signals/metrics",
            json={
                "node": TEXT,
                "time": now.isoformat(),
                "gpu": {"power_w": [None, 71.5]},
                "host": {"up_since": 1},
            },
        ),
    ]
    assert [answer.status_code for answer in answers] == [202] * 4, [answer.text for answer in answers]
    assert [answer.json()["unrecognised"] for answer in answers] == [1, 1, 0, 1]
    # A blank of DCGM is nothing known: it is taken, and shown nowhere.
    pushed = exporters.remote_write(PUSHED, now_ms())
    assert api.post("/signals/prometheus/write", content=pushed, headers=snappy).status_code == 204

    host, gpus, ports = measured(site, TEXT)
    assert gpus[4] == {"sm_clock_mhz": 1755, "gpu_temp_c": 58}
    assert gpus[1] == {"power_w": 71.5}
    assert (host["load1"], host["host_memory_available_bytes"]) == (3.07, 1.904e12)
    assert ports == {"mlx5_0/1": {"ib_symbol_error_total": 7}}
    host, gpus, ports = measured(site, PUSHED)
    assert host["gpu_count"] == 8
    assert {index: one["row_remap_uncorrectable_rows"] for index, one in gpus.items()} == dict.fromkeys(
        range(8), 1
    )
    assert {index: one["gpu_temp_c"] for index, one in gpus.items()} == {
        index: 44 if index == 2 else 30 + index for index in range(8)
    }
    assert gpus[2]["pcie_replay_total"] == 3
    assert ports == {"mlx5_1/1": {"ib_rcv_error_total": 2}}

    names = {
        "DCGM_FI_DEV_FUTURE_FIGURE",
        "node_textfile_scrape_error",
        "up_since",
        "prometheus_strange_thing",
    }
    wait_until(
        lambda: names <= {one["name"] for one in site.get("/signals/unknown")["items"]},
        20,
        what="the unknown names are listed",
        every_s=0.2,
    )


def test_the_command_sends_the_same(site: Site, tmp_path: Path) -> None:
    def send(name: str, content: bytes, *options: str) -> dict[str, Any]:
        file = tmp_path / name
        file.write_bytes(content)
        environ = site.stack.environ | {"HEALER_URL": site.stack.url, "HEALER_TOKEN": site.token("signals")}
        done = run(["send", name, *options, "--json", str(file)], environ, timeout=60)
        assert done.returncode == 0, done.stderr or done.stdout
        return json.loads(done.stdout)

    sample = {"step": 7, "rank": 0, "node": TEXT, "gpu": 0, "step_s": 2.5, "compute_s": 2.0}
    saved = {"restart": 0, "step": 7, "path": "/scratch/step-7", "durable": True}
    now = datetime.now(UTC)
    send("metrics", b'{"gpu": {"power_w": [80.5]}}\n', "--node", TEXT)
    send("openmetrics", b"node_load5 2.5\n", "--node", TEXT)
    send("nvidia-smi", exporters.nvidia_smi(), "--node", TEXT)
    send("remote-write", exporters.remote_write(TEXT, now_ms()))
    send(
        "step-times",
        json.dumps({"samples": [sample | {"time": now.isoformat()}]}).encode(),
        "--job",
        "990001",
    )
    send("checkpoints", json.dumps(saved | {"time": now.isoformat()}).encode(), "--job", "990001")

    host, gpus, _ = measured(site, TEXT)
    assert (host["load5"], host["gpu_count"]) == (2.5, 8)
    assert (gpus[0]["power_w"], gpus[5]["gpu_temp_c"], gpus[2]["gpu_temp_c"]) == (80.5, 35, 44)
    job = site.get(f"/jobs/{CLUSTER}/990001")
    assert [(one["step"], one["step_s"], one["compute_s"]) for one in job["step_times"]["steps"]] == [
        (7, 2.5, 2.0)
    ]
    assert [(one["step"], one["durable"]) for one in job["checkpoints"]] == [(7, True)]


def test_bound_tokens_speak_of_their_own_alone(site: Site) -> None:
    def post(token: str, route: str, body: dict[str, Any]) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return site.stack.http.post(
            f"{site.stack.url}/api/v1/signals/{route}", json=body, headers=headers
        ).status_code

    node, job = site.token("signals", "hook", node=TEXT), site.token("signals", "trainer", job="990002")
    power = {"gpu": {"power_w": [70]}}
    steps = {"samples": [{"step": 1, "rank": 0, "node": TEXT, "step_s": 2.0}]}
    saved = {
        "restart": 0,
        "step": 1,
        "path": "/scratch/1",
        "durable": True,
        "time": datetime.now(UTC).isoformat(),
    }
    assert post(node, "metrics", {"node": TEXT, **power}) == 202
    assert post(node, "metrics", {"node": PUSHED, **power}) == 403
    assert post(job, "step-times", {"job": "990002", **steps}) == 202
    assert post(job, "step-times", {"job": "990003", **steps}) == 403
    assert post(job, "checkpoints", {"job": "990002", **saved}) == 202
    assert post(job, "checkpoints", {"job": "990003", **saved}) == 403
    assert post(job, "metrics", {"node": TEXT, **power}) == 403
    refused = site.sql("SELECT actor FROM audit_records WHERE verb = 'access.refused' ORDER BY actor")
    assert {actor for (actor,) in refused} == {"hook", "trainer"}


# --- rules that change while healer runs --------------------------------------------------------------------


def test_a_changed_rule_is_in_force_and_a_broken_one_is_not(house: House, site: Site) -> None:
    file = house.rules / "detection" / "site.yaml"
    assert all(one["rule"] != "site-crowded" for one in site.incidents(CROWDED))
    file.write_text(CROWDED_RULE.format(limit=500))
    found = house.incident(CROWDED, "site-crowded", 40)
    assert (found["severity"], found["root"]["node"]) == ("P3", CROWDED)

    def watched() -> str:
        rules = site.get("/rules")
        rules = rules["items"] if isinstance(rules, dict) else rules
        return next(one["measured"]["when"] for one in rules if one["rule"]["name"] == "site-crowded")

    wait_until(lambda: watched() == "procs_running > 500", 20, what="the API shows the new rule", every_s=0.2)
    file.write_text(CROWDED_RULE.format(limit=400).replace("procs_running >", "procs_runing >"))
    try:
        with closing(house.console()) as console:
            page = wait_until(lambda: not_taken(console), 20, what="the rules page says why", every_s=0.3)
            assert "site.yaml" in page
            assert "did you mean procs_running?" in page
            assert watched() == "procs_running > 500"
            wait_until(
                lambda: "keeping the old set" in site.stack.log("detector"), 20, what="the detector too"
            )
            file.write_text(CROWDED_RULE.format(limit=500))
            wait_until(lambda: not not_taken(console), 20, what="all is well again", every_s=0.3)
    finally:
        file.write_text(CROWDED_RULE.format(limit=500))


def not_taken(console: httpx.Client) -> str:
    """The rules page, if it says that changed rules were not taken."""
    page = console.get("/rules").text
    return page if "Changed rules were rejected" in page else ""


# --- a detector that dies -----------------------------------------------------------------------------------


def test_faults_seen_before_a_detector_crash_are_kept(house: House, site: Site) -> None:
    """A GPU is missing; the rule wants to see that for two minutes. In the second the detector is killed."""
    half = house.planted_at + timedelta(seconds=75)
    wait_until(lambda: datetime.now(UTC) >= half, 80, what="half of the two minutes has passed", every_s=0.5)
    assert all(one["rule"] != "gpu-count-low" for one in site.incidents(COUNT))
    before = site.stack.pids()["detector"]
    rebuilt = site.stack.log("detector").count("metric windows rebuilt")
    os.kill(before, signal.SIGKILL)
    killed_at = datetime.now(UTC)
    wait_until(lambda: site.stack.pids().get("detector", before) != before, 20, what="another detector")
    wait_until(
        lambda: site.stack.log("detector").count("metric windows rebuilt") > rebuilt,
        30,
        what="its windows are rebuilt",
    )
    found = house.incident(COUNT, "gpu-count-low", 120)
    opened = datetime.fromisoformat(found["opened"])
    assert opened - killed_at < timedelta(seconds=120), "it waited its whole time again"
    assert opened - house.planted_at >= timedelta(seconds=120)
    assert found["severity"] == "P1"
    wait_until(lambda: site.drained_by_us(COUNT), 20, what=f"{COUNT} is drained", every_s=0.1)


# --- what is certain ----------------------------------------------------------------------------------------


def figures(incident: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What each guard said to the decision that let healer act."""
    acted = next(one for one in incident["decisions"] if one["outcome"] == "act")
    return {answer["guard"]: answer for answer in acted["answers"]}


def chart_of(incident: dict[str, Any], rule: str) -> dict[str, Any]:
    finding = next(one for one in incident["findings"] if one["rule"] == rule)
    (chart,) = finding["charts"]
    assert all(len(line["values"]) == len(chart["times"]) for line in chart["lines"])
    return chart


def roles(chart: dict[str, Any]) -> set[str]:
    return {line["role"] for line in chart["lines"]}


def test_memory_that_cannot_be_repaired_takes_its_node_out(house: House, site: Site) -> None:
    found = house.incident(REMAP, "gpu-row-remap-failed")
    assert (found["severity"], found["root"]["gpu"]) == ("P1", REMAP_GPU)
    assert {one["sense"] for one in found["evidence"]} == {"metrics"}
    chart = chart_of(found, "gpu-row-remap-failed")
    assert (chart["signal"], chart["node"], chart["gpu"]) == ("row_remap_failed", REMAP, REMAP_GPU)
    assert {"own", "peers"} <= roles(chart)
    wait_until(lambda: site.drained_by_us(REMAP), 20, what=f"{REMAP} is drained", every_s=0.1)
    said = figures(house.incident(REMAP, "gpu-row-remap-failed"))
    assert {answer["kind"] for answer in said.values()} == {"allow"}
    assert any(answer.get("limit") == 32 for answer in said.values())
    (run,) = site.runs(REMAP)
    assert run["playbook"] == "gpu-fatal"
    assert site.run_in(REMAP, "waiting", timeout_s=90)["id"] == run["id"]
    states = {name: step["state"] for name, step in site.steps(run["id"]).items()}
    assert states["ticket"] == "done"


def test_a_dead_fabric_manager_is_restarted_and_no_person_is_needed(house: House, site: Site) -> None:
    found = house.incident(FABRIC, "fabric-manager-down", 90)
    assert chart_of(found, "fabric-manager-down")["signal"] == "fabric_manager_active"
    run = site.run_in(FABRIC, "done", timeout_s=60)
    assert run["playbook"] == "restart-fabric-manager"
    states = {name: step["state"] for name, step in site.steps(run["id"]).items()}
    assert {name for name, state in states.items() if state == "done"} >= {
        "drain",
        "restart",
        "fabric",
        "resume",
    }
    assert {states["ticket"], states["repair"]} == {"skipped"}
    assert house.nodes.restarts(FABRIC) == 1
    assert site.node(FABRIC).in_service
    assert site.drains(FABRIC) == 1
    assert not any(one["page"] for one in found["messages"])


# --- what is only reported-----------------------------------------------------------------------------------


def test_noisy_rule_only_notifies(house: House, site: Site) -> None:
    found = house.incident(REPLAYS, "gpu-pcie-replays")
    assert (found["severity"], found["root"]["gpu"]) == ("P3", REPLAYS_GPU)
    assert chart_of(found, "gpu-pcie-replays")["signal"] == "pcie_replay_total"
    assert site.drains(REPLAYS) == 0


def test_step_times_alone_name_the_gpu_and_a_second_sense_is_waited_for(house: House, site: Site) -> None:
    found = house.incident(house.slow, "straggler")
    assert (found["root"]["gpu"], found["jobs_hit"]) == (SLOW_GPU, [house.slow_job])
    assert {one["sense"] for one in found["evidence"]} == {"step_times"}
    chart = chart_of(found, "straggler")
    assert (chart["x"], roles(chart)) == ("step", {"own", "low", "high", "threshold"})
    (decision,) = found["decisions"]
    assert decision["outcome"] == "nothing"
    assert "a second signal must agree" in decision["why"]
    assert site.runs(house.slow) == []
    assert site.drains(house.slow) == 0
    ranks = site.get(f"/jobs/{CLUSTER}/{house.slow_job}")["step_times"]["slowest"]
    assert (ranks[0]["node"], ranks[0]["gpu"]) == (house.slow, SLOW_GPU)


# --- two senses ---------------------------------------------------------------------------------------------


def test_heat_and_step_times_together_take_the_node_out_at_a_checkpoint(house: House, site: Site) -> None:
    wait_until(lambda: site.drained_by_us(house.hot), 200, what=f"{house.hot} is drained", every_s=0.2)
    run = site.run_in(house.hot, "waiting", timeout_s=60)
    assert run["playbook"] == "slow-node"
    found = house.incident(house.hot, "straggler")
    assert found["root"]["gpu"] == HOT_GPU
    assert {one["sense"] for one in found["evidence"]} == {"step_times", "metrics"}
    heat = {one["rule"] for one in found["findings"]} - {"straggler"}
    assert heat <= {"gpu-hot", "gpu-overheated", "gpu-thermal-slowdown", "gpu-clock-low"}, heat
    for rule in heat:
        chart = chart_of(found, rule)
        assert (chart["node"], chart["gpu"]) == (house.hot, HOT_GPU)
        assert {"own", "peers", "low", "high"} <= roles(chart)
    steps = site.steps(run["id"])
    assert steps["moment"]["text"].startswith("Checkpoints saved")
    saved = site.get(f"/jobs/{CLUSTER}/{house.hot_job}")["checkpoints"]
    drained = datetime.fromisoformat(steps["drain"]["started_at"])
    assert any(
        timedelta(0) <= drained - datetime.fromisoformat(one["at"]) < timedelta(seconds=15) for one in saved
    )
    assert steps[f"requeue:{house.hot_job}"]["state"] == "done"
    assert steps["validate"]["text"].endswith(f"tests failed: GPU {HOT_GPU} throttles by heat")
    assert steps["ticket"]["text"].startswith("Ticket opened")
    wait_until(lambda: site.job(house.hot_job).state == "RUNNING", 40, what="the job runs again", every_s=0.2)
    assert site.job(house.hot_job).restarts == 1
    assert house.hot not in site.job(house.hot_job).nodes


def test_node_without_a_matching_rule_is_reported_as_unusual_only(house: House, site: Site) -> None:
    found = house.incident(ODD, "unusual-node", 120)
    assert found["severity"] == "P3"
    (finding,) = [one for one in found["findings"] if one["rule"] == "unusual-node"][:1]
    made_of = {one["feature"] for one in finding["contributions"]}
    assert made_of & {"gpu temperature, mean", "gpu power, mean", "host load"}
    assert {"own", "peers", "threshold"} <= roles(finding["charts"][0])
    with closing(house.console()) as console:
        page = console.get(f"/incidents/{found['id']}").text
    assert finding["contributions"][0]["feature"] in page
    assert site.runs(ODD) == []
    assert site.drains(ODD) == 0


# --- and no other node --------------------------------------------------------------------------------------


def test_no_other_node_was_touched_and_all_is_recorded(house: House, site: Site) -> None:
    out = {node for node in site.scheduler.snapshot().nodes if site.drains(node)}
    assert out == {REMAP, FABRIC, COUNT, house.hot}
    assert {node: site.drains(node) for node in out} == dict.fromkeys(out, 1)
    incidents = site.get("/incidents", limit=500)["items"]
    graver = {one["root"].get("node") for one in incidents if one["severity"] in {"P0", "P1", "P2"}}
    assert graver == {REMAP, FABRIC, COUNT, house.hot, house.slow}
    assert {one["severity"] for one in incidents if one["root"].get("node") == ODD} == {"P3"}
    assert site.job(house.slow_job).restarts == 0
    assert house.sensors.errors == []
    site.audit_holds()
