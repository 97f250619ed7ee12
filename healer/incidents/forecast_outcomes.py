"""Forecasts and their outcomes: each forecast is stored once, and ends as a hit, a miss or void. A fault
without a forecast is also stored, for the recall."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from hashlib import sha256

import msgspec

from healer.model import OF_DEVICES, Component, Finding, Forecast, ForecastOutcome, ForecastRule, Ruleset
from healer.model.detection import is_due
from healer.model.faults import REPLACED
from healer.observations import Picture
from healer.ports.transactions import WalkTx
from healer.text import Said, reworded, say

#: How often open forecasts are checked for their end.
LOOK = timedelta(minutes=10)
#: The longest horizon of a rule: older forecasts do not matter for new ones.
LOOK_BACK = timedelta(days=30)
#: Maximum length of a forecast's proof, in characters.
_PROOF_MAX = 300


def settle_forecasts(
    tx: WalkTx,
    rules: Ruleset,
    picture: Picture,
    findings: Sequence[Finding],
    placed: Sequence[tuple[str, Finding]],
    now: datetime,
) -> None:
    """Stores this walk's forecasts and the outcomes of earlier ones. Reads nothing if the walk has no
    findings about forecasts and no check is due.

    `placed`: (incident, finding) of this walk.
    """
    foreseen = [(incident, finding) for incident, finding in placed if finding.foreseen is not None]
    faults = [
        (finding, proven)
        for finding in findings
        if not finding.evidence_only and (proven := rules.forecasts_proven_by(finding.fault))
    ]
    due = is_due(picture.forecasts_looked_at, LOOK, now)
    if not rules.forecasts or not (foreseen or faults or due):
        return
    picture.forecasts_looked_at = now
    forecasts = {forecast.id: forecast for forecast in tx.forecasts(now - LOOK_BACK)}
    by_rule, changed = {forecast.rule: forecast for forecast in rules.forecasts}, dict[str, Forecast]()
    for changes in (
        lambda: _new_forecasts(forecasts.values(), by_rule, foreseen, now),
        lambda: _hits(forecasts.values(), faults, picture, now),
        lambda: _expired(forecasts.values(), picture, now),
    ):
        for forecast in list(changes()):
            forecasts[forecast.id] = changed[forecast.id] = forecast
    tx.save_forecasts(list(changed.values()))


def _new_forecasts(
    forecasts: Iterable[Forecast],
    by_rule: dict[str, ForecastRule],
    foreseen: Sequence[tuple[str, Finding]],
    now: datetime,
) -> Iterable[Forecast]:
    """A new forecast for each part and rule without an open one; a repeated forecast changes nothing."""
    standing = {
        (forecast.rule, forecast.component)
        for forecast in forecasts
        if forecast.outcome is ForecastOutcome.open
    }
    for incident, finding in foreseen:
        rule, where = by_rule.get(finding.fault), finding.evidence[0].component
        if rule is None or finding.foreseen is None or (rule.rule, where) in standing:
            continue
        standing.add((rule.rule, where))
        yield Forecast(
            id=_id(rule, where, finding.at),
            cluster=where.cluster,
            rule=rule.rule,
            component=where,
            told_at=finding.at,
            until=finding.at + timedelta(days=rule.within_days),
            seen=finding.foreseen,
            limit=rule.limit,
            incident=incident,
        )


def _hits(
    forecasts: Iterable[Forecast],
    faults: Sequence[tuple[Finding, Sequence[ForecastRule]]],
    picture: Picture,
    now: datetime,
) -> Iterable[Forecast]:
    """Forecasts that a fault of this walk proved, and faults that came without a forecast."""
    left = {forecast.id: forecast for forecast in forecasts}
    for finding, rules in faults:
        where, names = finding.evidence[0].component, {rule.rule: rule for rule in rules}
        of_part = [
            forecast
            for forecast in left.values()
            if forecast.rule in names
            and _concerns_part(names[forecast.rule], forecast.component, where, picture)
        ]
        for forecast in of_part:
            if forecast.outcome is not ForecastOutcome.open or forecast.told_at >= finding.at:
                continue
            why = _proof(finding)
            left[forecast.id] = msgspec.structs.replace(
                forecast, outcome=ForecastOutcome.hit, ended_at=now, why=why
            )
            yield left[forecast.id]
        if picture.sensed is None:
            continue
        # A repeat or an effect of the fault is not counted again.
        spoken = [finding.at - (forecast.ended_at or forecast.told_at) for forecast in of_part]
        for rule in rules:
            if _names_part(rule, where) and not any(
                age <= timedelta(days=rule.within_days) for age in spoken
            ):
                missed = _unforeseen(rule, where, finding, now)
                left[missed.id] = missed
                yield missed


def _proof(finding: Finding) -> Said:
    when = f"{finding.at:%Y-%m-%d %H:%M}"
    proof = say("incidents.forecast_hit", fault=finding.fault, when=when, text=finding.text)
    return reworded(proof, proof[:_PROOF_MAX])


def _expired(forecasts: Iterable[Forecast], picture: Picture, now: datetime) -> Iterable[Forecast]:
    """Forecasts whose time passed without the fault, or whose part is gone."""
    shown = picture.slurm.nodes if picture.slurm is not None else None
    for forecast in forecasts:
        if forecast.outcome is not ForecastOutcome.open:
            continue
        node = forecast.component.node
        if node is not None and shown is not None and node not in shown:
            why = say("incidents.node_left", node=node)
            yield msgspec.structs.replace(forecast, outcome=ForecastOutcome.void, ended_at=now, why=why)
        elif _is_replaced(forecast, picture):
            why = say("incidents.part_replaced")
            yield msgspec.structs.replace(forecast, outcome=ForecastOutcome.void, ended_at=now, why=why)
        elif forecast.until <= now:
            why = say("incidents.no_fault_came")
            yield msgspec.structs.replace(forecast, outcome=ForecastOutcome.miss, ended_at=now, why=why)


def _is_replaced(forecast: Forecast, picture: Picture) -> bool:
    """Another GPU has been at this address since the forecast."""
    node, gpu = picture.nodes.get(forecast.component.node or ""), forecast.component.gpu
    address = node.gpus.address(gpu) if node is not None and gpu is not None else None
    if node is None or address is None:
        return False
    bursts = (burst for (_, fault), burst in picture.history.on(node.name) if fault == REPLACED)
    return any(burst.pci == address and burst.began_at > forecast.told_at for burst in bursts)


def _unforeseen(rule: ForecastRule, where: Component, finding: Finding, now: datetime) -> Forecast:
    why = say("incidents.not_foretold", fault=finding.fault)
    return Forecast(
        id=_id(rule, where, finding.at),
        cluster=where.cluster,
        rule=rule.rule,
        component=where,
        told_at=finding.at,
        until=finding.at,
        seen=None,
        limit=rule.limit,
        outcome=ForecastOutcome.unforeseen,
        ended_at=now,
        why=why,
    )


def _id(rule: ForecastRule, where: Component, at: datetime) -> str:
    return sha256(f"{rule.rule}|{where.cluster}|{where!r}|{at.isoformat()}".encode()).hexdigest()[:24]


def _names_part(rule: ForecastRule, where: Component) -> bool:
    if rule.scope in OF_DEVICES:
        return where.device is not None
    return where.node is not None and (
        where.gpu is not None or where.pci is not None or where.nic is not None
    )


def _concerns_part(
    rule: ForecastRule, forecast_part: Component, reported: Component, picture: Picture
) -> bool:
    """Whether the fault is at the forecast's part; a fault that names only the node may be at any of its
    parts."""
    if rule.scope in OF_DEVICES:
        return forecast_part.device == reported.device and reported.part in (None, forecast_part.part)
    if forecast_part.node != reported.node or reported.node is None:
        return False
    if forecast_part.nic is not None:
        return reported.nic in (None, forecast_part.nic) and reported.gpu is None
    gpu = reported.gpu
    if gpu is None and reported.pci is not None and reported.node in picture.nodes:
        gpu = picture.nodes[reported.node].gpus.index(reported.pci, expected=0)
    return gpu == forecast_part.gpu or (gpu is None and reported.pci is None and reported.nic is None)
