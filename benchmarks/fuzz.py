"""Changed inputs for every decoder that takes bytes from outside, for a while.

    python -m benchmarks.fuzz [--minutes 60] [--seed N] [--keep FOLDER] [--only NAME]

The decoders of `tests/long/fuzz/decoders.py` take turns. Inputs that reach new lines of `healer`
are kept and changed further, so the search is guided by coverage. What a decoder raises that it may
not is counted, and its first inputs are written to FOLDER. "ms/KiB" is the slowest input's CPU, of those of
at least 256 bytes.
"""

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import healer
from tests.long.fuzz.decoders import DECODERS, Decoder, problem_with
from tests.long.fuzz.mutation import mutated

_HOME = str(Path(healer.__file__).parent)
#: One turn of a decoder, in s; inputs of a turn that are watched for new lines, one in so many.
TURN_S, WATCH_EVERY = 2.0, 8
#: Inputs kept for one decoder, and failures of one kind that are written.
CORPUS_MAX, WRITTEN_MAX = 1500, 3
#: A decoder forgets what it remembers after so many inputs.
ANEW = 20_000


class Lines:
    """Which lines of healer were reached."""

    def __init__(self) -> None:
        self._seen: set[tuple[CodeType, int]] = set()
        self._new = False

    def __len__(self) -> int:
        return len(self._seen)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(_HOME) else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        key = (frame.f_code, frame.f_lineno)
        if key not in self._seen:
            self._seen.add(key)
            self._new = True
        return self._line

    def watch(self) -> None:
        self._new = False
        sys.settrace(self._call)

    def end(self) -> bool:
        """Whether a line was reached for the first time."""
        sys.settrace(None)
        return self._new


class Fuzzed:
    """One decoder's turns."""

    def __init__(self, decoder: Decoder, keep: Path | None) -> None:
        self.decoder, self.keep = decoder, keep
        self.take = decoder.make()
        self.corpus = list(decoder.seeds)
        self.lines = Lines()
        self.inputs = self.bytes = self.refused = 0
        self.slowest = 0.0
        self.slow_input = b""
        self.cpu_s = 0.0
        self.failures: Counter[str] = Counter()

    def turn(self, chance: random.Random, others: list[bytes], until: float) -> None:
        while time.monotonic() < until:
            raw = mutated(chance.choice(self.corpus), others, chance)
            watched = self.inputs % WATCH_EVERY == 0
            if watched:
                self.lines.watch()
            began = time.process_time()
            wrong = problem_with(self.decoder, self.take, raw)
            took = time.process_time() - began
            if watched and self.lines.end() and len(self.corpus) < CORPUS_MAX:
                self.corpus.append(raw)
            if not watched:
                self._timed(raw, took)
            self.inputs += 1
            self.bytes += len(raw)
            if wrong is not None:
                self._failed(raw, wrong)
            if self.inputs % ANEW == 0:
                self.take = self.decoder.make()

    def _timed(self, raw: bytes, took_s: float) -> None:
        self.cpu_s += took_s
        if len(raw) >= 256 and (each := took_s * 1000 / (len(raw) / 1024)) > self.slowest:
            self.slowest, self.slow_input = each, raw

    def _failed(self, raw: bytes, wrong: Exception) -> None:
        where = traceback.extract_tb(wrong.__traceback__)[-1]
        kind = f"{type(wrong).__name__} at {Path(where.filename).name}:{where.lineno}"
        self.failures[kind] += 1
        if self.keep is not None and self.failures[kind] <= WRITTEN_MAX:
            name = f"{self.decoder.name}-{list(self.failures).index(kind)}-{self.failures[kind]}"
            (self.keep / name).write_bytes(raw)
        if self.failures[kind] == 1:
            print(f"! {self.decoder.name}: {kind}: {str(wrong)[:100]}", flush=True)

    def row(self) -> str:
        return (
            f"{self.decoder.name:20} {self.inputs:>10} {self.bytes / 2**20:>8.1f} {len(self.corpus):>7} "
            f"{len(self.lines):>6} {self.slowest:>8.2f} {self.failures.total():>10}"
        )


def run(minutes: float, seed: int, keep: Path | None, only: str) -> int:
    chance = random.Random(seed)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    fuzzed = [Fuzzed(one, keep) for one in DECODERS if only in ("", one.name)]
    others = [raw for one in DECODERS for raw in one.seeds]
    end = time.monotonic() + minutes * 60
    print(f"seed {seed}, {len(fuzzed)} decoders, {minutes:g} minutes", flush=True)
    turn_s = min(TURN_S, minutes * 60 / len(fuzzed))
    last_report = time.monotonic()
    while time.monotonic() < end:
        for one in fuzzed:
            one.turn(chance, others, min(end, time.monotonic() + turn_s))
        if time.monotonic() - last_report > 300:
            last_report = time.monotonic()
            _table(fuzzed)
    _table(fuzzed)
    for one in fuzzed:
        for kind, count in one.failures.items():
            print(f"{one.decoder.name}: {count} x {kind}")
        if keep is not None and one.slow_input:
            (keep / f"slowest-{one.decoder.name}").write_bytes(one.slow_input)
    return sum(one.failures.total() for one in fuzzed)


def _table(fuzzed: list[Fuzzed]) -> None:
    print(
        f"{'decoder':20} {'inputs':>10} {'MiB':>8} {'corpus':>7} {'lines':>6} {'ms/KiB':>8} "
        f"{'exceptions':>10}"
    )
    for one in fuzzed:
        print(one.row())
    print(f"in all: {sum(one.inputs for one in fuzzed)} inputs", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    sys.exit(1 if run(options.minutes, options.seed, options.keep, options.only) else 0)


if __name__ == "__main__":
    main()
