"""Every decoder of bytes from outside: only its own refusals come out, and work grows as the input does.

The list is `tests/long/fuzz/decoders.py`; `benchmarks/fuzz.py` is the same for an hour.
"""

import importlib
import inspect
import pkgutil
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import healer
from healer import signals
from healer.rulebook.signal_rules import TARGETS_MAX, read_scrape
from healer.rulebook.source import Problem, Source
from healer.signals import logs, otlp_logs
from healer.signals.nvidia_smi import _PATHS_MAX, _TAG_MAX
from healer.signals.otlp_metrics import ATTRIBUTES_MAX, RESOURCE_BYTES_MAX
from healer.signals.otlp_values import VALUES_MAX
from healer.signals.rejects import BadBody
from tests.long.fuzz import seeds
from tests.long.fuzz.decoders import BY_NAME, DECODERS, Decoder, check, problem_with
from tests.long.fuzz.growing import HARD, HEADS, SHAPES, TAILS
from tests.long.fuzz.mutation import SIZE_MAX, mutated
from tests.support import collected, pushing
from tests.support import shipped as shipped_records
from tests.support.measuring import NOW, Bench, known, shipped

pytestmark = pytest.mark.heavy

HOME = str(Path(healer.__file__).parent)
#: Names of arguments that hold received data.
_SENT = {"raw", "body", "text", "line", "lines", "data", "blob", "content"}
EVERY = pytest.mark.parametrize("decoder", DECODERS, ids=[one.name for one in DECODERS])


# --- the list ---


def readers() -> Iterator[tuple[str, CodeType]]:
    """The public decoders of `healer.signals`: functions, and methods of classes."""
    for found in pkgutil.iter_modules(signals.__path__):
        module = importlib.import_module(f"healer.signals.{found.name}")
        owners = [module] + [one for _, one in inspect.getmembers(module, inspect.isclass)]
        for owner in owners:
            for name, one in inspect.getmembers(owner, inspect.isfunction):
                takes = inspect.signature(one).parameters
                if one.__module__ == module.__name__ and not name.startswith("_") and _SENT & takes.keys():
                    yield f"{found.name}.{one.__qualname__}", one.__code__


def test_no_decoder_is_missing() -> None:
    """Each reader of `healer.signals` is reached by what is in the list."""
    reached: set[CodeType] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        reached.add(frame.f_code)

    for decoder in DECODERS:
        take = decoder.make()
        for raw in decoder.seeds * 2:  # the second time a body is known
            sys.setprofile(note)
            try:
                problem_with(decoder, take, raw)
            finally:
                sys.setprofile(None)
    found = dict(readers())
    assert len(found) > 30
    assert {name for name, code in found.items() if code not in reached} == set()


@EVERY
def test_takes_what_is_right(decoder: Decoder) -> None:
    """Else its mutations would all be refused at the door."""
    take = decoder.make()
    seed = decoder.seeds[0]
    check(take(seed))
    check(take(seed))


# --- nothing escapes ---


@EVERY
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large),
)
@given(st.integers(min_value=0, max_value=2**32), st.binary(max_size=200))
def test_only_refusals_come_out(decoder: Decoder, seed: int, noise: bytes) -> None:
    chance = random.Random(seed)
    take = decoder.make()
    raw = chance.choice(decoder.seeds)
    for one in (noise, mutated(raw, decoder.seeds, chance), raw, raw + noise, noise + raw):
        wrong = problem_with(decoder, take, one)
        if wrong is not None:
            raise wrong


def test_mutations_are_bounded_and_the_same_for_a_seed() -> None:
    made = [mutated(seeds.XML, seeds.NVIDIA_SMI, random.Random(5)) for _ in range(2)]
    assert made[0] == made[1] != seeds.XML
    chance = random.Random(1)
    assert all(len(mutated(seeds.XML * 200, seeds.LLDP, chance)) <= SIZE_MAX for _ in range(200))


#: What the fuzz found: (decoder, input).
_FOUND = (
    ("promql_names", b'{"x":' + b"[" * 5000),
    ("promql", b'{"status":"success","x":' + b"[" * 5000),
    ("scrape_yaml", b"? [a]\n: 1\n? {b: c}\n: 2\n? [a]\n: 3\n"),
    (
        "logs_json",
        seeds.js(shipped_records.fluent_bit() | {"date": 10**400, "_SOURCE_REALTIME_TIMESTAMP": ""}),
    ),
    ("munge", seeds.MUNGE[0].replace(b"1795143600", b"9" * 15)),
    ("munge", seeds.MUNGE[0].replace(b"1795143601", b"9" * 30)),
    ("munge", seeds.MUNGE[0].partition(b"{")[0] + b"[" * 5000),
    ("munge", seeds.MUNGE[0].partition(b"{")[0] + b'{"a":' * 5000),
    ("packed_steps", b"\x01" + (8).to_bytes(4, "little") + b"\x93\x01\x91\xa3a\xffb\x01"),
)


@pytest.mark.parametrize(
    "name, raw", _FOUND, ids=[f"{number}-{name}" for number, (name, _) in enumerate(_FOUND)]
)
def test_decoders_survive_every_body_that_fuzzing_found(name: str, raw: bytes) -> None:
    wrong = problem_with(BY_NAME[name], BY_NAME[name].make(), raw)
    assert wrong is None, repr(wrong)


# --- the work grows with the input, and no faster ---


def steps(work: Callable[[], Any]) -> int:
    """Lines of healer that are run, and calls of C from them: the same number each time."""
    count = 0

    def line(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += 1
        return line

    def call(frame: FrameType, event: str, arg: object) -> Any:
        return line if frame.f_code.co_filename.startswith(HOME) else None

    def calls(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "c_call"

    sys.settrace(call)
    sys.setprofile(calls)
    try:
        work()
    finally:
        sys.setprofile(None)
        sys.settrace(None)
    return count


def test_step_decoders_report_quadratic_work() -> None:
    def linear(n: int) -> int:
        return steps(lambda: [logs.relevant_fields({"host": "a"}) for _ in range(n)])

    def quadratic(n: int) -> int:
        return steps(lambda: [logs.relevant_fields(dict.fromkeys(map(str, range(n)))) for _ in range(n)])

    assert linear(100) == linear(100) < linear(400) <= 5 * linear(100)
    assert quadratic(200) > 10 * quadratic(50)


@pytest.mark.parametrize("name, what", SHAPES, ids=["-".join(one) for one in SHAPES])
def test_four_times_the_input_is_four_times_the_work(name: str, what: str) -> None:
    decoder, make = BY_NAME[name], SHAPES[name, what]
    problem_with(decoder, decoder.make(), make(1))  # what is done once
    counts = []
    for n in (60, 240):
        take, raw = decoder.make(), make(n)
        counts.append(steps(lambda take=take, raw=raw: problem_with(decoder, take, raw)))
    assert counts[1] <= 5.5 * counts[0] + 500


@pytest.mark.parametrize("name", ["kernel_text", "exposition", "step_logs", "ibnetdiscover"])
def test_no_pattern_goes_back_and_forth(name: str) -> None:
    """Lines at which a careless pattern would never end: a test that hangs is one that fails."""
    decoder = BY_NAME[name]
    take = decoder.make()
    for head in HEADS:
        for part in HARD:
            for tail in TAILS:
                raw = (head + part * (2000 // len(part)) + tail).encode()
                assert problem_with(decoder, take, raw) is None


# --- bounds that the growing inputs asked for ---


def smi(inner: str) -> bytes:
    return f'<nvidia_smi_log><gpu id="0">{inner}</gpu></nvidia_smi_log>'.encode()


def test_names_of_xml_elements_are_bounded() -> None:
    """The path of each element is joined each time: one long name around many short ones was quadratic."""
    take = BY_NAME["nvidia_smi"].make()
    name = "a" * _TAG_MAX
    take(smi(f"<{name}>1</{name}>"))
    with pytest.raises(BadBody, match=f"more than {_TAG_MAX} characters"):
        take(smi(f"<{name}a>1</{name}a>"))


def test_different_elements_of_a_gpu_are_bounded() -> None:
    take = BY_NAME["nvidia_smi"].make()
    elements = [f"<a{number}>1</a{number}>" for number in range(_PATHS_MAX + 1)]
    take(smi("".join(elements[:-1]) + "<a1>2</a1>" * 50))
    with pytest.raises(BadBody, match=f"more than {_PATHS_MAX} different elements"):
        take(smi("".join(elements)))


@pytest.mark.parametrize("json", [False, True], ids=["protobuf", "json"])
def test_attributes_of_a_resource_are_bounded(json: bool) -> None:
    """Each of its series and records has all of them."""

    def take(resource: dict[str, Any]) -> int:
        one = collected.metrics(
            resource, collected.gauge("node_load1", collected.point(1, at_ns=seeds.AT_NS))
        )
        raw = collected.as_json(one) if json else one.SerializeToString()
        return Bench().translator.otlp(raw, known, NOW, json=json).samples

    node = {"host.name": seeds.NODE}
    assert take(node | {f"a{number}": "x" for number in range(40)}) == 1
    with pytest.raises(BadBody, match=f"at most {ATTRIBUTES_MAX}"):
        take(node | {f"a{number}": "x" for number in range(ATTRIBUTES_MAX)})
    with pytest.raises(BadBody, match=f"at most {RESOURCE_BYTES_MAX}"):
        take(node | {"a": "x" * RESOURCE_BYTES_MAX})


@pytest.mark.parametrize("json", [False, True], ids=["protobuf", "json"])
def test_of_a_resource_of_logs_only_what_says_something_is_kept(json: bool) -> None:
    marked = {"_TRANSPORT": "kernel"}
    around = {"host.name": seeds.NODE} | {f"a{number}": "x" for number in range(500)}
    one = collected.logs(around, [collected.record(seeds.XID, marked)])
    raw = collected.as_json(one) if json else one.SerializeToString()
    read = otlp_logs.json_records if json else otlp_logs.records
    (record,) = read(raw)
    assert record.places[0] == {"host.name": seeds.NODE}
    assert len(logs.kernel_records([record], known, NOW, cluster="pod1").accepted.observations) == 1
    # One name in many spellings.
    spellings = [
        "".join(c.upper() if number >> bit & 1 else c for bit, c in enumerate("hostname"))
        for number in range(33)
    ]
    one = collected.logs(dict.fromkeys(spellings, seeds.NODE), [])
    with pytest.raises(BadBody, match="more than 32 attributes"):
        list(read(collected.as_json(one) if json else one.SerializeToString()))


def test_attributes_without_values_count_as_values() -> None:
    pairs = b"".join(
        pushing.field(1, pushing.field(1, f"k{number}".encode())) for number in range(VALUES_MAX + 1)
    )
    with pytest.raises(BadBody, match=f"{VALUES_MAX} parts"):
        list(otlp_logs.records(pushing.field(1, pushing.field(1, pairs))))


def test_aliases_of_aliases_are_looked_at_once(tmp_path: Path) -> None:
    """Nine levels of nine: 387 million places of one node, which a walk of each would never end."""
    levels = ["a0: &a0 {x: 1}"]
    levels += [f"a{n}: &a{n} {{{', '.join(f'k{k}: *a{n - 1}' for k in range(9))}}}" for n in range(1, 10)]
    path = tmp_path / "aliases.yaml"
    path.write_text("\n".join(levels) + "\n")
    problems: list[Problem] = []
    Source(path, path.name, problems)
    assert problems == []
    path.write_text("a: &a {x: 1, x: 2}\nb: *a\nc: *a\n")
    Source(path, path.name, problems)
    assert [one.text for one in problems] == ["the key x appears twice"]


def test_targets_that_expand_to_millions_are_bounded(tmp_path: Path) -> None:
    names = ", ".join(f'"a{n}-[0-49999]:1"' for n in range(50))
    path = tmp_path / "scrape.yaml"
    path.write_text(f"jobs:\n- name: a\n  groups:\n  - targets: [{names}]\n  - targets: [{names}]\n")
    problems: list[Problem] = []
    (job,) = read_scrape(Source(path, path.name, problems), shipped(), tmp_path).jobs
    assert sum(len(one.targets) for one in job.groups) <= 2 * TARGETS_MAX
    assert [f"at most {TARGETS_MAX}" in one.text for one in problems] == [True]


def test_rule_targets_that_expand_to_millions_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "scrape.yaml"
    path.write_text("jobs:\n- name: a\n  targets:\n" + "".join(f"  - a{n}-[0-49999]:1\n" for n in range(50)))
    problems: list[Problem] = []
    rules = read_scrape(Source(path, path.name, problems), shipped(), tmp_path)
    assert [one.text for one in problems] == [
        f"jobs: 100000 targets are listed, at most {TARGETS_MAX} are allowed"
    ]
    assert len(rules.jobs[0].targets) == 100_000
