"""The fleet at a moment of the past: which moment an address names, and the rows of the map."""

from datetime import UTC, datetime, timedelta

import pytest

from healer.console.views import past_view
from healer.console.views.fleet_view import NodeKind
from healer.model import SlurmNode, SlurmSnapshot
from healer.model.node_states import Holder, NodeCondition, NodeState
from healer.ports.answers import PastFleet

NOW = datetime(2026, 11, 20, 3, 16, 40, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-20T02:40Z", datetime(2026, 11, 20, 2, 40, tzinfo=UTC)),
        ("2026-11-20T02:40", datetime(2026, 11, 20, 2, 40, tzinfo=UTC)),
        ("2026-11-20T03:40+01:00", datetime(2026, 11, 20, 2, 40, tzinfo=UTC)),
        ("2026-11-20T03:20Z", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_an_address_names_a_moment_that_was(text: str, moment: datetime | None) -> None:
    assert past_view.moment_in(text, NOW) == moment


def test_the_slider_reaches_back_a_day_and_its_right_end_is_now() -> None:
    live = past_view.slider(NOW, None)
    assert (live.value, live.text, live.most - live.least) == (live.most, "03:15 UTC", 86400)
    assert past_view.address_of(str(live.most), NOW) == ""
    assert past_view.address_of(str(live.most - 2100), NOW) == "2026-11-20T02:40Z"
    old = past_view.slider(NOW, NOW - timedelta(days=3))
    assert old.value == old.least


def state(condition: str, holder: str = "none", *, busy: bool = False) -> NodeState:
    return NodeState(NodeCondition(condition), Holder(holder), busy)


def test_rows_of_the_past_have_todays_places_and_nothing_else_of_today() -> None:
    today = SlurmNode(name="n1", state=("IDLE", "DRAIN"), reason="bad fan", gpus=8, rack="r1")
    new = SlurmNode(name="new", state=("IDLE",), gpus=8)
    snapshot = SlurmSnapshot(cluster="pod1", taken_at=NOW, nodes={"n1": today, "new": new})
    past = PastFleet(states={"n1": state("in_service", busy=True), "gone": state("drained", "slurm")})
    rows = past_view.past_rows(past, snapshot)
    assert [(row.name, row.kind, row.state) for row in rows] == [
        ("n1", NodeKind.busy, "IN_SERVICE"),
        ("new", NodeKind.unknown, "UNKNOWN"),
        ("gone", NodeKind.out_slurm, "DRAINED"),
    ]
    assert (rows[0].places, rows[0].slurm.gpus, rows[0].slurm.reason) == (("r1",), 8, "")
    assert past_view.past_rows(PastFleet(), snapshot) == []


@pytest.mark.parametrize(
    ("was", "kind"),
    [
        (state("in_service"), NodeKind.idle),
        (state("draining", "healer", busy=True), NodeKind.out_healer),
        (state("down", "person"), NodeKind.out_person),
        (state("down"), NodeKind.unknown),
        (state("planned"), NodeKind.planned),
    ],
)
def test_each_state_has_the_color_of_the_live_map(was: NodeState, kind: NodeKind) -> None:
    (row,) = past_view.past_rows(PastFleet(states={"n1": was}), None)
    assert row.kind is kind
