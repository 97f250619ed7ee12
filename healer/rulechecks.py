"""What one file of `rules/` must hold beyond the right types: guards, playbooks, topology."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from healer.actions import CHECKS, VERBS, WAITS
from healer.hostlist import expand
from healer.model import (
    REMOVING_VERBS,
    GuardSettings,
    Maintenance,
    Peer,
    Place,
    Playbook,
    Sense,
    Step,
    Switch,
    Topology,
    Verb,
    WatchSettings,
)
from healer.playbooks.advance import JOB_LISTS
from healer.rulefiles import Source, did_you_mean
from healer.signals.kernel_log import normal_pci

_SHARES = (
    "max_share",
    "min_service_share",
    "share_per_hour",
    "rack_share",
    "partition_share",
    "breaker_share",
)
_AT_LEAST_ONE = ("max_nodes",)
_AT_LEAST_ZERO = ("repeat_h", "requeues_per_job", "reboots_per_node", "stale_s", "veto_h")
_STEP_ID = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_TARGETS = ("node", "job")
_LEVELS = (1, 2)
#: They answer yes or no; every other step either works or asks a person.
_VERDICTS = frozenset({"fabric_state", "jobs_left", Verb.diagnose})
#: They may end the run where nothing needs to be done: a node that is out already would stay so.
_BEFORE_REMOVING = frozenset({"still_slow", "job_end_or_checkpoint", "reached"})
#: What a step reads of `input`: name, type, whether it has to be there.
_INPUTS: dict[str, dict[str, tuple[type, bool]]] = {
    "still_slow": {"senses": (int, False)},
    "jobs_left": {"run_on_s": (int, False)},
    Verb.drain: {"adopt": (bool, False)},
    Verb.release: {"hold": (bool, False)},
    Verb.diagnose: {"script": (str, False), "limit_s": (int, False)},
    Verb.restart_service: {"service": (str, True)},
}
_WANTED: dict[type, str] = {str: "a text", int: "a whole number", bool: "true or false"}
_GUID = re.compile(r"0x[0-9a-fA-F]{16}")
_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._-]{0,99}")


def check_guards(source: Source, path: Sequence[str | int], data: dict[str, Any]) -> GuardSettings | None:
    """Guard settings with their hostlists expanded; None when something is wrong."""
    before = len(source.problems)
    settings = source.convert(path, data, GuardSettings)
    if settings is None:
        return None
    for name in _SHARES:
        if not 0 <= getattr(settings, name) <= 1:
            source.problem((*path, name), f"{name}: a share lies between 0 and 1")
    for name in _AT_LEAST_ONE:
        if getattr(settings, name) < 1:
            source.problem((*path, name), f"{name}: has to be at least 1")
    for name in _AT_LEAST_ZERO:
        if getattr(settings, name) < 0:
            source.problem((*path, name), f"{name}: must not be negative")
    protected = _hosts(source, (*path, "protected"), settings.protected)
    windows = tuple(
        _window(source, (*path, "maintenance", index), window)
        for index, window in enumerate(settings.maintenance)
    )
    if len(source.problems) > before:
        return None
    return msgspec.structs.replace(settings, protected=protected, maintenance=windows)


def _hosts(source: Source, path: Sequence[str | int], texts: Sequence[str]) -> tuple[str, ...]:
    names: list[str] = []
    for index, text in enumerate(texts):
        if text.count("[") != text.count("]"):
            source.problem((*path, index), f"{text!r}: a bracket is not closed")
            continue
        try:
            names.extend(expand(text))
        except ValueError as error:
            source.problem((*path, index), str(error))
    return tuple(names)


def _window(source: Source, path: Sequence[str | int], window: Maintenance) -> Maintenance:
    for name in ("since", "until"):
        moment = getattr(window, name)
        if moment is not None and moment.tzinfo is None:
            source.problem((*path, name), f"{name}: has no time zone", "write Z or an offset")
            return window
    if window.since and window.until and window.since >= window.until:
        source.problem((*path, "until"), "until: lies before since")
    return msgspec.structs.replace(window, nodes=_hosts(source, (*path, "nodes"), window.nodes))


def check_playbook(source: Source, playbook: Playbook) -> None:
    _one_of(source, ("target",), "target", playbook.target, _TARGETS)
    if playbook.level not in _LEVELS:
        source.problem(("level",), "level: 1 (responders may start it) or 2 (operators)")
    if not playbook.steps:
        source.problem(("steps",), "steps: the list is empty")
    seen: dict[str, Step] = {}
    for index, step in enumerate(playbook.steps):
        path = ("steps", index)
        if step.id in seen:
            source.problem((*path, "id"), f"the step {step.id} stands here twice")
        _check_step(source, path, step)
        if step.when is not None:
            _check_when(source, (*path, "when"), step.when, seen, playbook)
        removed = any(one.do in REMOVING_VERBS for one in seen.values())
        word = step.check or step.wait
        if removed and word in _BEFORE_REMOVING:
            text = f"{word} may end the run: it has to stand before the first step that takes anything away"
            source.problem(path, text)
        seen[step.id] = step


def _check_when(
    source: Source, path: Sequence[str | int], when: str, before: dict[str, Step], playbook: Playbook
) -> None:
    name, dot, word = when.partition(".")
    if not dot or word not in ("passed", "failed"):
        source.problem(path, f"when: {when!r} has to be STEP.passed or STEP.failed")
        return
    step = before.get(name)
    if step is None:
        later = any(one.id == name for one in playbook.steps)
        text = f"the step {name} comes later" if later else f"there is no step {name}"
        source.problem(path, f"when: {text}", did_you_mean(name, list(before)) or "name an earlier step")
    elif step.for_each is not None:
        source.problem(path, f"when: the step {name} is made of parts, each with an end of its own")
    elif word == "failed" and (step.check or step.do) not in _VERDICTS:
        hint = f"only {' and '.join(sorted(str(one) for one in _VERDICTS))} may answer no"
        source.problem(path, f"when: the step {name} never fails, it asks a person", hint)


def _check_step(source: Source, path: tuple[str, int], step: Step) -> None:
    if not _STEP_ID.fullmatch(step.id):
        source.problem((*path, "id"), f"id: {step.id!r} has to be small letters, digits, _ and -")
    kinds = [name for name in ("do", "check", "wait") if getattr(step, name) is not None]
    if len(kinds) != 1:
        text = f"has {' and '.join(kinds)}" if kinds else "has none of do, check and wait"
        source.problem(path, f"the step {step.id} {text}", "a step is exactly one of do, check and wait")
    for kind, word, known in (
        ("do", step.do, VERBS),
        ("check", step.check, CHECKS),
        ("wait", step.wait, WAITS),
    ):
        if word is not None:
            _one_of(source, (*path, kind), kind, word, [str(name) for name in known])
    if step.for_each is not None:
        _one_of(source, (*path, "for_each"), "for_each", step.for_each, list(JOB_LISTS))
    if step.timeout_s <= 0:
        source.problem((*path, "timeout_s"), "timeout_s: has to be more than 0")
    if step.retries < 0:
        source.problem((*path, "retries"), "retries: must not be negative")
    if step.wait_s is not None and step.wait_s <= 0:
        source.problem((*path, "wait_s"), "wait_s: has to be more than 0")
    if step.wait_s is not None and (step.wait is None or step.wait == "repair"):
        what = "a repair ends only by a person" if step.wait else "this step does not wait"
        source.problem((*path, "wait_s"), f"wait_s: {what}", "only a wait for a moment is bounded")
    _check_input(source, path, step)


def _check_input(source: Source, path: tuple[str, int], step: Step) -> None:
    word = step.do or step.check or step.wait or ""
    if word not in {*VERBS, *CHECKS, *WAITS}:
        return  # said already
    known = _INPUTS.get(word, {})
    for name, value in step.input.items():
        if name not in known:
            hint = did_you_mean(name, list(known)) or (f"it reads {', '.join(known)}" if known else "")
            source.problem((*path, "input", name), f"input: {word} does not read {name}", hint)
        elif type(value) is not known[name][0]:
            wanted = _WANTED[known[name][0]]
            source.problem((*path, "input", name), f"input: {name} has to be {wanted}")
    for name, (_, needed) in known.items():
        if needed and name not in step.input:
            source.problem(path, f"the step {step.id}: {word} needs input.{name}")
    service = step.input.get("service")
    if isinstance(service, str) and not _SERVICE.fullmatch(service):
        source.problem((*path, "input", "service"), f"input: {service!r} is no name of a service")
    senses = step.input.get("senses")
    most = len(Sense) - 1  # an alert agrees with none of the others
    if type(senses) is int and not 1 <= senses <= most:
        source.problem((*path, "input", "senses"), f"input: senses lies between 1 and {most}")


def _one_of(source: Source, path: Sequence[str | int], name: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        hint = did_you_mean(word, known) or f"one of {', '.join(known)}"
        source.problem(path, f"{name}: there is no {word}", hint)


def read_watches(source: Source | None) -> WatchSettings:
    """The defaults where the file is missing or wrong. Times and thresholds are above 0."""
    if source is None:
        return WatchSettings()
    data = source.mapping((), source.data, "a mapping of watch settings")
    settings = source.convert((), data, WatchSettings) or WatchSettings()
    for name in WatchSettings.__struct_fields__:
        value = getattr(settings, name)
        if not isinstance(value, tuple) and value <= 0:
            source.problem((name,), f"{name}: has to be more than 0")
    return settings


def read_topology(source: Source | None) -> Topology:
    """Places by node name, hostlists expanded; PCI addresses in our form."""
    if source is None:
        return Topology()
    fields = ("places", "gpu_pci", "switches", "links")
    data = source.mapping((), source.data, f"a mapping with {', '.join(fields)}")
    for key in data:
        if key not in fields:
            hint = did_you_mean(str(key), fields)
            source.problem((key,), f"unknown field {key}", hint)
    return Topology(
        places=_places(source, data.get("places")),
        gpu_pci=_gpu_pci(source, data.get("gpu_pci")),
        switches=_switches(source, data.get("switches")),
        links=_links(source, data.get("links")),
    )


def _switches(source: Source, data: Any) -> dict[str, Switch]:
    found: dict[str, Switch] = {}
    for name, fields in source.mapping(("switches",), data, "switches by name").items():
        one = source.convert(("switches", name), fields or {}, Switch)
        if one is not None:
            found[str(name)] = one
            if one.guid and not _GUID.fullmatch(one.guid):
                source.problem(("switches", name, "guid"), f"guid: {one.guid!r} is not 0x and 16 hex digits")
    return found


def _links(source: Source, data: Any) -> dict[str, dict[str, Peer]]:
    """`gpu0001/mlx5_0`: what the cable leads to, and the port there (which may hold a `/` itself)."""
    found: dict[str, dict[str, Peer]] = {}
    for name, ports in source.mapping(("links",), data, "ports by switch").items():
        own = found[str(name)] = {}
        for port, peer in source.mapping(("links", name), ports, "peers by port").items():
            if not isinstance(peer, str) or not peer.partition("/")[0]:
                text = f"{name} {port}: expected what it leads to"
                source.problem(("links", name, port), text, "such as gpu0001/mlx5_0")
                continue
            own[str(port)] = Peer(*peer.partition("/")[::2])
    return found


def _places(source: Source, data: Any) -> dict[str, Place]:
    places: dict[str, Place] = {}
    for hosts, fields in source.mapping(("places",), data, "hostlists with a place each").items():
        place = source.convert(("places", hosts), fields, Place)
        if place is None:
            continue
        for node in _hosts(source, ("places",), [str(hosts)]):
            merged = _merged(places.get(node, Place()), place)
            if isinstance(merged, str):
                source.problem(("places", hosts), f"{node} has two places: {merged}")
                break
            places[node] = merged
    return places


def _merged(known: Place, new: Place) -> Place | str:
    """Both together; a sentence where they say different things."""
    both: dict[str, str] = {}
    for name in Place.__struct_fields__:
        one, other = getattr(known, name), getattr(new, name)
        if one and other and one != other:
            return f"{name} {one} and {name} {other}"
        both[name] = one or other
    return Place(**both)


def _gpu_pci(source: Source, data: Any) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for model, addresses in source.mapping(("gpu_pci",), data, "GPU models with their addresses").items():
        path = ("gpu_pci", str(model))
        if not isinstance(addresses, list):
            source.problem(path, f"{model}: expected a list of PCI addresses")
            continue
        normal = [normal_pci(str(address)) for address in addresses]
        for index, address in enumerate(normal):
            if address is None:
                text = f"{addresses[index]!r} is not a PCI address"
                source.problem((*path, index), text, "such as 0000:9b:00")
        found[str(model)] = tuple(address for address in normal if address is not None)
        if len(set(found[str(model)])) < len(found[str(model)]):
            source.problem(path, f"{model}: an address stands here twice")
    return found
