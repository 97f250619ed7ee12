"""No argument and no environment of the client ends the training or the telemetry."""

import json
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import healer_steps
import numpy as np
import pytest
from healer_steps import _post, _sender, _steps
from healer_steps._callbacks import quiet
from healer_steps._environ import Settings
from healer_steps._marks import PENDING, CudaMarks
from healer_steps._sender import EVERY_S
from healer_steps.megatron import wrap, wrap_finalize
from healer_steps.pytorch import watch

from tests.integration.client.conftest import RANK, Receiver
from tests.support.processes import free_port
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy


class Tensor:
    """Of one number, on this device. Reading one that lies on a GPU would wait for it."""

    def __init__(self, value: float, device: str) -> None:
        self.value, self.device = value, SimpleNamespace(type=device)

    def item(self) -> float:
        assert self.device.type == "cpu", "the host would wait"
        return self.value

    __float__ = item
    __bool__ = item


class Jax(Tensor):
    """Its device has a platform and no type; so `jaxlib.xla_client.Device`."""

    def __init__(self, value: float, platform: str) -> None:
        super().__init__(value, platform)
        self.device = SimpleNamespace(platform=platform)

    def item(self) -> float:
        assert self.device.platform == "cpu", "the host would wait"
        return self.value


class TensorFlow:
    """Its device is a name, and its `__index__` refuses a float; so `tf.Tensor`."""

    def __init__(self, value: float, device: str) -> None:
        self.value, self.device = value, f"/job:localhost/replica:0/task:0/device:{device}"

    def numpy(self) -> Any:
        assert self.device.endswith("CPU:0"), "the host would wait"
        return np.float32(self.value)

    def __index__(self) -> int:
        raise TypeError("only integer scalar arrays can be converted to a scalar index")


def opened(receiver: Receiver, **more: Any) -> healer_steps.Steps:
    return healer_steps.Steps(every_s=0.02, environ=receiver.environ(SLURM_PROCID="0"), **more)


def paths_of(receiver: Receiver) -> list[str]:
    return [one["path"] for body in receiver.bodies("signals/checkpoints") for one in body]


def one_step(steps: healer_steps.Steps, **about: Any) -> None:
    with steps.step(**about):
        pass


# --- arguments from the program ---


@pytest.mark.parametrize(
    "value",
    [np.int64(4096), np.float32(4096), np.array(4096), np.array([4096]), Tensor(4096, "cpu"),
     Jax(4096, "cpu"), TensorFlow(4096, "CPU:0"), Decimal(4096), Fraction(4096), 4096.0],
    ids=["int64", "float32", "array", "list", "tensor", "jax", "tensorflow", "decimal", "fraction", "float"],
)  # fmt: skip
def test_all_numeric_types_are_sent_as_plain_numbers(receiver: Receiver, value: Any) -> None:
    with opened(receiver, stage=np.int32(1), first_step=np.int64(7)) as steps:
        with steps.step(work=value) as step:
            step.tell(loss=value, grad_norm=value)
        one_step(steps, step=value, stage=np.uint8(2))
        steps.checkpoint("/ckpt/1", value, durable=np.bool_(False))  # type: ignore[arg-type]
    first, second = receiver.samples()
    assert (first["work"], first["loss"], first["grad_norm"]) == (4096, 4096, 4096)
    assert [(one["step"], one["stage"]) for one in (first, second)] == [(7, 1), (4096, 2)]
    ((mark,),) = receiver.bodies("signals/checkpoints")
    assert (mark["step"], mark["durable"]) == (4096, False)


NO_NUMBERS = [
    complex(1, 2), "7", b"7", [1], np.array([1, 2]), 10**400, True, np.bool_(True), object(),
    Tensor(7, "cuda"), Jax(7, "gpu"), TensorFlow(7, "GPU:0"),
]  # fmt: skip


@pytest.mark.parametrize("value", NO_NUMBERS, ids=[type(one).__name__ for one in NO_NUMBERS])
def test_values_that_are_no_numbers_are_left_out_and_logged_once(
    receiver: Receiver, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(receiver, first_step=3) as steps:
        for _ in range(2):
            with steps.step(value, step=value, stage=value) as step:
                step.tell(value, value)
        steps.waited(value)
        one_step(steps, work=8)
        steps.checkpoint("/ckpt/1", value)
        sent = steps._sender
    assert sent is not None and (sent.sent, sent.dropped) == (3, 0)
    *without, last = receiver.samples()
    assert not any({"work", "stage", "loss", "grad_norm"} & set(one) for one in without)
    assert [one["step"] for one in receiver.samples()] == [3, 4, 5] and last["work"] == 8
    assert receiver.bodies("signals/checkpoints")[0][0]["step"] == 5
    assert [record.getMessage().count("healer: work could") for record in caplog.records].count(1) == 1


def test_a_gpus_tensor_set_on_the_step_itself_is_left_out(receiver: Receiver) -> None:
    with opened(receiver) as steps, steps.step() as step:
        step.work = Tensor(7, "cuda")  # type: ignore[assignment]
    assert "work" not in receiver.samples()[0] and steps.sent == 1


def test_no_work_leaves_the_rest_of_the_step(receiver: Receiver) -> None:
    """healer takes nothing of a sample whose work is 0."""
    with opened(receiver) as steps:
        one_step(steps, work=0)
    assert "work" not in receiver.samples()[0]


@pytest.mark.parametrize("every_s", [0, -1, float("nan"), float("inf"), 1e300, "5", None])
def test_a_round_that_is_none_is_the_usual_one(receiver: Receiver, every_s: Any) -> None:
    with healer_steps.Steps(every_s=every_s, environ=receiver.environ()) as steps:
        assert steps._sender is not None and steps._sender.every_s == EVERY_S
        one_step(steps)
    assert len(receiver.samples()) == 1


def test_a_function_for_the_work_that_fails_ends_no_training(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def work() -> float:
        asked.append(1)
        raise KeyError("input_ids")

    with opened(receiver) as steps:
        timed = wrap(lambda: 1.5, steps, work=work)
        assert [timed(), timed()] == [1.5, 1.5]
    assert [one.get("work") for one in receiver.samples()] == [None, None]
    assert len(asked) == 2 and caplog.text.count("input_ids") == 1
    off = wrap(lambda: 1.5, healer_steps.Steps(environ={}), work=work)
    assert off() == 1.5 and len(asked) == 2


def test_a_finalize_that_is_not_there_yet_stays_so(receiver: Receiver) -> None:
    with opened(receiver) as steps:
        assert wrap_finalize(None, steps) is None  # type: ignore[type-var]


def test_failure_in_a_callback_does_not_reach_the_training_loop(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    class Callback:
        def __init__(self, steps: healer_steps.Steps) -> None:
            self.steps, self.asked = steps, 0

        @quiet
        def on_step(self, state: Any) -> None:
            self.asked += 1
            raise AttributeError("global_step")

    with opened(receiver) as steps:
        callback = Callback(steps)
        callback.on_step(None)
        callback.on_step(state=None)
    assert callback.asked == 2 and caplog.text.count("global_step") == 1
    off = Callback(healer_steps.Steps(environ={}))
    off.on_step(None)
    assert off.asked == 0


def test_a_model_that_cannot_be_watched_in_full_is_not_watched(receiver: Receiver) -> None:
    taken = []

    def hook(call: Any) -> Any:
        return SimpleNamespace(remove=lambda: taken.append(call))

    good = SimpleNamespace(requires_grad=True, register_post_accumulate_grad_hook=hook)
    bad = SimpleNamespace(requires_grad=True, register_post_accumulate_grad_hook=None, register_hook=None)
    with opened(receiver) as steps:
        watch(SimpleNamespace(parameters=lambda: [good, bad]), steps)
    assert len(taken) == 1


def test_odd_arguments_end_no_training(receiver: Receiver) -> None:
    steps = opened(receiver)
    with steps.rest(np.array([1, 2])):  # type: ignore[arg-type]
        pass
    for path in ("/ckpt\0/1", b"/ckpt/2", None, Path("/ckpt/3")):
        steps.checkpoint(path, 1, checksum=True)
    wait_until(lambda: len(receiver.bodies("signals/checkpoints")) > 0, 20, what="they are reported")
    steps.close("soon")  # type: ignore[arg-type]
    steps.close()
    assert {"/ckpt/2", "/ckpt/3"} <= set(paths_of(receiver))


# --- around it ---


def test_a_batch_that_breaks_is_dropped_alone(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    steps = opened(receiver)
    sender = steps._sender
    assert sender is not None
    sender.put(("no time", 1, 1.0))
    wait_until(lambda: steps.dropped == 1, 20, what="it is dropped")
    sender.put_checkpoint({"step": object()})
    wait_until(lambda: steps.dropped == 2, 20, what="the checkpoint is dropped")
    one_step(steps)
    steps.close()
    assert (steps.sent, steps.dropped) == (1, 2) and caplog.text.count("are dropped") == 1


@pytest.mark.parametrize(
    "answer",
    [
        {"rejected": 5},
        {"rejected": ["x"]},
        {"rejected": [{"reason": 5}]},
        {"rejected": [{}], "rejected_more": "x"},
    ],
)
def test_an_answer_that_is_not_healers_ends_nothing(receiver: Receiver, answer: dict[str, Any]) -> None:
    receiver.sink.answers.append((202, {"Retry-After": "\xb2"}, json.dumps(answer).encode()))
    steps = opened(receiver)
    one_step(steps)
    wait_until(lambda: steps.dropped == 1, 20, what="the answer came")
    one_step(steps)
    steps.close()
    assert steps._sender is not None
    assert (steps.sent, steps.dropped, steps._sender.rejected) == (1, 1, 0)  # each is counted once


@pytest.mark.parametrize(
    "wrong",
    [{"HEALER_URL": "http://[::1"}, {"HEALER_URL": "http://a b"}, {"HEALER_URL": "http://x:port"},
     {"HEALER_URL": "http://h\xebaler..x"}, {"HEALER_URL": "https://127.0.0.1", "HEALER_CA_FILE": "/gone"}],
    ids=["brackets", "space", "port", "name", "ca"],
)  # fmt: skip
def test_an_address_that_is_none_is_said_and_kept_trying(
    wrong: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    steps = healer_steps.Steps(every_s=0.02, environ=RANK | wrong)
    one_step(steps)
    wait_until(lambda: "does not answer" in caplog.text, 20, what="it is said")
    assert steps._sender is not None and steps._sender._thread is not None
    assert steps._sender._thread.is_alive() and steps.dropped == 0
    steps.close(0.2)
    assert steps.dropped == 1 and len(caplog.records) == 1
    assert "HEALER_CA_FILE" not in wrong or "/gone" in caplog.text


@pytest.mark.parametrize(
    "token", ["heal_0_se cret", "heal_0_se\ncret", "heal_0_se\u20accret", b"heal_0_se\xff"]
)
@pytest.mark.parametrize("in_file", [False, True])
def test_a_token_that_is_none_is_not_put_into_the_log(
    receiver: Receiver, tmp_path: Path, token: str | bytes, in_file: bool, caplog: pytest.LogCaptureFixture
) -> None:
    raw = token if isinstance(token, bytes) else token.encode()
    file = tmp_path / "token"
    file.write_bytes(raw)
    environ = {"HEALER_TOKEN": "" if in_file else os.fsdecode(raw), "HEALER_TOKEN_FILE": str(file)}
    steps = healer_steps.Steps(every_s=0.02, environ=receiver.environ(**environ))
    one_step(steps)
    wait_until(lambda: caplog.records, 20, what="it is said")
    (tmp_path / "new").write_text("heal_0_good")
    os.replace(tmp_path / "new", file)
    steps.close(20 if in_file else 0.5)
    assert "heal_0" not in caplog.text and "HEALER_TOKEN" in caplog.text
    assert steps.sent == (1 if in_file else 0)  # what waited goes with the file's next token


@pytest.mark.parametrize(
    "value", ["\xb2", "\u0663", "9" * 5000, "-1", "1.5", "1_0", ",", "\udcff", "\n", "0x1"]
)
def test_bad_environment_values_never_stop_training(receiver: Receiver, value: str) -> None:
    more = ["URL", "CLUSTER", "NODE", "TOKEN_FILE", "CA_FILE", "MUNGE_SOCKET"]
    ranks = ["SLURM_JOBID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_JOB_GPUS"]
    for name in (*RANK, *ranks, *("HEALER_" + one for one in more)):
        environ = {
            key: one for key, one in receiver.environ().items() if key not in {"SLURM_STEP_GPUS", name}
        }
        steps = healer_steps.Steps(environ=environ | {name: value})
        steps.close(0)
        assert (steps.settings.gpu, steps.settings.rank) in {(None, 9), (None, None)}


def test_spaces_around_the_address_are_none_of_it() -> None:
    assert Settings(RANK | {"HEALER_URL": " http://healer:8080/ \n"}).url == "http://healer:8080"


def cannot_start(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_thread_that_cannot_start_is_tried_again(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = opened(receiver)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot_start)
        one_step(steps)
        steps.checkpoint("/ckpt/1", 1, checksum=True)
        steps.flush()
    one_step(steps)
    steps.close()
    assert [one["step"] for one in receiver.samples()] == [0, 1]
    assert paths_of(receiver) == ["/ckpt/1"] and (steps.sent, steps.dropped) == (2, 0)


def test_steps_of_a_gpu_wait_for_a_thread_that_cannot_start(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, gpu = opened(receiver, cuda=False), Events()
    gpu.fails = False
    steps._marks = CudaMarks(gpu, steps._done)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot_start)
        for _ in range(3):
            one_step(steps)
        assert steps.dropped == 0
    one_step(steps)
    steps.close()
    assert [one["step"] for one in receiver.samples()] == [0, 1, 2, 3] and (steps.sent, steps.dropped) == (
        4,
        0,
    )


def test_checkpoint_with_a_hanging_checksum_is_reported_at_the_end(
    receiver: Receiver, tmp_path: Path
) -> None:
    endless = tmp_path / "pipe"
    os.mkfifo(endless)
    holder = os.open(endless, os.O_RDWR)  # whoever reads waits
    steps = opened(receiver)
    for path in (endless, Path("/ckpt/2")):
        steps.checkpoint(path, 1, checksum=True)
    assert steps._checkpoints is not None and steps._sender is not None
    steps._checkpoints.close(0.1)
    steps._sender.close(20)
    os.write(holder, b"x")
    os.close(holder)
    assert paths_of(receiver) == [str(endless), "/ckpt/2"]


@pytest.mark.parametrize("where", ["__init__", "start"])
def test_a_signal_that_saves_while_a_thread_starts_starts_no_other(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    real, names, seen = getattr(threading.Thread, where), {"healer-checksum", "healer-steps"}, []

    def interrupted(thread: threading.Thread, **about: Any) -> None:
        name = about.get("name") if where == "__init__" else thread.name
        seen.append(name)
        if name in names and seen.count(name) == 1:
            steps.checkpoint(f"/ckpt/{name}", 1, checksum=True)
        real(thread, **about)

    steps = opened(receiver)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, where, interrupted)
        steps.checkpoint("/ckpt/1", 1, checksum=True)
        one_step(steps)
        wait_until(lambda: len(paths_of(receiver)) == 3, 20, what="all are reported")
    steps.close()
    assert sorted(name for name in seen if name in names) == sorted(names)
    assert sorted(paths_of(receiver)) == ["/ckpt/1", "/ckpt/healer-checksum", "/ckpt/healer-steps"]


def test_a_log_handler_that_fails_ends_no_training() -> None:
    class Failing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("no space left")

    handler = Failing()
    logging.getLogger("healer_steps").addHandler(handler)
    try:
        steps = healer_steps.Steps(environ=RANK | {"HEALER_URL": f"http://127.0.0.1:{free_port()}"})
        one_step(steps, work="x")
        steps.close(0.1)
    finally:
        logging.getLogger("healer_steps").removeHandler(handler)


class Events:
    """A GPU, and one event of it, which cannot be asked where it `fails`."""

    def __init__(self) -> None:
        self.fails = True

    def Event(self, enable_timing: bool) -> "Events":
        event = Events()
        event.fails = self.fails
        return event

    def record(self) -> None:
        pass

    def query(self) -> bool:
        if self.fails:
            raise RuntimeError("operation not permitted on an event last recorded in a capturing stream")
        return True

    def elapsed_time(self, _: "Events") -> float:
        return 1000.0


def test_events_that_cannot_be_read_cost_their_steps_alone(receiver: Receiver) -> None:
    steps, gpu = opened(receiver, cuda=False), Events()
    steps._marks = marks = CudaMarks(gpu, steps._done)
    for _ in range(3 * PENDING):
        one_step(steps)
    assert len(marks._pending) == 0 and steps.dropped == 3 * PENDING
    gpu.fails = False
    one_step(steps)
    steps.close()
    assert [one["step"] for one in receiver.samples()] == [3 * PENDING]


def test_rank_with_unreadable_events_is_located_by_its_host_phase(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_steps, "STANDS_S", 0.05)
    steps, gpu = opened(receiver, cuda=False), Events()
    steps._marks = CudaMarks(gpu, steps._done)
    gpu.fails = False
    one_step(steps)
    gpu.fails = True
    with steps.step() as step:
        step.compute_done()
        wait_until(lambda: any("open_s" in one for one in receiver.samples()), 20, what="it says where")
    steps.close()
    assert next(one["doing"] for one in receiver.samples() if "open_s" in one) == "collective"


# --- processes ---

FORKS = """
import os, sys, threading, time
import healer_steps
from healer_steps._callbacks import quiet
from healer_steps._marks import CudaMarks

class Gpu:
    def Event(self, enable_timing):
        return self
    def record(self):
        pass
    def query(self):
        if os.getpid() != parent:
            os.abort()  # as a driver may, in the child of a fork
        return False

parent = os.getpid()
steps = healer_steps.Steps(every_s=3600, cuda=False)
steps._marks = CudaMarks(Gpu(), steps._done)
with steps.step():
    pass
with steps._checkpoints._lock, steps._sender._lock:  # as another thread may hold them
    child = os.fork()
if child == 0:
    with steps.step():
        pass
    steps.checkpoint("/ckpt/child", 1, checksum=True)
    steps.close()
    sys.exit(steps.sent)
_, status = os.waitpid(child, 0)
steps._marks._pending.clear()
print("child", os.waitstatus_to_exitcode(status))
"""


def ran(program: str, receiver: Receiver) -> subprocess.CompletedProcess[str]:
    path = str(Path(healer_steps.__file__).parents[1])
    environ = receiver.environ(PYTHONPATH=path, PATH=os.environ["PATH"], SLURM_PROCID="0")
    words = [sys.executable, "-c", program]
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_a_child_of_a_fork_takes_over_no_lock_and_no_event(receiver: Receiver) -> None:
    done = ran(FORKS, receiver)
    assert (done.returncode, done.stdout) == (0, "child 1\n"), done.stderr
    assert receiver.bodies("signals/checkpoints")[0][0]["path"] == "/ckpt/child"


def test_a_step_goes_with_what_holds_it_to_another_process(receiver: Receiver) -> None:
    with opened(receiver) as steps, steps.step(work=8) as step:
        copy = pickle.loads(pickle.dumps((steps, step, steps.rest())))
    one_step(copy[0])
    copy[0].close()
    assert len(receiver.samples()) == 2


SIGNALS = """
import os, signal, sys, time
import healer_steps

def save(*_):
    steps.checkpoint("/ckpt/1", 1, checksum=True)
    with steps.rest():
        pass

signal.signal(signal.SIGALRM, save)
steps = healer_steps.Steps(every_s=3600)
with steps.step():
    pass
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for number in range(30_000):
    save()
signal.setitimer(signal.ITIMER_REAL, 0)
print("over")
steps.close(0)
"""


def test_a_signal_that_saves_while_the_program_saves_stops_nothing(receiver: Receiver) -> None:
    """As Slurm's before the end of a job's time. Not a lock may be held twice by one thread."""
    done = ran(SIGNALS, receiver)
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr


BLOCKS = """
import os, signal, sys, time
import healer_steps

steps = healer_steps.Steps(every_s=3600)
with steps.step():
    pass
steps.checkpoint("/dev/zero", 1, checksum=True)  # its thread is never done
time.sleep(0.2)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # while it saves
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.2)
print("pending", signal.SIGTERM in signal.sigpending())
signal.sigwait({signal.SIGTERM})
steps.close(0)
"""


def test_a_signal_that_the_program_blocks_ends_it_in_no_other_thread(receiver: Receiver) -> None:
    """The kernel gives it to any thread that does not block it: there it would end the program."""
    done = ran(BLOCKS, receiver)
    assert (done.returncode, done.stdout) == (0, "pending True\n"), done.stderr


def test_it_can_be_imported_where_it_cannot_send() -> None:
    """On a laptop, say, of another system."""
    missing = "import sys; sys.modules.update(fcntl=None, ssl=None, torch=None)"
    program = f"{missing}; import healer_steps; steps = healer_steps.Steps(); steps.step().__enter__()"
    path = str(Path(healer_steps.__file__).parents[1])
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": path}, check=True, timeout=60)


def test_all_senders_of_a_program_end_within_one_time(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[float] = []
    now = iter([100.0, 100.0, 102.0, 109.0])
    monkeypatch.setattr(_sender, "_until", [])
    monkeypatch.setattr(_sender, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr(healer_steps.Steps, "close", lambda _, timeout_s: closed.append(timeout_s))
    steps = healer_steps.Steps(environ=receiver.environ())
    for _ in range(3):
        _steps._close(weakref.ref(steps))
    assert closed == [3.0, 1.0, 0.0]


def test_the_end_does_not_wait_longer_than_it_may() -> None:
    steps = healer_steps.Steps(every_s=0.02, environ=RANK | {"HEALER_URL": f"http://127.0.0.1:{free_port()}"})
    one_step(steps)
    started = time.monotonic()
    steps.close(-1)
    assert time.monotonic() - started < 60 and steps.dropped == 1


def test_samples_the_sender_holds_at_close_are_counted_as_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    real, took, over = _post.taken, threading.Event(), threading.Event()

    def taken(queue: Any, most: int) -> list[Any]:
        found = real(queue, most)
        if any(isinstance(one, tuple) for one in found):
            took.set()
            over.wait(0.5)  # where nothing keeps close() from counting, it counts now
        return found

    monkeypatch.setattr(_post, "taken", taken)
    steps = healer_steps.Steps(every_s=0.02, environ=RANK | {"HEALER_URL": f"http://127.0.0.1:{free_port()}"})
    one_step(steps)
    assert took.wait(20)
    steps.close(0)
    over.set()
    assert steps.dropped == 1
