"""Answers of a Prometheus-compatible server: the same samples as by other ways in; nothing escapes."""

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healer.model import Part
from healer.signals import promql
from healer.signals.promql import (
    chart_step_s,
    decode_names,
    node_selector,
    selector,
    series_names,
    signals_by_series_name,
)
from healer.signals.rejects import BadBody
from tests.support.measuring import NOW, Bench, gpu, known, shipped

AT = NOW.timestamp()
GPU = {"__name__": "DCGM_FI_DEV_GPU_TEMP", "gpu": "2", "Hostname": "gpu0001"}


def vector(*series: tuple[dict[str, str], float | str], at: float = AT) -> bytes:
    rows = [{"metric": metric, "value": [at, str(value)]} for metric, value in series]
    return answer("vector", rows)


def matrix(*series: tuple[dict[str, str], list[tuple[float, Any]]]) -> bytes:
    series_list = [
        {"metric": metric, "values": [[at, str(one)] for at, one in rows]} for metric, rows in series
    ]
    return answer("matrix", series_list)


def answer(kind: str, result: Any) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()


def test_a_vector_under_the_servers_names() -> None:
    bench = Bench()
    measured = bench.translator.queried(vector((GPU, 61), ({**GPU, "__name__": "strange"}, 1)), known, NOW)
    assert [bench.values(one) for one in measured.reports] == [{("gpu_temp_c", gpu(2)): 61}]
    assert (measured.samples, measured.unrecognised, list(measured.unknown)) == (1, 1, ["strange"])


def test_query_maps_to_its_signal_for_any_series_name() -> None:
    bench = Bench()
    raw = vector(({"instance": "gpu0001:9100"}, 2.5), ({"instance": "other:9100"}, 3))
    measured = bench.translator.queried(raw, known, NOW, signal="load1")
    assert [bench.values(one) for one in measured.reports] == [{("load1", Part()): 2.5}]
    again = bench.translator.queried(raw, known, NOW, signal="load5")
    assert [bench.values(one) for one in again.reports] == [{("load5", Part()): 2.5}]


def test_a_scale_of_the_catalogue_holds() -> None:
    bench = Bench()
    metric = {**GPU, "__name__": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"}
    (report,) = bench.translator.queried(vector((metric, 5000)), known, NOW).reports
    assert bench.values(report) == {("energy_j_total", gpu(2)): 5.0}


def test_a_matrix_keeps_the_times_of_its_samples() -> None:
    bench = Bench()
    rows = [(AT - 30.5, 60), (AT - 15.5, 61), (AT - 0.5, "NaN")]
    measured = bench.translator.queried(matrix((GPU, rows)), known, NOW)
    assert [one.at for one in measured.reports] == [
        NOW - timedelta(seconds=30.5),
        NOW - timedelta(seconds=15.5),
    ]


def test_parts_of_one_moment_make_one_number() -> None:
    bench = Bench()
    name = "node_edac_correctable_errors_total"
    parts = [({"__name__": name, "controller": str(one), "instance": "gpu0001"}, [(AT, 2)]) for one in (0, 1)]
    (report,) = bench.translator.queried(matrix(*parts), known, NOW).reports
    assert list(bench.values(report).values()) == [4.0]


def test_points_of_a_chart_may_be_of_any_age() -> None:
    bench = Bench()
    week = [(AT - 7 * 86_400 + 60 * one, one) for one in range(200)]
    lines = bench.translator.charted(matrix((GPU, week)), known)
    ((key, (times, values)),) = lines.items()
    assert key[0] == ("pod1", "gpu0001")
    assert times.tolist() == [at for at, _ in week]
    assert values.tolist() == [float(one) for _, one in week]


def test_points_of_several_series_are_put_together_by_moment() -> None:
    name = "node_edac_correctable_errors_total"
    parts = [
        ({"__name__": name, "controller": str(one), "instance": "gpu0001"}, [(AT - 60, one), (AT, 10 + one)])
        for one in (0, 1)
    ]
    ((_, (times, values)),) = Bench().translator.charted(matrix(*parts), known).items()
    assert (times.tolist(), values.tolist()) == ([AT - 60, AT], [1.0, 21.0])


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "not from a Prometheus-compatible server"),
        (b"[]", "not from a Prometheus-compatible server"),
        (b'{"status":"error","error":"parse error"}', "the server reports: parse error"),
        (answer("scalar", [AT, "1"]), "the answer is a scalar"),
        (answer("vector", {}), "not from a Prometheus-compatible server"),
        (answer("vector", [{"metric": {}, "value": [AT]}]), "not from a Prometheus-compatible server"),
        (answer("vector", [{"metric": {"a": 1}, "value": [AT, "1"]}]), "the labels of a series"),
        (answer("vector", [{"metric": {}, "value": [AT, "one"]}]), "a value is not a number"),
        (answer("vector", [{"metric": {}, "value": [AT, "1_000"]}]), "a value is not a number"),
        (answer("vector", [{"metric": {}, "value": [1e300, "1"]}]), "a timestamp is not a time"),
        (b'{"status":"success","data":' + b"[" * 5000, "not from a Prometheus-compatible server"),
    ],
)
def test_unreadable_query_result_is_refused_as_a_whole(raw: bytes, why: str) -> None:
    with pytest.raises(BadBody, match=why):
        Bench().translator.queried(raw, known, NOW)


def test_an_answer_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promql, "ANSWER_BYTES_MAX", 100)
    with pytest.raises(BadBody, match="larger than 100 bytes"):
        Bench().translator.queried(vector((GPU, 61)), known, NOW)


LABELS = st.dictionaries(st.sampled_from([*GPU, "instance", "x"]), st.text(max_size=5), max_size=4)
VALUES = st.one_of(st.floats(), st.text(max_size=4), st.sampled_from(["NaN", "+Inf", "-Inf", "1e999"]))


@pytest.mark.heavy
@given(st.lists(st.tuples(LABELS, VALUES, st.floats() | st.integers()), max_size=5))
def test_nothing_escapes_but_bad_body(series: list[tuple[dict[str, str], Any, Any]]) -> None:
    rows = [{"metric": metric, "value": [at, str(value)]} for metric, value, at in series]
    for read in (
        lambda raw: Bench().translator.queried(raw, known, NOW),
        lambda raw: Bench().translator.charted(raw, known),
    ):
        try:
            read(answer("vector", rows))
        except BadBody:
            continue


@given(st.binary(max_size=200))
def test_bytes_never_escape_either(raw: bytes) -> None:
    for read in (promql.result, decode_names):
        try:
            read(raw)
        except BadBody:
            continue


def test_names_backwards() -> None:
    catalogue = shipped()
    assert {"gpu_temp_c", "DCGM_FI_DEV_GPU_TEMP"} <= set(series_names(catalogue.signals["gpu_temp_c"]))
    known_names = signals_by_series_name(catalogue)
    assert "slurm_cpus" not in known_names, "derived: it never arrives"
    assert not [one for one in known_names if "{" in one or one.startswith("nvidia-smi")]
    assert known_names["node_load1"] == ["load1"]


def test_questions() -> None:
    assert selector(["a", "b"]) == '{__name__=~"a|b"}'
    asked = node_selector(["node_load1"], "gpu1.hall")
    assert 'instance=~"gpu1\\\\.hall([.:].*)?"' in asked
    assert asked.count(" or ") == 5
    assert selector(["a"], 'slurm_cluster="pod1"') == '{__name__=~"a",slurm_cluster="pod1"}'
    own = node_selector(["node_load1"], "gpu1", 'slurm_cluster="pod1"').split(" or ")
    assert all(one.endswith(',slurm_cluster="pod1"}') for one in own)
    assert (chart_step_s(3600, 300), chart_step_s(86_400, 300), chart_step_s(10, 300)) == (12, 288, 5)
