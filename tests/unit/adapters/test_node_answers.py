"""What DCGM's and nvidia-smi's words mean: a failed test, an answer that is none, a fabric that is up."""

import ast
import base64
import gzip
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from healer import hooks
from healer.adapters.nodes import verbs
from healer.ports.node_exec import NodeError
from healer.text import in_language
from tests.support import sayings

ZERO = "00000000-0000-0000-0000-000000000000"
CLUSTER = "5f3c1a52-9b2e-4c57-8a51-0a6b1c2d3e4f"


def result(status: str, gpu: int | None = 0, *words: str) -> dict[str, Any]:
    entity = {} if gpu is None else {"entity_group": "GPU", "entity_id": gpu}
    return {**entity, "status": status, "warnings": [{"warning": one} for one in words]}


def diagnostic(
    exit_: int = 0, *, head: str = "DCGM Diagnostic", **tests: list[dict[str, Any]]
) -> dict[str, Any]:
    listed = [{"name": name, "results": results} for name, results in tests.items()]
    return finished({head: {"test_categories": [{"category": "Hardware", "tests": listed}]}}, exit_)


def finished(output: object, exit_: int) -> dict[str, Any]:
    return {"state": "finished", "exit": exit_, "output": output}


def test_all_passed() -> None:
    document = diagnostic(memory=[result("Pass"), result("Skip", 1)], pcie=[result("Pass")])
    found = verbs.read_diagnosis("n1", "k", document)
    assert found is not None and (found.passed, found.text) == (True, "all 2 tests passed")


def test_failed_test_is_named_with_its_gpu_and_the_text_of_dcgm() -> None:
    found = verbs.read_diagnosis(
        "n1", "k", diagnostic(226, memory=[result("Pass"), result("Fail", 3, "page is bad")])
    )
    assert found is not None and not found.passed
    assert found.failed == ("memory on GPU 3",)
    assert found.text == "tests failed: memory on GPU 3: page is bad"


def test_the_form_of_dcgm_3() -> None:
    tests = [{"gpu_ids": "2", "status": "Fail", "warnings": "no power"}, {"gpu_ids": "0", "status": "Pass"}]
    found = verbs.read_diagnosis("n1", "k", diagnostic(1, head="DCGM GPU Diagnostic", power=tests))
    assert found is not None and found.failed == ("power on GPU 2",)
    assert "no power" in found.text


def test_warning_is_reported_and_is_no_failure() -> None:
    found = verbs.read_diagnosis(
        "n1", "k", diagnostic(pcie=[result("Pass"), result("Warn", 1, "narrow link")])
    )
    assert found is not None and found.passed and "warnings: pcie on GPU 1: narrow link" in found.text


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (diagnostic(memory=[result("Skip"), result("Not Run", 1)]), "0 tests passed and none failed"),
        (diagnostic(), "0 tests passed"),
        (diagnostic(255, memory=[result("Pass")]), "exited with 255"),
        (finished({"DCGM Diagnostic": {"runtime_error": "no host"}}, 1), "no host"),
        (finished(None, 1) | {"text": "Error: unable"}, "no verdict: Error: unable"),
        ({"state": "failed", "code": "timed-out", "text": "dcgmi did not end"}, "could not run"),
        ({"state": "lost", "text": "it was interrupted: the node has booted since"}, "booted since"),
        ({}, "gave no result"),
    ],
)  # fmt: skip
def test_no_verdict_is_neither_passed_nor_failed(document: dict[str, Any], words: str) -> None:
    with pytest.raises(NodeError, match=words):
        verbs.read_diagnosis("n1", "k", document)


NODE = runpy.run_path(str(Path(hooks.__path__[0]) / "healer-node"), run_name="healer_node")


def test_each_sentence_of_the_node_is_in_the_catalogue_with_its_arguments() -> None:
    kinds = {"s": "", "d": "", "g": ":g"}
    ours = {
        key: re.sub(r"%\((\w+)\)([sdg])", lambda part: f"{{{part[1]}{kinds[part[2]]}}}", text)
        for key, text in NODE["SENTENCES"].items()
    }
    known = sayings.entries("en")
    assert ours == {key: known[f"nodes.node_{key}"].forms[0] for key in ours}
    assert {f"nodes.node_{key}" for key in ours} == {key for key in known if key.startswith("nodes.node_")}


def test_the_node_has_each_sentence_that_it_says() -> None:
    source = Path(hooks.__path__[0], "healer-node").read_text("utf-8")
    called = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    keys = {
        each.value: {keyword.arg for keyword in call.keywords if keyword.arg != "more"}
        for call in called
        if isinstance(call.func, ast.Name) and call.func.id in ("Fault", "said")
        for each in ast.walk(ast.Tuple(call.args, ast.Load()))
        if isinstance(each, ast.Constant) and each.value in NODE["SENTENCES"]
    }
    unused = NODE["SENTENCES"].keys() - keys.keys()
    assert unused == {"request_late", "request_early", "no_python3"}  # by a variable, and by sh
    for key, names in keys.items():
        needed = set(re.findall(r"%\((\w+)\)", NODE["SENTENCES"][key]))
        assert names == needed or None in names, key


def test_a_nodes_sentence_is_in_the_readers_language() -> None:
    fault = NODE["Fault"]("held", "in_use", processes="train (4711)")
    sentence = verbs.said_by_node(fault.answer())
    assert sentence == fault.text == "the GPU is in use by train (4711): nothing was reset"
    assert in_language(sentence, "zh") == "GPU 正被 train (4711) 使用：未执行复位"


@pytest.mark.parametrize(
    "said",
    [
        None, "in_use", {"key": "in_use"}, {"key": "in_use", "args": {}}, {"key": "of_later", "args": {}},
        {"key": "not_ended", "args": {"name": "dcgmi", "limit": "soon"}},
        {"key": "../words.and", "args": {}}, {"key": "in_use", "args": {"processes": ["train"]}},
    ],
)  # fmt: skip
def test_a_sentence_that_this_version_lacks_is_the_nodes_own_text(said: object) -> None:
    assert verbs.said_by_node({"text": "as it said", "said": said}) == "as it said"


def test_tests_that_run_have_no_result_yet() -> None:
    assert verbs.read_diagnosis("n1", "k", {"state": "running"}) is None


def gpu(state: str = "Completed", status: str = "Success", **more: str) -> dict[str, Any]:
    plain = {"pci": "00000000:18:00.0", "product": "NVIDIA H100", "clique": "0", "cluster": ZERO}
    return {**plain, "state": state, "status": status, **more}


def test_a_fabric_is_up_when_it_is_on_every_gpu() -> None:
    found = verbs.read_fabric("n1", {"gpus": [gpu(), gpu()]})
    assert (found.healthy, found.text) == (True, "fabric Completed: Success on 2 GPUs")
    found = verbs.read_fabric("n1", {"gpus": [gpu(), gpu("In Progress", "N/A", pci="x:19")]})
    assert (found.healthy, found.state) == (False, "In Progress") and "GPU x:19" in found.text
    assert not verbs.read_fabric("n1", {"gpus": [gpu(status="Insufficient Resources")]}).healthy
    assert not verbs.read_fabric("n1", {"gpus": [gpu(), gpu("N/A", "N/A")]}).healthy


def test_rack_wide_nvlink_needs_a_clique_and_a_cluster() -> None:
    good = gpu(product="NVIDIA GB200", clique="3", cluster=CLUSTER)
    assert verbs.read_fabric("n1", {"gpus": [good]}).healthy
    assert "no cluster" in verbs.read_fabric("n1", {"gpus": [good | {"cluster": ZERO}]}).text
    assert "no clique" in verbs.read_fabric("n1", {"gpus": [good | {"clique": "0"}]}).text


def test_cards_without_a_fabric_have_none_to_be_broken() -> None:
    found = verbs.read_fabric("n1", {"gpus": [gpu("N/A", "N/A"), gpu("Not Supported", "N/A")]})
    assert found.healthy and "nothing to check" in found.text


def test_no_gpu_at_all_is_no_answer() -> None:
    with pytest.raises(NodeError, match="shows no GPU"):
        verbs.read_fabric("n1", {"gpus": []})


# --- a job that hangs


def on_node(**changes: Any) -> dict[str, Any]:
    dump = {"rank": 3, "at": 1000.5, "bytes": 4, "data": base64.b64encode(gzip.compress(b"dump")).decode()}
    gpu = {"pci": "0", "util": "100 %", "power": "182.41 W", "limit": "700.00 W"}
    return {"processes": 8, "gpus": [gpu], "dumps": [dump], "text": ""} | changes


def test_node_reports_on_a_job() -> None:
    found = verbs.read_job_on_node("n1", on_node())
    assert (found.dumps[0].rank, found.dumps[0].data, found.dumps[0].at.timestamp()) == (3, b"dump", 1000.5)
    assert (found.gpus[0].util_percent, found.gpus[0].power_w, found.gpus[0].power_limit_w) == (
        100,
        182.41,
        700,
    )


def test_only_a_node_that_says_so_has_counted_the_processes() -> None:
    """A healer-node of before says nothing: what it lists may not be all."""
    assert not verbs.read_job_on_node("n1", on_node()).counted
    assert verbs.read_job_on_node("n1", on_node(counted=True)).counted
    assert not verbs.read_job_on_node("n1", on_node(counted="yes")).counted


def test_words_that_are_no_figures_are_unknown_and_a_large_file_is_named_alone() -> None:
    gpu = {"pci": "0", "util": "N/A", "power": "[N/A]", "limit": ""}
    found = verbs.read_job_on_node("n1", on_node(gpus=[gpu], dumps=[{"rank": 3, "at": 1, "bytes": 9}]))
    assert (found.gpus[0].util_percent, found.gpus[0].power_w) == (None, None)
    assert found.dumps[0].data is None


def test_a_packed_file_is_unpacked_to_a_bound() -> None:
    bomb = base64.b64encode(gzip.compress(bytes(50_000_000))).decode()
    found = verbs.read_job_on_node("n1", on_node(dumps=[{"rank": 3, "at": 1, "bytes": 9, "data": bomb}]))
    assert len(found.dumps[0].data or b"") == 2 * 1024 * 1024


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": None}, {"processes": "x"}, {"dumps": [{"rank": 3}]}, {"dumps": [{"rank": 3, "at": 1e300}]},
        {"dumps": [{"rank": 3, "at": 1, "data": "AAAA"}]}, {"gpus": [3]},
    ],
)  # fmt: skip
def test_malformed_job_answer_of_a_node_raises_an_error(changes: dict[str, Any]) -> None:
    with pytest.raises(NodeError, match="does not read"):
        verbs.read_job_on_node("n1", on_node(**changes))
    with pytest.raises(NodeError, match="does not read"):
        verbs.read_job_stacks("n1", changes)


# --- memory


def gpu_memory(**fields: str) -> dict[str, Any]:
    return {"pci": "00000000:9B:00.0", "pending": "No", "failed": "No", "recovery": "None", **fields}


def test_healthy_gpu_memory_has_no_faults() -> None:
    found = verbs.read_memory("n1", {"gpus": [gpu_memory(), gpu_memory(channel="N/A", tpc="No", sram="No")]})
    assert (found.gpus, found.faults) == (2, ())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pending": "Yes"}, "a row remap is pending"),
        ({"failed": "Yes"}, "a row remap failed"),
        ({"pending": "N/A", "failed": "N/A", "retirement": "Yes"}, "a page retirement is pending"),
        ({"channel": "Yes"}, "a channel repair is pending"),
        ({"sram": "Yes"}, "too many errors in on-chip memory"),
        ({"unrepairable": "Yes"}, "the memory can no longer be repaired"),
        ({"recovery": "Reset"}, "the driver asks for 'Reset'"),
    ],
)
def test_memory_that_is_not_well_is_named_with_its_gpu(fields: dict[str, str], words: str) -> None:
    found = verbs.read_memory("n1", {"gpus": [gpu_memory(), gpu_memory(**fields)]})
    assert found.faults == (f"GPU 00000000:9B:00.0: {words}",)


@pytest.mark.parametrize(
    "fields", [{"pending": "Unknown Error"}, {"pending": "N/A", "failed": "N/A"}, {"failed": "?"}]
)
def test_unclear_memory_state_of_a_gpu_raises_an_error(fields: dict[str, str]) -> None:
    with pytest.raises(NodeError, match="00000000:9B"):
        verbs.read_memory("n1", {"gpus": [gpu_memory(**fields)]})
