from datetime import timedelta
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient

from healer.console import words
from healer.console.views import colours, fleet_view, incident_view, runs_view, standing_view, timeline_view
from healer.console.views.buttons import quiet_buttons, run_buttons
from healer.console.views.colours import Colour, Measurements
from healer.console.views.fleet_view import NodeKind, NodeRow
from healer.console.views.incident_view import report
from healer.console.views.rules_view import differences
from healer.engine.records import IncidentRecord
from healer.incidents.incident_verdict import place
from healer.model import AuditRecord, Component, Controller, Role, RunState, SlurmNode, StepEvent, Trouble
from healer.ports.answers import NodeGauges, Note, Standing
from healer.text import in_language
from tests.support import console_sample
from tests.support.console_sample import CLUSTER, NOW, Sample
from tests.support.console_site import Site, make_sample, standing_of


@pytest.fixture(scope="module")
def sample() -> Sample:
    return make_sample(32)


def standing(sample: Sample) -> Standing:
    return standing_of(sample)


def detail_of(sample: Sample, rule: str) -> IncidentRecord:
    return next(detail for detail in sample.details.values() if detail.incident.rule == rule)


@pytest.mark.parametrize(
    ("state", "reason", "kind"),
    [
        (("IDLE",), "", NodeKind.idle),
        (("ALLOCATED",), "", NodeKind.busy),
        (("MIXED", "DRAIN"), "healer:gpu-lost inc:2bcdce34 gone", NodeKind.out_healer),
        (("IDLE", "DRAIN"), "swap riser", NodeKind.out_person),
        (("IDLE", "DRAIN"), "Kill task failed", NodeKind.out_slurm),
        (("DOWN",), "Not responding", NodeKind.out_slurm),
        (("DOWN",), "", NodeKind.out_slurm),
        (("DOWN", "POWERED_DOWN"), "Not responding", NodeKind.out_slurm),
        (("IDLE", "POWERED_DOWN"), "", NodeKind.planned),
        (("IDLE", "MAINTENANCE"), "", NodeKind.planned),
        (("UNKNOWN",), "", NodeKind.unknown),
        (("IDLE", "INVALID_REG"), "", NodeKind.out_slurm),
        (("IDLE", "DRAIN"), "NHC: check_hw", NodeKind.out_person),
        (("IDLE", "DRAIN"), "Not responding to ann's ping", NodeKind.out_person),
    ],
)
def test_kind_of_a_node_is_read_from_its_state_and_reason(
    state: tuple[str, ...], reason: str, kind: NodeKind
) -> None:
    node = SlurmNode(name="gpu0001", state=state, reason=reason)
    assert fleet_view.kind_of(node, hold=None, known_bad=False) is kind


@pytest.mark.parametrize(
    ("state", "reason", "text"),
    [
        (("IDLE",), "", "idle"),
        (("IDLE", "DRAIN"), "PSU", "drained by ann 3 h ago"),
        (("MIXED", "DRAIN"), "NHC: check_hw", "draining by NHC 3 h ago"),
        (("DOWN", "NOT_RESPONDING"), "Not responding", "down by Slurm 3 h ago, not responding"),
        (("IDLE", "DRAIN"), "healer:gpu-lost inc:2bcdce34 gone", "drained by healer 3 h ago"),
        (("IDLE", "PLANNED"), "", "idle, reserved for a planned job"),
        (("IDLE", "POWERED_DOWN"), "", "powered down to save power"),
        (("IDLE", "QUARANTINED"), "", "idle, with QUARANTINED, unknown to healer"),
    ],
)
def test_slurms_state_in_words(sample: Sample, state: tuple[str, ...], reason: str, text: str) -> None:
    row = fleet_view.node_rows(standing(sample))[0]
    at = NOW - timedelta(hours=3) if reason else None
    shown = SlurmNode(name="gpu0001", state=state, reason=reason, reason_user="ann", reason_at=at)
    assert msgspec.structs.replace(row, slurm=shown).shown(NOW) == text


def test_a_node_that_a_program_holds_names_the_program(sample: Sample) -> None:
    row = fleet_view.node_rows(standing(sample))[0]
    shown = SlurmNode(name="gpu0001", state=("IDLE", "DRAIN"), reason="NHC: check_hw", reason_user="root")
    assert msgspec.structs.replace(row, kind=NodeKind.out_person, slurm=shown).word == "out of service by NHC"


def test_a_controller_in_trouble_is_a_banner_that_says_since_when(sample: Sample) -> None:
    since = {Trouble.backup: NOW - timedelta(minutes=5), Trouble.passed_over: NOW}
    seen = Controller(
        cluster="pod1", at=NOW, adapter="cli", host="ctl2", role="backup", fallbacks=("rest: no socket.",),
        since=since,
    )  # fmt: skip
    now = msgspec.structs.replace(standing(sample), controller=seen)
    shown = standing_view.strip(now, fleet_view.node_rows(now), NOW).banners
    banners = [one for one in shown if "controller" in one.title]
    assert [(one.tone, one.title) for one in banners] == [
        ("warn", f"Slurm's controller: the backup controller since {words.utc(since[Trouble.backup])}"),
        ("warn", f"Slurm's controller: reached through another adapter since {words.utc(NOW)}"),
    ]
    assert banners[0].text.startswith("The backup controller ctl2 took over. ")


def test_dead_controller_is_reported_once_even_with_an_old_snapshot(sample: Sample) -> None:
    since = {Trouble.away: NOW - timedelta(minutes=3)}
    seen = Controller(cluster="pod1", at=NOW, problem="No answer.", since=since)
    fresh = msgspec.structs.replace(standing(sample), controller=seen)
    assert fresh.snapshot is not None
    earlier = msgspec.structs.replace(fresh.snapshot, taken_at=NOW - timedelta(minutes=3))
    old = msgspec.structs.replace(fresh, snapshot=earlier, snapshot_error="No answer.")
    for shown in (fresh, old):
        banners = standing_view.strip(shown, fleet_view.node_rows(shown), NOW).banners
        assert len([one for one in banners if "No answer" in one.text]) == 1


def test_a_known_bad_node_in_service_comes_first(sample: Sample) -> None:
    rows = fleet_view.by_trouble(fleet_view.node_rows(standing(sample)))
    assert (rows[0].name, rows[0].kind) == ("gpu0009", NodeKind.bad_in_service)
    assert rows[0].bad_gpus == (6,)
    assert [row.kind for row in rows] == sorted((row.kind for row in rows), key=list(NodeKind).index)


def test_search_takes_every_word(sample: Sample) -> None:
    rows = fleet_view.node_rows(standing(sample))
    assert [row.name for row in rows if fleet_view.matches(row, "R005 healer")] == ["gpu0017", "gpu0020"]


def test_strip_counts_every_node_once(sample: Sample) -> None:
    now = standing(sample)
    strip = standing_view.strip(now, fleet_view.node_rows(now), NOW)
    out = strip.out_healer + strip.out_person + strip.out_slurm + strip.planned + strip.unknown
    assert strip.in_service + out == strip.nodes == 32
    assert (strip.floor, strip.slots_limit, strip.known_bad) == (29, 1, 1)
    assert strip.asking == 3


def test_strip_before_the_first_picture_and_after_the_last(sample: Sample) -> None:
    blind = msgspec.structs.replace(standing(sample), snapshot=None, snapshot_error="slurmctld refused")
    strip = standing_view.strip(blind, fleet_view.node_rows(blind), NOW)
    assert strip.nodes == 0
    assert not strip.below_floor
    assert strip.banners[0].text == "healer holds all actions. slurmctld refused"

    away = Controller(cluster="pod1", at=NOW, problem="no route to it", since={Trouble.away: NOW})
    never = msgspec.structs.replace(blind, snapshot_error="", controller=away)
    banners = standing_view.strip(never, [], NOW).banners
    said = [one.text for one in banners if "no route" in one.text]
    assert said == ["healer holds all actions. no route to it"]

    later = standing_view.strip(standing(sample), [], NOW + timedelta(minutes=3))
    assert later.stale
    assert later.banners[0].title == "Slurm last answered 3 min ago"
    ahead = standing_view.strip(standing(sample), [], NOW - timedelta(minutes=4))
    assert ahead.stale
    assert ahead.banners[0].title == "The Slurm snapshot is dated 3 min in the future: check the clocks"


def test_place_names_the_smallest_part() -> None:
    assert place(Component(cluster="c", node="n1", gpu=3, pci="0000:9b:00")) == "GPU 3 of n1"
    assert place(Component(cluster="c", node="n1", switch="NVSwitch 2")) == "NVSwitch 2 of n1"
    assert place(Component(cluster="c", switch="leaf-3")) == "switch leaf-3"
    assert place(Component(cluster="c", job="4711")) == "job 4711"
    assert place(Component(cluster="c")) == "cluster c"


def left(sample: Sample, rule: str, role: Role = Role.operator) -> list[tuple[str, list[str]]]:
    view = incident_view.view_incident(detail_of(sample, rule), standing(sample), role, NOW)
    return [(one.text, [button.label for button in one.buttons]) for one in view.left]


def test_each_incident_lists_the_work_left_for_a_person(sample: Sample) -> None:
    assert left(sample, "gpu-lost") == []
    assert left(sample, "nvswitch-fatal")[0] == (
        "drain-reboot-verify gpu0005: waits for approval.",
        ["Approve drain-reboot-verify", "Reject"],
    )
    assert [text for text, _ in left(sample, "gpu-remap-failed")] == [
        "drain-reset-verify gpu0009: blocked by a guard.",
        "gpu0009 is faulty and still in service.",
        "Not acknowledged yet.",
    ]
    assert left(sample, "person-drain")[0][0].startswith("jonas drained gpu0026 1 d 5 h ago")
    assert left(sample, "gpu-application") == [("Was this a real fault?", ["True fault", "False alarm"])]


def test_a_viewer_gets_no_button(sample: Sample) -> None:
    for detail in sample.details.values():
        view = incident_view.view_incident(detail, standing(sample), Role.viewer, NOW)
        assert not [button for one in view.left for button in one.buttons]
        assert view.quiet == ()


def test_our_drain_without_a_run_waits_for_the_repair(sample: Sample) -> None:
    detail = detail_of(sample, "gpu-lost")
    ended = tuple(
        msgspec.structs.replace(one, run=msgspec.structs.replace(one.run, state=RunState.cancelled))
        for one in detail.runs
    )
    view = incident_view.view_incident(
        msgspec.structs.replace(detail, runs=ended), standing(sample), Role.operator, NOW
    )
    assert [button.action for one in view.left for button in one.buttons] == ["/api/v1/playbooks/resume/runs"]


def test_a_run_that_waits_for_the_repair_offers_the_return(sample: Sample) -> None:
    detail = detail_of(sample, "gpu-lost")

    def labels(**fields: object) -> list[str]:
        runs_now = tuple(
            msgspec.structs.replace(one, run=msgspec.structs.replace(one.run, **fields))
            for one in detail.runs
        )
        changed = msgspec.structs.replace(detail, runs=runs_now)
        view = incident_view.view_incident(changed, standing(sample), Role.operator, NOW)
        return [button.label for one in view.left for button in one.buttons]

    assert labels(state=RunState.waiting, wake_at=None) == ["Resume gpu0017"]
    assert labels(state=RunState.waiting, wake_at=NOW + timedelta(seconds=5)) == ["Resume gpu0017"]
    assert labels(state=RunState.running) == []


def test_a_wait_that_looks_again_and_again_is_one_row(sample: Sample) -> None:
    detail = detail_of(sample, "gpu-lost")
    wait = next(entry for entry in detail.runs[0].log if entry.event is StepEvent.waiting)
    looks = tuple(
        msgspec.structs.replace(wait, at=wait.at + timedelta(seconds=second)) for second in range(60)
    )
    many = msgspec.structs.replace(detail.runs[0], log=looks)
    rows = timeline_view.timeline(msgspec.structs.replace(detail, runs=(many,)))
    assert [row.detail for row in rows if row.kind == "step"] == [f"{wait.text} (checked 60 times)"]


def test_affected_parts_are_listed_by_node() -> None:
    parts = [Component(cluster="c", node="n1", gpu=gpu) for gpu in range(4)]
    parts += [Component(cluster="c", node="n2", gpu=gpu) for gpu in (1, 5)]
    parts += [Component(cluster="c", node=f"m{number}") for number in range(8)]
    text = incident_view.affected(tuple(parts), 3)
    assert text == "n1 GPU 0 to 3, n2 GPU 1, 5, m0 and 7 more"


def test_an_audit_record_says_its_words_once() -> None:
    record = AuditRecord(
        cluster="c",
        at=NOW,
        actor="healer",
        verb="node.drained",
        subject="node/gpu0001",
        data={"text": "Drained: healer:x", "reason": "healer:x", "guard": None, "state": ["IDLE", "DRAIN"]},
    )
    row = timeline_view.audit_row(record, "c")
    assert (row.words, row.link) == ("Drained: healer:x", "/nodes/c/gpu0001")
    assert row.rest == (("state", '["IDLE", "DRAIN"]'),)


def test_an_approval_is_previewed_by_a_dry_run_of_its_playbook(sample: Sample) -> None:
    run = next(one.run for one in sample.runs.values() if one.run.state is RunState.waiting_approval)
    approve, reject = run_buttons(run, Role.operator)
    assert approve.preview == "/api/v1/playbooks/drain-reboot-verify/runs"
    assert approve.preview_body["node"] == "gpu0005"
    assert reject.preview == ""
    assert run_buttons(run, Role.responder) == ()


def test_the_button_of_a_run_that_asks_says_what_is_approved_and_which_jobs_are_there(sample: Sample) -> None:
    run = next(one.run for one in sample.runs.values() if one.run.state is RunState.waiting_approval)
    asked = "Waiting for approval: Power-cycle it. Jobs running there: 4711"
    waits = msgspec.structs.replace(run, state=RunState.waiting, question=asked)
    approve = next(button for button in run_buttons(waits, Role.operator) if button.label == "Approve")
    assert approve.effect.startswith(f"{asked}. ")


@pytest.mark.parametrize(
    ("part", "name", "says"),
    [("detector", "Detector", "Nothing is detected"), ("worker", "Workers", "No action runs")],
)
def test_a_part_that_is_down_is_said_on_every_page(sample: Sample, part: str, name: str, says: str) -> None:
    # Without a detector every page is as calm as on a healthy fleet.
    site = standing_of(sample)
    beats = {"detector": NOW - timedelta(seconds=5), "worker": NOW, "scheduler": NOW}
    well = msgspec.structs.replace(site, beats=beats)
    ill = msgspec.structs.replace(site, beats=beats | {part: NOW - timedelta(minutes=3)})
    before, after = (standing_view.strip(one, [], NOW).banners for one in (well, ill))
    (banner,) = [one for one in after if one not in before]
    assert banner.tone == "bad" and says in banner.text
    assert banner.title == f"{name} down, last heartbeat 3 min ago"


def test_steps_are_folded_into_one_row_each(sample: Sample) -> None:
    detail = detail_of(sample, "gpu-lost")
    rows = runs_view.steps(detail.runs[0].run, detail.runs[0].log, detail.incident.opened)
    assert [(row.key, row.word, row.took) for row in rows] == [
        ("drain", "done", "12 ms"),
        ("list-jobs", "done", ""),
        ("requeue:4711", "done", "386 ms"),
        ("wait-drained", "done", "6.88 s"),
        ("reset", "started", ""),
    ]
    assert rows[0].offset == "+2.004 s"


@pytest.mark.parametrize("state", [RunState.undone, RunState.done, RunState.cancelled])
def test_a_step_of_a_run_that_ended_waits_no_longer(sample: Sample, state: RunState) -> None:
    record = detail_of(sample, "gpu-lost").runs[0]
    last = msgspec.structs.replace(record.log[-1], event=StepEvent.waiting, text="Waiting for the repair")
    waits = msgspec.structs.replace(record.run, state=RunState.waiting)
    assert runs_view.steps(waits, (last,), NOW)[0].word == "waits"
    ended = msgspec.structs.replace(record.run, state=state)
    (row,) = runs_view.steps(ended, (last,), NOW)
    assert (row.word, row.event) == ("not finished", StepEvent.skipped)


def test_the_log_of_a_run_says_each_day_once(sample: Sample) -> None:
    # A run may wait a week for a repair: a time of day alone names none of its days.
    first, second, *_ = detail_of(sample, "gpu-lost").runs[0].log
    log = (first, second, msgspec.structs.replace(second, at=second.at + timedelta(days=2)))
    assert [row.day for row in runs_view.log_rows(log)] == ["Fri 20 Nov 2026", "", "Sun 22 Nov 2026"]


def test_times_of_day_have_their_zone_on_a_phone_too(sample: Sample) -> None:
    # Below 760 px the head of a table is not shown.
    site, headers = TestClient(Site(sample).app), {"Cookie": "healer_session=cookie-good"}
    for path in ("/audit", "/reports/handover"):
        page = site.get(path, headers=headers).text
        assert page.count('<td class="c-time left" data-label="UTC"><time') == page.count(
            '<td class="c-time left"'
        )
        assert 'data-label="UTC"' in page
    run = detail_of(sample, "gpu-lost").runs[0].run.id
    page = site.get(f"/runs/{run}", headers=headers).text
    assert "Log <small>UTC</small>" in page and '<li class="day">Fri 20 Nov 2026</li>' in page


def test_timeline_is_in_order_and_says_each_day_once(sample: Sample) -> None:
    rows = timeline_view.timeline(detail_of(sample, "gpu-lost"))
    assert [row.at for row in rows] == sorted(row.at for row in rows)
    assert [row.day for row in rows if row.day] == ["Fri 20 Nov 2026"]
    assert rows[0].line.startswith("NVRM: Xid (PCI:0000:9b:00): 79")
    decision = next(row for row in rows if row.kind == "decision")
    assert decision.summary == "15 guards checked, all allow"
    assert {row.kind for row in rows} >= {"evidence", "finding", "decision", "step", "person", "message"}


def test_a_held_decision_names_its_guard(sample: Sample) -> None:
    rows = timeline_view.timeline(detail_of(sample, "gpu-remap-failed"))
    decision = next(row for row in rows if row.kind == "decision")
    assert decision.summary == "15 guards checked: floor blocks"
    assert decision.open


def test_report_makes_markup_of_a_log_inert(sample: Sample) -> None:
    text = report(detail_of(sample, "gpu-application"), NOW)
    code = [line for line in text.splitlines() if "<script>" in line]
    assert code and all(line.startswith("      NVRM") for line in code)


def test_the_map_of_a_large_cluster_is_small() -> None:
    rows = fleet_view.node_rows(standing(make_sample(1250)))
    places, cells = colours.cells(rows, Colour.service, Measurements())
    assert (len(cells), len(places)) == (1250, 313)
    assert len(msgspec.json.encode([places, cells])) < 100_000


def test_only_changed_rows_are_rebuilt(sample: Sample) -> None:
    now = standing(sample)
    before = {row.name: row for row in fleet_view.node_rows(now)}
    assert now.snapshot is not None
    down = msgspec.structs.replace(now.snapshot.nodes["gpu0004"], state=("DOWN",))
    shown = msgspec.structs.replace(now.snapshot, nodes={**now.snapshot.nodes, "gpu0004": down})
    fewer = tuple(one for one in now.open_incidents if one.root.node != "gpu0009")
    later = msgspec.structs.replace(now, snapshot=shown, open_incidents=fewer, slots=())
    rows = fleet_view.node_rows(later, before)
    held = {slot.node for slot in now.slots}
    assert {row.name for row in rows if row is not before[row.name]} == {"gpu0004", "gpu0009", *held}


def cell_of(row: NodeRow, colour: Colour, **measured: object) -> tuple[str, str]:
    known = Measurements(**measured)  # type: ignore[arg-type]
    return colours.shade(colour, row, known), colours.describe(colour, row, known)


def test_colours_show_what_is_known_and_leave_the_rest_unknown(sample: Sample) -> None:
    rows = {row.name: row for row in fleet_view.node_rows(standing(sample))}
    row, nothing = rows["gpu0003"], NodeGauges()
    assert cell_of(row, Colour.service) == ("", "")
    assert cell_of(rows["gpu0009"], Colour.verdict) == ("3", "isolate")
    assert cell_of(rows["gpu0030"], Colour.slurm) == ("4", "draining, drained")
    strange = msgspec.structs.replace(row, slurm=SlurmNode(name="gpu0003", state=("FUTURE",)))
    assert cell_of(strange, Colour.slurm) == ("-", "unknown")
    for colour in (Colour.temperature, Colour.throttle):
        assert (
            cell_of(row, colour) == cell_of(row, colour, gauges={row.name: nothing}) == ("-" * 8, "unknown")
        )
    assert cell_of(row, Colour.steps) == ("-", "unknown")
    assert cell_of(row, Colour.lemon) == ("-", "unknown")

    gauges = {row.name: NodeGauges((49.9, 50.0, None, 95.0), (1.0, 4.0, 0x88, 0x20 | 0x4, None))}
    assert cell_of(row, Colour.temperature, gauges=gauges) == ("01-5----", "95 °C, GPU 3, 5 unknown")
    reasons = console_sample.shipped().catalogue.signals["clock_event_reasons"].bits
    measured = {"gauges": gauges, "reasons": reasons}
    assert cell_of(row, Colour.throttle, **measured) == ("0123----", "thermal, GPU 3, 4 unknown")
    assert cell_of(row, Colour.steps, paces={row.name: 1.2}) == ("4", "1.20 × peers")
    assert cell_of(row, Colour.lemon, lemons={row.name: 3.0}) == ("3", "3 points")
    assert cell_of(row, Colour.lemon, lemons={row.name: 0.0}) == ("0", "none")


def test_an_incident_may_be_merged_into_another_open_one_of_its_node_first(sample: Sample) -> None:
    site = standing(sample)
    here = detail_of(sample, "gpu-lost").incident
    found = {one.label: one for one in quiet_buttons(here, Role.responder, site.open_incidents)}
    (into,) = found["Merge into"].inputs
    others = {one.id: one for one in site.open_incidents}
    assert set(into.choices) == set(others) - {here.id} and into.required
    of_node = [others[name].root.node == here.root.node for name in into.choices]
    assert of_node == sorted(of_node, reverse=True)
    assert into.labels[0].startswith(into.choices[0][:8])
    assert "Merge into" not in {one.label for one in quiet_buttons(here, Role.responder, ())}
    assert "Reopen" not in found
    stopped = msgspec.structs.replace(here, stopped_by="ann")
    assert "Reopen" in {one.label for one in quiet_buttons(stopped, Role.responder)}
    assert quiet_buttons(here, Role.viewer, site.open_incidents) == []


def test_an_incident_of_another_person_can_be_taken_over(sample: Sample) -> None:
    here = detail_of(sample, "gpu-lost").incident
    bobs = msgspec.structs.replace(here, acknowledged_by="bob")
    (button,) = [one for one in quiet_buttons(bobs, Role.responder, me="ann") if one.label == "Take over"]
    assert (button.action, button.body) == (f"/api/v1/incidents/{here.id}/assign", {"to": "ann"})
    for who in (None, "ann"):
        incident = msgspec.structs.replace(here, acknowledged_by=who)
        assert "Take over" not in {one.label for one in quiet_buttons(incident, Role.responder, me="ann")}


def test_a_legend_counts_nodes_by_their_worst_and_the_unknown() -> None:
    found = [(one.text, count) for one, count in colours.counts(Colour.verdict, [0, 0, 3, -1]) if count]
    assert found == [("no known fault", 2), ("isolate", 1), ("unknown", 1)]
    assert colours.counts(Colour.service, [-1]) == []


def test_legend_counts_all_nodes(sample: Sample) -> None:
    rows = fleet_view.node_rows(standing(sample))
    assert sum(count for *_, count in fleet_view.legend(rows)) == 32


def test_sample_is_the_same_each_time() -> None:
    assert make_sample(8).details.keys() == make_sample(8).details.keys()
    assert console_sample.node_name(17) == "gpu0017"


def test_text_that_a_person_typed_is_not_translated(sample: Sample) -> None:
    detail = detail_of(sample, "gpu-application")
    typed = {"reason": "no runs yet"}
    said = AuditRecord(
        at=NOW, cluster=CLUSTER, actor="bob", verb="incident.resolve_asked", subject="x", data=typed
    )
    note = Note(at=NOW, by="ann", text="faulty, in service")
    detail = msgspec.structs.replace(detail, records=(said,), notes=(note,))
    text = report(detail, NOW, lambda text: in_language(text, "zh"))
    assert "no runs yet" in text and "faulty, in service" in text
    assert "ann 写道" in text


def test_an_action_that_only_one_side_of_a_rehearsal_held_says_which_side() -> None:
    row = {
        "at": "2026-11-20T03:00:02Z", "action": "drain", "node": "gpu0001", "job": None, "incident": None,
        "rule": "gpu-lost",
    }  # fmt: skip
    held = {"guard": "approval", "why": "a person decides"}
    nothing: dict[str, Any] = {"new": [], "lost": [], "changed": [], "moved": []}
    new, gone = row | held | {"before": None}, row | {"guard": None, "why": None, "before": held}
    found = differences({"incidents": nothing, "actions": nothing, "held": [new, gone]}, {})
    (rows,) = found.values()
    assert [shown.note for shown in rows] == [
        "with the change: blocked by approval: a person decides",
        "before: blocked by approval: a person decides",
    ]
