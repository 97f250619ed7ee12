# ruff: noqa: E501 - one mistake per line
"""The rules that ship are right, and whatever is wrong in a site's own is named by file and line."""

import os
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from healer.model import Cause, FaultClass, Mode, Remedy, Severity, WatchSettings
from healer.rulebook.cases.rule_cases import run_cases
from healer.rulebook.ruleset import RulesInvalid, load

pytestmark = pytest.mark.heavy

SHIPPED = Path(__file__).parents[3] / "rules"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "rules"))


def edit(folder: Path, name: str, old: str, new: str) -> int:
    """Replaces the first `old`; returns its line."""
    text = (folder / name).read_text()
    assert old in text, f"{name} has no {old!r}"
    (folder / name).write_text(text.replace(old, new, 1))
    return text[: text.index(old)].count("\n") + 1


def problem(folder: Path) -> str:
    """The one problem, as printed."""
    with pytest.raises(RulesInvalid) as caught:
        load(folder)
    assert len(caught.value.problems) == 1, str(caught.value)
    return str(caught.value.problems[0])


def test_the_shipped_rules() -> None:
    rules = load(SHIPPED, default_mode=Mode.approve, settle_s=0.5)
    assert (len(rules.xids), len(rules.sxids)) == (177, 260)
    assert {"drain", "resume", "requeue", "gpu-fatal"} <= set(rules.playbooks)
    assert (rules.default_mode, rules.settle_s) == (Mode.approve, 0.5)
    lost = rules.rules[0]
    assert (lost.name, lost.severity, lost.mode, lost.playbook) == (
        "gpu-lost",
        Severity.P1,
        None,
        "gpu-fatal",
    )
    assert rules.mode_of(lost) is Mode.approve


def test_catalogue_rows() -> None:
    entry = load(SHIPPED).xids[79]
    assert entry.name == "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS"
    assert (entry.fault_class, entry.remedy, entry.cause) == (
        FaultClass.fatal,
        Remedy.reboot_node,
        Cause.unclear,
    )
    assert entry.source
    assert load(SHIPPED).sxids[11004].always_fatal


def test_every_shipped_case_holds_and_every_rule_has_one(folder: Path) -> None:
    results = run_cases(SHIPPED)
    assert [result for result in results if not result.ok] == []
    cases = "".join(path.read_text() for path in (SHIPPED / "cases").glob("*.yaml"))
    named = set(re.findall(r"(?:rule|finding): ([a-z0-9-]+)", cases))
    rules = load(SHIPPED)
    assert [rule.name for rule in rules.rules if rule.name not in named] == []


def test_a_case_that_does_not_hold_says_what_came(folder: Path) -> None:
    line = edit(folder, "cases/xid.yaml", "rule: gpu-lost", "rule: gpu-fatal")
    (wrong,) = [result for result in run_cases(folder) if not result.ok]
    assert wrong.file == "cases/xid.yaml"
    assert wrong.line <= line
    assert wrong.why == "finding 1: rule is gpu-lost, the case expects gpu-fatal"


def test_the_version_is_that_of_the_files(folder: Path) -> None:
    before = load(folder).version
    assert load(folder).version == before == load(SHIPPED).version
    edit(folder, "policies.yaml", "severity: P1", "severity: P2")
    assert load(folder).version != before


@pytest.mark.parametrize(
    ("name", "old", "new", "text"),
    [
        ("policies.yaml", "severity: P1", "severity: P9", "'P9' is not an allowed value"),
        ("policies.yaml", "playbook: gpu-fatal", "playbook: gpu-fatl", "no playbook gpu-fatl (did you mean gpu-fatal?)"),
        ("policies.yaml", "playbook: gpu-fatal", "playbok: gpu-fatal", "unknown field playbok (did you mean playbook?)"),
        ("policies.yaml", "faults: [xid-64]", "faults: [xid-6400]", "unknown fault xid-6400"),
        ("policies.yaml", "faults: [node-silent]", "faults: [node-silnt]", "did you mean node-silent?"),
        ("policies.yaml", "faults: [xid-64]", 'faults: ["xid-[6"]', "is not a name or a glob"),
        (
            "policies.yaml", "playbook: slow-node", "playbook: hang",
            "the playbook hang is for a job, not for a node (straggler: not a fault of a job",
        ),
        ("policies.yaml", "playbook: hang", "playbook: drain", "the playbook drain is for a node, but this fault has a job"),
        ("policies.yaml", "name: gpu-remap-failed", "name: gpu-lost", "gpu-lost is listed twice"),
        ("policies.yaml", "name: gpu-remap-failed", "name: GPU!", "lowercase letters, digits and dashes"),
        ("policies.yaml", "  severity: P1", "  severity: P0", "severity: healer sets P0 itself, when it cannot or may not act (one of P1, P2, P3)"),
        ("policies.yaml", "  severity: P1", "  severity: P1\n  senses: 99", "senses: must be between 1 and 7"),
        ("policies.yaml", "  severity: P1", "  severity: P1\n  sign: true", "sign: healer sets this field itself (remove it)"),
        ("policies.yaml", "runbook: gpu-fatal", "runbook: gpu-ftal", "runbook: there is no runbook gpu-ftal (did you mean gpu-fatal?)"),
        ("detection/gpu.yaml", "severity: P3", "severity: P0", "severity: healer sets P0 itself"),
        ("sharing.yaml", "  place: pdu", "  severity: P0\n  place: pdu", "severity: healer sets P0 itself"),
        ("playbooks/drain.yaml", "runbook: drain", "runbook: ../drain", "runbook: there is no runbook ../drain (did you mean drain?)"),
        ("policies.yaml", "remedy: [reboot_node, ticket]", "remedy: [rebot_node]", "did you mean reboot_node?"),
        ("policies.yaml", "classes: [fatal]", "classes: [lethal]", "'lethal' is not an allowed value"),
        ("xid.yaml", "- code: 2\n", "- code: 1\n", "code 1 is listed twice"),
        ("xid.yaml", "- code: 2\n", "- code: two\n", "code: expected int, got str"),
        ("xid.yaml", "fault_class: unknown", "fault_class: bad", "is not an allowed value"),
        ("sxid.yaml", "always_fatal: true", "always_fatal: 7", "always_fatal: expected bool, got int"),
        ("nvlink5.yaml", "------000000----------0000100001", "000000", "info: a bit pattern has 32 characters"),
        ("xid154.yaml", "  asked: none\n", "  asked: none\n  asked: none\n", "the key asked appears twice"),
        ("guards.yaml", "max_share: 0.05", "max_share: 5", "max_share: must be between 0 and 1"),
        ("guards.yaml", "max_nodes: 10", "max_nodes: many", "max_nodes: expected int, got str"),
        ("guards.yaml", "max_nodes: 10", "max_noddes: 10", "unknown field max_noddes (did you mean max_nodes?)"),
        ("guards.yaml", "repeat_h: 6", "repeat_h: 72", "repeat_h: must be at most 24 hours"),
        ("guards.yaml", "partitions: {}", "partitions: {a: {repeat_h: 48}}", "must be at most 24 hours"),
        ("guards.yaml", "veto_h: 24", "veto_h: 1000000000", "veto_h: must be at most 8760 hours"),
        ("guards.yaml", "clusters: {}", "clusters: {pod2: {max_nodes: 0}}", "max_nodes: must be at least 1"),
        ("guards.yaml", "partitions: {}", "partitions: [debug]", "partitions: expected a mapping"),
        ("guards.yaml", "protected: []", 'protected: ["gpu[4-1]"]', "the range 4-1 runs backwards"),
        ("guards.yaml", "protected: []", 'protected: ["gpu01 gpu02"]', "gpu01 gpu02: no node has such a name"),
        ("guards.yaml", "protected: []", 'protected: ["gpu[]"]', "gpu[]: no node has such a name"),
        ("guards.yaml", "maintenance: []", "maintenance: [{nodes: [], why: x}]", "nodes: the list is empty"),
        ("guards.yaml", "partitions: {}", "partitions: {a: {max_share: 0.5}}", "max_share: does not count for a partition (one of partition_share,"),
        ("signals.yaml", "- name: gpu_temp_c\n  unit: °C", "- name: gpu_temp_c\n  unit: F", "unit: unknown unit 'F'"),
        ("watches.yaml", "queued_h: 1", "queued_h: 1e999", "queued_h: the number is too large"),
        ("watches.yaml", "queued_h: 1", "queued_h: 1e15", "queued_h: must be above 0 and at most 10000000"),
        ("guards.yaml", "stale_s: 30", "stale_s: 1000000", "stale_s: must be at most 86400 s"),
        ("guards.yaml", "trial_runs: 3", "trial_runs: 99999999999999999999", "trial_runs: the number is too large"),
        ("playbooks/drain.yaml", "timeout_s: 30", "timeout_s: 1e999", "timeout_s: the number is too large"),
        ("playbooks/drain.yaml", "timeout_s: 30", "timeout_s: 1e12", "timeout_s: must be at most 31536000 s"),
        ("playbooks/gpu-fatal.yaml", "still_s: ", "still_s: 99999999", "input: still_s: must be above 0 and at most 31536000"),
        ("signals.yaml", "- name: gpu_temp_c", "- stale_s: 1e999\n  name: gpu_temp_c", "stale_s: the number is too large"),
        ("policies.yaml", "title: GPU fell off the bus", 'title: "GPU\\0"', "title: contains a NUL character"),
        ("topology.yaml", "places: {}", "places: {gpu1: {rak: r1}}", "unknown field rak (did you mean rack?)"),
        ("topology.yaml", "gpu_pci: {}", "gpu_pci: {h100: [nowhere]}", "'nowhere' is not a PCI address"),
        ("watches.yaml", "queued_h: 1", "queued_h: 0", "queued_h: must be above 0"),
        ("watches.yaml", "clear_s: 60", "cleer_s: 60", "unknown field cleer_s (did you mean clear_s?)"),
        ("watches.yaml", "threads: 200", "threads: many", "threads: expected int, got str"),
        ("playbooks/drain.yaml", "do: drain", "do: dran", "did you mean drain?"),
        ("playbooks/drain.yaml", "check: jobs_hit", "check: jobs_hot", "there is no jobs_hot (did you mean jobs_hit?)"),
        ("playbooks/drain.yaml", "name: drain", "name: other", "must be in a file of the same name"),
        ("playbooks/drain.yaml", "target: node", "target: rack", "there is no rack"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_file_and_line(folder: Path, name: str, old: str, new: str, text: str) -> None:
    line = edit(folder, name, old, new)
    said = problem(folder)
    file, at, rest = said.split(":", 2)
    assert file == name
    assert abs(int(at) - line) <= 1
    assert text in rest


_SLOW, _FABRIC = "playbooks/slow-node.yaml", "playbooks/restart-fabric-manager.yaml"


@pytest.mark.parametrize(
    ("name", "old", "new", "text"),
    [
        (_SLOW, "when: validate.failed", "when: valdate.failed", "there is no step valdate (did you mean validate?)"),
        (_SLOW, "when: validate.failed", "when: verify.passed", "the step verify comes later"),
        (_SLOW, "when: validate.failed", "when: validate", "must be STEP.passed or STEP.failed"),
        (_SLOW, "when: validate.failed", "when: drain.failed", "when: the step drain never fails: it asks a person"),
        (_SLOW, "when: validate.failed", "when: requeue.passed", "when: the step requeue has several parts, each with its own result"),
        (_SLOW, "check: still_slow", "check: still_slw", "there is no still_slw (did you mean still_slow?)"),
        (_SLOW, "wait: empty", "wait: node_answers", "wait: there is no node_answers"),
        (_SLOW, "check: node_answers", "check: still_slow", "still_slow may end the run, so it must come before the first step that removes capacity"),
        (_SLOW, "senses: 2", "sense: 2", "still_slow does not read sense (did you mean senses?)"),
        (_SLOW, "senses: 2", "senses: two", "input: senses must be a whole number"),
        (_SLOW, "senses: 2", "senses: 20", "input: senses must be between 1 and 7"),
        (_SLOW, "    do: diagnose\n", "    do: diagnose\n    wait_s: 60\n", "wait_s: allowed only with `wait`, and not for a wait for a person or a fixed time"),
        (_SLOW, "    wait: repair\n", "    wait: repair\n    wait_s: 60\n", "wait_s: allowed only with `wait`, and not for a wait for a person or a fixed time"),
        ("playbooks/storage.yaml", "    required: true", "    required: maybe", "storage.yaml:12: inputs.command.required: expected bool, got str"),
        (_FABRIC, "service: nvidia-fabricmanager", "service: a b", "input: 'a b' is not the name of a service"),
        (_FABRIC, "service: nvidia-fabricmanager", "service: 7", "input: service must be text"),
        (_FABRIC, "      service: nvidia-fabricmanager", "      {}", "restart_service needs input.service"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_step_is_named(folder: Path, name: str, old: str, new: str, text: str) -> None:
    edit(folder, name, old, new)
    said = problem(folder)
    assert said.startswith(f"{name}:")
    assert text in said


def test_a_step_that_is_two_things(folder: Path) -> None:
    line = edit(folder, "playbooks/drain.yaml", "    do: drain\n", "    do: drain\n    wait: repair\n")
    said = problem(folder)
    assert said.startswith(f"playbooks/drain.yaml:{line - 2}:")
    assert "the step drain has do and wait" in said


def test_all_mistakes_come_at_once(folder: Path) -> None:
    edit(folder, "policies.yaml", "severity: P1", "severity: P9")
    edit(folder, "guards.yaml", "max_nodes: 10", "max_nodes: 0")
    with pytest.raises(RulesInvalid) as caught:
        load(folder)
    assert [one.file for one in caught.value.problems] == ["guards.yaml", "policies.yaml"]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("detection/gpu.yaml", "severity: P3", "severity: P9"),  # escalations.yaml names its rule
        ("detection/gpu.yaml", "- name: gpu-hot", "- nam: gpu-hot"),
        ("detection/gpu.yaml", "gpu_temp_c", "gpu_tempp_c"),
        ("signals-results.yaml", "stale_s: 1800", "stale_s: x"),  # detection rules use it
        ("signals.yaml", "  unit: °C", "  [unit: °C"),
        ("sxid.yaml", "- code: 10004", "- code: x"),
        ("escalations.yaml", "bursts: 3", "bursts: x"),  # ladders.yaml names its combinations
        ("validation/depths.yaml", "limit_s", "limitt_s"),  # playbooks use its depths
        ("playbooks/validate.yaml", "when: test.failed", "when: -5m"),  # other playbooks use it
        ("playbooks/validate.yaml", "do: drain", "[x]: drain"),
        ("playbooks/drain.yaml", "do: drain", "[x]: drain"),
        ("playbooks/hang.yaml", "check: stacks", "check: stakcs"),
        ("playbooks/requeue-from-checkpoint.yaml", "name: requeue-from-checkpoint", 'name: ""'),
        ("cases/detection-gpu.yaml", "nodes:", "node:"),
        ("kernel_lines.yaml", "pattern:", "patern:"),
    ],
)
def test_one_mistake_is_one_problem_in_its_own_file(folder: Path, name: str, old: str, new: str) -> None:
    """Each place that names the wrong entry was a problem too, and came first with a hint that misled."""
    edit(folder, name, old, new)
    assert problem(folder).startswith(f"{name}:")


def test_names_that_are_wrong_in_themselves_are_reported_next_to_other_mistakes(folder: Path) -> None:
    edit(folder, "detection/gpu.yaml", "severity: P3", "severity: P9")
    edit(folder, "detection/pcie.yaml", "when: pcie_link_width", "when: pcie_link_widht")
    edit(folder, "ladders.yaml", "gpu-hot", "gpu-hto")
    with pytest.raises(RulesInvalid) as caught:
        load(folder)
    said = " ".join(str(one) for one in caught.value.problems)
    assert all(word in said for word in ("'P9'", "pcie_link_widht", "unknown fault gpu-hto"))


@pytest.mark.parametrize("text", ["a: [", "\t- x", "- a\n b: c", "a: b: c", "\x00", "&a [*a, *b]"])
def test_invalid_yaml_is_reported_with_its_file(folder: Path, text: str) -> None:
    (folder / "guards.yaml").write_text(text)
    with pytest.raises(RulesInvalid) as caught:
        load(folder)
    assert {one.file for one in caught.value.problems} == {"guards.yaml"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"# caf\xe9\n", "not UTF-8 text"),
        ("# \u00e9\n".encode("utf-16-le"), "not UTF-8 text"),
        (b"# \x07\n", "contains a control character"),
    ],
)
def test_bytes_that_are_no_text_are_reported_with_their_line(folder: Path, line: bytes, why: str) -> None:
    raw = (folder / "guards.yaml").read_bytes()
    (folder / "guards.yaml").write_bytes(raw + line)
    last = len(raw.splitlines()) + 1
    assert problem(folder) == f"guards.yaml:{last}: not valid YAML: {why}"


@pytest.mark.parametrize("name", ["xid.yaml", "sxid.yaml", "policies.yaml", "playbooks/resume.yaml"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(RulesInvalid) as caught:
        load(folder)
    assert f"{name}:1: the file is missing" in [str(one) for one in caught.value.problems]


@pytest.mark.parametrize(
    "name", ["guards.yaml", "topology-found.yaml", "playbooks/drain.yaml", "validation/gpus.sh", "cases/detection-gpu.yaml"]
)  # fmt: skip
def test_a_link_that_leads_nowhere_is_no_missing_file(folder: Path, name: str) -> None:
    """A share that is not mounted must not read as: no caps, no protected nodes."""
    load(folder)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(folder / "away" / name)
    with pytest.raises(RulesInvalid) as caught:
        load(folder)
    assert f"{name}:1: cannot be read: No such file or directory" in [
        str(one) for one in caught.value.problems
    ]


def test_a_file_that_can_no_longer_be_read_is_not_taken_for_a_missing_one(folder: Path) -> None:
    (folder / "guards.yaml").unlink()
    load(folder)
    (folder / "guards.yaml").symlink_to("guards.yaml")
    assert problem(folder) == "guards.yaml:1: cannot be read: Too many levels of symbolic links"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("guards.yml", " (did you mean guards.yaml?)"),
        ("notification.yaml", " (did you mean notifications.yaml?)"),
        ("playbooks/mine.yml", " (did you mean playbooks/mine.yaml?)"),
        ("cases/more/own.yaml", ""),
    ],
)
def test_a_file_that_nothing_reads_is_named(folder: Path, name: str, hint: str) -> None:
    """What it says had no effect, such as protected nodes in guards.yml, and the rules counted as valid."""
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("protected: [gpu0001]\n")
    assert problem(folder) == f"{name}:1: healer reads no file of this name{hint}"


def test_hidden_files_and_those_of_other_programs_are_ignored(folder: Path) -> None:
    for name in (".gitlab-ci.yml", ".github/workflows.yaml", "README.md", "guards.yaml.rpmnew"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    load(folder)


def test_the_lock_of_an_editor_beside_a_rule_file_stops_nothing(folder: Path) -> None:
    """Emacs puts a link that leads nowhere beside each file that is changed and not saved."""
    for name in (
        "playbooks/drain.yaml",
        "detection/gpu.yaml",
        "cases/xid.yaml",
        "validation/gpus.sh",
        "policies.yaml",
    ):
        path = folder / name
        path.with_name(f".#{path.name}").symlink_to("ann@host.4711:17")
    (folder / "detection" / "._gpu.yaml").write_bytes(b"\0\5\x16\7")
    load(folder)
    run_cases(folder)


def test_a_file_whose_name_is_not_utf8_stops_nothing(folder: Path) -> None:
    """Such as an editor's copy on an old share: no part of healer could read its rules."""
    (folder / os.fsdecode(b"Ger\xe4t.yaml~")).write_text("of an editor")
    load(folder)
    (folder / os.fsdecode(b"Ger\xe4t.yaml")).write_text("x: 1")
    assert problem(folder).startswith(r"Ger\xe4t.yaml:1: healer reads no file of this name")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RulesInvalid, match="there is no folder"):
        load(tmp_path / "nothing")


def test_the_watches_that_ship_are_the_defaults() -> None:
    assert load(SHIPPED).watches == WatchSettings()


@pytest.mark.parametrize(
    "name", ["guards.yaml", "topology.yaml", "watches.yaml", "nvlink5.yaml", "xid154.yaml", "xid74.yaml"]
)
def test_a_file_that_may_be_left_out(folder: Path, name: str) -> None:
    (folder / name).unlink()
    policies = folder / "policies.yaml"
    kept = [rule for rule in policies.read_text().split("\n\n- ") if "driver-asks-re" not in rule]
    policies.write_text("\n\n- ".join(one for one in kept if "driver-asks-drain" not in one))
    (folder / "policies.yaml").write_text(policies.read_text().replace(', "driver-asks-*"', ""))
    assert load(folder).rules


def test_off_is_a_mode_and_dates_are_words(folder: Path) -> None:
    edit(folder, "policies.yaml", "  playbook: gpu-fatal", "  mode: off\n  playbook: gpu-fatal")
    window = "{nodes: ['gpu[01-03]'], why: roll-out, since: 2026-11-20T08:00:00Z}"
    edit(folder, "guards.yaml", "maintenance: []", f"maintenance: [{window}]")
    rules = load(folder)
    assert rules.rules[0].mode is Mode.off
    assert rules.guards.maintenance[0].nodes == ("gpu01", "gpu02", "gpu03")
    assert rules.guards.maintenance[0].since == datetime(2026, 11, 20, 8, 0, tzinfo=UTC)


def test_planned_work_needs_a_time_zone(folder: Path) -> None:
    window = "{nodes: [gpu01], why: roll-out, since: 2026-11-20T08:00:00}"
    edit(folder, "guards.yaml", "maintenance: []", f"maintenance: [{window}]")
    assert "since: has no time zone" in problem(folder)


def test_planned_work_with_an_offset_is_kept_in_utc(folder: Path) -> None:
    """Pages and messages showed the offset's clock as UTC: work until 05:00 UTC was over at "00:00 UTC"."""
    window = "{nodes: [gpu01], why: PSU, since: 2026-11-01T00:30:00-05:00, until: 2026-11-02T04:00:00+10:30}"
    edit(folder, "guards.yaml", "maintenance: []", f"maintenance: [{window}]")
    (kept,) = load(folder).guards.maintenance
    assert (str(kept.since), str(kept.until)) == ("2026-11-01 05:30:00+00:00", "2026-11-01 17:30:00+00:00")


@pytest.mark.parametrize("until", ["2026-11-20T08:00:00Z", "2026-11-20T08:59:59+01:00"])
def test_planned_work_ends_after_it_begins(folder: Path, until: str) -> None:
    """A window whose ends are equal, which lasts no moment, was said to end before it begins."""
    window = f"{{nodes: [gpu01], why: PSU, since: 2026-11-20T08:00:00Z, until: {until}}}"
    edit(folder, "guards.yaml", "maintenance: []", f"maintenance: [{window}]")
    assert "until: must be after `since`" in problem(folder)


@pytest.mark.parametrize(
    "bound", ["until: 9999-12-31T23:59:59-05:00", "since: 0001-01-01T00:00:00+10:30"], ids=["end", "start"]
)
def test_planned_work_lies_in_a_year_that_utc_has(folder: Path, bound: str) -> None:
    """Pages of runs that waited for such an end were answered with status 500."""
    edit(folder, "guards.yaml", "maintenance: []", f"maintenance: [{{nodes: [gpu01], why: PSU, {bound}}}]")
    found = problem(folder)
    assert bound[:5] in found and "outside the years 1 to 9999 in UTC" in found


def test_a_partition_may_have_a_name_of_digits_or_a_word_of_yaml(folder: Path) -> None:
    """Its caps were under the number 1, which no partition of Slurm is."""
    edit(
        folder,
        "guards.yaml",
        "partitions: {}",
        "partitions: {1: {max_nodes: 2}, 0x10: {max_nodes: 3}, true: {max_nodes: 4}}",
    )
    found = load(folder).partition_guards
    assert {name: guards.max_nodes for name, guards in found.items()} == {"1": 2, "0x10": 3, "true": 4}


@pytest.mark.parametrize(
    "since", ["2026-11-20", "2026-11-20T08:00Z", "2026-11-20T08:00:00 Europe/Berlin", "1795161600"]
)
def test_a_moment_that_cannot_be_read_says_how_one_is_written(folder: Path, since: str) -> None:
    edit(
        folder, "guards.yaml", "maintenance: []", f"maintenance: [{{nodes: [gpu01], why: x, since: {since}}}]"
    )
    said = problem(folder)
    assert "maintenance.since: " in said
    assert said.endswith("(such as 2026-11-20T08:00:00Z or 2026-11-20T09:00:00+01:00)")


def test_guards_of_a_cluster_fall_back_to_the_others_and_to_the_settings(folder: Path) -> None:
    edit(folder, "guards.yaml", "clusters: {}", "clusters: {pod2: {max_nodes: 4}}")
    edit(folder, "guards.yaml", "partitions: {}", "partitions: {debug: {partition_share: 0.5}}")
    rules = load(folder, overrides={"max_share": 0.5, "max_nodes": 7})
    assert (rules.guards.max_share, rules.guards.max_nodes) == (0.5, 7)
    assert (rules.cluster_guards["pod2"].max_share, rules.cluster_guards["pod2"].max_nodes) == (0.5, 4)
    assert rules.partition_guards["debug"].partition_share == 0.5
    debug = rules.guards_in("pod2", "debug")
    assert (debug.partition_share, debug.max_nodes, debug.max_share) == (0.5, 4, 0.5)
    assert rules.guards_in("pod1", "debug").max_nodes == 7
    assert rules.guards_in("pod2", "train").max_nodes == 4


def test_a_change_of_one_file_changes_nothing_that_others_say(folder: Path) -> None:
    """Files with the same bytes are parsed once: to load them again must find them as they are. The guards of
    clusters and partitions were lost by it."""
    edit(folder, "guards.yaml", "clusters: {}", "clusters: {pod2: {max_nodes: 4}}")
    edit(folder, "guards.yaml", "partitions: {}", "partitions: {debug: {max_nodes: 1}}")
    before = load(folder, prove=False)
    edit(folder, "prices.yaml", "", "# a remark\n")
    after = load(folder, prove=False)
    names = before.__struct_fields__
    assert [name for name in names if getattr(before, name) != getattr(after, name)] == ["version"]
    assert after.guards_in("pod2", "train").max_nodes == 4
    assert after.guards_in("pod1", "debug").max_nodes == 1


def test_topology(folder: Path) -> None:
    places = '{"gpu[0001-0002]": {rack: r1}, "gpu[0002-0003]": {switch: leaf1}}'
    edit(folder, "topology.yaml", "places: {}", f"places: {places}")
    edit(folder, "topology.yaml", "gpu_pci: {}", 'gpu_pci: {h100: ["00000000:18:00.0"]}')
    topology = load(folder).topology
    assert {name: (place.rack, place.switch) for name, place in topology.places.items()} == {
        "gpu0001": ("r1", ""),
        "gpu0002": ("r1", "leaf1"),
        "gpu0003": ("", "leaf1"),
    }
    assert topology.gpu_pci == {"h100": ("0000:18:00",)}


def test_clusters_that_number_their_nodes_alike_have_places_of_their_own(folder: Path) -> None:
    places = '{"pod1/gpu[1-2]": {rack: r1}, "pod2/gpu[1-2]": {rack: r2}, gpu3: {rack: r3}}'
    edit(folder, "topology.yaml", "places: {}", f"places: {places}")
    topology = load(folder).topology
    where = [(cluster, node) for cluster in ("pod1", "pod2", "pod3") for node in ("gpu2", "gpu3")]
    assert [topology.place(*one).rack for one in where] == ["r1", "r3", "r2", "r3", "", "r3"]


def test_a_node_in_two_racks_is_a_mistake(folder: Path) -> None:
    edit(folder, "topology.yaml", "places: {}", 'places: {"gpu[1-3]": {rack: r1}, gpu3: {rack: r2}}')
    assert "gpu3 has two places: rack r1 and rack r2" in problem(folder)


def test_a_wrong_hostlist_of_the_topology_is_named_with_its_own_line(folder: Path) -> None:
    """All of them were on the line of `places`."""
    line = edit(folder, "topology.yaml", "places: {}", "places:\n  gpu1: {rack: r1}\n  gpu[2-3: {rack: r1}")
    assert problem(folder) == f"topology.yaml:{line + 2}: 'gpu[2-3': unclosed bracket"
