"""Checks of `rules/` beyond the types: those shared by several files; guards, watches, topology."""

import math
import re
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from healer.detection.language.expr import ExpressionError
from healer.model import (
    GpuModel,
    GuardSettings,
    Maintenance,
    Peer,
    Place,
    Rule,
    Severity,
    SweepSettings,
    Switch,
    Topology,
    WatchSettings,
)
from healer.model.goodput import Prices
from healer.model.hostlist import expand
from healer.model.vocabulary import did_you_mean
from healer.rulebook.runbooks import runbook_names
from healer.rulebook.source import Source, Where
from healer.signals.kernel_log import normal_pci
from healer.text import Said, said_by, say

Path = tuple[str | int, ...]

RULE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_SHARES = (
    "max_share",
    "min_service_share",
    "share_per_hour",
    "rack_share",
    "partition_share",
    "breaker_share",
)
_AT_LEAST_ZERO = ("repeat_h", "requeues_per_job", "reboots_per_node", "stale_s", "veto_h", "trial_runs")
#: What counts for one partition: the others are figures of a whole cluster.
PARTITION_FIELDS = (
    "partition_share", "max_nodes", "min_service_share", "repeat_h", "requeues_per_job", "reboots_per_node",
    "protected", "protected_qos", "maintenance",
)  # fmt: skip
#: The gate reads the remedies of a day, and each must be a span of time.
_HOURS_MAX = {"repeat_h": 24, "veto_h": 8760}
#: An older snapshot of Slurm says nothing about now.
_STALE_MAX_S = 86400
#: A thousand years of hours: as good as never, and a span of time still holds it.
_WATCH_MAX = 10_000_000
#: A year: what was tested longer ago counts as never tested anyway.
_SWEEP_DAYS_MAX = 365
_SLURM_NAME = re.compile(r"[A-Za-z0-9_.-]{0,64}")
#: What no name of a node holds, nor a glob that fits one.
_NO_NODE = re.compile(r"\s|\[\]")
_GUID = re.compile(r"0x[0-9a-fA-F]{16}")


# --- shared by several files


def check_name(at: Where, name: str, taken: Collection[str] = ()) -> None:
    """`at` is the entry's, as below."""
    if not RULE_NAME.fullmatch(name):
        at.wrong("name", say("rulebook.name_characters", name=name))
    if name in taken:
        at.at("name").problem(say("rulebook.there_already", name=name), say("rulebook.give_another_name"))


def check_policy(at: Where, entry: Any) -> None:
    """The fields of each entry that is a policy too."""
    is_ours = entry.severity is not Severity.P0
    at.check(
        "severity", is_ours, say("rulebook.severity_of_healer"), say("rulebook.one_of", words="P1, P2, P3")
    )
    check_runbook(at, entry.runbook)


def check_runbook(at: Where, name: str) -> None:
    runbooks = runbook_names()
    if name and runbooks and name not in runbooks:
        hint = did_you_mean(name, runbooks) or say("rulebook.one_of", words=", ".join(runbooks))
        at.wrong("runbook", say("rulebook.no_runbook", name=name), hint)


def at_column(field: str, error: ExpressionError) -> Said:
    return say("rulebook.field_column", field=field, column=error.column, text=error.text)


def is_glob(text: str) -> bool:
    return bool(text.strip()) and text.count("[") == text.count("]")


def check_globs(at: Where, field: str, globs: Iterable[str]) -> None:
    for number, glob in enumerate(globs):
        if not is_glob(glob):
            at.at(field, number).problem(say("rulebook.not_name_or_glob", field=field, glob=glob))


def check_models(at: Where, globs: Sequence[str], models: Sequence[GpuModel]) -> None:
    names = [model.name for model in models]
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            at.wrong("models", say("rulebook.there_no_gpu_model", glob=glob), did_you_mean(glob, names))


def check_known_fault(at: Where, fault: str, known_faults: Sequence[str]) -> None:
    """A fault or a glob of faults, under the name of its field, which is the last text of its path."""
    if fault not in known_faults and not any(fnmatchcase(name, fault) for name in known_faults):
        field = next(part for part in reversed(at.path) if isinstance(part, str))
        at.problem(
            say("rulebook.no_fault_that_healer", field=field, fault=fault), did_you_mean(fault, known_faults)
        )


def policy_of(entry: msgspec.Struct, *faults: str, **more: Any) -> Rule:
    """The policy of an entry that has the fields of one: the same names, and `faults`."""
    names = ("name", "title", "severity", "cause", "remedy", "playbook", "mode", "runbook")
    fields: dict[str, Any] = {name: getattr(entry, name) for name in names if hasattr(entry, name)}
    return Rule(**fields | more, faults=faults)


# --- guards, watches, topology


def check_guards(at: Where, data: dict[str, Any]) -> GuardSettings | None:
    """Guard settings with their hostlists expanded; None when something is wrong."""
    before = len(at.source.problems)
    settings = at.source.convert(at.path, data, GuardSettings)
    if settings is None:
        return None
    check = at.check
    for name in _SHARES:
        at.check_between(name, getattr(settings, name), 0, 1)
    check("max_nodes", settings.max_nodes >= 1, say("rulebook.at_least"))
    for name in _AT_LEAST_ZERO:
        check(name, getattr(settings, name) >= 0, say("rulebook.must_not_negative"))
    for name, most in _HOURS_MAX.items():
        check(name, getattr(settings, name) <= most, say("rulebook.hours_at_most", most=most))
    check("stale_s", settings.stale_s <= _STALE_MAX_S, say("rulebook.s_at_most", most=_STALE_MAX_S))
    if settings.earn.incidents < 1:
        at.at("earn", "incidents").problem(say("rulebook.earn_incidents_at_least"))
    if not 0 <= settings.earn.precision <= 1:
        at.at("earn", "precision").problem(say("rulebook.earn_precision_lies_between"))
    _check_sweep(at.at("sweep"), settings.sweep)
    protected = _hosts(at.at("protected"), settings.protected)
    windows = tuple(
        _window(at.at("maintenance", index), window) for index, window in enumerate(settings.maintenance)
    )
    if len(at.source.problems) > before:
        return None
    return msgspec.structs.replace(settings, protected=protected, maintenance=windows)


def _check_sweep(at: Where, sweep: SweepSettings) -> None:
    if not 0 <= sweep.max_share <= 1:
        at.at("max_share").problem(say("rulebook.sweep_max_share_lies"))
    if sweep.max_nodes < 1:
        at.at("max_nodes").problem(say("rulebook.sweep_max_nodes_at"))
    if not 0 < sweep.every_days <= _SWEEP_DAYS_MAX:
        at.at("every_days").problem(say("rulebook.sweep_every_days_above", sweep_days_max=_SWEEP_DAYS_MAX))
    for name in ("partition", "qos"):
        if not _SLURM_NAME.fullmatch(getattr(sweep, name)):
            at.at(name).problem(say("rulebook.sweep_no_name_slurm", name=name))


def _hosts(at: Where, texts: Sequence[str]) -> tuple[str, ...]:
    names: list[str] = []
    for index, text in enumerate(texts):
        if text.count("[") != text.count("]"):
            at.at(index).problem(say("rulebook.bracket_not_closed", text=text))
            continue
        try:
            found = expand(text)
        except ValueError as error:
            at.at(index).problem(said_by(error))
            continue
        if not text.startswith("feature:") and any(_NO_NODE.search(name) for name in found):
            at.at(index).problem(say("rulebook.no_node_name", text=text), say("rulebook.one_name_each"))
        names.extend(found)
    return tuple(names)


def _window(at: Where, window: Maintenance) -> Maintenance:
    """With its bounds in UTC, as every part shows and compares them."""
    at.check("nodes", bool(window.nodes), say("rulebook.list_empty"))
    bounds: dict[str, datetime] = {}
    for name in ("since", "until"):
        moment = getattr(window, name)
        if moment is None:
            continue
        if moment.tzinfo is None:
            at.at(name).problem(say("rulebook.no_time_zone", name=name), say("rulebook.write_z_or_an"))
            return window
        try:
            bounds[name] = moment.astimezone(UTC)
        except OverflowError:
            at.wrong(name, say("rulebook.no_year_in_utc"), say("rulebook.leave_out_open_bound"))
            return window
    if len(bounds) == 2 and bounds["since"] >= bounds["until"]:
        at.wrong("until", say("rulebook.must_be_after_since"))
    return msgspec.structs.replace(window, nodes=_hosts(at.at("nodes"), window.nodes), **bounds)


def read_watches(source: Source) -> WatchSettings:
    """The defaults if the file is missing or wrong. Times and thresholds are above 0."""
    data = source.mapping((), source.data)
    settings = source.convert((), data, WatchSettings) or WatchSettings()
    for name, value in msgspec.structs.asdict(settings).items():
        if not isinstance(value, tuple):
            source.at().check_above_0(name, value, _WATCH_MAX)
    return settings


def read_prices(source: Source) -> Prices:
    """Without the file there are no prices."""
    prices = source.whole(Prices)
    at, text = source.at(), say("rulebook.price_at_least_0")
    at.check("gpu_hour", _is_price(prices.gpu_hour or 0.0), text)
    for name, price in prices.partitions.items():
        source.at("partitions").check(name, _is_price(price), text)
    return prices


def _is_price(price: float) -> bool:
    return 0 <= price < math.inf


def read_topology(source: Source) -> Topology:
    """Places by node name, hostlists expanded; PCI addresses in our form."""
    data = source.fields(("places", "gpu_pci", "switches", "links"))
    return Topology(
        places=_places(source, data.get("places")),
        gpu_pci=_gpu_pci(source, data.get("gpu_pci")),
        switches=_switches(source, data.get("switches")),
        links=_links(source, data.get("links")),
    )


def _switches(source: Source, data: Any) -> dict[str, Switch]:
    found: dict[str, Switch] = {}
    for name, fields in source.mapping(("switches",), data).items():
        switch = source.convert(("switches", name), fields or {}, Switch)
        if switch is not None:
            found[str(name)] = switch
            if switch.guid and not _GUID.fullmatch(switch.guid):
                source.at("switches", name).wrong("guid", say("rulebook.not_x_hex_digits", guid=switch.guid))
    return found


def _links(source: Source, data: Any) -> dict[str, dict[str, Peer]]:
    """`gpu0001/mlx5_0` -> the other end of the cable, and the port there (which may contain a `/` itself)."""
    found: dict[str, dict[str, Peer]] = {}
    for name, ports in source.mapping(("links",), data).items():
        peers = found[str(name)] = {}
        for port, peer in source.mapping(("links", name), ports).items():
            if not isinstance(peer, str) or not peer.partition("/")[0]:
                text = say("rulebook.expected_what_leads", name=name, port=port)
                source.at("links", name, port).problem(text, say("rulebook.such_as_gpu_mlx"))
                continue
            peers[str(port)] = Peer(*peer.partition("/")[::2])
    return found


def _places(source: Source, data: Any) -> dict[str, Place]:
    places: dict[str, Place] = {}
    for hosts, fields in source.mapping(("places",), data).items():
        place = source.convert(("places", hosts), fields, Place)
        if place is None:
            continue
        for node in _hosts(source.at("places", hosts), [str(hosts)]):
            merged = _merged(places.get(node, Place()), place)
            if isinstance(merged, str):
                source.at("places", hosts).problem(say("rulebook.two_places", node=node, merged=merged))
                break
            places[node] = merged
    return places


def _merged(place: Place, new: Place) -> Place | str:
    """Both together; a sentence if they contradict each other."""
    both: dict[str, str] = {}
    for name in Place.__struct_fields__:
        here, there = getattr(place, name), getattr(new, name)
        if here and there and here != there:
            return say("rulebook.two_values", field=name, first=here, second=there)
        both[name] = here or there
    return Place(**both)


def _gpu_pci(source: Source, data: Any) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for model, addresses in source.mapping(("gpu_pci",), data).items():
        at = source.at("gpu_pci", str(model))
        if not isinstance(addresses, list):
            at.problem(say("rulebook.expected_list_pci_addresses", model=model))
            continue
        normal = [normal_pci(str(address)) for address in addresses]
        for index, address in enumerate(normal):
            if address is None:
                at.at(index).problem(
                    say("rulebook.not_pci_address", addresses=addresses[index]), say("rulebook.such_as_b")
                )
        found[str(model)] = tuple(address for address in normal if address is not None)
        if len(set(found[str(model)])) < len(found[str(model)]):
            at.problem(say("rulebook.address_in_file", model=model))
    return found
