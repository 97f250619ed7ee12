"""file_sd files: which belong to which job, what their labels may say, and what one mistake costs."""

import json
from pathlib import Path

import pytest

from healer.adapters.pull import targets
from healer.adapters.pull.targets import FileTargets
from healer.model import ScrapeJob, ScrapeRules
from healer.ports.pull import Listed
from healer.rulebook import source as rulefiles

GOOD = "- targets: ['h1:9100']\n  labels: {node: gpu0001}\n"


def job(form: object, name: str = "node", **more: str) -> ScrapeJob:
    return ScrapeJob(name=name, file_sd=(str(form),), node="node", **more)


def listed(*jobs: ScrapeJob) -> Listed:
    return FileTargets("pod1")(ScrapeRules(jobs=jobs))


def read(folder: Path, text: str, suffix: str = "yaml") -> Listed:
    (folder / f"a.{suffix}").write_text(text)
    return listed(job(folder / f"*.{suffix}"))


def test_a_star_names_no_file_of_a_folder_below(tmp_path: Path) -> None:
    below = tmp_path / "gpus"
    below.mkdir()
    (tmp_path / "a.yaml").write_text("- targets: ['h1:9100']\n")
    (below / "b.yaml").write_text("- targets: ['h2:9400']\n")
    found = listed(job(tmp_path / "*.yaml", "node", bearer_token_file="t"), job(below / "*.yaml", "dcgm"))
    assert [(one.job.name, one.url) for one in found.targets] == [
        ("node", "http://h1:9100/metrics"),
        ("dcgm", "http://h2:9400/metrics"),
    ]


def test_a_folders_name_is_no_pattern(tmp_path: Path) -> None:
    for name in ("pod[1]", "pod1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_text(f"- targets: ['{len(name)}:1']\n")
    assert [one.host for one in listed(job(tmp_path / "pod[1]" / "*.yaml")).targets] == ["6"]


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_scalars_of_labels_are_text_and_null_is_none(tmp_path: Path, suffix: str) -> None:
    yaml = "- targets: [h1:1]\n  labels: {rack: 5, up: true, gone: null}\n- targets: [h2:1]\n  labels:\n"
    groups = [
        {"targets": ["h1:1"], "labels": {"rack": 5, "up": True, "gone": None}},
        {"targets": ["h2:1"], "labels": None},
    ]
    found = read(tmp_path, yaml if suffix == "yaml" else json.dumps(groups), suffix)
    assert [one.labels for one in found.targets] == [{"rack": "5", "up": "true"}, {}]
    assert found.troubles == ()


@pytest.mark.parametrize("written", ["010", "1.50", "0x10", "1e3", "2026-01-01", "yes"])
def test_a_scalar_of_yaml_stays_as_it_is_written(tmp_path: Path, written: str) -> None:
    found = read(tmp_path, f"- targets: [h1:1]\n  labels: {{node: {written}}}\n")
    assert [one.labels for one in found.targets] == [{"node": written}]


def test_a_merge_key_gives_a_group_anothers_labels_below_its_own(tmp_path: Path) -> None:
    text = (
        "- targets: [h1:1]\n  labels: &all {rack: r1, row: '1'}\n"
        "- targets: [h2:1]\n  labels: {row: '2', <<: *all}\n"
        "- targets: [h3:1]\n  labels: {<<: [{a: '1'}, {a: '2', b: '3'}]}\n"
    )
    found = read(tmp_path, text)
    assert [one.labels for one in found.targets] == [
        {"rack": "r1", "row": "1"},
        {"rack": "r1", "row": "2"},
        {"a": "1", "b": "3"},
    ]
    assert found.troubles == ()


@pytest.mark.parametrize(
    "merges",
    [
        "".join(f"  x{n}: &x{n} {{<<: [*x{n - 1}, *x{n - 1}]}}\n" for n in range(1, 60)),
        f"  labels: {{<<: [{', '.join(['*x0'] * 1000)}]}}\n",
    ],
)
def test_merges_that_double_are_bounded(tmp_path: Path, merges: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rulefiles, "MERGED_MAX", 900)
    found = read(tmp_path, f"- targets: [h1:1]\n  x0: &x0 {{a: '1'}}\n{merges}")
    assert found.targets == ()
    assert "<< merges more than 900 entries" in found.troubles[0]


@pytest.mark.parametrize("merge", ["{<<: 5}", "{<<: [5]}"])
def test_a_merge_of_no_mapping_is_told(tmp_path: Path, merge: str) -> None:
    found = read(tmp_path, f"- targets: [h1:1]\n  labels: {merge}\n")
    assert "a.yaml:2: not valid YAML: << merges mappings alone" in found.troubles[0]


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ("[x]", "labels"),
        ("{rack: [x]}", "labels.rack"),
        ("{__scheme__: ftp}", "'ftp' is neither http nor https"),
        ("{}\n  label: {}", "unknown field"),
    ],
)
@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_wrong_group_is_named_and_costs_itself_alone(
    tmp_path: Path, labels: str, told: str, suffix: str
) -> None:
    as_json = {
        "[x]": {"labels": ["x"]},
        "{rack: [x]}": {"labels": {"rack": ["x"]}},
        "{__scheme__: ftp}": {"labels": {"__scheme__": "ftp"}},
        "{}\n  label: {}": {"label": {}},
    }[labels]
    groups = [{"targets": ["h1:1"]}, {"targets": ["h2:1"]} | as_json, {"targets": ["h3:1"]}]
    yaml = f"- targets: [h1:1]\n- targets: [h2:1]\n  labels: {labels}\n- targets: [h3:1]\n"
    found = read(tmp_path, yaml if suffix == "yaml" else json.dumps(groups), suffix)
    assert [one.host for one in found.targets] == ["h1", "h3"]
    (trouble,) = found.troubles
    assert told in trouble
    assert any(f"{tmp_path}/a.{suffix}{entry}: " in trouble for entry in (", entry 2", ":2", ":3", ":4"))


def test_an_address_that_is_none_is_named_by_file_and_entry(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD + "- targets: ['user:pw@h2:9100', 'h3:9100']\n")
    assert [one.host for one in found.targets] == ["h1", "h3"]
    assert found.troubles == (
        f"node: {tmp_path}/a.yaml, entry 2: 'user:pw@h2:9100' is not a host and a port",
    )


@pytest.mark.parametrize(
    "broken",
    [
        "{{{",
        "groups: []",
        "- targets: [h9:1]\n  targets: [h9:2]\n",
        "- &a [*a",
        "- lables: {}\n",
        "- 5\n- 6\n",
        "",
        GOOD + "- targ",
        GOOD + "- labels: {rack: r1}\n",
        GOOD + "- targets:\n",
        GOOD + "- targets: h2:9100\n",
        GOOD + "-\n",
        "- targets: ['h1:9100']\n  labels: {__scheme__: ftp}\n",
    ],
)
def test_a_file_that_cannot_be_read_keeps_its_last_targets(tmp_path: Path, broken: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(GOOD)
    reads, rules = FileTargets("pod1"), ScrapeRules(jobs=(job(file),))
    before = reads(rules)
    file.write_text(broken)
    after = reads(rules)
    assert after.targets == before.targets != ()
    assert len(after.troubles) == 1
    assert str(file) in after.troubles[0]


def test_addresses_that_are_none_are_looked_at_and_told_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    whole = targets.address
    monkeypatch.setattr(targets, "address", lambda name: asked.append(name) or whole(name))
    monkeypatch.setattr(targets, "_TOLD_MAX", 500)
    found = read(tmp_path, "- targets: ['h1:1', 'gpu[1-900]', 'h2:1']\n")
    assert [one.host for one in found.targets] == ["h1"]
    assert len(asked) == 500
    assert len(found.troubles) == 100


def test_a_job_with_too_many_addresses_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_TOLD_MAX", 3)
    found = read(tmp_path, "- targets: ['h[1-2]:1', 'h[1-2]:1']\n")
    assert [one.host for one in found.targets] == ["h1", "h2"]
    assert "more than 3 addresses" in found.troubles[0]


#: As people, PyYAML and Go write the same three groups.
WHOLE = {
    "block.yaml": """\
- targets:
  - h1:9100
  - h2:9100
  labels:
    rack: r1
    __scheme__: https
- targets:
  - gpu[1-3]:9400
- targets: ['h4:9100']
  labels: {}
""",
    "sorted.yaml": """\
- labels:
    __scheme__: https
    rack: r1
  targets:
  - h1:9100
  - h2:9100
- targets:
  - gpu[1-3]:9400
- labels: {}
  targets:
  - h4:9100
""",
    "flow.yaml": """\
[{targets: [h1:9100, h2:9100], labels: {rack: r1, __scheme__: https}},
 {targets: ["gpu[1-3]:9400"]}, {targets: [h4:9100], labels: {}}]
""",
    "all.json": """\
[{"targets": ["h1:9100", "h2:9100"], "labels": {"rack": "r1", "__scheme__": "https"}},
 {"targets": ["gpu[1-3]:9400"]}, {"targets": ["h4:9100"], "labels": {}}]
""",
}


@pytest.mark.parametrize("name", WHOLE)
def test_half_a_file_keeps_all_or_is_a_right_file_itself(tmp_path: Path, name: str) -> None:
    file, text = tmp_path / name, WHOLE[name]
    file.write_text(text)
    reads, rules = FileTargets("pod1"), ScrapeRules(jobs=(job(file),))
    before = reads(rules)
    assert [one.host for one in before.targets] == ["h1", "h2", "gpu1", "gpu2", "gpu3", "h4"]
    shorter: list[str] = []
    for length in range(len(text)):
        file.write_text(text[:length])
        after = reads(rules)
        if after.targets != before.targets:
            shorter.append(text[:length])
            assert after.troubles == (), text[:length]
            whole = text[:length].count("\n- ")  # entries that another one follows
            assert len(after.targets) >= (0, 2, 5)[whole]
            assert after.targets[: (0, 2, 5)[whole]] == before.targets[: (0, 2, 5)[whole]]
        file.write_text(text)
        assert reads(rules).targets == before.targets
    assert bool(shorter) == (name in ("block.yaml", "sorted.yaml")), "a list in brackets shows its end"


@pytest.mark.parametrize(
    ("labels", "url"),
    [
        ("__metrics_path__: metrics", "http://h1:9100/metrics"),
        ("__metrics_path__: '@evil.example/x'", "http://h1:9100/@evil.example/x"),
        ("__metrics_path__: ':80@evil.example/x'", "http://h1:9100/:80@evil.example/x"),
        ("__metrics_path__: .evil.example/x", "http://h1:9100/.evil.example/x"),
        ("__metrics_path__: ''", "http://h1:9100/own"),
        ("__scheme__: https", "https://h1:9100/own"),
        ("__scheme__: ''", "http://h1:9100/own"),
        ("__address__: evil.example:80", "http://h1:9100/own"),
        (
            "__metrics_path__: /snmp, __param_target: 'a b&c', __param_module: if_mib",
            "http://h1:9100/snmp?target=a+b%26c&module=if_mib",
        ),
        ("__metrics_path__: '/snmp?x=1', __param_target: tor1", "http://h1:9100/snmp?x=1&target=tor1"),
    ],
)
def test_labels_say_how_and_never_another_host(tmp_path: Path, labels: str, url: str) -> None:
    (tmp_path / "a.yaml").write_text(f"- targets: ['h1:9100']\n  labels: {{{labels}}}\n")
    found = listed(job(tmp_path / "a.yaml", path="/own"))
    assert [one.url for one in found.targets] == [url]
    assert found.troubles == ()
