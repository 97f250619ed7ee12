"""When a run takes its node's slot: when its first removing step starts (law 1), and not before.

A playbook that begins with its drain, or with a look right before it, is granted the slot as it begins. One
that waits first begins without: for hours it only watches, and must not use up what another node needs. Its
drain is judged whole when it is due, and takes the slot then.
"""

from healer.decisions.gate import SLOT_VERBS
from healer.model import REMOVING_VERBS, RESTARTING_VERBS, GateFacts, Playbook, Run, Verb

#: They take nothing from a node: nobody else's work on it is in their way, nor they in its. A command of the
#: site that takes capacity stands behind a drain.
_TAKES_NOTHING = frozenset(
    {None, Verb.collect, Verb.sweep, Verb.bisect, Verb.site_command, Verb.ticket, Verb.notify}
)

#: Looks that are over at once, and may end the run.
_BRIEF = frozenset({"still_silent"})


def slot_later(playbook: Playbook | None) -> bool:
    """The playbook takes a slot, but does other things first than to look."""
    steps = playbook.steps if playbook is not None else ()
    taking = next((index for index, step in enumerate(steps) if step.do in SLOT_VERBS), None)
    return taking is not None and any(step.check not in _BRIEF for step in steps[:taking])


def looks_first(verb: Verb, playbook: Playbook | None) -> bool:
    """The run begins before the first step that takes anything is due, which asks whole when it is."""
    if verb in SLOT_VERBS:
        return slot_later(playbook)
    on_job = playbook is not None and playbook.target == "job" and verb in RESTARTING_VERBS
    return on_job and playbook is not None and playbook.steps[0].do is None


def stands_beside(playbook: Playbook | None) -> bool:
    """The playbook takes nothing: its run goes on beside the one that works on the node, and ends none."""
    return playbook is not None and playbook.target == "node" and takes_nothing(playbook)


def takes_nothing(playbook: Playbook) -> bool:
    """From no node and no job."""
    return all(step.do in _TAKES_NOTHING for step in playbook.steps)


def holds_slot(facts: GateFacts, run: Run) -> bool:
    """The node's slot was granted to this very run."""
    slot = facts.held.get(run.node or "")
    return slot is not None and slot.run == run.id


def rides_on_slot(run: Run, playbook: Playbook, facts: GateFacts) -> bool:
    """What this run takes was granted as it began, or since. A slot that was given back is asked for anew."""
    if holds_slot(facts, run) or not any(step.do in SLOT_VERBS for step in playbook.steps):
        return True
    return not slot_later(playbook) and run.node in facts.held


def is_untouched(run: Run, playbook: Playbook | None, facts: GateFacts) -> bool:
    """The run waits, and has taken nothing yet: it may end at any moment, and nobody would notice.

    Certain under the gate's lock only: the slot is granted under it, before the first effect.
    """
    if run.shadow or playbook is None or not slot_later(playbook) or holds_slot(facts, run):
        return False
    removing = next(step for step in playbook.steps if step.do in REMOVING_VERBS)
    return removing.do in SLOT_VERBS
