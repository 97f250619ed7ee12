"""Scenario files: those that ship, and errors that name the file and what is wrong in it."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from healer.model import Mode
from healer.rulebook import ruleset
from healer.sim.fleet.scenario import BadScenario, load, shipped
from healer.sim.fleet.score import repeat_floor

RULES = Path(__file__).parents[3] / "rules"
NEEDED = {
    "llama3-54d", "rack-power", "leaf-switch", "driver-rollout", "xid45-storm", "slow-node-10pct",
    "storage-brownout", "controller-outage", "telemetry-loss", "bad-rule",
    "worn-512", "llama3-54d-spares",
}  # fmt: skip
SMALL = """\
name: mine
title: Mine
shows: something
days: 1
nodes: 8
job: {nodes: 6, checkpoint_s: 300, startup_s: 60}
"""


def test_all_scenarios_ship_and_are_named_as_their_files() -> None:
    assert set(shipped()) == NEEDED
    for name in shipped():
        assert load(name).name == name


def test_llama3_has_the_published_counts() -> None:
    scenario = load("llama3-54d")
    assert sum(one.count for one in scenario.mix) == 419
    assert (scenario.nodes, scenario.days) == (2048, 54)


def test_spares_inside_change_the_job_and_the_rules_and_nothing_else() -> None:
    """Else the two cannot be compared."""
    base, inside = load("llama3-54d"), load("llama3-54d-spares")
    assert (inside.job.spares, inside.job.agreed) == (16, "healer:requeue healer:swap=1976")
    assert replace(inside.job, spares=0, meets_s=base.job.meets_s) == base.job
    others = ("name", "title", "shows", "job", "spares", "rules", "guards")
    assert replace(inside, **{name: getattr(base, name) for name in others}) == base
    shipped_rules = ruleset.load(RULES, default_mode=Mode.auto, settle_s=2.0)
    fatal = {rule.name for rule in shipped_rules.rules if rule.playbook == "gpu-fatal"}
    assert {name for name, changed in inside.rules.items() if changed.get("playbook") == "swap"} == fatal


def test_no_policy_avoids_relapses_and_bad_repairs_that_pass_their_tests() -> None:
    """15 % relapse, 72 % of them by a fault of the node; 20 % of repairs do not take, tests find 80 %."""
    assert repeat_floor(load("llama3-54d")) == pytest.approx(1 - (1 - 0.15 * 303 / 419) * 0.96, abs=0.002)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(SMALL)
    assert load(str(file), days=0.5).days == 0.5
    for days in (0, -1, float("nan"), float("inf"), 1e9):
        with pytest.raises(BadScenario, match=r"mine\.yaml: days has to be above 0 and at most 3650"):
            load(str(file), days=days)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("nodes: 8", "the jobs want 6 nodes, the fleet has 4"),
        ("days: 1", "unknown field `weather`"),
        ("job: {", "the jobs want 9 nodes, the fleet has 8"),
        ("checkpoint_s: 300", "job.spares and job.meets_s may not be below 0"),
        ("title: Mine", "no way 'melted'; there are off-the-bus"),
        ("shows: something", "Expected `float`, got `str` - at `$.job.startup_s`"),
    ],
)
def test_invalid_scenario_is_reported_with_file_and_field(tmp_path: Path, changed: str, said: str) -> None:
    instead = {
        "nodes: 8": "nodes: 4",
        "days: 1": "days: 1\nweather: bad",
        "job: {": "job: {spares: 3, ",
        "checkpoint_s: 300": "checkpoint_s: 300, spares: -1",
        "title: Mine": "title: Mine\nhappenings: [{at_h: 1, what: fault, way: melted}]",
        "shows: something": "shows: something",
    }[changed]
    text = SMALL.replace(changed, instead)
    if changed == "shows: something":
        text = text.replace("startup_s: 60", "startup_s: long")
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(BadScenario) as error:
        load(str(file))
    assert "mine.yaml" in str(error.value)
    assert said in str(error.value)


def test_no_such_scenario() -> None:
    with pytest.raises(BadScenario, match=r"no scenario 'lama'; known are bad-rule, .*llama3-54d"):
        load("lama")
