"""Mode auto is earned, and lost again."""

import pytest

from healer.decisions.consent import demotion_reason, promotion_obstacle
from healer.model import Mode, PromotionPolicy, Proof

EARN = PromotionPolicy()


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        (0, 0, "30 reviewed incidents and 0 are"),
        (29, 0, "30 reviewed incidents and 29 are"),
        (30, 0, None),
        (29, 1, None),
        (28, 2, "28 of the last 30 incidents were true faults (0.93); auto mode requires 0.95"),
    ],
)
def test_auto_mode_needs_enough_reviews_and_precision(right: int, wrong: int, says: str | None) -> None:
    found = promotion_obstacle(Proof(right=right, wrong=wrong), EARN)
    assert found is None if says is None else says in (found or "")


@pytest.mark.parametrize(
    ("mode", "right", "wrong", "falls"),
    [
        (Mode.auto, 0, 0, False),
        (Mode.auto, 29, 1, False),
        (Mode.auto, 28, 2, True),
        (Mode.auto, 0, 1, False),
        (Mode.auto, 0, 2, True),
        (Mode.approve, 0, 9, False),
        (Mode.shadow, 0, 9, False),
    ],
)
def test_auto_mode_ends_when_its_precision_falls(mode: Mode, right: int, wrong: int, falls: bool) -> None:
    assert (demotion_reason(mode, Proof(right=right, wrong=wrong), EARN) is not None) is falls


@pytest.mark.parametrize("percent", range(0, 101, 5))
@pytest.mark.parametrize("incidents", [10, 20, 30, 50])
def test_a_rule_that_may_climb_does_not_fall_at_once(percent: int, incidents: int) -> None:
    earn = PromotionPolicy(incidents=incidents, precision=percent / 100)
    for wrong in range(incidents + 1):
        proof = Proof(right=incidents - wrong, wrong=wrong)
        assert (promotion_obstacle(proof, earn) is None) == (demotion_reason(Mode.auto, proof, earn) is None)
