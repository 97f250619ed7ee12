"""`healer send` of samples against a real API: documents and lines, batches, patience, what was rejected."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
import zstandard
from typer.testing import CliRunner, Result

from healer.commands import Failed
from healer.commands import send as module
from healer.commands.cli import build
from healer.commands.remote import Client, ClientError
from tests.support.api import XID_79, Api, serving

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


@pytest.mark.parametrize("packing", ["gzip", "bzip2", "xz", "zstd"])
@pytest.mark.parametrize("by", ["file", "standard input"])
def test_kernel_lines_are_read_as_an_import_reads_them(
    send: Send, tmp_path: Path, packing: str, by: str
) -> None:
    """Packed, and with the byte-order mark of a program of Windows, whatever the name says."""
    pack = {
        "gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zstd": zstandard.compress,
    }[packing]  # fmt: skip
    text = f"{XID_79}\nusb 1-1: new device\n"
    for place, encoding in enumerate(("utf-8", "utf-8-sig", "utf-16")):
        file = tmp_path / encoding
        file.write_bytes(pack(text.encode(encoding)))
        node = f"gpu000{place + 1}"
        given = file.read_bytes() if by == "standard input" else None
        done = send("kernel-log", "--node", node, "-" if given else str(file), given=given)
        assert (done.exit_code, done.stdout) == (
            0, "1 accepted, 0 duplicates, 1 unrecognised, 0 rejected\n",
        ), encoding  # fmt: skip


@pytest.mark.parametrize("mark", ["", "\x1e"])
def test_records_of_the_journal_are_sent_as_such(send: Send, mark: str) -> None:
    """What journalctl prints with `-o json`, whose lines the route of plain lines does not know."""
    records = [
        {"_TRANSPORT": "kernel", "MESSAGE": XID_79, "_HOSTNAME": "gpu0001.pod1.example", "_BOOT_ID": "b1"},
        {"_TRANSPORT": "syslog", "MESSAGE": XID_79, "_HOSTNAME": "gpu0001"},
        {"_TRANSPORT": "kernel", "MESSAGE": "usb 1-1: new device", "_HOSTNAME": "gpu0001"},
        {"_TRANSPORT": "kernel", "MESSAGE": XID_79, "_HOSTNAME": "nosuch"},
    ]
    text = "".join(f"{mark}{json.dumps(one)}\n" for one in records)
    done = send("kernel-log", "--node", "gpu0001", given=text)
    assert (done.exit_code, done.stdout) == (1, "1 accepted, 0 duplicates, 2 unrecognised, 1 rejected\n")
    assert done.stderr.startswith("line 4: ")
    alone = send(
        "kernel-log", "--node", "gpu0002", given='{"_TRANSPORT":"kernel","MESSAGE":"' + XID_79 + '"}\n'
    )
    assert (alone.exit_code, alone.stdout[:10]) == (0, "1 accepted")


def test_a_broken_archive_ends_with_a_word(send: Send, tmp_path: Path) -> None:
    for name, packed in (("a.gz", gzip.compress), ("a.xz", lzma.compress), ("a.zst", zstandard.compress)):
        file = tmp_path / name
        file.write_bytes(packed(f"{XID_79}\n".encode() * 3000)[:-9])
        done = send("kernel-log", "--node", "gpu0001", str(file))
        assert isinstance(done.exception, Failed), name
        assert str(file) in str(done.exception)
    piped = send("kernel-log", "--node", "gpu0001", given=file.read_bytes())
    assert isinstance(piped.exception, Failed)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_documents_and_text_with_a_byte_order_mark(send: Send, tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "sent"
    file.write_bytes(json.dumps(temperatures(61)).encode(encoding))
    assert send("metrics", "--node", "gpu0001", str(file)).stdout.startswith("1 accepted")
    file.write_bytes(b'DCGM_FI_DEV_GPU_TEMP{gpu="1"} 61\n'.decode().encode(encoding))
    assert send("openmetrics", "--node", "gpu0001", str(file)).stdout.startswith("1 accepted")
