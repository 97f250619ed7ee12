"""Which entry of `rules/escalations.yaml` and `rules/ladders.yaml` takes a fault on a GPU model."""

from fnmatch import fnmatchcase
from functools import lru_cache

from healer.detection.generations import gpu_model
from healer.model import FaultClass, Ladder, Repeat, Ruleset
from healer.observations import Picture


@lru_cache(maxsize=4096)
def fits(fault: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(fault, glob) for glob in globs)


def model_on(rules: Ruleset, picture: Picture, node: str) -> str:
    """The node's GPU model as `rules/gpu_models.yaml` names it, else as Slurm does; empty: not known."""
    shown = picture.slurm.nodes.get(node) if picture.slurm is not None else None
    return gpu_model(rules.gpu_models, shown) or (shown.gpu_model if shown is not None else "")


def _is_for(models: tuple[str, ...], model: str) -> bool:
    return not models or fits(model, models)


def ladder_for(rules: Ruleset, fault: str, fault_class: FaultClass, model: str = "") -> Ladder | None:
    for one in rules.ladders:
        if one.classes and fault_class not in one.classes:
            continue
        if fits(fault, one.faults) and _is_for(one.models, model):
            return one
    return None


def repeats_for(rules: Ruleset, fault: str, model: str) -> list[Repeat]:
    """The first entry for each place: one GPU, one unit of it, the whole node."""
    found: dict[str, Repeat] = {}
    for one in rules.escalations.repeats:
        if one.same not in found and fits(fault, one.faults) and _is_for(one.models, model):
            found[one.same] = one
    return list(found.values())


def in_words(rules: Ruleset, fault: str) -> str:
    """`Xid 43: …`: the code and what its catalogue says of it; of other faults the title."""
    kind, _, code = fault.partition("-")
    entries = rules.xids if kind == "xid" else rules.sxids if kind == "sxid" else {}
    entry = entries.get(int(code)) if code.isdigit() else None
    return f"{label(rules, fault)}: {entry.text}" if entry is not None else label(rules, fault)


def label(rules: Ruleset, fault: str) -> str:
    """A fault for people: `Xid 13`, or its rule's title."""
    kind, _, code = fault.partition("-")
    if code.isdigit() and kind in ("xid", "sxid"):
        return f"{'Xid' if kind == 'xid' else 'SXid'} {code}"
    ask = next((one for one in rules.driver_asks.values() if one.fault == fault), None)
    if ask is not None:
        return f"Xid 154 ({ask.words})"
    rule = rules.by_name.get(fault)
    return rule.title if rule is not None else fault
