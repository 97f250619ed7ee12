"""The published schema of a playbook's file: what ships fits it, and what is refused at load does not."""

import json
from typing import Any

import jsonschema_rs
import pytest
import yaml

from healer.rulebook.playbook_rules import playbook_schema
from tests.support.up import ROOT

FILES = sorted((ROOT / "rules" / "playbooks").glob("*.yaml"))
GOOD: dict[str, Any] = {
    "name": "x",
    "title": "X",
    "target": "node",
    "steps": [{"id": "a", "do": "drain"}],
}


def test_the_page_holds_what_the_program_prints() -> None:
    assert json.loads((ROOT / "docs/schemas/playbook.json").read_text()) == json.loads(
        json.dumps(playbook_schema())
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_playbook_that_ships_fits(file: Any) -> None:
    jsonschema_rs.validate(playbook_schema(), yaml.safe_load(file.read_text()))


@pytest.mark.parametrize(
    "change",
    [
        {"stepz": []},
        {"steps": [{"id": "a", "do": "drian"}]},
        {"steps": [{"id": "a", "wait": "godot"}]},
        {"steps": [{"id": "a", "do": "drain", "check": "jobs_hit"}]},
        {"steps": [{"id": "a"}]},
        {"steps": [{"id": "a", "do": "drain", "retires": 3}]},
        {"inputs": {"x": {"type": "float"}}},
    ],
)
def test_invalid_playbook_does_not_match_the_schema(change: dict[str, Any]) -> None:
    schema = playbook_schema()
    jsonschema_rs.validate(schema, GOOD)
    assert not jsonschema_rs.is_valid(schema, GOOD | change)
