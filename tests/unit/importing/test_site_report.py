"""`healer report`: what healer would have done beside what people did; every claim links to its evidence."""

import json
import re
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from healer.console.site_report import html
from healer.model import Mode
from healer.model.site_past import Assumptions, PastReport
from healer.recordings.recording import read
from healer.rulebook.ruleset import load
from healer.sim.past_facts import PastFacts
from healer.sim.past_proposal import proposed
from healer.sim.past_report import past_report
from healer.sim.replaying import replay
from tests.support.loop import rules_in

START = datetime(2026, 11, 2, tzinfo=UTC)
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=a, GPU has fallen off the bus."
HOUR = 3600


def at(after_s: float) -> str:
    return (START + timedelta(seconds=after_s)).isoformat().replace("+00:00", "Z")


def nodes(after_s: float, **changed: dict[str, Any]) -> tuple[float, str, dict[str, Any]]:
    rows = [{"name": name, "gpus": 8, "state": ["IDLE"]} | row for name, row in changed.items()]
    return after_s, "slurm/nodes", {"cluster": "pod1", "changed": rows}


def jobs(after_s: float, *rows: dict[str, Any]) -> tuple[float, str, dict[str, Any]]:
    return after_s, "slurm/jobs", {"cluster": "pod1", "changed": list(rows)}


def job(number: str, state: str, node: str, start_s: float, **more: Any) -> dict[str, Any]:
    return {
        "id": number, "state": state, "nodes": [node], "gpus": {node: list(range(8))}, "name": "train",
        "user": "mara", "start_at": at(start_s),
    } | more  # fmt: skip


def xid(after_s: float, node: str, line: str = XID) -> tuple[float, str, dict[str, Any]]:
    body = {"cluster": "pod1", "node": node, "entries": [{"time": at(after_s), "line": line}]}
    return after_s, "signals/kernel-log", body


def drained(reason: str, user: str = "joe") -> dict[str, Any]:
    return {"state": ["IDLE", "DRAIN"], "reason": reason, "reason_user": user}


def reported(
    *rows: tuple[float, str, Any], days: float = 3, assumed: Assumptions = Assumptions()
) -> PastReport:
    whole = [{"name": f"gpu{n:04d}", "gpus": 8, "state": ["IDLE"]} for n in range(1, 21)]
    first = [(0.0, "slurm/nodes", {"cluster": "pod1", "nodes": whole}), (0.0, "slurm/jobs", {"jobs": []})]
    ordered = sorted((*first, *rows, (days * 86400, "clock", {})), key=lambda row: row[0])
    lines = [json.dumps({"at": at(when), "route": route, "body": body}) for when, route, body in ordered]
    facts, rules = PastFacts(), rules_in(Mode.auto)
    return past_report(replay(rules, facts.over(read(lines))), facts, rules, "pod1", assumed)


def words(report: PastReport) -> dict[str, tuple[str, float | None]]:
    return {answer.node: (answer.word, answer.minutes) for answer in report.answers}


#: Half an hour until people see the lost GPU; two jobs that start there meanwhile die at once.
LATE = (
    jobs(0, job("1", "RUNNING", "gpu0001", -7200)),
    xid(HOUR, "gpu0001"),
    jobs(HOUR + 20, job("1", "NODE_FAIL", "gpu0001", -7200, end_at=at(HOUR + 20))),
    jobs(HOUR + 300, job("2", "RUNNING", "gpu0001", HOUR + 300, name="other")),
    jobs(HOUR + 900, job("2", "FAILED", "gpu0001", HOUR + 300, name="other", end_at=at(HOUR + 900))),
    nodes(HOUR + 1800, gpu0001=drained("xid 79")),
    jobs(HOUR + 3620, job("3", "RUNNING", "gpu0002", HOUR + 3620)),
    nodes(HOUR + 9000, gpu0001={}),
)


def test_healer_is_earlier_than_people() -> None:
    report = reported(*LATE)
    (answer,) = report.answers
    assert (answer.word, answer.node) == ("earlier", "gpu0001")
    assert answer.minutes == pytest.approx(30, abs=0.2)
    assert [report.deaths[number - 1].job for number in answer.died] == ["2"]
    (hold,) = report.holds
    assert (hold.reason, hold.by, hold.until) == ("xid 79", "joe", START + timedelta(seconds=HOUR + 9000))


def test_hours_lost_and_saved_follow_from_the_lives_of_jobs() -> None:
    report = reported(*LATE)
    assert list(report.hit.values()) == [[1]]
    assert report.saved.lost == round(8 * (2 * HOUR + HOUR + 20) / HOUR, 1)
    assert report.saved.waiting == round(8 * (3600 - 60) / HOUR, 1)
    assert report.saved.on_bad_nodes == round(8 * 600 / HOUR, 1)
    assert report.saved.cost == 0
    assert [row.node for row in report.worst] == ["gpu0001"]
    assert report.worst[0].hours_out == 2.0
    assert [row["job"] for row in report.requeued] == ["1"]


def test_another_task_of_the_array_is_not_the_dead_one_started_again() -> None:
    """Tasks of an array have one name. The dead one is requeued, and waits for two hours."""
    report = reported(
        jobs(0, job("1", "RUNNING", "gpu0001", -7200)),
        xid(HOUR, "gpu0001"),
        jobs(HOUR + 20, job("1", "NODE_FAIL", "gpu0001", -7200, end_at=at(HOUR + 20))),
        jobs(HOUR + 80, job("2", "RUNNING", "gpu0002", HOUR + 80)),
        jobs(3 * HOUR + 20, job("1", "RUNNING", "gpu0003", 3 * HOUR + 20, restarts=1)),
    )
    assert report.deaths[0].again_at == START + timedelta(seconds=3 * HOUR + 20)
    assert report.saved.waiting == round(8 * (2 * HOUR - 60) / HOUR, 1)


def test_assumptions_move_the_hours() -> None:
    assumed = Assumptions(start_up_s=600, checkpoint_h=1.0, price=2.5)
    saved = reported(*LATE, assumed=assumed).saved
    assert (saved.lost, saved.waiting) == (8 * 0.5, round(8 * (3600 - 600) / 3600, 1))
    assert saved.on_bad_nodes == round(8 * 600 / HOUR, 1)


def test_report_separates_missed_from_unneeded_drains() -> None:
    report = reported(
        nodes(HOUR, gpu0003=drained("fan")),
        nodes(2 * HOUR, gpu0003={}),
        xid(5 * HOUR, "gpu0004"),
    )
    assert words(report) == {"gpu0003": ("missed", None), "gpu0004": ("unneeded", None)}
    assert report.saved.cost == 8 * 24
    assert [(row.rule, row.agreed, row.unneeded, row.mode) for row in report.advice] == [
        ("gpu-lost", 0, 1, "shadow")
    ]


def test_a_job_that_dies_there_confirms_a_drain() -> None:
    report = reported(
        xid(HOUR, "gpu0004"),
        jobs(2 * HOUR, job("9", "RUNNING", "gpu0004", 2 * HOUR)),
        jobs(3 * HOUR, job("9", "NODE_FAIL", "gpu0004", 2 * HOUR, end_at=at(3 * HOUR))),
    )
    assert words(report) == {"gpu0004": ("confirmed", None)}
    assert report.saved.on_bad_nodes == 8.0


def test_failed_check_explains_the_drain_by_slurm() -> None:
    failed = {"name": "prolog", "text": "rc 7: GPU 3 is missing"}
    check = {"cluster": "pod1", "node": "gpu0005", "checks": [failed]}
    row = {"state": ["IDLE", "DRAIN"], "reason": "Prolog error", "reason_user": "slurm"}
    report = reported((HOUR, "signals/hooks/prolog", check), nodes(HOUR + 1, gpu0005=row))
    assert [(hold.owner, hold.check) for hold in report.holds] == [("slurm", "rc 7: GPU 3 is missing")]
    assert "rc 7: GPU 3 is missing" in html(report, "en").decode()


def test_a_node_that_people_had_out_is_no_answer_of_healers() -> None:
    report = reported(nodes(HOUR, gpu0005=drained("xid 79")), xid(HOUR + 600, "gpu0005"))
    assert words(report)["gpu0005"][0] in {"seen", "later"}


def test_words_that_slurm_appends_make_no_second_drain() -> None:
    """A person drains the node and reboots it: Slurm writes so into the reason. Another person is another."""
    booted = "bad GPU : reboot issued", "bad GPU : reboot issued : reboot complete"
    report = reported(
        nodes(HOUR, gpu0001=drained("bad GPU")),
        nodes(2 * HOUR, gpu0001=drained(booted[0], "root")),
        nodes(3 * HOUR, gpu0001=drained(booted[1], "root")),
        nodes(10 * HOUR, gpu0001={}),
        nodes(11 * HOUR, gpu0002=drained("PSU")),
        nodes(12 * HOUR, gpu0002=drained("fan, ordered")),
        nodes(13 * HOUR, gpu0002={}),
    )
    held = [(hold.node, hold.by, hold.reason, (hold.until or hold.at) - hold.at) for hold in report.holds]
    hour = timedelta(hours=1)
    assert held == [
        ("gpu0001", "joe", "bad GPU", 9 * hour), ("gpu0002", "joe", "PSU", hour),
        ("gpu0002", "joe", "fan, ordered", hour),
    ]  # fmt: skip
    assert [answer.word for answer in report.answers] == ["missed"] * 3


def test_a_rule_with_many_drains_that_agree_may_start_with_approve() -> None:
    rows = []
    for number in range(5):
        node, begin = f"gpu{number + 1:04d}", number * 12 * HOUR + HOUR
        rows += [
            xid(begin, node),
            nodes(begin + 1200, **{node: drained("xid 79")}),
            nodes(begin + 7200, **{node: {}}),
        ]
    (advice,) = reported(*rows, days=4).advice
    assert (advice.agreed, advice.unneeded, advice.mode) == (5, 0, "approve")


def test_rules_proposed_from_the_past_hold_together(tmp_path: Path) -> None:
    """Shadow mode for all, the precision above each rule that found something, no cap wider than before."""
    report = reported(*LATE, xid(40 * HOUR, "gpu0004"))
    shipped = Path("rules")
    files = {str(path.relative_to(shipped)): path.read_text() for path in shipped.rglob("*.yaml")}
    now = load(shipped, prove=False).guards
    changed = proposed(files, report, now)
    shutil.copytree(shipped, tmp_path / "rules")
    for name, text in changed.items():
        (tmp_path / "rules" / name).write_text(text)
    rules = load(tmp_path / "rules", default_mode=Mode.auto)
    modes = {rule.name: rule.mode for rule in rules.rules}
    assert modes["gpu-lost"] is modes["slurm-drain"] is Mode.shadow
    assert "2 drains, 1 agreed with people or with later deaths of jobs: precision 0.50" in " ".join(
        changed["policies.yaml"].replace("# ", "").split()
    )
    assert (rules.guards.max_nodes, rules.guards.max_share) == (1, now.max_share)
    assert 0 < rules.guards.share_per_hour <= now.share_per_hour
    assert proposed(files | changed, report, rules.guards).keys() <= {"guards.yaml", "policies.yaml"}


def test_silent_weeks() -> None:
    imported = {"imported": {"heard": {f"gpu{n:04d}": [["2026-11-02", "2026-11-22"]] for n in range(1, 20)}}}
    imported["imported"]["heard"]["gpu0020"] = [["2026-11-02", "2026-11-04"], ["2026-11-14", "2026-11-22"]]
    report = reported((20 * 86400, "clock", imported), days=20)
    (silence,) = report.silent
    assert (silence.first, silence.last, silence.nodes) == (
        date(2026, 11, 5),
        date(2026, 11, 13),
        ["gpu0020"],
    )
    assert set(report.blind) == {"kernel", "metrics", "steps", "heartbeats", "jobs", "people"}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_needs_nothing_else_and_every_link_leads_somewhere(language: str) -> None:
    hostile = "<script>alert(1)</script> \u202e & \"'"
    report = reported(*LATE, nodes(40 * HOUR, gpu0007=drained(hostile)))
    page = html(report, language).decode()
    links = set(re.findall(r'href="#([^"]+)"', page))
    ids = re.findall(r' id="([^"]+)"', page)
    assert links and links <= set(ids)
    assert len(ids) == len(set(ids))
    assert re.findall(r'<section id="([^"]+)"', page)[-2:] == ["evidence", "first"]
    assert (
        page.count("<script") == 2
        and "<script>alert" not in page
        and "\u202e" not in page
        and "&lt;script&gt;" in page
    )
    assert not re.search(r'(?:src|href)="(?!#)', page) and "url(http" not in page
    assert "past." not in re.sub(r"<style>.*</style>", "", page, flags=re.DOTALL), "a sentence without words"
    assert ("healer 更早" in page) == (language == "zh")
    assert ("healer earlier" in page) == (language == "en")
    assert XID in page
