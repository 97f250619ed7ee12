"""`healer send` of samples against a real API: documents and lines, batches, patience, what was rejected."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner, Result

from healer.commands import Failed
from healer.commands import send as module
from healer.commands.cli import build
from healer.commands.remote import Client, ClientError
from tests.support.api import Api, serving

Send = Callable[..., Result]


@pytest.fixture
def served(fresh_database: sa.Engine) -> Iterator[tuple[Api, httpx.Client]]:
    with serving(fresh_database) as both:
        yield both


@pytest.fixture
def send(served: tuple[Api, httpx.Client]) -> Send:
    api, client = served

    def run(*arguments: str, given: str | bytes | None = None) -> Result:
        env = {
            "HEALER_URL": str(client.base_url),
            "HEALER_TOKEN": api.token("signals"),
            "HEALER_TOKEN_FILE": None,
            "HEALER_CONFIG": None,
        }
        return CliRunner().invoke(build(), ["send", *arguments], input=given, env=env)

    return run


def reports(served: tuple[Api, httpx.Client]) -> list[tuple[str, list[float]]]:
    return [(one.node, one.values.tolist()) for one in served[0].samples.new()[0]]


def temperatures(*values: float, **more: Any) -> dict[str, Any]:
    return {"gpu": {"DCGM_FI_DEV_GPU_TEMP": list(values)}, **more}


def test_metrics_as_a_document_a_list_and_lines(
    send: Send, served: tuple[Api, httpx.Client], tmp_path: Path
) -> None:
    document, many, lines = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.jsonl"
    document.write_text(json.dumps(temperatures(61), indent=2))
    many.write_text("\n" + json.dumps([temperatures(62), temperatures(63, node="gpu0002")]))
    lines.write_text(json.dumps(temperatures(64)) + "\n\n" + json.dumps(temperatures(65)) + "\n")
    done = send("metrics", "--node", "gpu0001", *map(str, (document, many, lines)))
    assert (done.exit_code, done.stdout) == (0, "5 accepted, 0 duplicates, 0 unrecognised, 0 rejected\n")
    assert reports(served) == [
        ("gpu0001", [61]), ("gpu0001", [62]), ("gpu0002", [63]), ("gpu0001", [64]), ("gpu0001", [65]),
    ]  # fmt: skip
    stdin = send("metrics", "--json", given=json.dumps(temperatures(1, node="gpu0003")))
    assert json.loads(stdin.stdout) == {"accepted": 1, "duplicates": 0, "unrecognised": 0, "rejected": []}


def test_indexes_count_through_all_requests(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 2)
    bodies = [temperatures(1, node=node) for node in ("gpu0001", "gpu0002", "gpu0003", "nosuch", "gpu0004")]
    done = send("metrics", "--json", given="\n".join(map(json.dumps, bodies)))
    assert done.exit_code == 1
    answer = json.loads(done.stdout)
    assert answer["accepted"] == 4
    assert [one["index"] for one in answer["rejected"]] == [3]
    people = send("metrics", given="\n".join(map(json.dumps, bodies)))
    assert people.stderr.startswith("entry 4: ")


def test_step_times_count_samples(send: Send, served: tuple[Api, httpx.Client]) -> None:
    bodies = [
        {"samples": [{"step": 1, "rank": 0, "step_s": 1.0}, {"step": 1, "rank": 1, "step_s": 1.0}]},
        {"job": "4712", "samples": [{"step": 1, "rank": 0, "step_s": -1.0}]},
    ]
    done = send("step-times", "--job", "4711", "--json", given="\n".join(map(json.dumps, bodies)))
    assert done.exit_code == 1
    answer = json.loads(done.stdout)
    assert (answer["accepted"], [one["index"] for one in answer["rejected"]]) == (2, [2])
    assert [one.job for one in served[0].samples.new()[1]] == ["4711"]


def test_step_times_take_the_node_for_samples_without_one(
    send: Send, served: tuple[Api, httpx.Client], tmp_path: Path
) -> None:
    samples = [
        {"step": 1, "rank": 0, "step_s": 1.0},
        {"step": 1, "rank": 1, "step_s": 1.0, "node": "gpu0002"},
    ]
    done = send("step-times", "--job", "4711", "--node", "gpu0001", given=json.dumps({"samples": samples}))
    assert (done.exit_code, done.stdout[:10]) == (0, "2 accepted")
    log = tmp_path / "train.log"
    log.write_text(" iteration 10/ 100 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.0E+00 |\n")
    done = send("step-times", "--job", "4712", "--node", "gpu0003", "--from-log", str(log))
    assert (done.exit_code, done.stdout[:10]) == (0, "1 accepted")
    stored = {one.job: [one.nodes[place] for place in one.node] for one in served[0].samples.new()[1]}
    assert stored == {"4711": ["gpu0001", "gpu0002"], "4712": ["gpu0003"]}


def test_a_checkpoint_twice_is_a_duplicate(send: Send) -> None:
    body = json.dumps({"restart": 0, "step": 100, "path": "/ckpt/100", "durable": True})
    assert send("checkpoints", "--job", "4711", given=body).stdout.startswith("1 accepted")
    assert "1 duplicates" in send("checkpoints", "--job", "4711", given=body).stdout


def test_text_in_several_requests(
    send: Send, served: tuple[Api, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 60)
    lines = "".join(f'DCGM_FI_DEV_GPU_TEMP{{gpu="{gpu}"}} {60 + gpu}\n' for gpu in range(4))
    done = send("openmetrics", "--node", "gpu0001", given=lines + "# EOF\n")
    assert (done.exit_code, done.stdout[:11]) == (0, "4 accepted,")
    assert sorted(value for _, values in reports(served) for value in values) == [60, 61, 62, 63]


def test_nvidia_smi_and_remote_write(send: Send, tmp_path: Path) -> None:
    smi = tmp_path / "smi.xml"
    smi.write_text(
        '<nvidia_smi_log><attached_gpus>1</attached_gpus><gpu id="00000000:9B:00.0"><minor_number>0'
        "</minor_number><temperature><gpu_temp>61 C</gpu_temp></temperature></gpu></nvidia_smi_log>"
    )
    assert send("nvidia-smi", "--node", "gpu0001", str(smi)).stdout.startswith("1 accepted")
    empty = tmp_path / "body"
    empty.write_bytes(b"\0")
    assert send("remote-write", str(empty)).stdout == "1 sent\n"
    wrong = send("remote-write", given=b"\xff\xff")
    assert isinstance(wrong.exception, Failed)
    assert "(400)" in str(wrong.exception)


def test_invalid_json_is_reported_with_file_and_line(send: Send, tmp_path: Path) -> None:
    lines = tmp_path / "c.jsonl"
    lines.write_text("\n" + json.dumps(temperatures(64)) + "\nnot json\n")
    assert f"{lines}, line 3 is not JSON" in str(send("metrics", "--node", "gpu0001", str(lines)).exception)
    assert "is not JSON" in str(send("metrics", given="{").exception)
    latin = tmp_path / "latin"
    latin.write_bytes('{"Gerät":1}'.encode("latin-1"))
    assert f"{latin} is not JSON" in str(send("metrics", "--node", "gpu0001", str(latin)).exception)
    assert "expected an object" in str(send("metrics", given="[1]").exception)
    missing = send("openmetrics", "--node", "gpu0001", str(tmp_path / "nosuch"))
    assert str(missing.exception).endswith("cannot be read: No such file or directory")


def test_a_busy_server_is_asked_again(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([429, 503, 200])
    real = Client.send

    def busy(self: Client, *arguments: Any, **more: Any) -> Any:
        status = next(answers)
        if status != 200:
            raise ClientError("busy", {"status": status})
        return real(self, *arguments, **more)

    monkeypatch.setattr(Client, "send", busy)
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    assert send("metrics", given=json.dumps(temperatures(1, node="gpu0001"))).stdout.startswith("1 accepted")
