"""`healer model`: trains the isolation forest's models, shows them, and puts one of them in force."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from healer.commands import Failed, person
from healer.commands.remote import AS_JSON, print_json, print_table
from healer.commands.token import parse_lasts
from healer.settings import load

if TYPE_CHECKING:
    from healer.adapters.postgres.models import ClassLook, Version
    from healer.bootstrap.models import ModelDesk, Shown
    from healer.detection.training import Model

_CLUSTER = typer.Option(None, help="The cluster; needed where there are several.")


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Models of the isolation forest.", rich_markup_mode=None)
    group.command("train")(train)
    group.command("show")(show)
    group.command("use")(use)
    group.command("refit")(refit)
    app.add_typer(group, name="model")


def train(
    cluster: str | None = _CLUSTER,
    since: str = typer.Option("7d", help="How far back history is used: 12h, 7d; it is kept for 14 days."),
    *,
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be trained; store nothing."),
    json: bool = AS_JSON,
) -> None:
    """Train a model of each class of nodes on its healthy history. The detector takes it within a minute."""
    now = datetime.now(UTC)
    begin = now - parse_lasts(since, "--since")
    from healer.detection.training import TooLittle

    made, refused, told = 0, [], []
    with _desk(cluster) as desk:
        for one in desk.train(begin, now):
            if isinstance(one, TooLittle):
                refused.append(str(one))
                continue
            new = False if dry_run else desk.save(one, by=person(), at=now)
            made += 1
            told.append(_plain(one.model) | {"stored": new})
            if not json:
                typer.echo(_line(one.model, dry_run=dry_run, new=new))
        name = desk.cluster
    if json:
        print_json({"cluster": name, "dry_run": dry_run, "models": told, "refused": refused})
    else:
        for why in refused:
            typer.echo(f"no model: {why}")
    if not made:
        if not refused:
            raise Failed(f"no history of {name} since {since}: nodes have to send metrics first")
        raise Failed("nothing was trained")


def show(
    identity: str | None = typer.Argument(None, metavar="[ID]", help="A model's id or its beginning."),
    cluster: str | None = _CLUSTER,
    *,
    every: bool = typer.Option(False, "--all", help="All versions that are kept, not those in force alone."),
    json: bool = AS_JSON,
) -> None:
    """Show the models in force, or one: what it was made from, and how many nodes are above it now."""
    now = datetime.now(UTC)
    with _desk(cluster) as desk:
        if identity is not None:
            versions = [_one_of(desk.find(identity), identity)]
        else:
            versions = desk.versions() if every else desk.in_force()
        # Of each version that is kept nothing is reckoned: that would grow each of their forests.
        shown = [] if every else desk.shown(versions, now)
        looks, name = desk.looks(), desk.cluster
    if json:
        rows = [_version(one) for one in versions] if every else [_row(one) for one in shown]
        print_json({"cluster": name, "models": rows, "classes": [_plain(one) for one in looks]})
        return
    if not versions:
        typer.echo(f"no model of {name} yet: healer model train")
    elif every:
        _versions(versions)
    elif identity is None:
        _table(shown)
    else:
        _one(shown[0])
    if identity is None:
        for look in looks:
            typer.echo(_look_line(look))


def use(
    identity: str = typer.Argument(metavar="ID", help="A model's id or its beginning."),
    cluster: str | None = _CLUSTER,
    why: str = typer.Option(..., help="Why; it stands in the audit."),
) -> None:
    """Put a kept version in force: back to an older one, or one that was refused. It stands for a week."""
    now = datetime.now(UTC)
    with _desk(cluster) as desk:
        model = _one_of(desk.find(identity), identity).model
        try:
            desk.use(model, by=person(), at=now, why=why)
        except KeyError:
            raise Failed(f"model {identity} was forgotten meanwhile") from None
    typer.echo(
        f"{model.id[:12]} {model.hardware or 'any GPU model'}, {model.load}: in force. The detector takes it "
        f"within a minute; no schedule replaces it for 7 days"
    )


def refit(cluster: str | None = _CLUSTER, *, json: bool = AS_JSON) -> None:
    """Look now whether models are due or their classes have drifted, as the scheduler does each hour."""
    from healer.bootstrap.models import NoCluster
    from healer.bootstrap.refit import look_once
    from healer.ports.request_errors import Unavailable

    try:
        looks = look_once(load(), cluster)
    except (Unavailable, NoCluster) as error:
        raise Failed(str(error)) from None
    if looks is None:
        raise Failed("another process looks after the models just now")
    if json:
        print_json({"classes": [_plain(one) for one in looks]})
    elif not looks:
        typer.echo("no class of nodes was seen in the last 7 days")
    else:
        for look in looks:
            typer.echo(_look_line(look))


def _one_of(found: "list[Version]", identity: str) -> "Version":
    if len(found) != 1:
        raise Failed(
            f"there is no model {identity}" if not found else f"{identity} is the beginning of several"
        )
    return found[0]


def _look_line(look: "ClassLook") -> str:
    moved = "; ".join(f"{one.feature} {one.index:.2f} (limit {one.limit:.2f})" for one in look.drifted[:3])
    told = look.told or "nothing to do"
    where = f"{look.hardware or 'any GPU model'}, {look.load}"
    return f"{where}: looked at {look.at:%Y-%m-%d %H:%M} UTC: {told}" + (
        f"; drifted: {moved}" if moved else ""
    )


def _row(one: "Shown") -> dict[str, object]:
    names = ("usable", "age_s", "scored", "above", "drift", "hint")
    return _version(one.version) | {name: getattr(one, name) for name in names}


def _version(one: "Version") -> dict[str, object]:
    told = _plain(one)
    return _plain(one.model) | {name: told[name] for name in ("in_force_at", "in_force_by", "judged")}


def _versions(versions: "list[Version]") -> None:
    print_table(
        ("id", "hardware", "load", "trained", "in force", "by", "threshold", "judged"),
        [
            [
                one.model.id[:12],
                one.model.hardware,
                one.model.load,
                f"{one.model.trained_at:%Y-%m-%d %H:%M}",
                f"{one.in_force_at:%Y-%m-%d %H:%M}" if one.in_force_at else "never",
                one.in_force_by or "",
                f"{one.model.threshold:.3f}",
                _judged(one),
            ]
            for one in versions
        ],
    )


def _judged(one: "Version") -> str:
    told = one.judged
    if told is None:
        return "not judged: a person's word"
    if told.refused:
        return f"refused: {told.refused}"
    before = f" (before {told.above_before:.2%})" if told.above_before is not None else ""
    return (
        f"{told.above:.2%} of {told.samples} healthy samples above{before}, {told.found:.0%} of probes found"
    )


def _table(shown: "list[Shown]") -> None:
    print_table(
        ("id", "hardware", "load", "rows", "features", "threshold", "age", "above now", "hint"),
        [
            [
                one.model.id[:12],
                one.model.hardware,
                one.model.load,
                one.model.rows,
                len(one.model.features),
                f"{one.model.threshold:.3f}",
                _age(one.age_s),
                f"{one.above} of {one.scored}",
                one.hint,
            ]
            for one in shown
        ],
    )


def _one(one: "Shown") -> None:
    model = one.model
    typer.echo(f"model      {model.id}")
    typer.echo(f"class      {model.hardware or 'any GPU model'}, {model.load}, cluster {model.cluster}")
    typer.echo(f"trained    {model.trained_at:%Y-%m-%d %H:%M:%S} UTC, {_age(one.age_s)} ago")
    typer.echo(f"attested   {model.attested} of {model.seen} samples; {model.rows} used, {model.nodes} nodes")
    typer.echo(f"data       sha256 {model.data_hash}")
    typer.echo(
        f"parameters {model.params.n_estimators} trees of {model.params.max_samples} samples, "
        f"seed {model.params.seed}; threshold from nodes held out: quantile {model.params.quantile} "
        f"and {model.params.margin:.0%} of its distance to the middle"
    )
    quantiles = ", ".join(f"{name}: {value:.3f}" for name, value in model.quantiles.items())
    typer.echo(f"threshold  {model.threshold:.3f} (quantiles {quantiles})")
    for way, limit in model.beside.items():
        typer.echo(f"beside     {way}: threshold {limit.threshold:.3f}")
    version = one.version
    if version.in_force_at is not None:
        typer.echo(f"in force   since {version.in_force_at:%Y-%m-%d %H:%M:%S} UTC, by {version.in_force_by}")
    typer.echo(f"judged     {_judged(version)}")
    typer.echo(f"now        {one.above} of {one.scored} nodes above")
    if one.hint:
        typer.echo(f"hint       {one.hint}")
    for name in model.features:
        typer.echo(f"feature    {name}")


def _line(model: "Model", *, dry_run: bool, new: bool) -> str:
    what = "would be trained" if dry_run else "trained" if new else "is in force already"
    return (
        f"{model.id[:12]} {model.hardware or 'any GPU model'}, {model.load}: {what}; attested: "
        f"{model.attested} of {model.seen}, {model.rows} used, {len(model.features)} features, "
        f"threshold {model.threshold:.3f}"
    )


def _plain(told: "Model | Version | ClassLook") -> dict[str, object]:
    import msgspec

    return msgspec.to_builtins(told)


def _age(seconds: float) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


@contextmanager
def _desk(cluster: str | None) -> "Iterator[ModelDesk]":
    from healer.bootstrap.models import NoCluster, desk
    from healer.ports.request_errors import Unavailable

    try:
        with desk(load(), cluster) as found:
            yield found
    except (Unavailable, NoCluster) as error:
        raise Failed(str(error)) from None
