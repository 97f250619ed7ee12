"""The page of pauses, caps and the breaker."""

from datetime import timedelta

import msgspec
import pytest
from fastapi.testclient import TestClient

from healer.api.access import ALLOWED
from healer.api.granted import has_role
from healer.console.views import fleet_view, pauses_view, standing_view
from healer.decisions.capacity import limits
from healer.model import Breaker, GateFacts, Guard, Pause, Reservation, Role, Run, RunState, Slot
from healer.model.grants import Grant
from healer.ports.answers import Standing
from healer.ports.callers import Caller, Granted
from tests.support import console_sample
from tests.support.console_sample import CLUSTER, NOW, pause_records, shipped
from tests.support.console_site import Site, make_sample, standing_of

COOKIE = {"Cookie": "healer_session=cookie-good"}
OPERATES = ALLOWED[Role.operator]


def standing(**changes: object) -> Standing:
    found = standing_of(make_sample(32))
    return msgspec.structs.replace(found, **changes)


def paused(scope: str, name: str) -> Pause:
    return Pause(id=f"{scope}-{name}", scope=scope, name=name, by="mara", reason="work", since=NOW)


def run(name: str, state: RunState, **fields: object) -> Run:
    return Run(
        id=name, cluster=CLUSTER, playbook="drain", state=state, by="healer", reason="x", created_at=NOW,
        **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_pause_names_the_runs_that_it_holds_up_and_no_others() -> None:
    held = run("held", RunState.held, node="gpu0003", rule="gpu-lost")
    between = run("between", RunState.running, node="gpu0004", question="Paused")
    asked = run("asked", RunState.waiting_approval, node="gpu0003", rule="gpu-lost")
    given = (
        paused("all", ""),
        paused("rule", "gpu-lost"),
        paused("node", "gpu0004"),
        paused("node", "other"),
    )
    rows = pauses_view.pause_rows(
        standing(pauses=given, asking=(held, between, asked)),
        lambda _: False,
        NOW,
    )
    assert [[one.id for one in row.holds] for row in rows] == [["held", "between"], ["held"], ["between"], []]
    assert [row.scope for row in rows[:2]] == ["everything", "rule gpu-lost"]
    assert {row.end for row in rows} == {None}


def test_pauses_that_are_over_say_how_they_ended() -> None:
    records = pause_records()[::-1]
    node, everything = pauses_view.past_pauses(records, (), NOW)
    assert (node.scope, node.ended) == ("node gpu0012", "jonas: upgraded & tested")
    assert node.ended_at == NOW - timedelta(hours=8.5)
    assert (everything.scope, everything.ended) == ("everything", "expired")
    still = msgspec.structs.replace(paused("all", ""), id="past-1")
    assert [one.scope for one in pauses_view.past_pauses(records, (still,), NOW)] == ["node gpu0012"]


@pytest.mark.parametrize(
    ("bound_to", "ends"),
    [(None, {"all-", "pod1"}), (CLUSTER, {"pod1"}), ("pod2", set[str]())],
)
def test_session_bound_to_a_cluster_cannot_end_other_pauses(bound_to: str | None, ends: set[str]) -> None:
    here = msgspec.structs.replace(paused("rule", "gpu-lost"), id="pod1", cluster=CLUSTER)
    session = Caller(id="mara", name="mara", role=Role.operator, cluster=bound_to)
    given = standing(pauses=(paused("all", ""), here))
    rows = pauses_view.pause_rows(given, lambda cluster: has_role(session, OPERATES, cluster, ()), NOW)
    assert {row.pause.id for row in rows if row.end is not None} == ends


@pytest.mark.parametrize("bound", [False, True])
def test_the_page_opens_for_an_operator_of_one_cluster_while_the_whole_site_is_paused(bound: bool) -> None:
    sample = make_sample(32)
    sample.standing = msgspec.structs.replace(sample.standing, pauses=(paused("all", ""),))
    site = Site(sample, role=Role.operator, others=("lab",))
    if bound:
        site.bound_to = CLUSTER
    else:
        of_pod = Grant(name="pod", role=Role.operator, clusters=(CLUSTER,))
        grants = (Grant(name="eyes", role=Role.viewer), of_pod)
        site.granted = Granted(subject="s", groups=(), grants=grants)
    answer = TestClient(site.app).get(f"/pauses?cluster={CLUSTER}", headers=COOKIE)
    main = answer.text.partition("<main")[2]
    assert (answer.status_code, "everything" in main, "/api/v1/pauses/all-" in answer.text) == (
        200,
        True,
        False,
    )
    assert "/api/v1/pauses" in main and "All clusters" not in main, "nor may they pause all of the site"


def test_a_pause_is_added_with_what_its_scope_needs() -> None:
    site = standing()
    assert pauses_view.add_buttons(site, shipped(), Role.responder, NOW) == ()
    buttons = {one.body["scope"]: one for one in pauses_view.add_buttons(site, shipped(), Role.operator, NOW)}
    assert set(buttons) == {"cluster", "rule", "playbook", "node", "partition"}
    assert buttons["cluster"].body["name"] == CLUSTER
    more = pauses_view.add_buttons(site, shipped(), Role.operator, NOW, several=True)
    assert [one.body for one in more if one not in buttons.values()] == [{"scope": "all"}]
    assert [one.name for one in buttons["cluster"].inputs] == ["until"]
    name, until = buttons["partition"].inputs
    assert (name.choices, name.required) == (("train",), True)
    assert "gpu-lost" in buttons["rule"].inputs[0].choices
    assert (until.default, until.choices[-1]) == ("2026-11-20T07:17Z", "")
    assert until.labels[0] == "Fri 04:17 UTC, in 1 h" and len(until.labels) == len(until.choices)


def test_caps_count_as_the_gate_does_and_list_only_places_with_slots() -> None:
    site = standing()
    strip = standing_view.strip(site, fleet_view.node_rows(site), NOW)
    found = {one.name: one for one in pauses_view.caps(site, strip, shipped())}
    assert (found["Slots"].used, found["Slots"].limit) == (strip.slots_used, strip.slots_limit)
    assert (found["Capacity floor"].limit, found["Capacity floor"].left) == (29, 0)
    racks = [name for name in found if name.startswith("Rack")]
    held = {slot.node for slot in site.slots if not slot.unusable}
    assert len(racks) == len(held) and found["Partition train"].used == len(held)
    assert pauses_view.caps(standing(snapshot=None), strip, shipped()) == []


@pytest.mark.parametrize("shown", [(), ("MAINTENANCE",)])
def test_the_floor_counts_what_is_tested_and_what_is_about_to_go_as_the_gate_does(
    shown: tuple[str, ...],
) -> None:
    site = standing()
    assert site.snapshot is not None
    idle = [row.name for row in fleet_view.node_rows(site) if row.kind is fleet_view.NodeKind.idle]
    tested, leaving, upheld = idle[:3]
    nodes = dict(site.snapshot.nodes)
    nodes[tested] = msgspec.structs.replace(nodes[tested], state=(*nodes[tested].state, *shown))
    nodes[upheld] = msgspec.structs.replace(nodes[upheld], state=(*nodes[upheld].state, "MAINTENANCE"))
    reserved = {
        name: Reservation(name=name, nodes=(node,), maintenance=True)
        for name, node in (("healer_2bcdce34", tested), ("firmware", upheld))
    }
    snapshot = msgspec.structs.replace(site.snapshot, nodes=nodes, reservations=reserved)
    slot = Slot(cluster=CLUSTER, node=leaving, incident=None, run="r", granted_at=NOW)
    site = msgspec.structs.replace(site, snapshot=snapshot, slots=(*site.slots, slot))

    rows = {row.name: row for row in fleet_view.node_rows(site)}
    strip = standing_view.strip(site, list(rows.values()), NOW)
    room = next(one for one in pauses_view.caps(site, strip, shipped()) if one.name == "Capacity floor")
    facts = GateFacts(
        cluster=CLUSTER, snapshot=snapshot, slots=tuple(site.slots), breaker=Breaker(cluster=CLUSTER)
    )
    limit = next(one for one in limits(facts, shipped(), NOW) if one.guard is Guard.floor)
    assert (room.used, room.limit) == (limit.used, limit.limit)
    assert rows[tested].kind is fleet_view.NodeKind.out_healer
    assert rows[upheld].kind is fleet_view.NodeKind.planned


@pytest.mark.parametrize(("share", "word"), [(0.15, "at 5 root causes"), (1.0, "breaker is off")])
def test_the_breaker_says_when_it_opens(share: float, word: str) -> None:
    site = standing()
    site = msgspec.structs.replace(
        site,
        guards=msgspec.structs.replace(site.guards, breaker_share=share),
        breaker=Breaker(cluster=CLUSTER),
    )
    view = pauses_view.breaker_view(site)
    assert view.word == "closed" and word in view.opens


@pytest.mark.parametrize(
    ("role", "adds", "resets"),
    [(Role.viewer, False, False), (Role.operator, True, False), (Role.admin, True, True)],
)
def test_the_page_shows_only_what_the_role_may_press(role: Role, adds: bool, resets: bool) -> None:
    sample = make_sample(32)
    console_sample.storm(sample)
    page = TestClient(Site(sample, role=role).app).get("/pauses", headers=COOKIE).text
    main = page[page.index("<main") :]
    assert ("Pause a rule" in main) is adds
    assert ('data-act="/api/v1/pauses/pause-1"' in main) is adds
    assert ('data-act="/api/v1/breaker/reset"' in main) is resets
    assert "rule nvswitch-degraded" in main and "&lt;b&gt;BIOS&lt;/b&gt; upgrade" in main
    assert "gpu0040" in main and "3 nodes with nvswitch-fatal in 5 min" in main


def test_a_quiet_site_says_so() -> None:
    page = TestClient(Site(make_sample(8, empty=True)).app).get("/pauses", headers=COOKIE).text
    assert "No active pauses." in page and "No past pauses." in page and ">closed</span>" in page
