"""People's words about modes of rules, on the ledger in memory."""

import pytest

from healer.engine.controls import Controls, IncidentCommands
from healer.model import Mode, Review
from healer.ports.request_errors import Conflict
from tests.support.loop import LOST, Site

RULE = "gpu-lost"


def test_auto_that_healer_took_away_does_not_come_back_by_way_of_another_mode() -> None:
    site = Site(8)
    site.walk(*site.say(1, LOST), *site.say(2, LOST))
    reviews = IncidentCommands(site.ledger, lambda: site.rules, site.clock)
    for one in site.incidents:
        about = {"cause": None, "by": "ann", "reason": "a loose cable", "request": one.id}
        reviews.review(one.id, review=Review.false_alarm, **about)
        site.walk()
    assert site.ledger.tables.modes == {RULE: Mode.approve}
    controls, rule = Controls(site.ledger, lambda: site.rules, site.clock), site.rules.by_name[RULE]
    controls.set_mode(rule, Mode.shadow, by="ann", reason="for now", request="q1")
    with pytest.raises(Conflict, match="cannot be set to auto"):
        controls.set_mode(rule, Mode.auto, by="ann", reason="back", request="q2")
