"""`healer model`: trains the isolation forest's models and shows them."""

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
    from healer.bootstrap.models import ModelDesk, Shown
    from healer.detection.training import Model

_CLUSTER = typer.Option(None, help="The cluster; needed where there are several.")


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Models of the isolation forest.", rich_markup_mode=None)
    group.command("train")(train)
    group.command("show")(show)
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
    json: bool = AS_JSON,
) -> None:
    """Show the models in force, or one: what it was made from, and how many nodes are above it now."""
    now = datetime.now(UTC)
    with _desk(cluster) as desk:
        models = desk.newest() if identity is None else desk.find(identity)
        if identity is not None and len(models) != 1:
            raise Failed(
                f"there is no model {identity}" if not models else f"{identity} is the beginning of several"
            )
        shown = desk.shown(models, now)
        name = desk.cluster
    if json:
        rows = [
            _plain(one.model)
            | {
                "usable": one.usable,
                "age_s": one.age_s,
                "scored": one.scored,
                "above": one.above,
                "drift": one.drift,
                "hint": one.hint,
            }
            for one in shown
        ]
        print_json({"cluster": name, "models": rows})
    elif not shown:
        typer.echo(f"no model of {name} yet: healer model train")
    elif identity is None:
        _table(shown)
    else:
        _one(shown[0])


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


def _plain(model: "Model") -> dict[str, object]:
    import msgspec

    return msgspec.to_builtins(model)


def _age(seconds: float) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


@contextmanager
def _desk(cluster: str | None) -> "Iterator[ModelDesk]":
    from healer.api.services import Unavailable
    from healer.bootstrap.models import NoCluster, desk

    try:
        with desk(load(), cluster) as found:
            yield found
    except (Unavailable, NoCluster) as error:
        raise Failed(str(error)) from None
