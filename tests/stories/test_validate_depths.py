"""How much of a node is tested, and what its results mean: the playbooks with a test of a depth."""

from datetime import timedelta

import msgspec
import pytest

from healer.model import FIT, Depth, Reference, Remedy, RunState, StepEvent, Validation
from tests.support.loop import CLUSTER, name
from tests.support.under_test import TestSite

NODE = name(1)
TOLD = (
    "healer-test/1; gpus:passed:1; gpu_count=8; versions:passed:1; driver=580.65.06; says versions driver 580"
)


def in_test(**inputs: str) -> tuple[TestSite, str]:
    site = TestSite()
    run = site.ask("validate", 1)
    if inputs:
        known = site.run_named(run)
        site.ledger.tables.runs[run] = msgspec.structs.replace(known, input={**known.input, "inputs": inputs})
    site.run_for(20)
    return site, run


def ends(site: TestSite, comment: str, *, code: str | None = None) -> None:
    job = site.running_test()
    site.slurm.remark(job, comment)
    site.slurm.complete(job) if code is None else site.slurm.fail_job(job, code)
    site.run_for(10)
    for both in [one for one in site.test_jobs() if one.state == "RUNNING"]:  # with a partner, where full
        site.slurm.remark(both.id, "healer-test/1; pair:passed:1")
        site.slurm.complete(both.id)
    site.run_for(20)


def learn(site: TestSite, **fields: object) -> None:
    node = site.node(1)
    good = Reference(
        cluster=CLUSTER,
        kind=node.gpu_model or "cpu",
        node=name(2),
        at=site.now - timedelta(days=1),
        by="ann",
        **({"facts": {}} | fields),  # type: ignore[arg-type]
    )
    site.ledger.tables.references[good.kind] = good


def evidence(site: TestSite, run: str) -> dict[str, object]:
    return next(one.data for one in site.log(run, "test") if one.event is StepEvent.done)


def test_test_output_is_the_evidence_of_the_step() -> None:
    site, run = in_test(depth="full")
    ends(site, TOLD)
    assert site.run_named(run).state is RunState.done
    data = evidence(site, run)
    assert data["tests"] == {"gpus": "passed", "versions": "passed", "pair": "passed"}
    assert data["results"] == {"gpu_count": "8", "driver": "580.65.06"}
    assert (data["depth"], data["says"]) == ("full", {"versions": "driver 580"})


@pytest.mark.parametrize(
    ("depth", "tested", "returns"),
    [
        ("full", {"facts": {"driver": "580.65.06"}, "figures": {"gpu_count": 8.0}}, True),
        ("full", {"facts": {"driver": "575.57.08"}}, False),
        ("soft", {"facts": {"driver": "575.57.08"}}, True),  # reported, and left to drift
        ("soft", {"figures": {"gpu_count": 9.0}}, False),
    ],
)
def test_a_node_that_is_not_like_the_good_one_does_not_return(
    depth: str, tested: dict[str, object], returns: bool
) -> None:
    site, run = in_test(depth=depth)
    learn(site, **tested)
    ends(site, TOLD)
    assert site.run_named(run).state is (RunState.done if returns else RunState.waiting)
    assert site.node(1).drain is not returns
    data = evidence(site, run)
    assert (bool(data["worse"]), data["reference"]) == (not returns, name(2))
    assert bool(data["other"]) is (tested == {"facts": {"driver": "575.57.08"}})


def test_node_with_unreadable_gpus_asks_a_person() -> None:
    site, run = in_test()
    ends(
        site,
        "healer-test/1; gpus:untested:0; says gpus no nvidia-smi here: 8 GPUs not checked",
        code="77:0",
    )
    assert site.run_named(run).state is RunState.stuck
    assert "no nvidia-smi here" in (site.run_named(run).question or "")
    assert not site.node(1).drain and len(site.reservations()) == 1, "out by the reservation"


def test_a_test_that_fails_is_named_with_what_was_not_run() -> None:
    site, run = in_test(depth="quick")
    ends(site, "healer-test/1; gpus:failed:2; says gpus 7 GPUs respond, Slurm expects 8", code="1:0")
    assert site.run_named(run).state is RunState.waiting
    line = next(one.text for one in site.log(run, "test") if one.event is StepEvent.done)
    assert "gpus (7 GPUs respond, Slurm expects 8) failed; versions, links not run" in line


def test_a_worker_that_comes_later_reads_what_was_submitted() -> None:
    """The depths changed meanwhile: the job that runs is the one that was asked for."""
    site, run = in_test(depth="quick")
    shipped = site.rules.validation
    site.rules = msgspec.structs.replace(site.rules, validation=Validation(otherwise="other"))
    ends(site, "healer-test/1; gpus:failed:2", code="1:0")
    assert "quick" in shipped.depths and evidence(site, run)["depth"] == "quick"


DEPTHS = Validation(
    depths={one: Depth(tests=("gpus",), limit_s=60) for one in ("quick", "soft", "full")},
    fits={Remedy.restart_service: "quick", Remedy.reset_gpu_when_idle: "soft", Remedy.power_cycle: "full"},
    otherwise="soft",
)


@pytest.mark.parametrize(
    ("remedy", "depth"),
    [
        (None, "soft"),
        (Remedy.notify, "soft"),
        (Remedy.none, "soft"),
        (Remedy.restart_service, "quick"),
        (Remedy.reboot_node, "soft"),
        (Remedy.replace, "full"),
    ],
)
def test_the_depth_fits_the_highest_remedy(remedy: Remedy | None, depth: str) -> None:
    assert DEPTHS.depth_for(remedy) == depth
    assert FIT not in DEPTHS.depths


def test_gpu_reset_is_tested_softly_regardless_of_other_requests() -> None:
    site = TestSite()
    run = site.ask("gpu-reset", 1)
    site.run_for(40)
    ends(site, TOLD)
    assert site.run_named(run).state is RunState.done
    assert evidence(site, run)["depth"] == "soft"
