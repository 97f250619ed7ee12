"""`healer model`: trains models of classes of nodes, shows them, and puts one of them in force."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from healer.commands import Failed, person, say
from healer.commands.remote import AS_JSON, add_group, print_json, print_table
from healer.commands.token import parse_lasts
from healer.settings import load

if TYPE_CHECKING:
    from healer.adapters.postgres.forest_rows import PostgresFeatures, PostgresModels
    from healer.bootstrap.models import Shown
    from healer.model.trained import ClassCheck, Model, Version

_CLUSTER = typer.Option(None, help="The cluster; needed where there are several.")


def register(app: typer.Typer) -> None:
    commands = {"train": train, "show": show, "use": use, "refit": refit}
    add_group(app, "model", "Models of the isolation forest.", commands)


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
    from healer.bootstrap.models import train_classes
    from healer.detection.training import TooLittle

    refused, trained = [], []
    with _stores(cluster) as (models, features):
        for result in train_classes(features, begin, now):
            if isinstance(result, TooLittle):
                refused.append(str(result))
                continue
            new = not dry_run and models.save(result, by=person(), at=now, why="trained by a person")
            trained.append(_plain(result.model) | {"stored": new})
            if not json:
                say(_line(result.model, dry_run=dry_run, new=new))
    if json:
        print_json({"cluster": models.cluster, "dry_run": dry_run, "models": trained, "refused": refused})
    else:
        for why in refused:
            say(f"no model: {why}")
    if not trained and not refused:
        raise Failed(f"no history of {models.cluster} since {since}: nodes have to send metrics first")
    if not trained:
        raise Failed("nothing was trained")


def show(
    identity: str | None = typer.Argument(None, metavar="[ID]", help="A model's id or its beginning."),
    cluster: str | None = _CLUSTER,
    *,
    every: bool = typer.Option(False, "--all", help="All versions that are kept, not those in force alone."),
    json: bool = AS_JSON,
) -> None:
    """Show the models in force, or one: what it was made from, and how many nodes are above it now."""
    from healer.bootstrap.models import shown

    now = datetime.now(UTC)
    with _stores(cluster) as (models, features):
        if identity is not None:
            versions = [_one_of(models.find(identity), identity)]
        else:
            versions = models.versions() if every else models.in_force()
        # With `--all` nothing is scored: that would grow the forest of each version.
        found = [] if every else [shown(models, features, version, now) for version in versions]
        looks = models.looks()
    if json:
        rows = [_version(version) for version in versions] if every else [_row(model) for model in found]
        print_json({"cluster": models.cluster, "models": rows, "classes": [_plain(look) for look in looks]})
        return
    if not versions:
        say(f"no model of {models.cluster} yet: healer model train")
    elif every:
        _versions(versions)
    elif identity is None:
        _table(found)
    else:
        _show_model(found[0])
    if identity is None:
        for look in looks:
            say(_look_line(look))


def use(
    identity: str = typer.Argument(metavar="ID", help="A model's id or its beginning."),
    cluster: str | None = _CLUSTER,
    why: str = typer.Option(..., help="Why; it stands in the audit."),
) -> None:
    """Put a kept version in force: back to an older one, or one that was refused. No schedule replaces it for
    a week."""
    with _stores(cluster) as (models, _):
        model = _one_of(models.find(identity), identity).model
        try:
            models.use(model, by=person(), at=datetime.now(UTC), why=why)
        except KeyError:
            raise Failed(f"model {identity} was forgotten meanwhile") from None
    say(
        f"{model.id[:12]} {_class_of(model)}: in force. The detector takes it "
        f"within a minute; no schedule replaces it for 7 days"
    )


def refit(cluster: str | None = _CLUSTER, *, json: bool = AS_JSON) -> None:
    """Look now whether models are due or their classes have drifted, as the scheduler does each hour."""
    from healer.bootstrap.models import look_once

    with _failing_in_words():
        looks = look_once(load(), cluster)
    if looks is None:
        raise Failed("another process looks after the models just now")
    if json:
        print_json({"classes": [_plain(look) for look in looks]})
    elif not looks:
        say("no class of nodes was seen in the last 7 days")
    else:
        for look in looks:
            say(_look_line(look))


def _one_of(found: "list[Version]", identity: str) -> "Version":
    if len(found) > 1:
        raise Failed(f"{identity} is the beginning of several")
    if not found:
        raise Failed(f"there is no model {identity}")
    return found[0]


def _look_line(look: "ClassCheck") -> str:
    moved = "; ".join(
        f"{drift.feature} {drift.index:.2f} (limit {drift.limit:.2f})" for drift in look.drifted[:3]
    )
    outcome = look.result or "nothing to do"
    at = f"{look.at:%Y-%m-%d %H:%M} UTC"
    return f"{_class_of(look)}: looked at {at}: {outcome}{'; drifted: ' if moved else ''}{moved}"


def _class_of(model: "Model | ClassCheck") -> str:
    return f"{model.hardware or 'any GPU model'}, {model.load}"


def _row(shown: "Shown") -> dict[str, object]:
    row = _plain(shown)
    del row["version"]
    return _version(shown.version) | row


def _version(version: "Version") -> dict[str, object]:
    row = _plain(version)
    del row["model"]
    return _plain(version.model) | row


def _versions(versions: "list[Version]") -> None:
    rows = []
    for version in versions:
        model, at = version.model, version.in_force_at
        in_force = f"{at:%Y-%m-%d %H:%M}" if at else "never", version.in_force_by or ""
        trained = model.id[:12], model.hardware, model.load, f"{model.trained_at:%Y-%m-%d %H:%M}"
        rows.append([*trained, *in_force, f"{model.threshold:.3f}", _judged(version)])
    print_table(("id", "hardware", "load", "trained", "in force", "by", "threshold", "judged"), rows)


def _judged(version: "Version") -> str:
    judgement = version.judged
    if judgement is None:
        return "not judged: a person's word"
    if judgement.refused:
        return f"refused: {judgement.refused}"
    before = f" (before {judgement.above_before:.2%})" if judgement.above_before is not None else ""
    share = f"{judgement.above:.2%} of {judgement.samples} healthy samples above{before}"
    return f"{share}, {judgement.found:.0%} of probes found"


def _table(found: "list[Shown]") -> None:
    rows = []
    for shown in found:
        model = shown.version.model
        made = model.id[:12], model.hardware, model.load, model.rows, len(model.features)
        now = _age(shown.age_s), f"{shown.above} of {shown.scored}", shown.hint
        rows.append([*made, f"{model.threshold:.3f}", *now])
    columns = ("id", "hardware", "load", "rows", "features", "threshold", "age", "above now", "hint")
    print_table(columns, rows)


def _show_model(shown: "Shown") -> None:
    version, model, made_by = shown.version, shown.version.model, shown.version.model.params
    quantiles = ", ".join(f"{name}: {value:.3f}" for name, value in model.quantiles.items())
    rows = [
        ("model", model.id),
        ("class", f"{_class_of(model)}, cluster {model.cluster}"),
        ("trained", f"{model.trained_at:%Y-%m-%d %H:%M:%S} UTC, {_age(shown.age_s)} ago"),
        ("attested", f"{model.attested} of {model.seen} samples; {model.rows} used, {model.nodes} nodes"),
        ("data", f"sha256 {model.data_hash}"),
        (
            "parameters",
            f"{made_by.n_estimators} trees of {made_by.max_samples} samples, seed {made_by.seed}; threshold "
            f"from nodes held out: quantile {made_by.quantile} and {made_by.margin:.0%} of its distance to "
            "the middle",
        ),
        ("threshold", f"{model.threshold:.3f} (quantiles {quantiles})"),
    ]
    if version.in_force_at is not None:
        rows.append(
            ("in force", f"since {version.in_force_at:%Y-%m-%d %H:%M:%S} UTC, by {version.in_force_by}")
        )
    rows += [("judged", _judged(version)), ("now", f"{shown.above} of {shown.scored} nodes above")]
    rows += [("hint", shown.hint)] if shown.hint else []
    for name, text in [*rows, *(("feature", name) for name in model.features)]:
        say(f"{name:<10} {text}")


def _line(model: "Model", *, dry_run: bool, new: bool) -> str:
    what = "would be trained" if dry_run else "trained" if new else "is in force already"
    return (
        f"{model.id[:12]} {_class_of(model)}: {what}; attested: "
        f"{model.attested} of {model.seen}, {model.rows} used, {len(model.features)} features, "
        f"threshold {model.threshold:.3f}"
    )


def _plain(value: "Model | Version | Shown | ClassCheck") -> dict[str, object]:
    from healer.text import to_plain

    return to_plain(value)


def _age(seconds: float) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


@contextmanager
def _failing_in_words() -> "Iterator[None]":
    from healer.bootstrap.models import NoCluster
    from healer.ports.request_errors import Unavailable

    try:
        yield
    except (Unavailable, NoCluster) as error:
        raise Failed(str(error)) from None


@contextmanager
def _stores(cluster: str | None) -> "Iterator[tuple[PostgresModels, PostgresFeatures]]":
    from healer.bootstrap.models import stores

    with _failing_in_words(), stores(load(), cluster) as found:
        yield found
