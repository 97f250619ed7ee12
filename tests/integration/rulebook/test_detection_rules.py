"""Detection rules of a site: whatever is wrong is named by file and line, and nothing unproven is taken."""

import shutil
from pathlib import Path

import pytest

from healer.model import Mode, Remedy, Scope, Severity
from healer.rulebook.cases.rule_cases import run_cases
from healer.rulebook.ruleset import RulesInvalid, load

pytestmark = pytest.mark.heavy

SHIPPED = Path(__file__).parents[3] / "rules"

RULE = """\
- name: too-hot
  title: Too hot
  when: gpu_temp_c > 90
  for: 1m
  scope: gpu
  severity: P3
  fault_class: degraded
  cause: unclear
  signal: gpu_temp_c
  threshold: 90
  evidence: [power_w]
  source: test
"""
CASES = """\
- name: hot
  rule: too-hot
  series: {gpu_temp_c: {each: 50, n1 gpu1: "50 x 1m, 95"}}
  fires: [n1 gpu1]
  within: 2m
- name: warm
  rule: too-hot
  series: {gpu_temp_c: 85}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The shipped rules with one detection rule in place of all others."""
    copy = Path(shutil.copytree(SHIPPED, tmp_path / "rules"))
    shutil.rmtree(copy / "detection")
    shutil.rmtree(copy / "cases")
    for name in ("sharing", "escalations", "ladders", "forecasts"):  # they speak of the rules that are gone
        (copy / f"{name}.yaml").unlink(missing_ok=True)
    (copy / "cases").mkdir()
    (copy / "detection").mkdir()
    (copy / "detection" / "own.yaml").write_text(RULE)
    (copy / "cases" / "detection-own.yaml").write_text(CASES)
    return copy


def problems(folder: Path) -> list[str]:
    with pytest.raises(RulesInvalid) as caught:
        load(folder)
    return [str(problem) for problem in caught.value.problems]


def change(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))


def test_a_rule_is_a_policy_too(folder: Path) -> None:
    rules = load(folder)
    (rule,) = rules.detection
    assert (rule.for_s, rule.scope, rule.threshold, rule.mode) == (60.0, Scope.gpu, "90", None)
    (policy,) = (one for one in rules.rules if one.detection)
    assert (policy.name, policy.faults) == ("too-hot", ("too-hot",))
    assert (policy.severity, policy.playbook) == (Severity.P3, None)


def test_the_version_follows_rules_and_models(folder: Path) -> None:
    before = load(folder).version
    change(folder, "detection/own.yaml", "gpu_temp_c > 90", "gpu_temp_c > 91")
    after = load(folder).version
    assert after != before
    change(folder, "gpu_models.yaml", "nvlinks: 18", "nvlinks: 17")
    assert load(folder).version not in (before, after)


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        (
            "gpu_temp_c > 90",
            "gpu_tmp_c > 90",
            3,
            "when, column 1: there is no signal gpu_tmp_c (did you mean gpu_temp_c?)",
        ),
        ("gpu_temp_c > 90", "gpu_temp_c > 90%", 3, "when, column 14: the units °C and % do not match"),
        ("when: gpu_temp_c > 90", "when: 1 > 0", 3, "when, column 1: no signal here"),
        ("for: 1m", "for: 1 minute", 4, "for: '1 minute' is not a duration such as 30s, 5m or 1h"),
        ("for: 1m", "for: 2h", 4, "for: 2h is longer than 1h"),
        (
            "scope: gpu",
            "scope: node",
            3,
            "when, column 1: this is measured per gpu, but the rule has scope: node",
        ),
        ("scope: gpu", "scope: hall", 5, "scope: 'hall' is not an allowed value"),
        ("signal: gpu_temp_c", "signal: gpu_temp", 9, "signal: there is no signal gpu_temp (did you mean"),
        ("threshold: 90", "threshold: power_w", 10, "threshold: is in W, but gpu_temp_c is in °C"),
        (
            "evidence: [power_w]",
            "evidence: [powerw]",
            11,
            "evidence: there is no signal powerw (did you mean power_w?)",
        ),
        (
            "source: test",
            "source: test\n  models: [H10]",
            13,
            "models: there is no GPU model H10 (did you mean H100?)",
        ),
        (
            "source: test",
            "source: test\n  playbook: drian",
            13,
            "there is no playbook drian (did you mean drain?)",
        ),
        (
            "source: test",
            "source: test\n  threshhold: 3",
            13,
            "unknown field threshhold (did you mean threshold?)",
        ),
        (
            "name: too-hot",
            "name: Too Hot",
            1,
            "name: 'Too Hot' must consist of lowercase letters, digits and dashes",
        ),
        ("name: too-hot", "name: gpu-lost", 1, "policies.yaml already has a rule gpu-lost"),
        (
            "name: too-hot",
            "name: xid-heat",
            1,
            "the rule gpu-fatal of policies.yaml would match xid-heat",
        ),
    ],
)
def test_mistakes(folder: Path, old: str, new: str, line: int, says: str) -> None:
    change(folder, "detection/own.yaml", old, new)
    found = [one for one in problems(folder) if one.startswith(f"detection/own.yaml:{line}: ")]
    assert any(says in one for one in found), problems(folder)


def test_duplicate_names_are_refused(folder: Path) -> None:
    (folder / "detection" / "more.yaml").write_text(RULE)
    assert "detection/own.yaml:1: rules/detection already has a rule too-hot" in problems(folder)


@pytest.mark.parametrize(
    ("cases", "says"),
    [
        ("", ["detection/own.yaml:1: too-hot: no case in rules/cases/detection-*.yaml expects it to fire"]),
        (
            CASES[: CASES.index("- name: warm")],
            ["no case in rules/cases/detection-*.yaml expects it not to fire"],
        ),
        (
            CASES[CASES.index("- name: warm") :],
            ["no case in rules/cases/detection-*.yaml expects it to fire"],
        ),
        (CASES.replace("85", "95"), ["detection-own.yaml:6: warm: too-hot fired on n1 gpu0, n1 gpu1"]),
        (CASES.replace("95", "89"), ["hot: too-hot did not fire; the case expects it to fire on n1 gpu1"]),
        (CASES.replace("within: 2m", "within: 90s"), ["hot: too-hot fired too late: n1 gpu1 after 120 s"]),
        (
            CASES.replace("within: 2m", "says: 96 °C"),
            ["the message does not contain '96 °C': Too hot: GPU temperature 95 °C"],
        ),
        (CASES.replace("rule: too-hot", "rule: to-hot", 1), ["there is no detection rule to-hot"]),
        (
            CASES.replace("gpu_temp_c: 85", "gpu_temp: 85"),
            ["warm: there is no signal gpu_temp (did you mean"],
        ),
        (CASES.replace("n1 gpu1: ", "n2 gpu1: "), ["hot: there is no part n2 gpu1 (for example n1 gpu0)"]),
        (CASES.replace("85", "85 x"), ["warm: '85 x' is not a value of gpu_temp_c"]),
        (CASES.replace("85", "85 x soon"), ["warm: 'soon' is not a duration"]),
        (
            CASES.replace("{gpu_temp_c: 85}", "{slurm_gpus: 8}"),
            ["slurm_gpus comes from Slurm: set it through jobs"],
        ),
        (CASES + "  lasts: 2h\n", ["warm: a case lasts at most 1h and has at most 720 samples"]),
    ],
)
def test_cases_have_to_prove_the_rule(folder: Path, cases: str, says: list[str]) -> None:
    (folder / "cases" / "detection-own.yaml").write_text(cases)
    found = "\n".join(problems(folder))
    for one in says:
        assert one in found


def test_condition_that_is_never_false_in_its_cases_is_refused(folder: Path) -> None:
    change(folder, "detection/own.yaml", "gpu_temp_c > 90", "gpu_temp_c > -300")
    silent = "- {name: nothing is told, rule: too-hot, series: {power_w: 100}}\n"
    fires = CASES[: CASES.index("- name: warm")].replace("{each: 50, n1 gpu1", "{n1 gpu1")
    (folder / "cases" / "detection-own.yaml").write_text(fires + silent)
    assert problems(folder) == [
        "detection/own.yaml:3: too-hot: the condition was never false in this rule's cases"
    ]


def test_the_cases_are_run_one_by_one(folder: Path) -> None:
    (folder / "cases" / "detection-own.yaml").write_text(CASES.replace("85", "95"))
    own = [result for result in run_cases(folder) if result.file.endswith("detection-own.yaml")]
    assert [(result.name, result.line, result.ok) for result in own] == [("hot", 1, True), ("warm", 6, False)]


def test_the_shipped_rules_are_careful() -> None:
    rules = load(SHIPPED)
    assert len(rules.detection) >= 30
    for rule in rules.detection:
        assert rule.source, rule.name
        assert not rule.unusable, rule.name
        if rule.mode is Mode.shadow:
            assert rule.severity is Severity.P3, rule.name
        if rule.severity is Severity.P1:
            # Where no playbook can help, people are notified.
            assert rule.playbook in {"gpu-fatal", "gpu-memory"} or rule.remedy == (Remedy.ticket,), rule.name


@pytest.mark.parametrize(
    ("when", "for_", "fine"),
    [
        ("gpu_temp_c > 90", "1m", True),
        ("gpu_temp_c > 90", "20s", False),
        ("min_over(gpu_temp_c, 1m) > 90", "0s", True),
        ("max_over(gpu_temp_c, 5s) > 90", "0s", False),
    ],
)
def test_a_rule_that_acts_does_not_rest_on_one_sample(folder: Path, when: str, for_: str, fine: bool) -> None:
    change(folder, "detection/own.yaml", "gpu_temp_c > 90", when)
    change(folder, "detection/own.yaml", "for: 1m", f"for: {for_}")
    load(folder)
    change(folder, "detection/own.yaml", "source: test", "source: test\n  playbook: drain")
    if fine:
        load(folder)
    else:
        assert any("single sample" in problem for problem in problems(folder))


@pytest.mark.parametrize(
    ("when", "fine"),
    [
        ("not known(gpu_temp_c)", False),
        ("not known(gpu_temp_c) or gpu_temp_c > 90", False),
        ("not (known(gpu_temp_c) and gpu_temp_c < 90)", False),
        ("age(gpu_temp_c) > 1m", False),
        ("1m < age(gpu_temp_c)", False),
        ("count_over(not known(gpu_temp_c), 5m) >= 3", False),
        ("not (gpu_temp_c < 90)", True),
        ("known(power_w) and gpu_temp_c > 90", True),
        ("gpu_temp_c > 90 and not (known(power_w) and power_w > 0)", True),
    ],
)
def test_no_rule_acts_because_nothing_is_known(folder: Path, when: str, fine: bool) -> None:
    """Law 4: missing telemetry never takes a node. Without a playbook such a rule may tell people."""
    change(folder, "detection/own.yaml", "gpu_temp_c > 90", when)
    load(folder, prove=False)
    change(folder, "detection/own.yaml", "source: test", "source: test\n  playbook: drain")
    if fine:
        load(folder, prove=False)
    else:
        with pytest.raises(RulesInvalid, match="missing telemetry never takes a node"):
            load(folder, prove=False)


def test_silence_may_start_what_takes_no_node(folder: Path) -> None:
    change(folder, "detection/own.yaml", "gpu_temp_c > 90", "not known(gpu_temp_c)")
    change(folder, "detection/own.yaml", "source: test", "source: test\n  playbook: collect-evidence")
    load(folder, prove=False)


@pytest.mark.parametrize(
    ("fault_class", "playbook", "fine"),
    [
        ("informational", "drain", False),
        ("unknown", "drain", False),
        ("degraded", "drain", True),
        ("informational", "collect-evidence", True),
    ],
)
def test_only_what_is_broken_is_taken_out(folder: Path, fault_class: str, playbook: str, fine: bool) -> None:
    change(folder, "detection/own.yaml", "fault_class: degraded", f"fault_class: {fault_class}")
    change(folder, "detection/own.yaml", "source: test", f"source: test\n  playbook: {playbook}")
    if fine:
        load(folder, prove=False)
    else:
        with pytest.raises(RulesInvalid, match="only a fault_class of fatal or degraded may have a playbook"):
            load(folder, prove=False)
