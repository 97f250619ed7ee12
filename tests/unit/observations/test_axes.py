"""Which row is what, and what it belongs to, by Slurm's picture."""

from datetime import timedelta

import numpy as np
import pytest

from healer.model import Component, Part, Place, Scope, SlurmJob, SlurmNode, Topology
from healer.observations import axes as allocation
from healer.observations.axes import GPUS_MAX, PARTS_MAX, Axes
from tests.support.measured import CLUSTER, job, node, shown

NVLINK, PORT = Part(gpu=1, link=3), Part(port="mlx5_0/1")


def show(axes: Axes, *nodes: SlurmNode, jobs: tuple[SlurmJob, ...] = (), at_s: float = 0.0) -> None:
    snapshot = shown(*nodes, jobs=jobs, at_s=at_s)
    allocation.place_nodes(axes, snapshot, Topology(places={"gpu1": Place(switch="leaf9")}))
    allocation.place_jobs(axes, snapshot)


def hear(axes: Axes, name: str, *, gpus: int = 2, links: tuple[Part, ...] = (NVLINK, PORT)) -> None:
    """Rows for GPUs and links of a node, as samples of them would give."""
    row = axes.node(name)
    for scope, parts in ((Scope.gpu, list(range(gpus))), (Scope.link, [axes.part(one) for one in links])):
        axes.rows(scope, np.full(len(parts), row), np.array(parts, np.int64))


def parents(axes: Axes, scope: Scope, to: Scope) -> dict[str, str | None]:
    """By words: what each row's parent is."""
    of, other = axes.axis(scope), axes.axis(to).components()
    rows = of.parent(to).tolist()
    return {
        word(one): word(other[row]) if row >= 0 else None
        for one, row in zip(of.components(), rows, strict=True)
    }


def word(where: Component) -> str:
    parts = (where.node, where.gpu, where.link, where.nic, where.job, where.switch)
    return " ".join(str(one) for one in parts if one is not None) or where.cluster


def held_by(axes: Axes) -> dict[str, str | None]:
    return parents(axes, Scope.gpu, Scope.job)


def test_a_row_is_found_by_what_its_scope_looks_at() -> None:
    axes = Axes(CLUSTER)
    hear(axes, "gpu0")
    of_gpus, of_links = axes.axis(Scope.gpu), axes.axis(Scope.link)
    assert of_gpus.row(Component(cluster=CLUSTER, node="gpu0", gpu=1, pci="0000:9b:00", rank=4)) == 1
    assert of_gpus.row(Component(cluster=CLUSTER, node="gpu0", gpu=2)) is None
    assert of_links.row(Component(cluster=CLUSTER, node="gpu0", gpu=1, link=3)) == 0
    assert of_links.row(Component(cluster=CLUSTER, node="gpu0", nic="mlx5_0/1")) == 1
    assert axes.axis(Scope.fabric).row(Component(cluster=CLUSTER)) == 0


def test_parents_of_parts_are_known_before_slurm_answers() -> None:
    axes = Axes(CLUSTER)
    hear(axes, "gpu0")
    assert parents(axes, Scope.gpu, Scope.node) == {"gpu0 0": "gpu0", "gpu0 1": "gpu0"}
    assert parents(axes, Scope.link, Scope.gpu) == {"gpu0 1 3": "gpu0 1", "gpu0 mlx5_0/1": None}
    assert parents(axes, Scope.link, Scope.fabric) == {"gpu0 1 3": CLUSTER, "gpu0 mlx5_0/1": CLUSTER}
    assert set(held_by(axes).values()) == {None}


def test_a_link_finds_its_gpu_when_that_is_heard_of_later() -> None:
    axes = Axes(CLUSTER)
    hear(axes, "gpu0", gpus=0)
    assert parents(axes, Scope.link, Scope.gpu)["gpu0 1 3"] is None
    hear(axes, "gpu0", gpus=2)
    assert parents(axes, Scope.link, Scope.gpu)["gpu0 1 3"] == "gpu0 1"


@pytest.mark.parametrize(
    ("jobs", "gpu0", "gpu1"),
    [
        ((), None, None),
        ((job("7", {"gpu0": (0,)}),), "7", None),
        ((job("7", None, "gpu0"),), "7", "7"),
        ((job("7", {"gpu0": ()}),), None, None),
        ((job("7", {"gpu0": (0,)}), job("8", {"gpu0": (1,)})), "7", "8"),
        ((job("7", {"gpu0": (0,)}), job("8", {"gpu0": (0, 1)})), None, "8"),  # shared: not one's alone
        ((job("7", {"gpu0": (0,)}), job("8", None, "gpu0")), "7", None),
        ((job("7", None, "gpu0"), job("8", None, "gpu0")), None, None),
        ((job("7", None, "gpu0", state="COMPLETED"),), None, None),
        ((job("7", {"gpu0": (-1, 1, GPUS_MAX)}),), None, "7"),
    ],
)
def test_gpu_is_assigned_to_its_only_job(
    jobs: tuple[SlurmJob, ...], gpu0: str | None, gpu1: str | None
) -> None:
    axes = Axes(CLUSTER)
    hear(axes, "gpu0")
    show(axes, node("gpu0", gpus=2, state="MIXED"), jobs=jobs)
    assert held_by(axes) == {"gpu0 0": gpu0, "gpu0 1": gpu1}


def test_a_gpu_heard_of_after_slurm_showed_its_job_has_it_too() -> None:
    axes = Axes(CLUSTER)
    show(axes, node("gpu0"), jobs=(job("7", None, "gpu0"),))
    hear(axes, "gpu0")
    assert held_by(axes) == {"gpu0 0": "7", "gpu0 1": "7"}


def test_links_belong_to_the_job_of_their_gpu_and_ports_to_the_only_job_of_the_node() -> None:
    axes = Axes(CLUSTER)
    hear(axes, "gpu0")
    show(axes, node("gpu0"), jobs=(job("7", {"gpu0": (0,)}), job("8", {"gpu0": (1,)})))
    assert parents(axes, Scope.link, Scope.job) == {"gpu0 1 3": "8", "gpu0 mlx5_0/1": None}
    assert parents(axes, Scope.node, Scope.job) == {"gpu0": None}
    show(axes, node("gpu0"), jobs=(job("7", {"gpu0": (0,)}),))
    assert parents(axes, Scope.link, Scope.job) == {"gpu0 1 3": None, "gpu0 mlx5_0/1": "7"}
    assert parents(axes, Scope.node, Scope.job) == {"gpu0": "7"}


def test_switches_come_from_slurm_or_the_sites_file_and_a_job_is_below_one_if_all_of_it_is() -> None:
    axes = Axes(CLUSTER)
    hear(axes, "gpu0")
    nodes = (node("gpu0", switch="leaf1"), node("gpu1"), node("gpu2", switch="leaf1"), node("gpu3"))
    show(axes, *nodes, jobs=(job("7", None, "gpu0", "gpu2"), job("8", None, "gpu1", "gpu2")))
    assert parents(axes, Scope.node, Scope.switch) == {
        "gpu0": "leaf1",
        "gpu1": "leaf9",
        "gpu2": "leaf1",
        "gpu3": None,
    }
    assert parents(axes, Scope.gpu, Scope.switch) == {"gpu0 0": "leaf1", "gpu0 1": "leaf1"}
    assert parents(axes, Scope.job, Scope.switch) == {"7": "leaf1", "8": None}
    assert parents(axes, Scope.switch, Scope.fabric) == {"leaf1": CLUSTER, "leaf9": CLUSTER}


def test_rows_of_a_node_that_slurm_no_longer_shows_stay_and_belong_to_nothing() -> None:
    axes = Axes(CLUSTER)
    hear(axes, "gpu0")
    hear(axes, "gpu1")
    both = (node("gpu0", gpus=2, switch="leaf1"), node("gpu1", gpus=2, switch="leaf1"))
    show(axes, *both, jobs=(job("7", None, "gpu0", "gpu1"),))
    before = list(axes.axis(Scope.gpu).components())
    show(axes, both[1], jobs=(job("7", None, "gpu0", "gpu1"),), at_s=2)
    assert list(axes.axis(Scope.gpu).components()) == before
    for scope in (Scope.node, Scope.job, Scope.switch, Scope.fabric):
        labels = parents(axes, Scope.gpu, scope)
        assert [labels["gpu0 0"], labels["gpu0 1"]] == [None, None]
        assert None not in (labels["gpu1 0"], labels["gpu1 1"])
    assert parents(axes, Scope.link, Scope.gpu)["gpu0 1 3"] is None
    show(axes, *both, at_s=4)
    assert parents(axes, Scope.gpu, Scope.node)["gpu0 1"] == "gpu0"


def test_a_jobs_row_is_given_away_an_hour_after_its_end_and_not_before() -> None:
    axes = Axes(CLUSTER)
    show(axes, node("gpu0"), jobs=(job("7", None, "gpu0"),))
    show(axes, node("gpu0"), jobs=(job("8", None, "gpu0"),), at_s=10)
    show(axes, node("gpu0"), jobs=(job("9", None, "gpu0"),), at_s=3609)
    assert [one.job for one in axes.axis(Scope.job).components()] == ["7", "8", "9"]
    show(axes, node("gpu0"), jobs=(job("10", None, "gpu0"), job("9", None, "gpu0")), at_s=3610)
    assert [one.job for one in axes.axis(Scope.job).components()] == ["10", "8", "9"]
    assert axes.axis(Scope.job).row(Component(cluster=CLUSTER, job="7")) is None


def test_a_job_that_came_back_within_the_hour_keeps_its_row() -> None:
    axes = Axes(CLUSTER)
    for at_s, name in ((0, "7"), (10, "8"), (1000, "7"), (3700, "7"), (3701, "9")):
        show(axes, node("gpu0"), jobs=(job(name, None, "gpu0"),), at_s=at_s)
    assert axes.axis(Scope.job).row(Component(cluster=CLUSTER, job="7")) == 0


def test_parts_beyond_the_limit_get_no_row() -> None:
    axes = Axes(CLUSTER)
    axes.axis(Scope.gpu).most = 3
    hear(axes, "gpu0")
    assert axes.rows(Scope.gpu, np.array([0, 0, 0]), np.array([1, 2, 3])).tolist() == [1, 2, -1]
    assert axes.part(Part(gpu=GPUS_MAX, link=0)) is None
    numbers = [axes.part(Part(port=f"veth{number}")) for number in range(PARTS_MAX)]
    assert numbers[-3:] == [PARTS_MAX - 1, None, None]
    assert axes.part(PORT) is not None


def test_ended_jobs_need_no_more_rows_than_those_of_an_hour() -> None:
    axes = Axes(CLUSTER)
    for number in range(200):
        show(axes, node("gpu0"), jobs=(job(str(number), None, "gpu0"),), at_s=60.0 * number)
    assert axes.axis(Scope.job).n <= timedelta(hours=1) / timedelta(minutes=1) + 2
