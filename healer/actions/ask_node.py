"""Asks the node itself whether what others report about it is true, in lines or in figures (law 2)."""

from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from healer.actions.base import Context, Done, Result, read_node, read_slurm, tried
from healer.detection.readings import Reading, read
from healer.incidents.second_look import (
    LookAnswer,
    LookResult,
    asked_by,
    judge_figures,
    judge_look,
    opening_of,
    unknown_answer,
)
from healer.model import (
    HARDWARE,
    Component,
    Evidence,
    Incident,
    Observation,
    Ruleset,
    Sense,
    SlurmJob,
    SlurmNode,
)
from healer.model.gate import CLOCKS_DIFFER
from healer.ports.node_exec import NodeError, NodeExec
from healer.signals.kernel_log import parse_line
from healer.text import said_by, say, to_stored

#: The part of the step's time-out reserved for transport, and the least that a call gets.
WAY_S, LEAST_S = 1.5, 1.0
#: The time limit of the worker's own look at a node that is certainly unusable.
OWN_LOOK_S = 4.5
#: The faults shown by nvidia-smi that mean a GPU is certainly gone.
_GONE = ("gpu-count-low", "gpu-row-remap-failed")


def second_look(ctx: Context) -> Result:
    """Asks the node once. Always passes, because a missing answer is an answer too."""
    answer = _answer(ctx)
    text = say(f"actions.second_look_says_{answer.result}", node=ctx.node, text=answer.text)
    return Done(text, {"look": to_stored(answer)})


def _answer(ctx: Context) -> LookAnswer:
    claims = asked_by(ctx.incident, ctx.run.id) if ctx.incident is not None else ()
    if ctx.incident is None or not claims:
        return unknown_answer(say("actions.second_look_no_claim"))
    waited_s = (ctx.tools.now() - ctx.run.created_at).total_seconds()
    limit_s = max(LEAST_S, ctx.step.timeout_s - WAY_S - max(0.0, waited_s))
    claim, fault = claims[0], ctx.incident.fault
    if claim.line:
        repaired = ctx.run.input.get("repaired_at")
        return _ask_of_line(ctx, claim, limit_s, datetime.fromisoformat(repaired) if repaired else None)
    return _ask(ctx, lambda nodes: judge_figures(fault, _smi_shows(ctx, nodes, limit_s), ctx.tools.now()))


def check_unusable(ctx: Context, rules: Ruleset, repaired_at: datetime | None) -> LookAnswer:
    """What this process itself sees of a node that other parts reported as certainly unusable: Slurm's state,
    a kernel record since its last repair that means so by these rules, or the output of nvidia-smi. Asks the
    node once."""
    shown = tried(lambda: read_node(ctx))
    if away := _unreached_by_slurm(shown):
        return away
    evidence = ctx.incident.evidence if ctx.incident is not None else ()
    claims = [claim for claim in evidence if claim.unusable and claim.component.node == ctx.node]
    for claim in reversed(claims):
        reading = _reading_of(rules, claim, shown)
        if reading is not None and reading.unusable:
            return _ask_of_line(ctx, claim, OWN_LOOK_S, repaired_at)
    return _ask_of_figures(ctx, _GONE)


def check_restart(ctx: Context, job: SlurmJob, incident: Incident, rules: Ruleset) -> LookAnswer:
    """What this process itself sees of a fault that other parts reported as having ended the work of this
    running job: Slurm's state, a kernel record from its present life that is a hardware fault by these rules,
    or the output of nvidia-smi. Asks the node at most twice."""
    node = ctx.run.node or incident.root.node
    ctx = msgspec.structs.replace(ctx, run=msgspec.structs.replace(ctx.run, node=node))
    on_node = read_slurm(lambda: ctx.tools.scheduler.jobs_on(ctx.node)) if node is not None else []
    claims = [item for item in incident.evidence if item.fatal or item.unusable]
    claims = [item for item in claims if item.component.node == node]
    if not claims or job.id not in {each.leader for each in on_node}:
        return LookAnswer(result=LookResult.denied, text=say("actions.not_of_this_job", job=job.title))
    shown = tried(lambda: read_node(ctx))
    if away := _unreached_by_slurm(shown):
        return away
    for claim in reversed(claims):
        reading = _reading_of(rules, claim, shown)
        if reading is not None and reading.fault_class in HARDWARE:
            answer = _ask_of_line(ctx, claim, OWN_LOOK_S)
            if job.start_at is None or answer.at is None or answer.at > job.start_at - CLOCKS_DIFFER:
                return answer
            now = _ask_of_figures(ctx, (*_GONE, incident.fault))
            early = LookAnswer(result=LookResult.denied, text=say("actions.of_before_the_job", job=job.title))
            return now if now.result is LookResult.agreed else early
    return _ask_of_figures(ctx, (*_GONE, incident.fault))


def _unreached_by_slurm(shown: SlurmNode | None) -> LookAnswer | None:
    """The answer, if Slurm itself shows that the node does not respond."""
    if shown is None or shown.responding:
        return None
    text = say("actions.slurm_shows_it_away", state="+".join(shown.state))
    return LookAnswer(result=LookResult.agreed, text=text, sense=Sense.slurm)


def _reading_of(rules: Ruleset, claim: Evidence, shown: SlurmNode | None) -> Reading | None:
    """By this process's own catalogues, whatever the claim says about its own line."""
    parsed = parse_line(claim.line, rules.kernel_lines) if claim.line else None
    if parsed is None:
        return None
    seen = Observation(
        digest=claim.digest, kind=parsed.kind, component=Component(cluster=claim.component.cluster),
        event_at=claim.at, arrived_at=claim.at, code=parsed.code, text=parsed.text, data=parsed.data,
    )  # fmt: skip
    return read(rules, seen, shown)


def _ask_of_figures(ctx: Context, faults: Sequence[str]) -> LookAnswer:
    """Whether nvidia-smi on the node shows one of these faults now."""

    def judged(nodes: NodeExec) -> LookAnswer:
        seen = _smi_shows(ctx, nodes, OWN_LOOK_S)
        answers = [judge_figures(fault, seen, ctx.tools.now()) for fault in faults]
        return next((answer for answer in answers if answer.result is LookResult.agreed), answers[0])

    return _ask(ctx, judged)


def _ask_of_line(
    ctx: Context, claim: Evidence, limit_s: float, repaired_at: datetime | None = None
) -> LookAnswer:
    opening, pci = opening_of(claim.line), claim.component.pci

    def judged(nodes: NodeExec) -> LookAnswer:
        seen = nodes.second_look(ctx.node, opening, pci, limit_s)
        return judge_look(claim, seen, ctx.tools.now(), repaired_at)

    return _ask(ctx, judged)


def _ask(ctx: Context, judged: Callable[[NodeExec], LookAnswer]) -> LookAnswer:
    if ctx.tools.nodes is None:
        return unknown_answer(say("actions.second_look_no_way"))
    try:
        return judged(ctx.tools.nodes)
    except NodeError as error:
        return unknown_answer(say("actions.second_look_no_answer", error=said_by(error)))


def _smi_shows(ctx: Context, nodes: NodeExec, limit_s: float) -> dict[str, bool]:
    """What nvidia-smi on the node shows now. Raises NodeError."""
    memory, node = nodes.memory_state(ctx.node, limit_s), tried(lambda: read_node(ctx))
    if node is None or node.gpus_shared:
        return memory.shown
    return memory.shown | {"missing": memory.gpus < node.gpus}
