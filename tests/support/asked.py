"""Playbooks that people start on jobs, and what they come to."""

from typing import Any

import msgspec

from healer.model import JobCheckpoint, Run, RunState, StepEvent
from tests.support.loop import CLUSTER, Site


def ask_job(site: Site, playbook: str, job: str, **fields: Any) -> str:
    """A person starts a playbook on a job, as the API writes it down. The run's id."""
    known = site.slurm.job(job)
    run = Run(
        id=f"r-ann-{playbook}-{len(site.runs)}", cluster=CLUSTER, playbook=playbook, state=RunState.running,
        by="ann", reason="because", created_at=site.now, job=job, rule=playbook,
        input={"restarts": known.restarts if known else None, "reason_text": "ann: because"},
    )  # fmt: skip
    with site.ledger.transaction() as tx:
        tx.create_run(msgspec.structs.replace(run, **fields))
    return run.id


def saves(site: Site, job: str, *, step: int, restart: int = 0) -> None:
    """The job reports a durable checkpoint now."""
    checkpoint = JobCheckpoint(
        job=job, restart=restart, step=step, path=f"/ckpt/{step}", at=site.now, arrived_at=site.now
    )
    site.saved.take([checkpoint])


def state_of(site: Site, run: str) -> tuple[RunState, str]:
    found = site.ledger.tables.runs[run]
    return found.state, found.question or ""


def over(site: Site, run: str, event: StepEvent = StepEvent.done) -> list[str]:
    """The steps that ended so, in their order."""
    return list(dict.fromkeys(one.step for one in site.log(run) if one.event is event))


def approve_step(site: Site, run: str, step: str, by: str = "bob") -> None:
    """A person's approval at a step that waits for one, as the API writes it down."""
    last = site.log(run)[-1]
    assert (last.step, last.event) == (step, StepEvent.waiting), last
    entry = msgspec.structs.replace(last, event=StepEvent.done, text=f"{by} approved", data={"by": by})
    site.ledger.tables.log[run].append(entry)
    with site.ledger.transaction() as tx:
        tx.set_run_state(run, RunState.running, why=f"{by} approved", at=site.now)
