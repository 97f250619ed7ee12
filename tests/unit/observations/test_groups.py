"""Robust figures of peers, against one numpy call per group; and who is whose peer."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from healer.model import Part, Scope, SlurmJob, SlurmNode, Topology
from healer.observations.groups import Groups, peer_band, peer_median, peer_spread
from healer.observations.telemetry_windows import Telemetry
from healer.sim.stores import MemoryColumns
from tests.support.measured import CLUSTER, Sender, catalogue, job, node, shown

#: Many equal values, some unknown.
VALUES = st.one_of(st.just(np.nan), st.integers(-3, 3).map(float), st.floats(-1e9, 1e9, width=32))


@st.composite
def grouped(draw: st.DrawFn) -> tuple[np.ndarray, Groups]:
    rows = draw(st.lists(st.tuples(st.integers(-1, 4), VALUES), max_size=60))
    ids = np.array([one for one, _ in rows], np.int32)
    return np.array([value for _, value in rows]), Groups(ids, [f"group {number}" for number in range(5)])


def one_by_one(
    values: np.ndarray, groups: Groups, least: int, figure: Callable[[np.ndarray], float]
) -> np.ndarray:
    found = np.full(len(values), np.nan)
    for number in range(len(groups.labels)):
        mine = groups.ids == number
        known = values[mine & ~np.isnan(values)]
        if len(known) >= max(least, 1):
            found[mine] = figure(known)
    return found


@given(grouped(), st.integers(0, 6))
def test_the_median_of_peers_is_that_of_each_group(drawn: tuple[np.ndarray, Groups], least: int) -> None:
    values, groups = drawn
    expected = one_by_one(values, groups, least, lambda known: float(np.median(known)))
    np.testing.assert_allclose(peer_median(values, groups, least), expected, rtol=1e-12)


@given(grouped())
def test_the_spread_is_the_scaled_deviation_from_the_median(drawn: tuple[np.ndarray, Groups]) -> None:
    values, groups = drawn
    _, spread = peer_spread(values, groups)
    expected = one_by_one(
        values, groups, 4, lambda known: 1.4826 * float(np.median(np.abs(known - np.median(known))))
    )
    np.testing.assert_allclose(spread, expected, rtol=1e-9, atol=1e-9)


@given(grouped())
def test_bands_are_numpys_quantiles(drawn: tuple[np.ndarray, Groups]) -> None:
    values, groups = drawn
    wanted = (0.0, 0.1, 0.5, 0.9, 1.0)
    for quantile, band in zip(wanted, peer_band(values, groups, wanted), strict=True):
        expected = one_by_one(values, groups, 4, lambda known, q=quantile: float(np.quantile(known, q)))
        np.testing.assert_allclose(band, expected, rtol=1e-9, atol=1e-6)


def test_a_value_equal_to_all_its_peers_is_their_median_to_the_bit() -> None:
    values = np.full(9, 0.1)
    assert (peer_median(values, Groups(np.zeros(9, np.int32), ["all"])) == values).all()


def test_rows_without_peers_and_fleets_without_rows_are_unknown() -> None:
    alone = Groups(np.full(5, -1, np.int32))
    assert np.isnan(peer_median(np.ones(5), alone)).all()
    assert peer_median(np.zeros(0), Groups(np.zeros(0, np.int32))).shape == (0,)


# --- who is whose peer ---


class Site:
    """GPUs, an NVLink and a port of each node were heard of."""

    def __init__(self, *nodes: SlurmNode, jobs: tuple[SlurmJob, ...] = ()) -> None:
        self.telemetry = Telemetry(CLUSTER, catalogue())
        book = MemoryColumns()
        sender = Sender(book)
        self.telemetry.update(
            [
                sender.report(
                    one.name,
                    0,
                    {("heat_c", Part(gpu=gpu)): 1.0 for gpu in range(one.gpus)}
                    | {("crc_total", Part(gpu=0, link=3)): 1.0, ("speed", Part(port="mlx5_0/1")): 1.0},
                )
                for one in nodes
            ],
            book,
        )
        self.telemetry.show(shown(*nodes, jobs=jobs), Topology())

    def labels(self, scope: Scope, *, racks: bool = False) -> dict[str, str]:
        """By the words for each component; none where there are no peers."""
        groups = (self.telemetry.rack_groups if racks else self.telemetry.groups)(scope)
        components = self.telemetry.axis(scope).components()
        return {
            f"{where.node} {where.nic or where.gpu}": groups.labels[number] if number >= 0 else "none"
            for where, number in zip(components, groups.ids.tolist(), strict=True)
        }


def test_gpus_of_a_large_job_are_peers_and_others_by_model_and_load() -> None:
    names = [f"gpu{number}" for number in range(6)]
    site = Site(
        *(node(name, gpus=2) for name in names[:5]),
        node("gpu5", gpus=2, model="a100"),
        jobs=(job("7", {name: (0,) for name in names[:4]}), job("8", {"gpu4": (1,)})),
    )
    labels = site.labels(Scope.gpu)
    assert {labels[f"{name} 0"] for name in names[:4]} == {"job 7"}
    assert {labels[f"{name} 1"] for name in names[:4]} == {"h100, idle"}
    assert (labels["gpu4 0"], labels["gpu4 1"]) == ("h100, idle", "h100, allocated")
    assert labels["gpu5 0"] == "a100, idle"


def test_sixteen_gpus_on_two_nodes_are_a_large_job_for_gpus_but_not_for_nodes() -> None:
    eight = tuple(range(8))
    site = Site(node("gpu0"), node("gpu1"), jobs=(job("7", {"gpu0": eight, "gpu1": eight}),))
    assert set(site.labels(Scope.gpu).values()) == {"job 7"}
    assert set(site.labels(Scope.node).values()) == {"h100, allocated"}


def test_nodes_of_a_job_on_four_nodes_are_peers() -> None:
    names = [f"gpu{number}" for number in range(5)]
    site = Site(*(node(name, gpus=1) for name in names), jobs=(job("7", None, *names[:4]),))
    labels = site.labels(Scope.node)
    assert [labels[f"{name} None"] for name in names] == ["job 7"] * 4 + ["h100, idle"]


def test_links_by_model_and_load_and_ports_by_name_and_model() -> None:
    site = Site(node("gpu0"), node("gpu1", model="a100"), jobs=(job("7", {"gpu0": (0,)}),))
    assert site.labels(Scope.link) == {
        "gpu0 0": "NVLinks of h100, allocated",
        "gpu0 mlx5_0/1": "mlx5_0/1 of h100",
        "gpu1 0": "NVLinks of a100, idle",
        "gpu1 mlx5_0/1": "mlx5_0/1 of a100",
    }


def test_node_of_unknown_model_has_no_peers_unless_slurm_gives_no_models_at_all() -> None:
    assert set(Site(node("gpu0", model=""), node("gpu1")).labels(Scope.node).values()) == {
        "none",
        "h100, idle",
    }
    assert set(Site(node("gpu0", model=""), node("gpu1", model="")).labels(Scope.node).values()) == {
        "all GPU nodes, idle"
    }


@pytest.mark.parametrize("scope", [Scope.job, Scope.switch, Scope.fabric])
def test_larger_scopes_have_no_peers(scope: Scope) -> None:
    site = Site(node("gpu0", switch="leaf1"), jobs=(job("7", None, "gpu0"),))
    assert set(site.telemetry.groups(scope).ids.tolist()) == {-1}


def test_the_load_is_that_of_the_latest_picture() -> None:
    site = Site(node("gpu0", gpus=1), node("gpu1", gpus=1))
    assert site.labels(Scope.gpu)["gpu0 0"] == "h100, idle"
    site.telemetry.show(shown(node("gpu0", gpus=1), jobs=(job("7", None, "gpu0"),), at_s=2), Topology())
    assert site.labels(Scope.gpu) == {"gpu0 0": "h100, allocated", "gpu1 0": "none"}


def test_gpus_of_one_model_in_a_rack_of_three_nodes_are_peers() -> None:
    placed = {"gpu0": "r1", "gpu1": "r1", "gpu2": "r1", "gpu3": "r2", "gpu4": "r2", "gpu5": ""}
    nodes = [msgspec.structs.replace(node(name, gpus=1), rack=rack) for name, rack in placed.items()]
    labels = Site(*nodes).labels(Scope.gpu, racks=True)
    assert [labels[f"{name} 0"] for name in placed] == ["rack r1"] * 3 + ["none"] * 3
