"""What a node is asked about a relay's text, and what its answer says."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from healer.incidents.certainty import is_proven_unusable, unproven_claims, unproven_senders
from healer.incidents.second_look import (
    AGAIN_AFTER,
    CLOCKS,
    LOOKS_MOST,
    NEAR,
    LookAnswer,
    LookResult,
    after_look,
    claims_to_ask,
    is_denied,
    judge_look,
    mark_asked,
    opening_of,
    says_gone,
)
from healer.model import (
    Component,
    Evidence,
    FaultClass,
    GpuSeen,
    Incident,
    KernelRecord,
    NodeLook,
    Sense,
)
from healer.text import to_stored

NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=4242, name=python3, GPU has fallen off the bus."
DBE = "NVRM: Xid (PCI:0000:9b:00): 48, pid=4242, name=python3, An uncorrectable double bit error."
LOST = "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus."
DISK = "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10"
UP_S = 86400.0
WHERE = Component(cluster="pod1", node="gpu0001", pci="0000:9b:00")


def claim(line: str = XID, *, ago_s: float = 1, digest: str = "d1", **fields: Any) -> Evidence:
    at = NOW - timedelta(seconds=ago_s)
    about = {"digest": digest, "at": at, "arrived_at": at, "component": WHERE, "text": line, "line": line}
    about |= {"sense": Sense.kernel, "unusable": True, "fatal": True, "relayed_by": "relay"}
    return Evidence(**(about | fields))


def incident(*evidence: Evidence, **fields: Any) -> Incident:
    about = {"id": "i1", "cluster": "pod1", "rule": "gpu-lost", "fault": "xid-79", "title": "lost"}
    about |= {"fault_class": FaultClass.fatal, "root": WHERE, "opened": NOW, "updated": NOW}
    about |= {"settle_until": NOW, "evidence": evidence, "unusable": True}
    return Incident(**(about | fields))


def record(text: str = XID, *, ago_s: float = 1) -> KernelRecord:
    return KernelRecord(UP_S - ago_s, text)


def look(*records: KernelRecord, up_s: float = UP_S, since: float | None = 0.0, **fields: Any) -> NodeLook:
    return NodeLook(up_s=up_s, log_from_s=since, records=records, **fields)


def result(seen: NodeLook, line: str = XID, *, ago_s: float = 1) -> LookResult:
    return judge_look(claim(line, ago_s=ago_s), seen, NOW).result


# --- how the record begins


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[  123.456789] ",
        "Nov 20 03:00:00 gpu0001 kernel: [  123.456789] ",
        "<4>2026-11-20T03:00:00+00:00 gpu0001 kernel: ",
        "4,812,123456789,-;",
    ],
)
@pytest.mark.parametrize("line", [XID, LOST, DISK])
def test_second_look_asks_for_the_same_text_by_every_route(prefix: str, line: str) -> None:
    assert opening_of(f"{prefix}{line}") == opening_of(line)


def test_of_a_coded_line_its_device_and_code_are_asked_for() -> None:
    assert opening_of(XID) == "nvrmxidpci00009b0079"
    assert opening_of(XID.replace("0000:9b", "9B")) == opening_of(XID)
    assert opening_of("nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 20034, Fatal, Link 32 LTSSM Fault Up") == (
        "nvidianvswitch3sxidpci00000800020034"
    )


@pytest.mark.parametrize("other", [XID.replace("79", "7"), XID.replace("79", "794"), XID.replace("9b", "9c")])
def test_another_code_or_device_is_another_record(other: str) -> None:
    assert opening_of(other) != opening_of(XID)
    assert result(look(record(other))) is LookResult.denied


@given(st.text(max_size=300))
def test_any_text_gives_what_a_node_takes_or_nothing(line: str) -> None:
    opening = opening_of(line)
    assert opening == "" or (
        8 <= len(opening) <= 160 and opening.isascii() and opening.isalnum() and opening == opening.lower()
    )


def test_only_words_of_a_lost_gpu_say_that_it_is_gone() -> None:
    assert says_gone(claim(XID)) and says_gone(claim(LOST))
    assert not says_gone(claim(DBE)) and not says_gone(claim(DISK))


# --- what an answer says


@pytest.mark.parametrize("line", [XID, DBE, LOST, DISK])
@pytest.mark.parametrize("gpu", list(GpuSeen))
def test_record_of_that_time_confirms_regardless_of_nvidia_smi(line: str, gpu: GpuSeen) -> None:
    answer = judge_look(claim(line), look(record(line), gpu=gpu), NOW)
    assert (answer.result, answer.sense, answer.line) == (LookResult.agreed, Sense.kernel, line)
    assert answer.at == NOW - timedelta(seconds=1)


@pytest.mark.parametrize("line", [XID, DBE])
def test_a_gpu_that_is_not_reached_agrees_without_a_record(line: str) -> None:
    answer = judge_look(claim(line), look(since=None, gpu=GpuSeen.lost), NOW)
    assert (answer.result, answer.sense) == (LookResult.agreed, Sense.hook)


def test_a_gpu_that_answers_denies_its_loss_even_where_the_log_cannot_be_read() -> None:
    assert result(look(since=None, gpu=GpuSeen.answers)) is LookResult.denied
    assert result(look(since=None, gpu=GpuSeen.answers), DBE) is LookResult.unknown


@pytest.mark.parametrize("line", [XID, DBE, DISK])
def test_a_log_without_the_record_denies_it(line: str) -> None:
    assert result(look(), line) is LookResult.denied


def test_a_log_that_cannot_be_read_or_begins_too_late_denies_nothing() -> None:
    assert result(look(since=None)) is LookResult.unknown
    assert result(look(since=UP_S - 30), ago_s=1) is LookResult.unknown
    assert result(look(since=UP_S - 1000), ago_s=500) is LookResult.denied


def test_a_node_that_has_booted_since_denies_nothing() -> None:
    assert result(look(up_s=30), ago_s=300) is LookResult.unknown
    assert result(look(up_s=30, gpu=GpuSeen.answers), ago_s=300) is LookResult.unknown
    booted = CLOCKS.total_seconds() + 10
    assert result(look(up_s=booted), ago_s=1) is LookResult.denied


def test_an_old_record_is_no_proof_of_a_new_claim() -> None:
    """A true line of the past may be sent again."""
    old = record(ago_s=NEAR.total_seconds() + 60)
    assert result(look(old)) is LookResult.unknown
    assert result(look(old, gpu=GpuSeen.answers)) is LookResult.denied
    assert result(look(old), ago_s=NEAR.total_seconds() + 61) is LookResult.agreed


# --- which claims are asked about


def test_only_the_worst_claims_of_relays_alone_are_asked_about() -> None:
    minor = claim(DISK, digest="d0", unusable=False, fatal=False)
    worst = claim(digest="d1")
    assert claims_to_ask(incident(minor, worst)) == (worst,)
    own = claim(digest="d2", relayed_by="")
    assert claims_to_ask(incident(minor, worst, own)) == ()
    assert claims_to_ask(incident(claim(line="", sense=Sense.hook))) == ()
    elsewhere = claim(component=msgspec.structs.replace(WHERE, node="gpu0002"))
    assert claims_to_ask(incident(elsewhere)) == ()


def test_an_own_minor_word_leaves_a_relays_worse_one_to_be_asked_about() -> None:
    own = claim(DBE, digest="d0", unusable=False, relayed_by="")
    assert claims_to_ask(incident(own, claim())) == (claim(),)


def test_the_same_words_are_asked_about_once_and_others_a_few_times() -> None:
    about = incident(claim(digest="a"), claim(digest="b"))
    assert len(claims_to_ask(about)) == 2
    about = mark_asked(about, claims_to_ask(about), "r0")
    assert claims_to_ask(about) == ()
    again = claim(digest="c", ago_s=-3600)
    about = msgspec.structs.replace(about, evidence=(*about.evidence, again))
    assert claims_to_ask(about) == (), "it could not be determined the last time"
    for number in range(1, LOOKS_MOST + 2):
        other = claim(XID.replace("9b", f"1{number}"), digest=f"o{number}")
        about = msgspec.structs.replace(about, evidence=(*about.evidence, other))
        claims = claims_to_ask(about)
        assert bool(claims) == (number < LOOKS_MOST)
        about = mark_asked(about, claims, f"r{number}")


def test_denied_words_that_come_again_much_later_are_asked_about_again() -> None:
    about = mark_asked(incident(claim()), [claim()], "r0")
    denied = LookAnswer(result=LookResult.denied, text="no such record")
    about = after_look(about, "r0", to_stored(denied), NOW)
    late_s = AGAIN_AFTER.total_seconds()
    for ago_s, asks in ((-late_s + 10, False), (-late_s - 10, True)):
        again = claim(digest="later", ago_s=ago_s)
        later = msgspec.structs.replace(about, evidence=(*about.evidence, again))
        assert bool(claims_to_ask(later)) is asks
        assert is_denied(later)


# --- what an answer changes


def answered(answer: LookAnswer) -> Incident:
    about = mark_asked(incident(claim()), [claim()], "r0")
    return after_look(about, "r0", to_stored(answer), NOW)


def test_agreed_it_is_the_nodes_own_word_and_once_alone() -> None:
    answer = LookAnswer(result=LookResult.agreed, text="its log has it", line=XID, at=NOW)
    about = answered(answer)
    assert is_proven_unusable(about) and unproven_claims(about) == [] and unproven_senders(about) == ()
    assert about.evidence_count == 1
    assert after_look(about, "r0", to_stored(answer), NOW) == about


def test_denied_it_is_marked_and_proves_nothing() -> None:
    about = answered(LookAnswer(result=LookResult.denied, text="no such record"))
    assert [evidence.denied for evidence in about.evidence] == ["no such record"]
    assert is_denied(about) and not is_proven_unusable(about)


def test_unknown_answer_of_the_node_changes_nothing() -> None:
    about = answered(LookAnswer(result=LookResult.unknown, text="?"))
    assert [evidence.denied for evidence in about.evidence] == [None]
    assert unproven_senders(about) == ("relay",) and not is_denied(about)


def test_an_answer_to_another_run_changes_nothing() -> None:
    about = incident(claim())
    answer = LookAnswer(result=LookResult.agreed, text="its log has it")
    assert after_look(about, "r9", to_stored(answer), NOW) == about


# --- what a repair has cured


@pytest.mark.parametrize(
    ("repaired_ago_s", "wanted"),
    [(60, LookResult.denied), (600, LookResult.agreed), (None, LookResult.agreed)],
)
def test_a_record_from_before_the_last_repair_proves_nothing(
    repaired_ago_s: float | None, wanted: LookResult
) -> None:
    repaired_at = NOW - timedelta(seconds=repaired_ago_s) if repaired_ago_s is not None else None
    answer = judge_look(claim(DBE, ago_s=300), look(record(DBE, ago_s=300)), NOW, repaired_at)
    assert answer.result is wanted


def test_a_gpu_that_is_still_lost_after_a_repair_is_lost() -> None:
    seen = look(record(ago_s=300), gpu=GpuSeen.lost)
    assert judge_look(claim(ago_s=300), seen, NOW, NOW - timedelta(seconds=60)).result is LookResult.agreed
