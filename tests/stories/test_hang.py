"""`hang`: evidence first; requeued without an approval only where recorder and GPUs agree on every rank."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from healer.actions.hang import is_quiet
from healer.detection.protocol import new_evidence
from healer.model import GpuActivity, Message, Mode, RunState, Sense
from tests.support.asked import approve_step, ask_job, over, state_of
from tests.support.jobs import job_of, site_of
from tests.support.loop import Crash, Site, equip, name, rules_in
from tests.support.recorders import BUSY, IDLE, QUIET, STACKS, dump, entry, on_node, up_to
from tests.support.slow import SlowSite, found

NODES = 2
MEMBERS = 4


def hanging(**given: Any) -> tuple[Site, str, str]:
    """A job on two nodes, two ranks each; rank 3 never came to collective 8. `given`: fields of `show`."""
    site = site_of(4)
    job = site.slurm.add_job(nodes=NODES, comment="")
    site.run_for(1200, step_s=60)
    show(site, job, **given)
    return site, job, ask_job(site, "hang", job)


def show(
    site: Site,
    job: str,
    *,
    late: int | None = 3,
    left_out: tuple[int, ...] = (),
    gpu: GpuActivity = QUIET,
    stalled_s: float = 600,
    age_s: float = 30,
) -> None:
    at = site.now - timedelta(seconds=age_s)
    for index in range(NODES):
        mine = [rank for rank in (2 * index, 2 * index + 1) if rank not in left_out]
        dumps = {
            rank: up_to(7, members=MEMBERS, waits=rank != late, at=at, stalled_s=stalled_s) for rank in mine
        }
        site.nodes.put_job(name(index + 1), job, on_node(dumps, at, gpu=gpu), STACKS)


def proof(site: Site, run: str) -> str:
    return site.log(run, "proof")[-1].text


def test_recorder_and_gpus_agree_and_it_is_requeued_and_runs() -> None:
    site, job, run = hanging()
    site.run_for(55)
    assert job_of(site, job).restarts == 0, "the GPUs are looked at twice"
    site.run_for(60)
    assert proof(site, run) == (
        f"Job {job}: nccl:all_reduce 8 of group 0 is stalled: rank 3 (gpu0002) never arrived, 3 wait. "
        "All its GPUs were idle in two checks: it hangs"
    )
    assert state_of(site, run)[0] is RunState.done
    assert over(site, run) == ["proof", "stacks", "tell", "requeue", "runs"]
    assert (job_of(site, job).restarts, job_of(site, job).state) == (1, "RUNNING")


def test_people_read_what_was_found() -> None:
    site, _, run = hanging()
    site.run_for(120)
    (message,) = [one for one in site.ledger.tables.messages.values() if isinstance(one, Message)]
    assert "rank 3 (gpu0002) never arrived" in message.text
    assert "gpu0002: process 4711 is in wait (work.py:12) < step (train.py:9)" in message.text
    stacks = [one.data["node"] for one in site.log(run, "stacks") if "node" in one.data]
    assert stacks == [name(2), name(1)], "the node of the rank that never came is first"


def test_a_job_whose_gpus_work_is_not_requeued_by_an_approval_either() -> None:
    site, job, run = hanging(gpu=BUSY)
    site.run_for(120)
    assert proof(site, run).endswith("Its GPUs are busy, so it may still make progress")
    approve_step(site, run, "approve")
    site.run_for(20)
    assert state_of(site, run)[0] is RunState.done and job_of(site, job).restarts == 0
    assert (
        f"are busy on gpu0001: not requeued. To requeue it anyway: `healer run requeue --job {job}`"
        in site.log(run, "requeue")[-1].text
    )
    assert site.log(run)[-1].text == f"Job {job} was not requeued"
    assert site.ledger.tables.requeued_by == {} and site.audited("job.requeued") == 0


def test_a_job_that_went_on_while_a_pause_held_its_requeue_is_left_alone() -> None:
    site, job, run = hanging()
    site.run_for(30)
    site.pause()
    site.run_for(600, step_s=10)
    assert site.log(run)[-1].step == "requeue" and job_of(site, job).restarts == 0
    show(site, job, gpu=BUSY)
    site.end_pause()
    site.run_for(20)
    assert state_of(site, run)[0] is RunState.done and job_of(site, job).restarts == 0


def test_a_job_that_saves_on_a_signal_is_looked_at_before_it_and_not_after() -> None:
    """To save its work it computes, and it is requeued all the same."""
    site = site_of(4)
    job = site.slurm.add_job(nodes=NODES, comment="healer:signal=USR1@30")
    site.run_for(1200, step_s=60)
    show(site, job)
    run = ask_job(site, "hang", job)
    site.run_for(65)
    assert site.slurm.heard(job) == ["signal USR1"]
    show(site, job, gpu=BUSY)
    site.run_for(60)
    assert job_of(site, job).restarts == 1 and state_of(site, run)[0] is RunState.done


def other_call(site: Site, job: str) -> None:
    at = site.now - timedelta(seconds=30)
    wrong = dump([entry(8, "nccl:all_gather", created_ns=1)], {"0": range(MEMBERS)})
    shown = on_node({2: up_to(7, members=MEMBERS, waits=True, at=at), 3: wrong}, at)
    site.nodes.put_job(name(2), job, shown, STACKS)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"gpu": GpuActivity(pci="x")}, "GPU activity is not known on every node"),
        ({"gpu": GpuActivity(pci="x", util_percent=100)}, "GPU activity is not known on every node"),
        ({"left_out": (2,)}, "Some ranks left no dump, so the hang is not confirmed"),
        ({"left_out": (0, 1, 2, 3)}, "Its GPUs are idle, for no known reason"),
        ({"stalled_s": 5}, "It had been stalled for less than a minute when the dumps were written"),
        ({"age_s": 7200}, "Its GPUs are idle, for no known reason"),
    ],
)
def test_requeue_after_an_unconfirmed_hang_waits_for_approval(given: dict[str, Any], why: str) -> None:
    site, job, run = hanging(**given)
    site.run_for(600, step_s=20)
    assert proof(site, run).endswith(why)
    assert state_of(site, run) == (
        RunState.waiting, "Waiting for approval: Requeue a job whose hang is not confirmed"
    )  # fmt: skip
    assert job_of(site, job).restarts == 0
    approve_step(site, run, "approve")
    site.run_for(20)
    assert job_of(site, job).restarts == 1 and state_of(site, run)[0] is RunState.done


def test_a_programs_own_error_is_named_and_a_person_decides() -> None:
    site, job, run = hanging()
    other_call(site, job)
    site.run_for(120)
    assert "rank 3 (gpu0002) called nccl:all_gather instead, so the program itself is wrong" in proof(
        site, run
    )
    assert proof(site, run).endswith("A restart would not fix that")
    assert state_of(site, run)[0] is RunState.waiting and job_of(site, job).restarts == 0


def test_all_ranks_came_and_it_does_not_end() -> None:
    site, job, run = hanging(late=None, gpu=IDLE)
    site.run_for(120)
    assert (
        "all ranks arrived, and it does not finish. All its GPUs were idle in two checks: it hangs"
        in proof(site, run)
    )
    assert job_of(site, job).restarts == 1


def test_a_job_that_works_at_the_second_look_only_paused() -> None:
    site, job, run = hanging()
    site.run_for(30)
    show(site, job, gpu=BUSY)
    site.run_for(120)
    assert (
        proof(site, run).endswith("Its GPUs are busy, so it may still make progress")
        and job_of(site, job).restarts == 0
    )


def test_a_node_that_does_not_answer_proves_nothing() -> None:
    site, job, run = hanging()
    site.nodes.plant(name(2), "unreachable")
    site.run_for(120)
    assert proof(site, run).endswith("GPU activity is not known on every node")
    assert state_of(site, run)[0] is RunState.waiting and job_of(site, job).restarts == 0


def test_invalid_dump_is_reported_and_ignored() -> None:
    site, job, run = hanging()
    bad = on_node({2: b"cos\nsystem\n(S'x'\ntR.", 3: None}, site.now)
    site.nodes.put_job(name(2), job, bad, STACKS)
    site.run_for(120)
    line = next(one.text for one in site.log(run, "proof") if one.data.get("node") == name(2))
    assert "the dump of rank 2 could not be read" in line and "the dump of rank 3 is too large" in line
    assert job_of(site, job).restarts == 0


def test_rank_claimed_by_two_nodes_proves_nothing() -> None:
    """Another job of the same user has left dumps under the same names."""
    site, job, run = hanging()
    at = site.now - timedelta(seconds=30)
    dumps = {rank: up_to(7, members=MEMBERS, waits=rank != 3, at=at) for rank in (1, 2, 3)}
    site.nodes.put_job(name(2), job, on_node(dumps, at), STACKS)
    site.run_for(120)
    assert proof(site, run).endswith("some dumps may belong to another job")
    assert state_of(site, run)[0] is RunState.waiting and job_of(site, job).restarts == 0


def test_dumps_that_hold_too_much_are_not_kept() -> None:
    site, job, run = hanging()
    groups = [entry(1, group=str(number)) for number in range(60)]
    large = dump(groups, {str(number): range(1000, 5000) for number in range(60)})
    site.nodes.put_job(name(2), job, on_node({2: large}, site.now), STACKS)
    site.run_for(120)
    line = next(one for one in site.log(run, "proof") if one.data.get("node") == name(2))
    assert line.data["ranks"] == {} and "too large to keep" in line.text
    assert job_of(site, job).restarts == 0


def test_a_job_that_ended_meanwhile_ends_the_run() -> None:
    site, job, run = hanging()
    site.run_for(5)
    site.slurm.complete(job)
    site.run_for(80)
    assert state_of(site, run)[0] is RunState.done and "no longer hangs" in site.log(run)[-1].text


def test_without_node_access_only_a_person_can_judge() -> None:
    site, job, run = hanging()
    equip(site.driver, nodes=None)
    site.run_for(5)
    assert "cannot work on nodes" in proof(site, run) and "py-spy dump --pid" in proof(site, run)
    assert state_of(site, run)[0] is RunState.waiting and job_of(site, job).restarts == 0


def test_a_large_job_is_for_a_person() -> None:
    site = site_of(40)
    job = site.slurm.add_job(nodes=33)
    site.run_for(2)
    run = ask_job(site, "hang", job)
    site.run_for(5)
    assert proof(site, run) == f"Job {job} has 33 nodes: only a person can tell whether it hangs"
    assert state_of(site, run)[0] is RunState.waiting


def test_a_shadow_run_looks_and_touches_nothing() -> None:
    site, job, run = hanging()
    known = site.ledger.tables.runs[run]
    site.ledger.tables.runs[run] = msgspec.structs.replace(known, shadow=True)
    site.run_for(120)
    assert state_of(site, run)[0] is RunState.done
    assert "shadow: would requeue" in site.log(run, "requeue")[-1].text
    assert job_of(site, job).restarts == 0 and site.ledger.tables.messages == {}


@pytest.mark.parametrize(
    "where", ["performed:proof", "performed:stacks", "started:requeue", "performed:requeue"]
)
def test_a_worker_that_dies_goes_on_where_it_was(where: str) -> None:
    site, job, run = hanging()
    died: list[str] = []

    def die(at: str) -> None:
        if at == where and not died:
            died.append(at)
            raise Crash(at)

    site.on_checkpoint = die
    for _ in range(120):
        site.clock.advance(1)
        try:
            site.drive()
        except Crash:
            site.clock.advance(11)
    assert died == [where]
    assert job_of(site, job).restarts == 1 and state_of(site, run)[0] is RunState.done


def test_quiet_is_only_what_is_known_to_be() -> None:
    unknown = GpuActivity(pci="x", util_percent=100, power_w=100)
    assert is_quiet((QUIET, IDLE)) is True
    assert is_quiet((QUIET, BUSY)) is False
    assert is_quiet((QUIET, unknown)) is None
    assert is_quiet((unknown, BUSY)) is False
    assert is_quiet(()) is None


def test_a_gpu_of_the_job_that_nvidia_smi_does_not_list_is_unknown() -> None:
    site, job, run = hanging()
    assert job_of(site, job).gpus[name(2)] == tuple(range(8))
    at = site.now - timedelta(seconds=30)
    dumps = {rank: up_to(7, members=MEMBERS, waits=rank != 3, at=at) for rank in (2, 3)}
    shown = msgspec.structs.replace(on_node(dumps, at), gpus=(QUIET,) * 7)
    site.nodes.put_job(name(2), job, shown, STACKS)
    site.run_for(120)
    assert proof(site, run).endswith("GPU activity is not known on every node")
    assert job_of(site, job).restarts == 0


# --- a job of more nodes than are asked one by one ---------------------------------------------------------


def large(*, agreed: bool = True) -> tuple[SlowSite, str]:
    """A job on 40 nodes whose hang was just found; the site acts alone."""
    rules = rules_in(Mode.auto)
    own = tuple(msgspec.structs.replace(one, mode=None) if one.name == "hang" else one for one in rules.rules)
    site = SlowSite(44, rules=msgspec.structs.replace(rules, rules=own))
    job = site.slurm.add_job(nodes=40, comment="healer:requeue" if agreed else "")
    site.run_for(1200, step_s=60)
    return site, job


def reported(site: SlowSite, job: str, *quiet_s: float, until_s: float = 240) -> None:
    """The detector reports it at once, and at these seconds that its GPUs are quiet."""
    for second in range(0, int(until_s), 5):
        if second == 0 or second in quiet_s:
            finding = found("hang", site.now, node=None, job=job)
            sign = new_evidence(f"{site.now}", finding.component, site.now, "quiet", site.now, Sense.metrics)
            more = (sign,) if second in quiet_s else ()
            site.tick((msgspec.structs.replace(finding, evidence=(*finding.evidence, *more)),))
        site.tick()
        site.run_for(5)


def test_a_large_job_is_proven_by_what_its_ranks_and_all_its_gpus_report_twice() -> None:
    site, job = large()
    reported(site, job, 5, 65)
    (run,) = site.runs
    assert proof(site, run.id) == (
        f"Job {job}: its ranks wait for each other and all its GPUs were idle in two checks. It hangs"
    )
    assert job_of(site, job).restarts == 1


@pytest.mark.parametrize("quiet", [(), (5,), (5, 40)])
def test_a_large_job_of_which_less_is_known_waits_for_a_person(quiet: tuple[int, ...]) -> None:
    site, job = large()
    reported(site, job, *quiet)
    (run,) = site.runs
    assert "only a person can tell" in proof(site, run.id)
    assert state_of(site, run.id)[0] is RunState.waiting
    assert job_of(site, job).restarts == 0


def test_a_large_job_that_did_not_agree_is_left_alone() -> None:
    site, job = large(agreed=False)
    reported(site, job, 5, 65)
    assert job_of(site, job).restarts == 0
