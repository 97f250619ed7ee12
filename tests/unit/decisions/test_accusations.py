"""How many nodes a relay may accuse, alone and where another may have said it."""

from datetime import UTC, datetime, timedelta

import pytest

from healer.decisions.accusations import suspects
from healer.model import Component, Evidence, FaultClass, Incident, Sense
from healer.text import quoted
from tests.support.gate import incident

NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)
A, B, EITHER = "a (1)", "b (2)", "a (1) or b (2)"


def claim(number: int, sender: str) -> Incident:
    root = Component(cluster="pod1", node=f"gpu{number:04}")
    said = Evidence(
        digest=f"{number}{sender}", at=NOW, component=root, text="x", sense=Sense.metrics, relayed_by=sender
    )
    name = f"{number:032}"
    return incident(
        id=name, root=root, evidence=(said,), fault_class=FaultClass.fatal, opened=NOW - timedelta(minutes=1)
    )


def found(*claims: Incident) -> set[str]:
    return set(suspects(claims, {each.id for each in claims}, 32, NOW))


def test_a_relay_has_a_budget() -> None:
    assert found(*(claim(number, A) for number in range(3))) == set()
    assert found(*(claim(number, A) for number in range(4))) == {A}


@pytest.mark.parametrize(("alone", "together"), [(3, 3), (2, 2), (0, 4)])
def test_claims_of_either_have_no_budget_of_their_own(alone: int, together: int) -> None:
    claims = [claim(number, A) for number in range(alone)]
    claims += [claim(alone + number, EITHER) for number in range(together)]
    assert found(*claims) == {EITHER}


def test_a_suspect_makes_the_claims_of_either_suspect_and_not_those_of_the_other() -> None:
    claims = [claim(number, A) for number in range(4)] + [claim(10, EITHER), claim(11, B)]
    assert found(*claims) == {A, EITHER}


def test_a_wave_that_is_held_for_one_relay_makes_no_other_suspect() -> None:
    """One of its nodes was named by another relay."""
    claims = [claim(number, A) for number in range(4)] + [claim(10, B)]
    wave = incident(
        id="f" * 32, root=Component(cluster="pod1"), fault_class=FaultClass.fatal, opened=NOW,
        doubt=quoted("A"),
        evidence=tuple(each.evidence[0] for each in claims), affected=tuple(each.root for each in claims),
    )  # fmt: skip
    assert found(*claims, wave) == {A}
