"""`rules/scrape.yaml`: what is right, and whatever is wrong named by its line."""

import shutil
from pathlib import Path

import pytest

from healer.model import ScrapeRules, TargetGroup
from healer.rulebook.ruleset import RulesInvalid, load
from healer.rulebook.signal_rules import TARGETS_MAX, address, wants_scraper
from tests.support.loop import SHIPPED

pytestmark = pytest.mark.heavy

GOOD = """\
jobs:
  - name: dcgm
    targets: ["gpu[0001-0003]:9400"]
    interval_s: 5
  - name: node
    groups:
      - targets: ["10.0.0.[1-2]:9100"]
        labels: {rack: r1, __scheme__: https}
    scheme: https
    tls_ca_file: ca.pem
queries:
  - signal: load1
    query: max by (instance) (node_load1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "rules"))


def scrape(folder: Path, text: str) -> ScrapeRules:
    (folder / "scrape.yaml").write_text(text)
    return load(folder, prove=False).scrape


def test_the_file_that_ships_fetches_nothing() -> None:
    assert not load(SHIPPED, prove=False).scrape
    assert not wants_scraper(SHIPPED / "scrape.yaml")()


def test_jobs_and_queries(folder: Path) -> None:
    found = scrape(folder, GOOD)
    dcgm, node = found.jobs
    assert dcgm.targets == ("gpu0001:9400", "gpu0002:9400", "gpu0003:9400")
    assert (dcgm.interval_s, dcgm.timeout_s, dcgm.node) == (5, 5, "host")
    labels = {"rack": "r1", "__scheme__": "https"}
    assert node.groups == (TargetGroup(("10.0.0.1:9100", "10.0.0.2:9100"), labels),)
    assert node.tls_ca_file == f"{folder}/ca.pem"
    assert [one.signal for one in found.queries] == ["load1"]


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("name: dcgm", "name: d c", "name: 'd c' must consist of letters, digits, _, . and -, at most 64"),
        ("name: dcgm", "name: node", "the job node is listed twice"),
        ("gpu[0001-0003]:9400", "gpu[0003-0001]:9400", "runs backwards"),
        ("gpu[0001-0003]:9400", "gpu0001", "targets: 'gpu0001' is not a host with a port"),
        ("gpu[0001-0003]:9400", "gpu0001:99999", "targets: 'gpu0001:99999' is not a host with a port"),
        ("gpu[0001-0003]:9400", f"gpu[0-{TARGETS_MAX}]:9400", f"at most {TARGETS_MAX}"),
        ("interval_s: 5", "interval_s: 0.5", "interval_s: must be between 1 and 3600"),
        ("interval_s: 5", "timeout_s: 0", "timeout_s: must be above 0"),
        ("interval_s: 5", "intervall_s: 5", "did you mean interval_s?"),
        ("interval_s: 5", "path: metrics", "path: must begin with /"),
        ("interval_s: 5", "node: 7up", "node: '7up' must be host, series or the name of a label"),
        ("interval_s: 5", "labels: {a-b: c}", "labels: 'a-b' is not the name of a label"),
        ("scheme: https", "scheme: htps", "did you mean https?"),
        ("scheme: https", "scheme: http", "tls_ca_file: needs scheme: https"),
        (
            "groups:",
            "file_sd:",
            "file_sd: healer does not read target files; list the targets under groups in this file",
        ),
        ("10.0.0.[1-2]:9100", "user:pw@h2:9100", "targets: 'user:pw@h2:9100' is not a host with a port"),
        ("__scheme__: https", "__scheme__: ftp", "labels: __scheme__ must be http or https, not 'ftp'"),
        ("rack: r1", "a-b: r1", "labels: 'a-b' is not the name of a label"),
        ("rack: r1", "rack: [r1]", "groups.labels.rack: expected str, got array"),
        ("signal: load1", "signal: loud1", "signal: there is no signal loud1 (did you mean load1?)"),
        ("signal: load1", "signal: slurm_cpus", "signal: slurm_cpus is derived by healer and cannot be sent"),
        ("query: max by (instance) (node_load1)", 'query: " "', "query: must have 1 to 4096 characters"),
        ("queries:", "questions:", "did you mean queries?"),
    ],
)
def test_a_mistake_is_named_with_its_line(folder: Path, old: str, new: str, text: str) -> None:
    assert old in GOOD
    with pytest.raises(RulesInvalid) as caught:
        scrape(folder, GOOD.replace(old, new, 1))
    (problem,) = caught.value.problems
    assert text in str(problem)
    line = GOOD[: GOOD.index(old)].count("\n") + 1
    assert problem.file == "scrape.yaml"
    assert abs(problem.line - line) <= 4


def test_a_scraper_is_wanted_as_soon_as_the_file_has_an_entry(tmp_path: Path) -> None:
    file = tmp_path / "scrape.yaml"
    wanted = wants_scraper(file)
    assert not wanted()
    file.write_text("jobs: []\n")
    assert not wanted()
    file.write_text(GOOD)
    assert wanted()
    file.write_text("{")
    assert not wanted()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu0001.hall:9100", ("gpu0001.hall", 9100)),
        ("[fd00::1]:9100", ("fd00::1", 9100)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("a:0", None),
        ("a", None),
        ("http://a:1", None),
        ("a b:1", None),
        ("a:1/x", None),
    ],
)
def test_addresses(text: str, found: object) -> None:
    assert address(text) == found
