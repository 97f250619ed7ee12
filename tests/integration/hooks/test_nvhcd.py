"""healer-nvhcd as a process of its own, asked by a real client of gRPC as NVIDIA's launcher asks it."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.nvhcd import METHOD, PROGRAM, REQUEST, Node, decoded, serving_checks, started

pytestmark = pytest.mark.heavy

LEAVE = {
    "state": "leave",
    "rule": "gpu-lost",
    "incident": "0a1b2c3d",
    "reason": "Xid 79: GPU fell off the bus",
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with serving_checks(Node(tmp_path)) as one:
        yield one


def test_it_is_written_for_python_3_6_and_needs_grpc_alone() -> None:
    tree = ast.parse(PROGRAM.read_text(), feature_version=(3, 6))
    names = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    assert names == {"calendar", "grpc", "json", "os", "signal", "stat", "sys", "time"}
    assert {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)} == {"concurrent"}


def test_a_healthy_node_is_healthy_in_the_words_of_the_protocol(node: Node) -> None:
    node.write(state="healthy")
    node.gpu("0000:9b:00.0", b"\xde\x10\x30\x23")
    answer = node.ask()
    assert (answer.success, answer.exit_code, answer.error) == (True, 0, "")
    # NVIDIA's launcher takes an answer without `fail_count` for a bad node.
    assert (answer.output["fail_count"], answer.output["failed_checks"]) == (0, [])
    assert answer.output["state"] == "healthy" and 0 <= answer.output["age_s"] < 30


def test_node_out_of_service_fails_with_rule_incident_and_reason(node: Node) -> None:
    node.write(**LEAVE)
    answer = node.ask()
    assert (answer.success, answer.exit_code) == (False, 1)
    assert answer.output["fail_count"] == 1
    assert answer.output["failed_checks"] == ["healer:gpu-lost inc:0a1b2c3d"]
    assert answer.error == answer.output["reason"] == LEAVE["reason"]
    node.write(state="healthy")
    assert node.ask().success


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"age_s": 61.0, **LEAVE}, id="old"),
        pytest.param({"age_s": -60.0, **LEAVE}, id="of the future"),
        pytest.param({"mode": 0o666, **LEAVE}, id="others may write it"),
        pytest.param(LEAVE | {"state": "suspect"}, id="a word it does not know"),
        pytest.param(LEAVE | {"heard_at": "yesterday"}, id="no time"),
    ],
)
def test_a_verdict_that_is_not_certain_is_healthy(node: Node, wrong: dict[str, Any]) -> None:
    node.write(**wrong)
    answer = node.ask()
    assert (answer.success, answer.output["fail_count"], answer.output["state"]) == (True, 0, "unknown")


@pytest.mark.parametrize("text", [None, "", "{", "[]", "null", '{"state": "leave"}', "[" * 20000, "\udcff"])
def test_a_file_that_is_missing_or_broken_is_healthy(node: Node, text: str | None) -> None:
    if text is not None:
        node.verdict.write_bytes(text.encode("utf-8", "surrogateescape"))
    answer = node.ask()
    assert (answer.success, answer.output["fail_count"], answer.output["age_s"]) == (True, 0, None)
    assert answer.output["why"]


def test_a_link_in_place_of_the_file_is_not_followed(node: Node) -> None:
    node.write(**LEAVE)
    assert not node.ask().success
    node.verdict.rename(node.folder / "elsewhere")
    node.verdict.symlink_to(node.folder / "elsewhere")
    assert node.ask().success


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_believed(node: Node) -> None:
    node.write(**LEAVE)
    assert not node.ask().success
    os.chown(node.verdict, 65534, 65534)
    assert node.ask().success


@pytest.mark.parametrize("request_bytes", [b"", b"\xff" * 100, b"\n\xff\xff\xff\xff\x0f", b"\0" * 100_000])
def test_no_request_gets_an_error(node: Node, request_bytes: bytes) -> None:
    assert node.ask(request_bytes).success


def test_a_gpu_without_an_answer_on_the_bus_fails(node: Node) -> None:
    node.write(state="healthy")
    node.gpu("0000:0a:00.0", b"\xde\x10\x30\x23")
    node.gpu("0000:9b:00.0", b"\xff" * 4)
    node.gpu("0000:9c:00.0", b"\xff" * 4, vendor="0x15b3")  # no GPU of NVIDIA
    node.gpu("0000:9d:00.0", b"\xff" * 4, kind="0x068000")  # a switch
    node.gpu("0000:9e:00.0", b"")  # nothing is known of it
    answer = node.ask()
    assert (answer.success, answer.output["failed_checks"]) == (False, ["gpu-lost 0000:9b:00.0"])


def test_many_ask_at_once_and_all_are_answered(node: Node) -> None:
    node.write(**LEAVE)
    with grpc.insecure_channel(f"unix://{node.socket}") as channel:
        call = channel.unary_unary(METHOD)
        waiting = [call.future(REQUEST, timeout=20) for _ in range(200)]
        assert not any(decoded(one.result()).success for one in waiting)


def test_a_socket_that_a_killed_one_left_is_replaced_and_any_user_may_connect(tmp_path: Path) -> None:
    first = Node(tmp_path)
    killed = started(first)
    killed.kill()
    killed.wait(10)
    assert first.socket.exists()
    with serving_checks(first) as second:
        second.write(**LEAVE)
        assert not second.ask().success
        assert second.socket.stat().st_mode & 0o777 == 0o666


def test_without_grpc_it_names_the_package(tmp_path: Path) -> None:
    # -S: without the packages of this environment.
    done = subprocess.run(
        [sys.executable, "-I", "-S", PROGRAM, "--socket", tmp_path / "s"],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "python3-grpcio" in done.stderr
