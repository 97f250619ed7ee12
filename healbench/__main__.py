"""Runs entrants over the cases, prints the table and draws the plot.

    python -m healbench [--entrant NAME=COMMAND]... [--case GLOB] [--plot FILE.svg] [--json]

An entrant reads a recording on standard input and prints its actions as JSON Lines (README.md). Without
--entrant the four that ship are run.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from xml.sax.saxutils import escape

from healbench.make_cases import CASES
from healbench.score import Score, actions_of, score

HERE = Path(__file__).parent
SHIPPED = {
    "healer": [sys.executable, "-m", "healbench.entrants.healer"],
    "nhc": [sys.executable, str(HERE / "entrants" / "nhc.py")],
    "first-sign": [sys.executable, str(HERE / "entrants" / "first_sign.py")],
    "nobody": [sys.executable, str(HERE / "entrants" / "nobody.py")],
}
TIMEOUT_S = 600
HEADS = ("ENTRANT", "RECALL", "WRONG/1000 NODE-DAYS", "DELAY s", "ONE ROOT", "JOBS SAVED", "JOBS LOST")


def run(command: Sequence[str], case: Path) -> Score:
    """Raises SystemExit where the entrant fails, with its command and the case."""
    where = f"{shlex.join(command)} on {case.name}"
    try:
        with case.open("rb") as recording:
            done = subprocess.run(
                command,
                stdin=recording,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
                cwd=HERE.parent,
            )
        if done.returncode:
            raise SystemExit(f"{where} ended with {done.returncode}: {done.stderr[-500:]}")
        actions = actions_of(done.stdout.splitlines())
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise SystemExit(f"{where}: {error}") from error
    truth = json.loads(case.with_suffix("").with_suffix(".truth.json").read_text())
    return score(actions, truth)


def table(totals: Mapping[str, Score]) -> list[tuple[str, ...]]:
    rows = []
    for name, total in totals.items():
        delay = "–" if total.delay_s is None else f"{total.delay_s:.0f}"
        rows.append(
            (
                name, f"{total.recall:.2f}", f"{total.wrong_per_1000_node_days:.1f}", delay,
                f"{total.rooted}/{total.with_roots}", f"{total.saved}/{total.to_save}", str(total.lost),
            )
        )  # fmt: skip
    return rows


def plot(totals: Mapping[str, Score]) -> str:
    """Recall upwards, wrong drains to the right: the best corner is the upper left one."""
    width, height, left, top = 640, 400, 70, 30
    most = max((total.wrong_per_1000_node_days for total in totals.values()), default=0) * 1.15 or 1
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 120} {height + 60}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width + 120}" height="{height + 60}" fill="#fff"/>',
        f'<path d="M{left} {top}V{height}H{width}" fill="none" stroke="#57636a"/>',
        f'<text x="{left}" y="{height + 40}">wrong drains per 1,000 node-days</text>',
        f'<text x="8" y="{top - 10}">recall of hard faults</text>',
    ]
    for share in (0, 0.5, 1):
        y = height - (height - top) * share
        parts.append(f'<text x="{left - 34}" y="{y + 4:.0f}">{share:.1f}</text>')
        x = left + (width - left) * share
        parts.append(f'<text x="{x:.0f}" y="{height + 20}" text-anchor="middle">{most * share:.0f}</text>')
    for name, total in totals.items():
        x = left + (width - left) * total.wrong_per_1000_node_days / most
        y = height - (height - top) * total.recall
        delay = "" if total.delay_s is None else f", {total.delay_s:.0f} s"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="#0072b2"/>')
        parts.append(f'<text x="{x + 10:.1f}" y="{y - 8:.1f}">{escape(name)}{delay}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--entrant", action="append", default=[], help="NAME=COMMAND")
    parser.add_argument("--case", default="*")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    entrants = {
        name: shlex.split(command) for name, _, command in (each.partition("=") for each in given.entrant)
    }
    if bare := [name for name, command in entrants.items() if not name or not command]:
        parser.error(f"argument --entrant: {bare[0]!r} has to be NAME=COMMAND")
    chosen = [case for case in sorted(CASES.glob("*.jsonl")) if fnmatchcase(case.stem, given.case)]
    if not chosen:
        parser.error(f"argument --case: no case is named {given.case!r}")
    totals: dict[str, Score] = {}
    for name, command in (entrants or SHIPPED).items():
        totals[name] = Score()
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            results = threads.map(run, [command] * len(chosen), chosen)
            for case, found in zip(chosen, results, strict=True):
                totals[name].add(found)
                if given.json:
                    print(json.dumps({"entrant": name, "case": case.stem, **vars(found)}))
    if not given.json:
        rows = [HEADS, *table(totals)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        print(f"{len(chosen)} cases")
    if given.plot is not None:
        given.plot.parent.mkdir(parents=True, exist_ok=True)
        given.plot.write_text(plot(totals))


if __name__ == "__main__":
    main()
