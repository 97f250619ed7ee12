"""HealBench: its files are those that it makes, its scorer counts right, its entrants run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from healbench.__main__ import HERE, plot, run, table
from healbench.make_cases import CASES, cases, write
from healbench.score import Score, actions_of, score

pytestmark = pytest.mark.heavy

TRUTH = {
    "nodes": 10, "days": 2.0, "faults": {"a": "2026-11-02T01:00:00Z", "b": "2026-11-02T05:00:00Z"},
    "maybe": ["m"], "save": ["1", "2"], "roots": 2,
}  # fmt: skip


def acted(*rows: tuple[str, str, str]) -> Score:
    """(time, action, node or job)"""
    lines = [
        json.dumps(
            {
                "at": f"2026-11-02T{at}Z",
                "action": action,
                "job" if action in {"requeue", "cancel"} else "node": what,
            }
        )
        for at, action, what in rows
    ]
    return score(actions_of(lines), TRUTH)


def test_the_files_are_what_is_made(tmp_path: Path) -> None:
    write(tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in CASES.iterdir()}
    assert len(cases()) == 40


def test_a_perfect_entrant() -> None:
    found = acted(
        ("01:00:10", "drain", "a"), ("05:00:30", "drain", "b"), ("01:00:20", "requeue", "1"),
        ("01:09:00", "requeue", "2"), ("03:00:00", "drain", "m"),
    )  # fmt: skip
    assert (found.recall, found.wrong_drains, found.delay_s, found.saved, found.lost) == (1.0, 0, 20.0, 2, 0)


def test_too_late_too_early_and_wrong() -> None:
    found = acted(
        ("00:30:00", "drain", "a"), ("06:00:01", "drain", "b"), ("01:00:00", "drain", "x"),
        ("01:00:00", "down", "x"), ("01:20:00", "requeue", "1"), ("02:00:00", "cancel", "9"),
    )  # fmt: skip
    assert (found.found, found.wrong_drains, found.saved, found.lost) == (0, 1, 0, 1)
    assert found.wrong_per_1000_node_days == 50.0
    assert found.rooted == 0


def test_causes_are_counted_by_incident() -> None:
    rows = [
        {"at": "2026-11-02T01:00:00Z", "action": "drain", "node": node, "incident": name}
        for node, name in (("a", "1"), ("m", "1"), ("b", "2"))
    ]
    assert score(actions_of(map(json.dumps, rows)), TRUTH).rooted == 1


def test_a_cause_without_an_act_counts_where_no_node_was_drained() -> None:
    rows = [{"at": "2026-11-02T01:00:00Z", "action": "cause", "incident": name} for name in ("1", "2")]
    assert score(actions_of(map(json.dumps, rows)), TRUTH).rooted == 1
    rows.append({"at": "2026-11-02T01:00:00Z", "action": "drain", "node": "a", "incident": "1"})
    assert score(actions_of(map(json.dumps, rows)), TRUTH).rooted == 0


@pytest.mark.parametrize(
    "line",
    [
        "[]", "{}", '{"at": "yesterday", "action": "drain"}', "no JSON",
        '{"at": "2026-11-02T01:00:02", "action": "drain", "node": "a"}',
        '{"at": "2026-11-02T01:00:02Z", "action": "drain"}',
    ],
)  # fmt: skip
def test_a_line_that_is_no_action_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        actions_of(["", line])


@pytest.mark.parametrize(
    ("entrant", "case", "found", "wrong"),
    [("nhc", "lost-gpu-twice", 2, 0), ("first_sign", "cleanup-45", 0, 1), ("nobody", "lost-gpu-idle", 0, 0)],
)
def test_script_entrants_get_their_known_scores(entrant: str, case: str, found: int, wrong: int) -> None:
    score = run([sys.executable, str(HERE / "entrants" / f"{entrant}.py")], CASES / f"{case}.jsonl")
    assert (score.found, score.wrong_drains) == (found, wrong)


@pytest.mark.heavy
def test_healer_enters_like_any_other() -> None:
    score = run([sys.executable, "-m", "healbench.entrants.healer"], CASES / "lost-gpu-job.jsonl")
    assert (score.found, score.wrong_drains, score.saved, score.rooted) == (1, 0, 1, 1)
    assert score.delay_s is not None and score.delay_s <= 10


def test_a_broken_entrant_is_named() -> None:
    with pytest.raises(SystemExit, match="ended with 3"):
        run([sys.executable, "-c", "import sys; sys.exit(3)"], CASES / "quiet-day.jsonl")


@pytest.mark.parametrize(
    ("command", "why"),
    [(["/no/such/tool"], "No such file"), (["echo", "hello"], "line 1 is no action")],
)
def test_an_entrant_that_cannot_run_or_prints_no_actions_is_named(command: list[str], why: str) -> None:
    with pytest.raises(SystemExit, match=f"{command[0]}.* on quiet-day.jsonl: .*{why}"):
        run(command, CASES / "quiet-day.jsonl")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--case", "lost-gqu*"], "no case is named 'lost-gqu*'"),
        (["--entrant", "nhc"], "'nhc' has to be NAME=COMMAND"),
        (["--entrant", "=x"], "'' has to be NAME=COMMAND"),
    ],
)
def test_wrong_options_are_refused_with_the_reason(arguments: list[str], why: str) -> None:
    command = [sys.executable, "-m", "healbench", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent)
    assert done.returncode == 2 and why in done.stderr and "Traceback" not in done.stderr


def test_table_and_plot() -> None:
    totals = {"<me>": acted(("01:00:10", "drain", "a"), ("01:00:10", "drain", "x"))}
    assert table(totals) == [("<me>", "0.50", "50.0", "10", "1/1", "0/2", "0")]
    drawn = plot(totals)
    assert drawn.startswith("<svg") and "&lt;me&gt;, 10 s" in drawn


@pytest.mark.heavy
def test_the_command_prints_a_line_for_each_entrant(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "healbench", "--case", "cleanup-45", "--plot", str(tmp_path / "p.svg"),
        "--entrant", f"first={sys.executable} {HERE / 'entrants' / 'first_sign.py'}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE.parent)
    head, row, count = done.stdout.splitlines()
    assert row.split() == ["first", "1.00", "31.2", "–", "0/0", "0/0", "0"] and count == "1 cases"
    assert head.startswith("ENTRANT") and (tmp_path / "p.svg").exists()
