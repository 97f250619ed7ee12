"""make golden: what healer prints and shows today, byte for byte as it is kept in tests/golden.tar.xz.

A change of the code's structure leaves all of it equal. A change of behaviour does not: read the difference,
then keep it with `make golden KEEP=1` and name the reason in the commit.

Compared are replays of the recordings of the tests; 20 short simulations, and replays of what healer saw in
them; the cases of the rules; the REST interface; and each page of the sample site, in each language.
"""

import argparse
import difflib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests/golden.tar.xz"
RECORDINGS = ROOT / "tests/recordings"
#: Scenarios, and how many days of each are simulated.
SCENARIOS = {
    "bad-rule": 1.0,
    "controller-outage": 0.25,
    "driver-rollout": 0.25,
    "leaf-switch": 0.25,
    "llama3-54d": 1.0,
    "rack-power": 0.25,
    "slow-node-10pct": 0.1,
    "storage-brownout": 0.25,
    "telemetry-loss": 0.25,
    "xid45-storm": 0.25,
}
SEEDS = (1, 2)
#: Lines of a difference that are printed for each result, and characters of a line.
LINES, CHARACTERS = 12, 400

#: What was made, by its name: a path like `pages/en/rules.html`.
Results = Mapping[str, bytes]
#: Makes all results whose names begin with its own name.
Source = Callable[[], Results]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make golden", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sources = all_sources()
    parser.add_argument("only", nargs="*", help=f"of these sources: {', '.join(sources)}")
    parser.add_argument("--keep", action="store_true", help="keep what is made today")
    parser.add_argument("--full", action="store_true", help="print the whole difference")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    options = parser.parse_args(arguments)
    only = tuple(options.only) or ("",)
    chosen = {name: make for name, make in sources.items() if name.startswith(only)}
    if not chosen:
        parser.error(f"no source begins with {' or '.join(only)}")
    kept = read_kept()
    made = make_all(chosen, options.jobs)
    if options.keep:
        others = {name: text for name, text in kept.items() if not name.startswith(tuple(chosen))}
        write_kept(others | made)
        print(f"golden: {len(made)} results are kept in {KEPT.relative_to(ROOT)}")
        return 0
    return compare(
        {name: text for name, text in kept.items() if name.startswith(tuple(chosen))}, made, options.full
    )


def all_sources() -> dict[str, Source]:
    sources: dict[str, Source] = {
        f"replay/{path.stem}.": partial(replayed, path) for path in sorted(RECORDINGS.glob("*.jsonl"))
    }
    for name, days in SCENARIOS.items():
        for seed in SEEDS:
            sources[f"simulate/{name}-{seed}."] = partial(simulated, name, days, seed)
    return sources | {
        "rules-test.": lambda: {"rules-test.txt": healer("rules", "test")},
        "openapi.": partial(written_by, "openapi"),
        "pages/": partial(written_by, "pages"),
    }


def make_all(sources: Mapping[str, Source], jobs: int) -> dict[str, bytes]:
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(make) for make in sources.values()]
        return {name: text for future in futures for name, text in future.result().items()}


def compare(kept: Results, made: Results, full: bool) -> int:
    """Prints what differs. Returns the exit status."""
    names = sorted({*kept, *made})
    different = [name for name in names if kept.get(name) != made.get(name)]
    for name in different:
        how = "is new" if name not in kept else "is gone" if name not in made else "differs"
        print(f"golden: {name} {how}")
        for line in _difference(kept.get(name, b""), made.get(name, b""), full):
            print(f"  {line}")
    if different:
        print(
            f"golden: {len(different)} of {len(names)} results differ; make golden KEEP=1 keeps what is meant"
        )
        return 1
    print(f"golden: all {len(names)} results are equal")
    return 0


def _difference(kept: bytes, made: bytes, full: bool) -> Iterator[str]:
    lines = difflib.unified_diff(
        kept.decode().splitlines(), made.decode().splitlines(), "kept", "today", "", "", 1, ""
    )
    for number, line in enumerate(lines):
        if number >= LINES and not full:
            yield "… (--full prints it all)"
            return
        yield line if full else line[:CHARACTERS]


def read_kept() -> dict[str, bytes]:
    if not KEPT.exists():
        return {}
    with tarfile.open(KEPT) as archive:
        return {each.name: file.read() for each in archive if (file := archive.extractfile(each)) is not None}


def write_kept(results: Results) -> None:
    """The same results give the same bytes."""
    with tarfile.open(KEPT, "w:xz", preset=6) as archive:
        for name in sorted(results):
            entry = tarfile.TarInfo(name)
            entry.size = len(results[name])
            archive.addfile(entry, io.BytesIO(results[name]))


def healer(*arguments: str | Path) -> bytes:
    """What a command prints, with the settings and rules that ship."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEALER_")}
    command = [ROOT / ".venv/bin/healer", *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, check=False)
    if ended.returncode:
        raise SystemExit(f"golden: healer {' '.join(map(str, arguments))}: {ended.stderr.decode()}")
    return ended.stdout


def replayed(recording: Path) -> Results:
    return {f"replay/{recording.stem}.json": healer("replay", recording, "--json")}


def simulated(scenario: str, days: float, seed: int) -> Results:
    name = f"simulate/{scenario}-{seed}"
    with tempfile.TemporaryDirectory(prefix="healer-golden-") as folder:
        seen = Path(folder) / "seen.jsonl"
        settings = ("--days", str(days), "--seed", str(seed), "--alone", "--json", "--record")
        card = healer("simulate", scenario, *settings, seen)
        return {f"{name}.card.json": card, f"{name}.replay.json": healer("replay", seen, "--json")}


def written_by(what: str) -> Results:
    """What tests.support.golden_pages writes, in a process of its own as the commands are."""
    with tempfile.TemporaryDirectory(prefix="healer-golden-") as folder:
        command = [sys.executable, "-W", "ignore", "-m", "tests.support.golden_pages", what, folder]
        subprocess.run(command, cwd=ROOT, check=True)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


if __name__ == "__main__":
    sys.exit(main())
