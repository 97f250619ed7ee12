"""Which senses tell of an incident's node. Two that fail apart from each other are worth more than one."""

from healer.model import Incident, Sense

#: They compare what was measured; the others are told of what has happened.
MEASURED = frozenset({Sense.metrics, Sense.step_times, Sense.forest})
_WORDS = {
    Sense.kernel: "kernel lines",
    Sense.metrics: "metrics",
    Sense.step_times: "step times",
    Sense.forest: "the isolation forest",
    Sense.silence: "silence",
    Sense.slurm: "Slurm",
}


def senses_of(incident: Incident) -> tuple[Sense, ...]:
    """The senses whose evidence speaks of the root's own node, in the order of `Sense`."""
    node = incident.root.node
    told = {one.sense for one in incident.evidence if node is not None and one.component.node == node}
    return tuple(sense for sense in Sense if sense in told)


def spoken(senses: tuple[Sense, ...]) -> str:
    """`metrics and step times`"""
    words = [_WORDS[sense] for sense in senses]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def too_few(incident: Incident, needed: int) -> str:
    """Why nothing is done yet."""
    told = senses_of(incident)
    who = f"Only {spoken(told)} speak" if told else "Nothing speaks"
    agree = "a second sense" if needed == 2 else f"{needed} senses"
    return f"{who} of {incident.root.node} so far: {agree} must agree before anything is done."
