"""`healer model`: makes models of classes of nodes at once, and shows those in force."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from healer.commands import Failed, person, say
from healer.commands.remote import AS_JSON, add_group, print_json, print_table
from healer.settings import SettingsError, load

if TYPE_CHECKING:
    from healer.adapters.postgres.forest_rows import PostgresFeatures, PostgresModels
    from healer.model.trained import ClassCheck

_CLUSTER = typer.Option(None, help="The cluster; required if there are several.")


def register(app: typer.Typer) -> None:
    add_group(app, "model", "Models of the isolation forest.", {"train": train, "show": show})


def train(cluster: str | None = _CLUSTER, *, json: bool = AS_JSON) -> None:
    """Train a model for each class of nodes on a week of healthy history, as the scheduler does each day. The
    detector loads it within a minute."""
    from healer.bootstrap.models import train_due

    with _stores(cluster) as (models, features):
        checks = train_due(models, features, datetime.now(UTC), by=person())
        kept = _models(models)
    if json:
        print_json(
            {"cluster": models.cluster, "models": kept, "classes": [_plain(check) for check in checks]}
        )
    else:
        _say(checks)
    if not checks:
        raise Failed(f"no history of {models.cluster} in 7 days: nodes have to send metrics first")
    if not kept:
        raise Failed("no class has a model")


def show(cluster: str | None = _CLUSTER, *, json: bool = AS_JSON) -> None:
    """Show the models in force, and what came of the last look at each class."""
    with _stores(cluster) as (models, _):
        kept, checks = _models(models), models.looks()
    if json:
        print_json(
            {"cluster": models.cluster, "models": kept, "classes": [_plain(check) for check in checks]}
        )
        return
    columns = ("id", "hardware", "load", "rows", "nodes", "threshold", "in_force_at", "in_force_by")
    if kept:
        print_table(columns, [[str(model[name])[:16] for name in columns] for model in kept])
    else:
        say(f"no model of {models.cluster} yet: healer model train")
    _say(checks)


def _models(models: "PostgresModels") -> list[dict[str, object]]:
    found = [_plain(version) for version in models.in_force()]
    return [version.pop("model") | version for version in found]


def _say(checks: "list[ClassCheck]") -> None:
    for check in checks:
        hardware = check.hardware or "any GPU model"
        say(f"{hardware}, {check.load}: {check.at:%Y-%m-%d %H:%M} UTC: {check.result}")


def _plain(value: object) -> dict:
    from healer.text import to_plain

    return to_plain(value)


@contextmanager
def _stores(cluster: str | None) -> "Iterator[tuple[PostgresModels, PostgresFeatures]]":
    from healer.bootstrap.models import stores
    from healer.ports.request_errors import Unavailable

    try:
        with stores(load(), cluster) as found:
            yield found
    except (Unavailable, SettingsError) as error:
        raise Failed(str(error)) from None
