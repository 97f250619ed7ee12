"""The spool of `healer-hook`: nothing is lost while healer is away, and it cannot be used to mislead root."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.hooks import FATAL, LOST, Healer, HookNode, life, unused_url

pytestmark = pytest.mark.heavy

ANSWER = {"verdict": "healthy", "may_refuse": False, "reason": "", "rejected": []}


@pytest.fixture
def healer() -> Iterator[Healer]:
    with Healer() as one:
        yield one


@pytest.fixture
def node(tmp_path: Path, healer: Healer) -> HookNode:
    return HookNode(tmp_path, healer.url)


def away(node: HookNode, environ: Mapping[str, str] | None = None) -> None:
    """A run without an answer."""
    url, node.settings["HEALER_URL"] = node.settings["HEALER_URL"], unused_url()
    assert node.run("prolog", environ=environ).returncode == 0
    node.settings["HEALER_URL"] = url


def test_spooled_reports_are_sent_in_order_and_unchanged(node: HookNode, healer: Healer) -> None:
    node.kernel(FATAL)
    away(node, life(1, 0))
    node.kernel(LOST)
    away(node, life(2, 0))
    before = node.spooled
    assert [report["id"] for report in before] == ["1.0", "2.0"]
    node.run("epilog", environ=life(3, 0))
    assert healer.reports[:2] == before, "the same bytes: id and time of then"
    assert [[line["seq"] for line in one["kernel"]] for one in healer.reports] == [[1], [2], []]
    assert [report["hook"] for report in healer.reports] == ["prolog", "prolog", "epilog"]
    assert healer.reports[2]["id"] == "3.0" and node.spooled == []


def test_the_folder_is_0700_and_the_files_are_0600(node: HookNode) -> None:
    away(node)
    assert node.spool.stat().st_mode & 0o777 == 0o700
    assert [file.stat().st_mode & 0o777 for file in node.spool.iterdir() if file.suffix == ".json"] == [0o600]


def test_spooled_report_leaves_out_the_nvidia_smi_output(node: HookNode) -> None:
    node.program("usr/bin/nvidia-smi", "echo '<nvidia_smi_log></nvidia_smi_log>'")
    away(node)
    assert "nvidia_smi" not in node.spooled[0]


def test_full_spool_takes_no_more_and_lines_are_sent_once_there_is_room(
    node: HookNode, healer: Healer
) -> None:
    away(node)
    long = json.dumps({"id": "long", "node": "gpu0001", "kernel": [], "text": "x" * 500_000})
    for number in range(21):
        (node.spool / f"9{number:019d}-1.json").write_text(long)
    node.kernel(LOST)
    away(node)
    assert len(node.spooled) == 22
    node.run("prolog")
    assert healer.reports[-1]["kernel"][0]["line"] == LOST, "the cursor had stayed where it was"
    assert len(node.spooled) == 19, "so much goes into one request, the oldest first"
    assert healer.reports[0]["id"] != "long"


@pytest.mark.parametrize("at", [1, 4_000_000_000])
def test_report_of_a_killed_hook_is_sent_by_the_next_one(node: HookNode, healer: Healer, at: int) -> None:
    """`at`: before or after now, as of a clock that was wrong when the node booted."""
    away(node, life(1, 0))
    (file,) = node.spool.glob("*.json")
    left = file.with_suffix(".sending")
    file.rename(left)
    half = node.spool / ".00000000000000000001-1.sending.1"
    half.write_text("{")
    node.run("prolog")
    assert left.exists(), "another hook may be sending it now"
    for one in (left, half):
        os.utime(one, (at, at))
    node.run("prolog")
    assert [report["id"] for report in healer.reports][-2] == "1.0"
    assert not left.exists() and not half.exists()


def test_two_at_once_lose_nothing_and_leave_nothing(node: HookNode, healer: Healer) -> None:
    for job in (1, 2, 3):
        away(node, life(job, 0))
    command = node.command("epilog")
    env = {"SLURMD_NODENAME": "gpu0001"}
    both = [subprocess.Popen(command, env=env | life(job, 0)) for job in (4, 5)]
    assert [one.wait(10) for one in both] == [0, 0]
    sent = [report["id"] for report in healer.reports]
    assert sorted(set(sent)) == ["1.0", "2.0", "3.0", "4.0", "5.0"]
    assert node.spooled == []


@pytest.mark.parametrize(("name", "cluster"), [("login1", ""), ("gpu0001", "pod2")])
def test_a_report_of_another_name_blocks_no_later_one(
    node: HookNode, healer: Healer, name: str, cluster: str
) -> None:
    """healer answers 403 to a whole request for one report that its token does not cover."""
    away(node, life(1, 0))
    away(node, {"SLURMD_NODENAME": name, "HEALER_CLUSTER": cluster})
    (foreign,) = (path for path in node.spool.glob("*.json") if '"1.0"' not in path.read_text())
    node.run("prolog", environ=life(2, 0))
    assert [(one["node"], one["id"]) for one in healer.reports] == [("gpu0001", "1.0"), ("gpu0001", "2.0")]
    os.utime(foreign, (4_000_000_000, 4_000_000_000))
    done = node.run("prolog", environ=life(3, 0))
    assert f"{foreign.name} is no whole report of gpu0001 and was dropped" in done.stdout
    assert node.spooled == []


def test_refused_report_is_not_spooled_and_its_lines_are_sent_later(node: HookNode, healer: Healer) -> None:
    node.kernel(FATAL)
    healer.status = 403
    assert node.run("prolog").returncode == 0
    assert node.spooled == []
    healer.status = 202
    node.run("prolog")
    assert [line["line"] for line in healer.reports[-1]["kernel"]] == [FATAL]


@pytest.mark.parametrize("how", ["link", "open to all", "a file", "no parent"])
def test_a_folder_that_is_not_roots_alone_is_not_used(
    node: HookNode, healer: Healer, tmp_path: Path, how: str
) -> None:
    target = tmp_path / "theirs"
    target.mkdir(mode=0o700)
    if how == "link":
        node.spool.symlink_to(target)
    elif how == "open to all":
        node.spool.mkdir()
        node.spool.chmod(0o777)
    elif how == "a file":
        node.spool.write_text("")
    else:
        node.settings["HEALER_HOOK_SPOOL"] = str(tmp_path / "nosuch" / "spool")
    done = node.run("prolog")
    assert done.returncode == 0 and "spool" in done.stdout
    assert len(healer.reports) == 1, "it still reports to healer"
    assert list(target.iterdir()) == []


def test_links_and_pipes_in_the_folder_are_not_followed(
    node: HookNode, healer: Healer, tmp_path: Path
) -> None:
    node.spool.mkdir(mode=0o700)
    secret = tmp_path / "secret"
    secret.write_text('{"id":"secret"}')
    (node.spool / "00000000000000000001-1.json").symlink_to(secret)
    (node.spool / "cursor").symlink_to(secret)
    os.mkfifo(node.spool / "00000000000000000002-1.json", 0o600)
    node.kernel(FATAL)
    assert node.run("prolog").returncode == 0
    assert "secret" not in json.dumps(healer.reports)
    assert secret.read_text() == '{"id":"secret"}'
    cursor = node.spool / "cursor"
    assert not cursor.is_symlink() and cursor.read_text().endswith(" 1\n")


def taken(healer: Healer) -> list[str]:
    """Ids of the reports of the requests that the hub's judge took, oldest first."""
    assert healer.judge is not None
    sent = [reports for _, _, reports in healer.requests if healer.judge(reports)[0] == 202]
    return [report["id"] for reports in sent for report in reports]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_report_that_healer_cannot_read_costs_no_other(node: HookNode, healer: Healer, status: int) -> None:
    """healer refuses a request as a whole for one such report."""
    for job in range(1, 8):
        away(node, life(job, 0))
    spoilt = sorted(node.spool.glob("*.json"))[4]
    healer.judge = lambda reports: (status if any(one["id"] == "5.0" for one in reports) else 202, ANSWER)
    done = node.run("prolog", environ=life(8, 0))
    assert taken(healer) == ["8.0", "1.0", "2.0", "3.0", "4.0", "6.0", "7.0"]
    assert (
        node.spooled == []
        and f"{spoilt.name} was dropped: healer rejected the report ({status})" in done.stdout
    )


def test_a_report_of_a_node_that_healer_does_not_know_yet_is_kept(node: HookNode, healer: Healer) -> None:
    node.kernel(FATAL)
    away(node, life(1, 0))
    unknown = [
        {"index": number, "reason": "node: gpu0001 is not a node of cluster pod1"} for number in (0, 1)
    ]
    healer.judge = lambda _: (202, ANSWER | {"rejected": unknown})
    done = node.run("prolog", environ=life(2, 0))
    assert done.returncode == 0 and "node: gpu0001 is not a node" in done.stdout
    assert [report["id"] for report in node.spooled] == ["1.0", "2.0"]
    healer.judge = None
    node.run("prolog", environ=life(3, 0))
    assert [report["id"] for report in healer.reports][-3:] == ["1.0", "2.0", "3.0"] and node.spooled == []


def test_a_report_of_a_node_that_healer_never_knows_is_kept_for_a_day(node: HookNode, healer: Healer) -> None:
    away(node, life(1, 0))
    (old,) = node.spool.glob("*.json")
    os.utime(old, (1_000_000_000, 1_000_000_000))
    healer.judge = lambda _: (202, ANSWER | {"rejected": [{"index": 0, "reason": "node: gpu0001 is not"}]})
    done = node.run("prolog", environ=life(2, 0))
    assert node.spooled == [] and f"{old.name} was dropped: node: gpu0001 is not" in done.stdout


def test_a_rejected_report_is_dropped_by_name_and_the_others_count(node: HookNode, healer: Healer) -> None:
    away(node, life(1, 0))
    (spoilt,) = node.spool.glob("*.json")
    permit = {"verdict": "isolate", "may_refuse": True, "reason": "healer:gpu-lost inc:1"}
    healer.judge = lambda _: (202, permit | {"rejected": [{"index": 0, "reason": "checks: too long"}]})
    done = node.run("prolog", environ=life(2, 0))
    assert done.returncode == 1 and done.stdout == "healer-hook: healer:gpu-lost inc:1\n"
    assert node.spooled == [] and not spoilt.exists()
    away(node, life(3, 0))
    (spoilt,) = node.spool.glob("*.json")
    healer.judge = lambda _: (202, ANSWER | {"rejected": [{"index": 0, "reason": "checks: too long"}]})
    done = node.run("prolog", environ=life(4, 0))
    assert f"{spoilt.name} was dropped: checks: too long" in done.stdout
