"""The client of step times, against a real HTTP server: what it sends, and that it never blocks training."""

import ast
import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import healer_steps
import pytest
from healer_steps import _checkpoints, _steps
from healer_steps._checkpoints import checksum_of, lies_under
from healer_steps._environ import Settings, gpu_of, ranks_of
from healer_steps._marks import PENDING, CudaMarks, HostMarks
from healer_steps._post import CHECKPOINTS
from healer_steps.megatron import wrap, wrap_finalize

from healer.signals.step_times import step_batches
from healer.signals.wire import checkpoint_observations
from tests.integration.client.conftest import RANK, Receiver
from tests.support.processes import free_port
from tests.support.snippets import snippet
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy

SOURCES = sorted(Path(healer_steps.__file__).parent.glob("*.py"))
READ = ("step", "loss", "grad_norm", "work", "stage", "rank", "node", "gpu")


def send_one(receiver: Receiver, **about: Any) -> None:
    with healer_steps.Steps(every_s=0.05, environ=receiver.environ(), **about) as steps, steps.step(work=8):
        pass


def test_step_is_sent_in_the_format_healer_reads(receiver: Receiver) -> None:
    with healer_steps.Steps(every_s=0.05, environ=receiver.environ(), stage=1, first_step=120) as steps:
        for batch in steps.data(["a", "b"]):
            with steps.step(work=8192) as step:
                assert batch in {"a", "b"}
                step.compute_done()
                step.comm_done()
                step.tell(loss=2.5, grad_norm=0.75)
    assert (steps.sent, steps.dropped) == (2, 0)
    headers, raw = receiver.sink.asked[0]
    assert headers["authorization"] == "Bearer heal_0_secret"
    first = receiver.samples()[0]
    assert {name: first[name] for name in READ} == {
        "step": 120, "loss": 2.5, "grad_norm": 0.75, "work": 8192, "stage": 1, "rank": 9, "node": "gpu0003",
        "gpu": 6,
    }  # fmt: skip
    assert 0 < first["compute_s"] + first["comm_s"] + first["data_s"] <= first["step_s"] + 1e-9
    read = step_batches(raw, lambda _, node: node == "gpu0003", datetime.now(UTC), cluster="pod1")
    assert not read.rejected and read.batches[0].restart == 2 and read.batches[0].job == "4711"


def test_the_loop_of_the_page_numbers_steps_on_from_the_checkpoint(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all that a requeued job had made before would count as lost."""
    for name, value in receiver.environ(SLURM_PROCID="0").items():
        monkeypatch.setenv(name, value)
    loss = SimpleNamespace(backward=lambda: None)
    names = {
        "load_checkpoint": lambda *_: 1000,
        "model": type("Model", (), {"parameters": list, "__call__": lambda *_: SimpleNamespace(loss=loss)})(),
        "optimizer": SimpleNamespace(step=lambda: None),
        "loader": ["a", "b"],
        "tokens": 8192,
    }
    exec(snippet("jobs.md", "The client"), names)
    assert [sample["step"] for sample in receiver.samples()] == [1000, 1001]
    assert receiver.bodies("signals/checkpoints")[0][0]["path"] == "/ckpt/step-1000"


def test_compute_communication_and_data_times_are_separated(receiver: Receiver) -> None:
    """The waits are real; what is asked is only which part each fell into."""
    with healer_steps.Steps(every_s=0.05, environ=receiver.environ()) as steps:

        def slow() -> Any:
            time.sleep(0.03)
            yield 1

        for _ in steps.data(slow()):
            with steps.step() as step:
                time.sleep(0.06)
                step.compute_done()
                time.sleep(0.12)
                step.comm_done()
                time.sleep(0.01)
    (one,) = receiver.samples()
    assert one["data_s"] >= 0.03 and one["compute_s"] >= 0.06 and one["comm_s"] >= 0.12
    assert one["step_s"] >= one["data_s"] + one["compute_s"] + one["comm_s"] + 0.01


def stuck_sample(receiver: Receiver) -> Any:
    """The last location of a stuck rank, as healer reads it."""
    wait_until(
        lambda: any("open_s" in one for one in receiver.samples()), 10, what="a report of where it is stuck"
    )
    read = [
        batch
        for _, raw in receiver.sink.asked
        for batch in step_batches(raw, lambda *_: True, datetime.now(UTC), cluster="pod1").batches
    ]
    assert any(batch.doing is not None for batch in read)
    return [one for one in receiver.samples() if "open_s" in one][-1]


@pytest.mark.parametrize(("done", "doing"), [((), "compute"), (("compute",), "collective")])
def test_rank_stuck_in_a_step_says_where(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, done: tuple[str, ...], doing: str
) -> None:
    monkeypatch.setattr(_steps, "STANDS_S", 0.1)
    with healer_steps.Steps(every_s=0.05, environ=receiver.environ()) as steps:
        with steps.step():
            pass
        with steps.step() as step:
            if done:
                step.compute_done()
            word = stuck_sample(receiver)
    assert word["open_s"] >= 0.1
    assert {name: word[name] for name in ("step", "doing", "rank", "node", "gpu")} == {
        "step": 1, "doing": doing, "rank": 9, "node": "gpu0003", "gpu": 6,
    }  # fmt: skip


def test_a_program_that_rests_says_so_at_once(receiver: Receiver) -> None:
    with healer_steps.Steps(every_s=0.05, environ=receiver.environ()) as steps:
        with steps.step():
            pass
        with steps.rest("evaluation"):
            word = stuck_sample(receiver)
    assert (word["doing"], word["step"]) == ("evaluation", 0)


def test_a_rest_that_healer_does_not_know_is_said_once(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    with healer_steps.Steps(every_s=0.05, environ=receiver.environ()) as steps:
        for _ in range(3):
            with steps.rest("lunch"):
                pass
    assert [record for record in caplog.records if "'lunch' is no rest" in record.getMessage()]
    assert len(caplog.records) == 1


def test_progressing_rank_sends_no_location(receiver: Receiver) -> None:
    with healer_steps.Steps(every_s=0.02, environ=receiver.environ()) as steps:
        for _ in range(5):
            with steps.step():
                time.sleep(0.03)
    assert receiver.samples() and not [one for one in receiver.samples() if "open_s" in one]


def test_the_last_end_of_compute_counts(receiver: Receiver) -> None:
    with healer_steps.Steps(every_s=0.05, environ=receiver.environ()) as steps, steps.step() as step:
        step.compute_done()
        time.sleep(0.05)
        step.compute_done()
    assert receiver.samples()[0]["compute_s"] >= 0.05


def test_without_healer_it_is_nothing(receiver: Receiver) -> None:
    steps = healer_steps.Steps(
        environ={name: text for name, text in receiver.environ().items() if name != "HEALER_URL"}
    )
    with steps.step() as step:
        step.compute_done()
        step.tell(loss=1.0)
    steps.checkpoint("/ckpt", 1)
    steps.close()
    assert not steps.on and receiver.sink.asked == []
    assert not any(thread.name.startswith("healer-") for thread in threading.enumerate())


@pytest.mark.parametrize(
    "wrong", [{"HEALER_URL": "healer:8080"}, {"SLURM_JOB_ID": ""}, {"SLURM_JOB_ID": "../x"}]
)
def test_invalid_settings_log_once_and_turn_the_sender_off(
    receiver: Receiver, wrong: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    steps = healer_steps.Steps(environ=receiver.environ(**wrong))
    for _ in range(3):
        with steps.step():
            pass
    steps.close()
    assert not steps.on and len(caplog.records) == 1 and "no step times are sent" in caplog.text


def test_failed_step_is_raised_and_not_reported(receiver: Receiver) -> None:
    with healer_steps.Steps(every_s=0.05, environ=receiver.environ()) as steps:
        with pytest.raises(ZeroDivisionError), steps.step():
            1 / 0  # noqa: B018
        with steps.step():
            pass
    assert [one["step"] for one in receiver.samples()] == [1]


def test_tensors_are_read_only_where_that_was_asked_for(receiver: Receiver) -> None:
    class Tensor:
        asked = 0
        device = SimpleNamespace(type="cuda")

        def item(self) -> float:
            Tensor.asked += 1
            return 3.0

    for read, loss in ((False, None), (True, 3.0)):
        steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ(), read_tensors=read)
        with steps.step() as step:
            step.tell(loss=Tensor())
        steps.close()
        assert receiver.samples()[-1].get("loss") == loss
    assert Tensor.asked == 1


def test_non_numeric_loss_is_reported_as_such(receiver: Receiver) -> None:
    with healer_steps.Steps(every_s=0.05, environ=receiver.environ()) as steps, steps.step() as step:
        step.tell(loss=float("nan"), grad_norm=float("inf"))
    assert (receiver.samples()[0]["loss"], receiver.samples()[0]["grad_norm"]) == ("NaN", "NaN")


# --- healer away, slow, or unwilling ---


def test_a_healer_that_is_away_costs_nothing_and_gets_what_waited(receiver: Receiver) -> None:
    receiver.sink.answers.extend(
        [(503, {"Retry-After": "0"}, b""), (500, {}, b""), (200, {}, b"<h1>Sorry</h1>")]
    )
    steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ())
    with steps.step():
        pass
    wait_until(lambda: sum("step_s" in one for one in receiver.samples()) >= 4, 30, what="it was sent again")
    steps.close()
    assert {one["step"] for one in receiver.samples()} == {0} and (steps.sent, steps.dropped) == (1, 0)


def test_training_ends_normally_without_a_listener() -> None:
    steps = healer_steps.Steps(every_s=0.05, environ=RANK | {"HEALER_URL": f"http://127.0.0.1:{free_port()}"})
    for _ in range(10):
        with steps.step():
            pass
    steps.close(timeout_s=0.3)
    assert (steps.sent, steps.dropped) == (0, 10)


def test_a_healer_that_never_answers_does_not_hold_the_end(receiver: Receiver) -> None:
    receiver.sink.answers.append(None)
    steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ())
    with steps.step():
        pass
    wait_until(lambda: receiver.sink.asked, 20, what="it was asked")
    ended = threading.Event()
    threading.Thread(target=lambda: (steps.close(0.2), ended.set()), daemon=True).start()
    assert ended.wait(20)


def test_a_full_queue_drops_the_oldest_and_counts() -> None:
    from healer_steps._sender import Sender

    sender = Sender(Settings(RANK | {"HEALER_URL": "http://127.0.0.1:1"}), every_s=3600, queue=5)
    sender._thread = threading.Thread()  # one that never starts
    for number in range(12):
        sender.put((time.time(), number, 1.0))
    assert [one[1] for one in sender._samples] == [7, 8, 9, 10, 11] and sender.dropped == 7
    steps = healer_steps.Steps(environ=RANK | {"HEALER_URL": "http://127.0.0.1:1"})
    steps._sender = sender
    with steps.step():
        pass
    assert steps.dropped == 8
    for number in range(CHECKPOINTS + 3):
        sender.put_checkpoint({"step": number})
    assert len(sender._checkpoints) == CHECKPOINTS and sender.dropped == 11


def test_permanently_refused_samples_are_not_sent_again(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    answer = json.dumps({"detail": "this token is bound to the job 4712"}).encode()
    receiver.sink.answers.append((403, {}, answer))
    send_one(receiver)
    assert len(receiver.bodies()) == 1 and "bound to the job 4712" in caplog.text


def test_a_page_of_a_proxy_with_status_202_delivers_nothing(receiver: Receiver) -> None:
    receiver.sink.answers.append((202, {"Content-Type": "text/html"}, b"<h1>Accepted</h1>"))
    steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ())
    with steps.step():
        pass
    wait_until(lambda: len(receiver.bodies()) == 2, 20, what="it is sent again")
    steps.close()
    first, second = receiver.bodies()
    assert first["samples"] == second["samples"] and (steps.sent, steps.dropped) == (1, 0)


def test_samples_that_healer_rejects_are_counted_and_said_once(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    answer = json.dumps(
        {"accepted": 0, "rejected": [{"index": 0, "reason": "node: no node gpu0003"}]}
    ).encode()
    receiver.sink.answers.append((202, {}, answer))
    steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ())
    with steps.step():
        pass
    steps.close()
    assert steps.sent == 0 and steps._sender is not None and steps._sender.rejected == 1
    assert caplog.text.count("no node gpu0003") == 1


def test_samples_older_than_healer_takes_are_dropped_here(receiver: Receiver) -> None:
    steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ())
    assert steps._sender is not None
    steps._sender.put((time.time() - 3600, 1, 1.0))
    steps._sender.put((time.time(), 2, 1.0))
    steps.close()
    assert [one["step"] for one in receiver.samples()] == [2] and steps.dropped == 1


def test_a_redirect_takes_the_token_nowhere_and_is_logged(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a site that answers at https only, say: the job would never report a step, and its user not know."""
    receiver.sink.answers.extend([(302, {"Location": receiver.url + "/elsewhere"}, b"")] * 50)
    steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ())
    with steps.step():
        pass
    wait_until(lambda: receiver.sink.asked, 20, what="it was asked")
    steps.close(0.2)
    assert {headers[":path"] for headers, _ in receiver.sink.asked} == {"/api/v1/signals/step-times"}
    assert caplog.text.count("302") == 1 and receiver.url in caplog.text


@pytest.mark.parametrize("status", [429, 503])
def test_what_is_over_soon_is_not_logged(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    receiver.sink.answers.append((status, {"Retry-After": "0"}, b"{}"))
    send_one(receiver)
    assert len(receiver.bodies()) == 2 and "healer:" not in caplog.text


def test_token_file_is_reread_and_proxies_are_bypassed(receiver: Receiver, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("heal_1_first\n")
    environ = receiver.environ(HEALER_TOKEN="", HEALER_TOKEN_FILE=str(file))
    steps = healer_steps.Steps(every_s=0.05, environ=environ)
    with steps.step():
        pass
    wait_until(receiver.bodies, 20, what="the first is there")
    file.write_text("heal_1_second\n")
    with steps.step():
        pass
    steps.close()
    assert [headers["authorization"].split("_")[-1] for headers, _ in receiver.sink.asked] == [
        "first",
        "second",
    ]


# --- its end, and what comes after it ---


def test_after_a_flush_more_may_follow(receiver: Receiver) -> None:
    steps = healer_steps.Steps(every_s=3600, environ=receiver.environ())
    for number in range(3):
        with steps.step():
            pass
        steps.flush(30)
        assert [one["step"] for one in receiver.samples()] == list(range(number + 1))
    steps.close()
    assert (steps.sent, steps.dropped) == (3, 0)


def test_a_flush_is_over_after_one_try_that_fails() -> None:
    """The time it may take is longer than the suite's own limit."""
    steps = healer_steps.Steps(every_s=3600, environ=RANK | {"HEALER_URL": f"http://127.0.0.1:{free_port()}"})
    with steps.step():
        pass
    steps.flush(3600)
    assert steps.dropped == 0
    steps.close(0.1)
    steps.flush(3600)
    assert steps.dropped == 1


def test_steps_after_close_are_counted_as_dropped_and_logged_once(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ(SLURM_PROCID="0"))
    with steps.step():
        pass
    steps.close()
    for _ in range(4):
        with steps.step():
            pass
    steps.checkpoint("/ckpt/1", 1)
    assert (steps.sent, steps.dropped) == (1, 5) and caplog.text.count("after close()") == 1
    assert steps._sender is not None and not steps._sender._samples


def test_checkpoints_that_are_not_sent_are_counted() -> None:
    steps = healer_steps.Steps(
        every_s=3600,
        environ=RANK | {"SLURM_PROCID": "0", "HEALER_URL": f"http://127.0.0.1:{free_port()}"},
    )
    steps.checkpoint("/ckpt/1", 1)
    steps.close(0.3)
    assert steps.dropped == 1


def test_a_launcher_may_copy_it_into_another_process(receiver: Receiver) -> None:
    steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ(), stage=3, first_step=7)
    with steps.step():
        pass
    copy = pickle.loads(pickle.dumps(steps))
    with copy.step():
        pass
    for one in (steps, copy):
        one.close()
    assert [(one["step"], one["stage"]) for one in receiver.samples()] == [(7, 3), (7, 3)]


# --- the process around it ---

PROGRAM = """
import os, sys, healer_steps
steps = healer_steps.Steps(every_s=3600)
with steps.step():
    pass
if sys.argv[1] == "fork":
    child = os.fork()
    if child == 0:
        with steps.step():
            pass
        sys.exit(steps.sent)  # its own thread tells the child's step alone
    os.waitpid(child, 0)
if sys.argv[1] == "raise":
    raise RuntimeError("out of memory")
"""


@pytest.mark.parametrize(
    ("how", "steps", "status"), [("end", [0], 0), ("raise", [0], 1), ("fork", [0, 1], 0)]
)
def test_the_end_of_the_program_sends_what_waits(
    receiver: Receiver, how: str, steps: list[int], status: int
) -> None:
    path = str(SOURCES[0].parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        env=receiver.environ(PYTHONPATH=path, PATH=os.environ["PATH"]), capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert sorted(one["step"] for one in receiver.samples()) == steps


def test_it_imports_nothing_but_the_standard_library_and_reads_as_python_3_8() -> None:
    frameworks = {"torch", "lightning", "pytorch_lightning", "transformers"}
    for source in SOURCES:
        tree = ast.parse(source.read_text(), feature_version=(3, 8))
        names = {
            name.partition(".")[0]
            for node in ast.walk(tree)
            for name in (
                [one.name for one in node.names] if isinstance(node, ast.Import)
                else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            )
        }  # fmt: skip
        assert names <= set(sys.stdlib_module_names) | {"healer_steps"} | frameworks, source
    done = subprocess.run(
        [sys.executable, "-c", "import sys, healer_steps; print(sorted(sys.modules))"],
        env={"PYTHONPATH": str(SOURCES[0].parents[1]), "PATH": os.environ["PATH"]}, capture_output=True,
        text=True, check=True, timeout=60,
    )  # fmt: skip
    assert not frameworks & set(ast.literal_eval(done.stdout))


@pytest.mark.parametrize(
    ("env", "gpu"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "1"}, None),  # may count from 0 within the job
        ({"SLURM_STEP_GPUS": "4,6"}, 6),
        ({"SLURM_STEP_GPUS": "5"}, 5),
        ({"SLURM_JOB_GPUS": "0,2"}, 2),
        ({"SLURM_STEP_GPUS": "garbage"}, None),
    ],
    ids=["none", "cuda", "step", "one", "job", "garbage"],
)
def test_gpu_of_a_rank_is_read_from_the_slurm_environment(env: dict[str, str], gpu: int | None) -> None:
    assert gpu_of(env, 1) == gpu


TASK = {"SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NTASKS": "16", "SLURM_STEP_NUM_TASKS": "16"}
ALONE = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}


@pytest.mark.parametrize(
    ("env", "ranks"),
    [
        (TASK, (9, 1)),
        (TASK | {"WORLD_SIZE": "16"}, (9, 1)),
        (TASK | {"WORLD_SIZE": "128", "LOCAL_RANK": "3"}, (None, None)),  # each task starts eight
        (TASK | {"SLURM_STEP_NUM_TASKS": ""}, (None, None)),  # a batch script, without srun
        (TASK | {"SLURM_NTASKS": "4"}, (None, None)),  # left over from another step
        (ALONE, (None, None)),  # who knows what it starts
        (ALONE | {"WORLD_SIZE": "1"}, (0, 0)),
        (ALONE | {"WORLD_SIZE": "8", "NODE_RANK": "0", "LOCAL_RANK": "3"}, (None, None)),  # Lightning's own
        (ALONE | {"RANK": "11", "LOCAL_RANK": "3", "WORLD_SIZE": "16"}, (11, 3)),
        (TASK | {"RANK": "11"}, (11, None)),
        ({"LOCAL_RANK": "3"}, (None, None)),
        ({}, (None, None)),
    ],
    ids=["srun", "world", "more", "batch", "left", "alone", "one", "lightning", "torchrun", "rank", "local",
         "none"],
)  # fmt: skip
def test_rank_is_read_only_from_unambiguous_variables(
    env: dict[str, str], ranks: tuple[int | None, int | None]
) -> None:
    assert ranks_of(env) == ranks


class Distributed:
    """torch.distributed, which the program sets up after a while."""

    def __init__(self, rank: int, world: int) -> None:
        self.up, self.rank, self.world = False, rank, world

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.up

    def get_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.world


GPUS = {"SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7", "SLURM_STEP_GPUS": ""}


@pytest.mark.parametrize(
    ("env", "rank", "world", "place"),
    [
        (ALONE, 3, 8, (3, None)),  # torch.multiprocessing.spawn: its GPU is unknown
        (ALONE | {"LOCAL_RANK": "3", "WORLD_SIZE": "8"}, 3, 8, (3, 3)),
        (ALONE | {"RANK": "0", "WORLD_SIZE": "1"}, 3, 8, (3, None)),  # of the node, not of the process
        (TASK, 9, 16, (9, 1)),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8"}, 3, 8,
         (3, None)),
    ],
    ids=["spawn", "launcher", "imagenet", "srun", "batch"],
)  # fmt: skip
def test_rank_comes_from_torch_once_it_is_initialized(
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    env: dict[str, str],
    rank: int,
    world: int,
    place: Any,
) -> None:
    made = Distributed(rank, world)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=made, cuda=None))
    bare = {name: text for name, text in receiver.environ().items() if name not in TASK}
    steps = healer_steps.Steps(every_s=0.05, environ=bare | GPUS | env)
    with steps.step():
        made.up = True  # in the first step at the latest
    steps.checkpoint("/ckpt/1", 1)
    steps.close()
    (one,) = receiver.samples()
    assert (one["rank"], one.get("gpu"), one["node"]) == (*place, "gpu0003")
    assert not receiver.bodies("signals/checkpoints")  # rank 0 does that


def test_unknown_rank_is_never_blamed(receiver: Receiver) -> None:
    with healer_steps.Steps(every_s=0.05, environ=receiver.environ(**ALONE, **GPUS)) as steps:
        with steps.step(work=8) as step:
            step.compute_done()
            step.comm_done()
        steps.checkpoint("/ckpt/1", 1)
    (one,) = receiver.samples()
    assert set(one) == {"time", "step", "step_s", "work"}
    assert len(receiver.bodies("signals/checkpoints")) == 1


def test_torchruns_ranks_go_before_slurms() -> None:
    settings = Settings(RANK | {"RANK": "17", "LOCAL_RANK": "0"})
    assert (settings.rank, settings.local_rank, settings.gpu) == (17, 0, 4)


# --- checkpoints ---


def test_a_checkpoint_with_its_checksum_as_a_person_would_make_it(receiver: Receiver, tmp_path: Path) -> None:
    folder = tmp_path / "step-10"
    (folder / "b").mkdir(parents=True)
    for name, text in (("model.pt", b"weights"), ("b/optim.pt", b""), ("a-1", b"x" * 5_000_000)):
        (folder / name).write_bytes(text)
    steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ(SLURM_PROCID="0"))
    steps.checkpoint(folder, 10, checksum=True)
    wait_until(lambda: receiver.bodies("signals/checkpoints"), 30, what="the checkpoint is reported")
    steps.close()
    ((one,),) = receiver.bodies("signals/checkpoints")
    command = "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
    person = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=True)
    assert one["sha256"] == person.stdout.split()[0]
    assert (one["path"], one["step"], one["durable"], one["restart"]) == (str(folder), 10, True, 2)
    (read,) = checkpoint_observations([one], datetime.now(UTC), cluster="pod1").observations
    assert read.data["sha256"] == one["sha256"]


def test_a_checkpoint_of_one_file_and_one_that_is_gone(receiver: Receiver, tmp_path: Path) -> None:
    file = tmp_path / "last.ckpt"
    file.write_bytes(b"weights")
    assert checksum_of(str(file)) == hashlib.sha256(b"weights").hexdigest()
    steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ(SLURM_PROCID="0"))
    steps.checkpoint(tmp_path / "gone", 3, durable=False, checksum=True)
    wait_until(lambda: receiver.bodies("signals/checkpoints"), 30, what="reported without a checksum")
    steps.close()
    ((one,),) = receiver.bodies("signals/checkpoints")
    assert "sha256" not in one and one["durable"] is False


def test_a_checksum_that_takes_too_long_is_given_up_at_the_end(receiver: Receiver, tmp_path: Path) -> None:
    endless = tmp_path / "pipe"
    os.mkfifo(endless)
    holder = os.open(endless, os.O_RDWR)  # whoever reads waits
    steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ(SLURM_PROCID="0"))
    steps.checkpoint(endless, 1, checksum=True)
    ended = threading.Event()
    threading.Thread(target=lambda: (steps.close(0.4), ended.set()), daemon=True).start()
    assert ended.wait(20)
    os.close(holder)


def test_a_checksum_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in range(4):
        (tmp_path / str(name)).write_bytes(b"x" * 100)
    monkeypatch.setattr(_checkpoints, "FILES", 3)
    with pytest.raises(_checkpoints.TooMuch, match="3 files"):
        checksum_of(str(tmp_path))
    monkeypatch.setattr(_checkpoints, "FILES", 10)
    monkeypatch.setattr(_checkpoints, "BYTES", 300)
    with pytest.raises(_checkpoints.TooMuch, match="300 bytes"):
        checksum_of(str(tmp_path))


def test_a_path_under_shared_storage(tmp_path: Path) -> None:
    (tmp_path / "shared" / "run").mkdir(parents=True)
    (tmp_path / "shared-not").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "shared")
    shared = str(tmp_path / "shared")
    assert lies_under(f"{shared}/run/1", shared) and lies_under(f"{tmp_path}/link/run", [shared + "/"])
    assert lies_under("/local/1", ["/scratch", "/local"])
    assert not lies_under(f"{shared}-not/1", shared) and not lies_under(f"{shared}/../x", shared)
    assert not lies_under(shared, ()) and not lies_under("/local/1", "/scratch")


def test_only_rank_0_reports_checkpoints(receiver: Receiver) -> None:
    steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ())
    steps.checkpoint("/ckpt/1", 1)
    steps.close()
    assert receiver.sink.asked == []


# --- GPU events, with a made-up CUDA: a real one was not at hand ---


class Stream:
    """A GPU that has come as far as `reached` says; each event lies 0.1 s behind the one before."""

    def __init__(self) -> None:
        self.put = self.reached = 0
        self.made = 0

    def Event(self, enable_timing: bool) -> "Event":
        assert enable_timing
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream, self.at = stream, 0

    def record(self) -> None:
        self.stream.put += 1
        self.at = self.stream.put

    def query(self) -> bool:
        return self.at <= self.stream.reached

    def elapsed_time(self, other: "Event") -> float:
        assert self.query() and other.query()
        return 100.0 * (other.at - self.at)


def test_events_of_the_gpu_are_read_once_they_are_over_and_never_waited_for(receiver: Receiver) -> None:
    stream = Stream()
    steps = healer_steps.Steps(every_s=60.0, environ=receiver.environ(), cuda=False)  # sent at the end alone
    steps._marks = CudaMarks(stream, steps._done)
    for _ in steps.data(range(3)):
        with steps.step() as step:
            step.compute_done()
            step.comm_done()
    assert steps._sender is not None and len(steps._sender._samples) == 0
    stream.reached = 8  # two steps of four events are over
    with steps.step():
        pass
    assert [round(one[2] - one[5], 3) for one in steps._sender._samples] == [0.3, 0.3]
    stream.reached = stream.put
    steps.close()
    step_s = [one["step_s"] - one.get("data_s", 0.0) for one in receiver.samples()]
    assert [round(one, 3) for one in step_s] == [0.3, 0.3, 0.3, 0.1]
    assert [one.get("compute_s") for one in receiver.samples()] == [0.1, 0.1, 0.1, None]
    # No longer than the host waited, which was next to nothing.
    assert all(one["data_s"] < 0.1 for one in receiver.samples()[:3])


class Clock:
    """Of the host and of a GPU that is always done: `Event(…).record()` is now."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def Event(self, enable_timing: bool) -> "Moment":
        return Moment(self)


class Moment:
    def __init__(self, clock: Clock) -> None:
        self.clock, self.at = clock, 0.0

    def record(self) -> None:
        self.at = self.clock.now

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: "Moment") -> float:
        return 1000 * (other.at - self.at)


@pytest.mark.parametrize("gpu", [False, True], ids=["host", "gpu"])
def test_time_between_steps_is_not_counted_as_waiting_for_data(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    clock = Clock()
    monkeypatch.setattr(_steps, "time", SimpleNamespace(**vars(time) | {"perf_counter": clock}))
    steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ(), cuda=False)
    steps._marks = CudaMarks(clock, steps._done) if gpu else HostMarks(steps._done, clock)

    def batches() -> Any:
        for number in range(4):
            clock.now += 0.25
            yield number

    for number in steps.data(batches()):
        with steps.step() as step:
            clock.now += 1.0
            step.compute_done()
            clock.now += 0.5
            step.comm_done()
        if number == 1:
            clock.now += 600.0  # evaluation, saving
    steps.close()
    for one in receiver.samples():
        assert (one["step_s"], one["data_s"]) == pytest.approx((1.75, 0.25))
        assert (one["compute_s"], one["comm_s"]) == pytest.approx((1.0, 0.5))
    assert len(receiver.samples()) == 4


def test_a_gpu_that_was_busy_did_not_wait_for_data(receiver: Receiver) -> None:
    clock = Clock()
    steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ(), cuda=False)
    steps._marks = CudaMarks(clock, steps._done)
    for _ in range(2):
        steps.waited(5.0)  # of the host alone: the GPU still had work
        with steps.step():
            clock.now += 1.0
    steps.close()
    assert receiver.samples()[1]["data_s"] == 0.0 and receiver.samples()[1]["step_s"] == pytest.approx(1.0)


def test_a_gpu_that_hangs_costs_bounded_memory(receiver: Receiver) -> None:
    stream = Stream()
    steps = healer_steps.Steps(every_s=3600, environ=receiver.environ(), cuda=False)
    steps._marks = CudaMarks(stream, steps._done)
    for _ in range(PENDING + 20):
        with steps.step():
            pass
    assert steps.dropped == 20
    steps.close()
    assert steps.dropped == PENDING + 20 and receiver.samples() == []


def test_events_are_used_again(receiver: Receiver) -> None:
    stream = Stream()
    steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ(), cuda=False)
    steps._marks = CudaMarks(stream, steps._done)
    for _ in steps.data(range(50)):
        with steps.step() as step:
            step.compute_done()
        stream.reached = stream.put
    assert stream.made < 12
    steps.close()
    assert len(receiver.samples()) == 50


# --- loops as Megatron writes them ---


def test_a_loop_as_megatron_writes_it(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    def reduce(model: list[str]) -> None:
        model.append("reduced")

    with healer_steps.Steps(every_s=0.05, environ=receiver.environ()) as steps:
        finalize = wrap_finalize(reduce, steps)

        def train_step(model: list[str]) -> tuple[dict[str, float], int, bool, bool, int, float]:
            finalize(model)
            return {"lm loss": 2.0}, 0, False, False, 0, 1.5

        def fields_of(result: Any) -> dict[str, float]:
            return {"loss": result[0]["lm loss"], "grad_norm": result[5]}

        timed = wrap(
            train_step,
            steps,
            work=lambda: 4096.0,
            told=fields_of,
        )
        model: list[str] = []
        assert timed(model)[5] == 1.5 and model == ["reduced"]
        broken = wrap(train_step, steps, told=lambda result: {"nonsense": result})
        assert broken(model)[5] == 1.5
        wrong = wrap(train_step, steps, told=lambda result: {"grad_norm": result[2]})
        assert wrong(model)[5] == 1.5
    one, other, third = receiver.samples()
    assert "grad_norm" not in third and "False is a truth value" in caplog.text
    assert (one["loss"], one["grad_norm"], one["work"]) == (2.0, 1.5, 4096.0)
    assert "compute_s" in one and "comm_s" in one and "loss" not in other


def test_a_function_is_a_step(receiver: Receiver) -> None:
    with healer_steps.Steps(every_s=0.05, environ=receiver.environ()) as steps:

        @steps.wrap
        def train(number: int) -> int:
            return number + 1

        assert [train(1), train(2)] == [2, 3]
    assert [one["step"] for one in receiver.samples()] == [0, 1]
