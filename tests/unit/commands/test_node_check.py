"""What `healer doctor` says of nodes that were not heard, and of rules that never found anything."""

from datetime import UTC, datetime, timedelta

from healer.bootstrap.coverage_checks import Heard, coverage, unused_rules
from healer.model import SlurmNode

NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)
LATELY = NOW - timedelta(seconds=20)
NOTHING = Heard({}, {}, {}, frozenset())


def nodes(count: int, **states: tuple[str, ...]) -> list[SlurmNode]:
    names = [f"gpu{number:04d}" for number in range(1, count + 1)]
    return [SlurmNode(name=name, state=states.get(name, ("IDLE",)), gpus=8) for name in names]


def test_all_heard_needs_no_word_more() -> None:
    listed = nodes(1250)
    (found,) = coverage("pod1", listed, NOTHING._replace(beats={node.name: LATELY for node in listed}), NOW)
    assert (found.ok, found.state, found.repair) == (True, "ok", "")
    assert found.text == "1,250 of 1,250 nodes of pod1 reported in the last minute"


def test_each_reason_is_said_with_its_nodes_and_is_no_fault() -> None:
    heard = Heard(
        beats={"gpu0001": LATELY, "gpu0002": NOW - timedelta(minutes=3)},
        hooks={},
        anything={"gpu0002": NOW - timedelta(minutes=3), "gpu0003": NOW - timedelta(days=2)},
        enrolled=frozenset({"gpu0001", "gpu0002", "gpu0003", "gpu0004"}),
    )
    (found,) = coverage("pod1", nodes(12, gpu0005=("DOWN", "NOT_RESPONDING")), heard, NOW)
    assert found.ok and found.state == "note" and "healer node-package" in found.repair
    text, _, whys = found.text.partition("; silent: ")
    assert text == "1 of 12 nodes of pod1 reported in the last minute"
    assert whys.split("; ") == [
        "gpu0002 (the follower stopped 1 to 5 min ago)",
        "gpu0003 (no follower, but other signals in the last week)",
        "gpu0004 (have a token, and never sent anything in the last week)",
        "gpu0005 (do not respond to Slurm either)",
        "gpu0006, gpu0007, gpu0008, gpu0009, gpu0010 and 2 more (never enrolled)",
    ]


def test_hooks_are_looked_for_where_there_are_any() -> None:
    listed = nodes(3)
    beats = {node.name: LATELY for node in listed}
    heard = Heard(beats=beats, hooks={"gpu0002": LATELY}, anything={}, enrolled=frozenset())
    _, hooks = coverage("pod1", listed, heard, NOW)
    assert hooks.text == "hooks ran on 1 of 3 nodes of pod1 in the last hour; none on gpu0001, gpu0003"
    assert hooks.ok and hooks.state == "note"


def test_rules_that_never_fired_are_a_note() -> None:
    found = unused_rules(["a", "b", "c"], {"b", "gone"}, NOW)
    assert (found.ok, found.state) == (True, "note")
    assert found.text == "1 of 3 rules found something since 2026-11-20; never: a, c"
    assert unused_rules(["b"], {"b"}, NOW).state == "ok"
