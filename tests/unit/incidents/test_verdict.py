"""What healer holds true of an incident, and says of it."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from healer.incidents.growth import add_ruled_out
from healer.incidents.incident_verdict import (
    LONGEST,
    certainty_of,
    certainty_text,
    changed_verdict,
    code_of,
    list_ruled_out,
    verdict_of,
)
from healer.model import (
    Cause,
    Component,
    Evidence,
    FaultClass,
    HitBasis,
    Incident,
    IncidentState,
    JobHit,
    Mode,
    Remedy,
    RuledOut,
    Sense,
    SenseReport,
    Verdict,
)
from healer.text import Said, from_stored, in_language, joined, say, to_stored
from tests.support.loop import CLUSTER, DEGRADED, FATAL, LOST, START, TEARDOWN, Site, later, name, rules_in

RULES = rules_in()
GPU = Component(cluster=CLUSTER, node="gpu0017", gpu=3, pci="0000:9b:00")


def evidence(sense: Sense = Sense.kernel, **fields: Any) -> Evidence:
    given: dict[str, Any] = {
        "digest": str(sense),
        "at": START,
        "component": GPU,
        "text": "Xid 79",
        "sense": sense,
    }
    return Evidence(**(given | fields))


def incident(**fields: Any) -> Incident:
    given: dict[str, Any] = {
        "id": "a" * 32,
        "cluster": CLUSTER,
        "rule": "gpu-lost",
        "fault": "xid-79",
        "fault_class": FaultClass.fatal,
        "title": "Xid 79: GPU fell off the bus",
        "root": GPU,
        "opened": START,
        "updated": START,
        "settle_until": START,
        "nodes": {"gpu0017": Verdict.isolate},
        "remedy": (Remedy.reboot_node, Remedy.ticket),
        "evidence": (evidence(line=LOST, fatal=True),),
        "confidence": 1.0,
    }
    return Incident(**(given | fields))


def verdict_sentence(**fields: Any) -> str:
    return verdict_of(incident(**fields), RULES).sentence


def crash(job: str = "4711", gpus: int = 64, nodes: int = 8) -> JobHit:
    return JobHit(job=job, basis=HitBasis.start, gpus=gpus, nodes=nodes, ended_at=START, since=START)


def test_a_lost_gpu_in_one_breath() -> None:
    assert verdict_sentence(unusable=True) == (
        "GPU 3 of gpu0017 fell off the bus (Xid 79, certain); the node is unusable until it is rebooted."
    )


def test_the_jobs_other_nodes_are_said_to_be_well() -> None:
    whole = verdict_sentence(hit=(crash(),))
    assert (
        "64 ranks of job 4711 crashed because of it and must restart; its other 7 nodes are healthy." in whole
    )
    two_blamed = verdict_sentence(
        hit=(crash(),), nodes={"gpu0017": Verdict.isolate, "gpu0018": Verdict.isolate}
    )
    assert "are healthy" not in two_blamed


def test_verdict_names_the_jobs_that_must_restart() -> None:
    several = verdict_sentence(hit=(crash("4711", 4, 1), crash("4712", 4, 1)))
    assert several.endswith("jobs 4711, 4712 crashed because of it and must restart.")
    many = verdict_sentence(hit=tuple(crash(str(number), 1, 1) for number in range(8)))
    assert many.endswith("8 jobs crashed because of it and must restart.")
    over = verdict_sentence(hit=(crash("4711", 4, 1),), state=IncidentState.resolved)
    assert over.endswith("4 ranks of job 4711 crashed because of it.")
    contained = verdict_sentence(
        fault="xid-94",
        fault_class=FaultClass.degraded,
        title="Xid 94: contained memory error",
        nodes={"gpu0017": Verdict.suspect},
        remedy=(Remedy.requeue_job, Remedy.reset_gpu_when_idle),
        evidence=(evidence(line="94, Contained"),),
        hit=(JobHit(job="4711", basis=HitBasis.runs_on, gpus=1, nodes=1),),
    )
    assert contained.endswith("; job 4711 lost data and must restart.")


def test_a_code_of_no_catalogue() -> None:
    title = say("detection.xid", code=999, text=say("detection.in_no_catalogue"))
    fields = {"fault": "xid-999", "fault_class": FaultClass.unknown, "title": joined((title, "x"), "space")}
    assert verdict_sentence(**fields, confidence=0.5) == (
        "Xid 999 on GPU 3 of gpu0017 is not in any catalogue; healer watches it and asks you once."
    )


def test_an_application_blames_no_hardware() -> None:
    one = verdict_sentence(
        fault="xid-31",
        fault_class=FaultClass.application,
        title="Xid 31: GPU page fault (MMU)",
        cause=Cause.application,
        nodes={},
        remedy=(Remedy.none,),
    )
    assert one == (
        "GPU 3 of gpu0017: page fault (MMU) (Xid 31, likely, 80%); "
        "caused by the job itself: no hardware is blamed."
    )


def test_names_keep_their_letters_and_a_node_speaks_for_itself() -> None:
    one = verdict_sentence(
        fault="node-silent", title="Node does not respond", root=Component(cluster=CLUSTER, node="gpu0009")
    )
    assert one.startswith("gpu0009 does not respond (certain)")


@pytest.mark.parametrize(
    "title", ["x" * 500, "a\nb\tc " * 60, "Xid 79: " + "word " * 90, "Xid 79: a: b: " + "c" * 300]
)
@pytest.mark.parametrize("fault_class", [FaultClass.fatal, FaultClass.unknown])
@pytest.mark.parametrize("hit", [(), (crash(),), (crash("1"), crash("2"))])
def test_no_sentence_is_longer_than_a_breath(
    title: str, fault_class: FaultClass, hit: tuple[JobHit, ...]
) -> None:
    one = verdict_sentence(title=title, hit=hit, closed_why="y" * 300, fault_class=fault_class)
    assert len(one) <= LONGEST
    assert one.endswith(".")


def test_every_code_of_both_catalogues_can_be_said() -> None:
    for kind, rows in (("xid", RULES.xids), ("sxid", RULES.sxids)):
        for code, entry in rows.items():
            one = verdict_of(
                incident(
                    fault=f"{kind}-{code}",
                    fault_class=entry.fault_class,
                    title=f"{'SXid' if kind == 'sxid' else 'Xid'} {code}: {entry.text}",
                    remedy=(entry.remedy,),
                    hit=(crash(),),
                ),
                RULES,
            )
            assert len(one.sentence) <= LONGEST, one.sentence
            assert str(code) in one.sentence
            assert any(f"row {code}" in why and entry.source in why for why in one.why), one.why


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "NVRM: Xid (PCI:0000:9b:00): 999, pid=1, name=x, what",
            "Xid 999 on the GPU at 0000:9b:00 of gpu0001 is not in any catalogue",
        ),
        (
            "NVRM: Xid (PCI:0000:9b:00): 1, pid=1, name=x, what",
            "The catalogue does not say what Xid 1 on the ",
        ),
        ("nvidia-nvswitch2: SXid (PCI:0000:87:00.0): 99999, Link 3 x", "SXid 99999 on "),
    ],
)
def test_a_code_without_a_row_and_one_whose_row_says_nothing(line: str, words: str) -> None:
    site = Site(2, mode=Mode.off)
    site.walk(*site.say(1, line))
    (kept,) = site.ledger.tables.verdicts.values()
    assert kept[-1].verdict.sentence.startswith(words)
    assert kept[-1].verdict.sentence.endswith("; healer watches it and asks you once.")
    assert kept[-1].verdict.certainty == 0.5


# --- how sure -----------------------------------------------------------------------------------------------


def test_a_second_sense_halves_the_doubt_and_an_alert_does_not() -> None:
    one = incident(confidence=0.8, evidence=(evidence(Sense.metrics),))
    both = msgspec.structs.replace(one, heard=(SenseReport(sense=Sense.kernel, at=START),))
    by_alert = msgspec.structs.replace(one, heard=(SenseReport(sense=Sense.alert, at=START),))
    assert [certainty_of(it) for it in (one, both, by_alert)] == [0.8, 0.9, 0.8]


@pytest.mark.parametrize(
    ("fields", "at_most"),
    [
        ({"fault_class": FaultClass.unknown}, 0.5),
        ({"fault_class": FaultClass.application}, 0.8),
        ({"evidence": (evidence(Sense.alert),)}, 0.6),
    ],
)
def test_unknown_class_application_or_lone_alert_limits_certainty(
    fields: dict[str, Any], at_most: float
) -> None:
    assert certainty_of(incident(confidence=1.0)) == 1.0
    assert certainty_of(incident(confidence=1.0, **fields)) == at_most


@pytest.mark.parametrize(
    ("certainty", "words"),
    [
        (1.0, "certain"),
        (0.98, "certain"),
        (0.95, "very likely, 95%"),
        (0.7, "likely, 70%"),
        (0.5, "unsure, 50%"),
    ],
)
def test_certainty_in_words(certainty: float, words: str) -> None:
    assert certainty_text(certainty) == words


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("xid-79", "Xid 79"),
        ("sxid-20034", "SXid 20034"),
        ("repeats:xid-13", "Xid 13"),
        ("driver-asks-reset", "Xid 154"),
        ("gpu-hot", ""),
    ],
)
def test_the_number_of_a_fault(fault: str, code: str) -> None:
    assert code_of(fault) == code


# --- what was set aside, and what is news -------------------------------------------------------------------


def test_teardowns_that_were_only_counted_are_set_aside_with_their_root() -> None:
    one = incident(counted={"xid-45": 1203, "xid-13": 2}, jobs_hit=("4711",))
    ruled_out = {it.what: (it.count, it.why) for it in list_ruled_out(one, RULES)}
    assert ruled_out == {
        "Xid 45": (1203, "teardown of job 4711 after Xid 79"),
        "Xid 13": (2, "follows from Xid 79"),
    }


def test_more_of_the_same_is_no_news() -> None:
    before = incident(counted={"xid-45": 1})
    more = msgspec.structs.replace(before, counted={"xid-45": 1000}, updated=later(5), evidence_count=9)
    assert changed_verdict(before, more, RULES) is None
    again = add_ruled_out(before, RuledOut(at=START, what=Said("x"), why=Said("y")))
    assert changed_verdict(before, again, RULES) == verdict_of(again, RULES)
    assert (
        changed_verdict(again, add_ruled_out(again, RuledOut(at=START, what=Said("x"), why=Said("y"))), RULES)
        is None
    )
    assert changed_verdict(None, before, RULES) == verdict_of(before, RULES)


def test_a_second_sense_and_the_end_are_news() -> None:
    before = incident(confidence=0.8, evidence=(evidence(Sense.metrics),))
    heard = msgspec.structs.replace(before, heard=(SenseReport(sense=Sense.kernel, at=START),))
    verdict = changed_verdict(before, heard, RULES)
    assert verdict is not None and verdict.certainty == 0.9
    over = msgspec.structs.replace(before, state=IncidentState.resolved, closed_why="returned by healer")
    verdict = changed_verdict(before, over, RULES)
    assert verdict is not None and "ended: returned by healer" in verdict.sentence


def test_the_walk_keeps_each_verdict_once() -> None:
    site = Site(8, mode=Mode.off)
    site.slurm.add_job(nodes=8, gpus=8, required=[name(n) for n in range(1, 9)])
    site.walk()
    site.clock.advance(3600)
    site.walk(*site.say(1, FATAL))
    site.walk(*[seen for n in range(2, 9) for seen in site.say(n, TEARDOWN)])
    site.clock.advance(5)
    for _ in range(3):
        site.walk(*[seen for n in range(2, 9) for seen in site.say(n, TEARDOWN)])
        site.clock.advance(1)
    (kept,) = site.ledger.tables.verdicts.values()
    first, last = kept[0].verdict, kept[-1].verdict
    assert first.nodes == {"gpu0001": Verdict.isolate}
    assert [one.what for one in last.set_aside] == ["Xid 45"]
    assert len(kept) == 2
    assert kept[0].at == later(3600)


def test_job_loss_is_shown_on_the_incident() -> None:
    site = Site(8, mode=Mode.off)
    job = site.slurm.add_job(nodes=8, gpus=8, required=[name(n) for n in range(1, 9)])
    site.walk()
    site.clock.advance(1800)
    site.walk(*site.say(1, FATAL))
    (one,) = site.incidents
    (hit,) = one.hit
    assert (hit.job, hit.gpus, hit.nodes, hit.basis, hit.lost_gpu_hours) == (job, 64, 8, HitBasis.start, 32.0)
    assert hit.ended_at == START + timedelta(minutes=30)


def test_the_retest_is_that_of_the_fault_and_the_gpu_model() -> None:
    link = incident(fault="xid-149", title="Xid 149: NVLink5 NETIR error")
    known = {model: verdict_of(link, RULES, model).retest for model in ("", "GB200")}
    assert known["GB200"] is not None and known["GB200"].name == "swap_cable"
    assert known[""] != known["GB200"]
    again = incident(fault="repeats:xid-79")
    assert verdict_of(again, RULES).retest == verdict_of(incident(), RULES).retest is not None


def test_merged_incidents_are_set_aside_on_the_one_that_explains_them() -> None:
    site = Site(8, mode=Mode.off)
    site.walk(*site.say(1, DEGRADED))
    site.clock.advance(60)
    site.walk(*site.say(1, LOST))
    site.walk()
    (one,) = (it for it in site.incidents if it.is_open)
    (milder,) = (it for it in site.incidents if not it.is_open)
    assert milder.merged_into == one.id
    set_aside = [(it.what, it.count, milder.short_id in it.why) for it in one.set_aside]
    assert set_aside == [(milder.title, 1, True)]
    kept = site.ledger.tables.verdicts[one.id][-1].verdict
    assert kept.set_aside == one.set_aside
    last = site.ledger.tables.verdicts[milder.id][-1].verdict
    assert f"explained by incident {one.short_id}." in last.sentence


# --- where evidence comes from ------------------------------------------------------------------------------

INTRODUCED = {
    Sense.kernel: "Kernel line on ",
    Sense.metrics: "Metrics of ",
    Sense.step_times: "Step times of ",
    Sense.forest: "Anomaly model on ",
    Sense.silence: "Silence of ",
    Sense.slurm: "Slurm on ",
    Sense.hook: "Node check of ",
    Sense.alert: "External alert on ",
    Sense.history: "History of ",
}


@pytest.mark.parametrize("sense", Sense)
def test_evidence_is_introduced_by_its_source(sense: Sense) -> None:
    why = verdict_of(incident(evidence=(evidence(sense, text="IDLE+DRAIN"),)), RULES).why
    assert why[0] == f"{INTRODUCED[sense]}{GPU}, 03:00:00 UTC: IDLE+DRAIN"
    named = verdict_of(incident(evidence=(evidence(sense, text="gpu0017: IDLE+DRAIN"),)), RULES).why
    assert (
        named[0]
        == f"{INTRODUCED[sense].removesuffix(' of ').removesuffix(' on ')}, 03:00:00 UTC: gpu0017: IDLE+DRAIN"
    )
    for english in (why[0], named[0]):
        chinese = in_language(english, "zh")
        assert chinese.endswith("IDLE+DRAIN") and "，03:00:00 UTC：" in chinese


def test_evidence_that_names_no_source_cannot_be_made_or_read() -> None:
    with pytest.raises(TypeError, match="sense"):
        Evidence(digest="d", at=START, component=GPU, text="x")  # pyright: ignore[reportCallIssue]
    stored = to_stored(evidence())
    assert from_stored(stored, Evidence) == evidence()
    del stored["sense"]
    with pytest.raises(msgspec.ValidationError, match="sense"):
        from_stored(stored, Evidence)


@pytest.mark.parametrize("by", ["ann", "root"])
def test_drain_is_described_as_slurm_shows_it(by: str) -> None:
    site = Site(2)
    site.run_for(2)
    site.slurm.person_drain(name(1), "Kill task failed" if by == "root" else "replacing PSU", by)
    site.run_for(5)
    (found,) = site.open_incidents
    assert {one.sense for one in found.evidence} == {one.sense for one in found.heard} == {Sense.slurm}
    why = verdict_of(found, site.rules).why
    assert why[0].startswith(f"Slurm on {name(1)}, ")
    assert "ernel" not in " ".join(why)


@pytest.mark.parametrize("derived", [Sense.alert, Sense.history])
def test_derived_evidence_does_not_raise_certainty(derived: Sense) -> None:
    measured = incident(confidence=0.7, evidence=(evidence(Sense.metrics),))
    both = incident(confidence=0.7, evidence=(evidence(Sense.metrics), evidence(derived)))
    assert certainty_of(both) == certainty_of(measured)
    assert not [one for one in verdict_of(both, RULES).why if one.endswith(" agree")]
    only = incident(confidence=0.9, evidence=(evidence(Sense.history), evidence(Sense.alert)))
    assert certainty_of(only) == 0.6, "an alert that came again is still an alert"


def test_since_when_an_incident_waits_is_read_from_rows_of_earlier_versions() -> None:
    stored = to_stored(incident(waits_since=START))
    assert stored["plan_over"] == to_stored(START)
    assert from_stored(stored, Incident).waits_since == START
