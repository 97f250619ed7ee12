"""`docker-compose.yml` as Compose reads it: its overlays put over it, and its variables filled in."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.units import ROOT

FILE = ROOT / "docker-compose.yml"
FOLDER = ROOT / "deploy" / "compose"
_VARIABLE = re.compile(r"\$\$|\$\{(\w+)(?::([-?])([^}]*))?\}")
#: As deploy/compose/images.sh writes them.
DIGESTS = {
    f"HEALER_{name}_DIGEST": f"sha256:{place:064x}" for place, name in enumerate(("POSTGRES", "REDIS"))
}


class NotSet(Exception):
    """A variable without which Compose starts nothing."""


def read_compose(*overlays: str, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The whole document; `overlays` by their names in `deploy/compose`."""
    given = DIGESTS if environ is None else environ

    def fill(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        name, kind, text = found.groups()
        if kind == "?" and not given.get(name):
            raise NotSet(f"{name} {text}")
        return given.get(name) or text or ""

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(each) for name, each in value.items()}
        if isinstance(value, list):
            return [filled(each) for each in value]
        return _VARIABLE.sub(fill, value) if isinstance(value, str) else value

    files = [FILE, *(FOLDER / f"{name}.yml" for name in overlays)]
    documents = [
        filled(yaml.safe_load(file.read_text())) for file in files
    ]  # as Compose: read, then filled in
    whole = documents[0]
    for more in documents[1:]:
        whole = merged(whole, more)
    return whole


def merged(below: Any, above: Any) -> Any:
    """As Compose merges: tables by name, lists one after the other, what is above wins."""
    if isinstance(below, dict) and isinstance(above, dict):
        both = below | above
        return both | {name: merged(below[name], above[name]) for name in below.keys() & above.keys()}
    if isinstance(below, list) and isinstance(above, list):
        return below + above
    return above


def settings_of(service: Mapping[str, Any], secrets: Path) -> dict[str, str]:
    """Its environment, with its secrets in this folder."""
    return {
        name: value.replace("/run/secrets/", f"{secrets}/") for name, value in service["environment"].items()
    }
