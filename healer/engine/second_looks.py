"""Asks nodes to confirm what a relay reports about them, before healer takes any capacity for it (law 2).

The look is a run of the playbook `second-look`, which takes no capacity. Its answer arrives with the message
that the run ended. Until then, or until its step times out, nothing is decided for the incident.
"""

from datetime import timedelta

from healer.decisions import is_paused, proposal_of, takes_nothing
from healer.engine.upkeep import Walk, begin_each
from healer.incidents import by_urgency
from healer.incidents.second_look import SECOND_LOOK, claims_to_ask, is_asked, mark_asked
from healer.model import HARDWARE, Evidence, Incident, Mode, Playbook, Run, RunState, Verb
from healer.model.run import run_id

#: Concurrent looks: fewer than a worker's SSH calls, so that other runs can continue.
AT_ONCE = 4


def begin_looks(walk: Walk) -> frozenset[str]:
    """Begins the looks that are due. Returns the incidents whose node is being asked, or will be as soon as
    there is a free place: nothing is decided for them now."""
    playbook = walk.rules.playbooks.get(SECOND_LOOK)
    if playbook is None:
        return frozenset()
    lasts = timedelta(seconds=max(step.timeout_s for step in playbook.steps))
    begun = (run for run in walk.runs.values() if run.playbook == SECOND_LOOK and run.by == "healer")
    under_way = {run.id for run in begun if walk.now - run.created_at < lasts}
    open_incidents = [incident for incident in walk.open_incidents() if takes_a_node(walk, incident)]
    waits = {incident.id for incident in open_incidents if is_asked(incident, under_way)}
    idle = (incident for incident in open_incidents if incident.id not in waits)
    due = {incident.id: claims for incident in idle if (claims := claims_to_ask(incident))}
    by_rank = by_urgency([walk.work.by_id[name] for name in due], walk.picture.slurm)
    # Claims of suspect senders are held anyway, and are checked last: they may turn out to be true.
    for incident in sorted(by_rank, key=lambda incident: bool(incident.doubt)):
        claims = due[incident.id]
        run = _look_run(walk, incident, claims)
        if is_paused(proposal_of(run, Verb.notify, incident), walk.gate, walk.now):
            continue
        if not incident.doubt:
            waits.add(incident.id)
        if len(under_way) < AT_ONCE:
            under_way.add(run.id)
            walk.work.put(mark_asked(incident, claims, run.id))
            walk.started += begin_each(walk, [run])
    return frozenset(waits)


def takes_a_node(walk: Walk, incident: Incident) -> bool:
    """healer may take capacity for the incident by itself."""
    rule = walk.rules.by_name.get(incident.rule)
    playbook: Playbook | None = walk.rules.playbooks.get(rule.playbook or "") if rule is not None else None
    if rule is None or playbook is None or takes_nothing(playbook) or incident.root.node is None:
        return False
    mode = walk.rules.mode_of(rule, walk.gate.modes)
    return incident.fault_class in HARDWARE and incident.stopped_by is None and mode is not Mode.off


def _look_run(walk: Walk, incident: Incident, claims: tuple[Evidence, ...]) -> Run:
    """The look for these claims; the same claims about the same incident give the same run."""
    repaired_at = walk.picture.node(incident.root.node or "").cleared_at
    return Run(
        id=run_id(f"{incident.id}|{SECOND_LOOK}|{claims[0].digest}"),
        cluster=incident.cluster,
        playbook=SECOND_LOOK,
        state=RunState.running,
        by="healer",
        reason=incident.title,
        created_at=walk.now,
        node=incident.root.node,
        incident=incident.id,
        rule=incident.rule,
        alongside=True,
        input={"repaired_at": repaired_at.isoformat()} if repaired_at is not None else {},
    )
