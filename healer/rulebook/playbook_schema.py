"""The JSON schema of `rules/playbooks/*.yaml`, for editors and for those who write playbooks by program."""

from typing import Any

import msgspec

from healer.actions import CHECKS, VERBS, WAITS
from healer.model import Playbook
from healer.playbooks.advance import JOB_LISTS
from healer.rulebook.playbook_rules import BESIDE, KINDS, PROBES

#: Fields of a step that are words out of a list which the model does not hold.
_WORDS = {
    "do": VERBS,
    "check": CHECKS,
    "wait": WAITS,
    "probe": PROBES,
    "verify": BESIDE,
    "undo": ("keep",),
    "for_each": JOB_LISTS,
}


def playbook_schema() -> dict[str, Any]:
    """JSON Schema 2020-12. What rests on more than one place of a file (an earlier step, an input, a script)
    is checked at load alone (`healer rules check`)."""
    (top,), parts = msgspec.json.schema_components([Playbook], ref_template="#/$defs/{name}")
    for part in parts.values():
        if "properties" in part:
            part["additionalProperties"] = False
    step = parts["Step"]
    for name, words in _WORDS.items():
        step["properties"][name] = {"enum": [*sorted(str(word) for word in words), None]}
    step["oneOf"] = [{"required": [kind]} for kind in KINDS]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **top,
        "$defs": dict(sorted(parts.items())),
    }
