"""Law 2: what proves a claim is a matter of who says it, not of how many ways it is said."""

from datetime import timedelta

import msgspec
import pytest

from healer.incidents.certainty import (
    is_proven_fatal,
    is_proven_unusable,
    senses_of,
    unproven_senders,
    why_not_looked,
)
from healer.model import Evidence, Incident, Sense, SenseReport
from tests.support.ledgers import START, incident

RELAY = "syslog (a1b2c3d4)"


def said(sense: Sense, *, relayed_by: str = "", sent_by: str = "") -> Evidence:
    return Evidence(
        digest=f"{sense}{relayed_by}{sent_by}",
        at=START,
        component=incident().root,
        text="x",
        sense=sense,
        fatal=True,
        unusable=True,
        relayed_by=relayed_by,
        sent_by=sent_by,
    )


def of(*evidence: Evidence) -> Incident:
    return incident(unusable=True, evidence=evidence)


TEXT = said(Sense.kernel, relayed_by=RELAY)


@pytest.mark.parametrize(
    ("sender", "proven"),
    [
        (RELAY, False),
        ("syslog (99999999)", False),  # the same owner's next token
        (f"trainer (00000001) or {RELAY}", False),
        ("several senders", False),
        ("trainer (00000001)", True),
        ("", True),  # stored by an earlier version, which named no sender
    ],
)
def test_step_times_are_a_second_sense_if_somebody_else_sent_them(sender: str, proven: bool) -> None:
    both = of(TEXT, said(Sense.step_times, sent_by=sender))
    assert is_proven_unusable(both) is is_proven_fatal(both) is proven
    assert unproven_senders(both) == (() if proven else (RELAY,))


def test_an_incident_without_evidence_of_its_own_proves_nothing() -> None:
    assert not is_proven_unusable(of())
    assert not is_proven_unusable(of(msgspec.structs.replace(said(Sense.kernel), unusable=False)))


def test_step_times_alone_say_what_they_said_before() -> None:
    assert is_proven_fatal(of(said(Sense.step_times, sent_by=RELAY)))


def test_self_report_of_the_node_proves_it_regardless_of_others() -> None:
    assert is_proven_fatal(of(TEXT, said(Sense.step_times, sent_by=RELAY), said(Sense.kernel)))


def test_two_relays_and_the_step_times_of_one_of_them_prove_nothing() -> None:
    other = msgspec.structs.replace(TEXT, relayed_by="rack-2 (e5f6a7b8)", digest="other")
    assert not is_proven_fatal(of(TEXT, other, said(Sense.step_times, sent_by="rack-2 (e5f6a7b8)")))


def test_after_the_clock_was_set_back_an_hour_what_was_reported_before_is_not_of_now() -> None:
    before = START + timedelta(hours=1)
    heard = tuple(SenseReport(sense=sense, at=before) for sense in (Sense.metrics, Sense.step_times))
    slow = incident(heard=heard, ticked_at=before)
    assert len(senses_of(slow, before)) == 2
    assert senses_of(slow, START) == ()
    assert why_not_looked(slow, START)
