"""A reason may be as long in the console as in the API."""

import re
from pathlib import Path

from fastapi.testclient import TestClient

from healer.api.request_fields import Reason
from tests.support.console_sample import CLUSTER
from tests.support.console_site import Site, make_sample

COOKIE = {"Cookie": "healer_session=cookie-good"}
TEMPLATES = Path(__file__).parents[3] / "web/templates"
#: The fields for a person's own words.
FIELD = re.compile(r'<(?:textarea|input) id="(act-text|triage-reason|why|reason)"[^>]*>')


def test_fields_for_reasons_have_the_limit_of_the_api() -> None:
    page = TestClient(Site(make_sample(32)).app).get(f"/incidents?cluster={CLUSTER}", headers=COOKIE).text
    most = Reason.model_json_schema()["properties"]["reason"]["maxLength"]
    shown = {one[1]: f'maxlength="{most}"' in one[0] for one in FIELD.finditer(page)}
    assert shown == {"act-text": True, "triage-reason": True}


def test_no_template_has_a_limit_of_its_own() -> None:
    fields = [
        (path.stem, one[1], 'maxlength="{{ words_max }}"' in one[0])
        for path in sorted(TEMPLATES.glob("*.html"))
        for one in FIELD.finditer(path.read_text(encoding="utf-8"))
    ]
    assert fields == [
        ("base", "act-text", True),
        ("break_glass", "reason", True),
        ("incidents", "triage-reason", True),
        ("rehearsals", "why", True),
    ]
