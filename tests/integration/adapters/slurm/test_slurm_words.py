import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healer.adapters.slurm import process
from healer.adapters.slurm import slurm_words as words
from healer.ports.scheduling import SchedulerError, SchedulerRefused, SchedulerUnavailable, UnknownNode

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("IDLE", ("IDLE",)),
        ("MIXED+DRAIN", ("MIXED", "DRAIN")),
        ("DOWN*+DRAIN", ("DOWN", "NOT_RESPONDING", "DRAIN")),
        ("IDLE+DRAIN+NOT_RESPONDING", ("IDLE", "DRAIN", "NOT_RESPONDING")),
        ("IDLE+MAINT+PLANNED", ("IDLE", "MAINTENANCE", "PLANNED")),
        ("down", ("DOWN",)),
    ],
)
def test_node_states_of_text(text: str, state: tuple[str, ...]) -> None:
    assert words.node_state(text) == state


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:h100:8", (8, "h100")),
        ("gpu:h100:8(S:0-1)", (8, "h100")),
        ("gpu:8", (8, "")),
        ("nic:ib:4,gpu:a100:4(S:0),gpu:h100:2", (6, "a100")),
        ("", (0, "")),
        ("shard:64,mygpu:3", (0, "")),
    ],
)
def test_gpus_of_gres(gres: str, gpus: tuple[int, str]) -> None:
    assert words.gpus_of_gres(gres) == gpus


@pytest.mark.parametrize(
    ("gres", "shared"),
    [
        ("gpu:h100:8(S:0-1)", False),
        ("gpu:1g.10gb:56(S:0-1)", True),
        ("gpu:a100_1g.5gb:7", True),
        ("gpu:h100:4,gpu:1g.10gb:28", True),
        ("gpu:h100:8,shard:64", True),
        ("mps:400,gpu:v100:4", True),
        ("gpu:8,nvme_shards:2", False),
        ("", False),
    ],
)
def test_slices_and_shares_are_no_whole_gpus(gres: str, shared: bool) -> None:
    assert words.shares_gpus(gres) is shared


@pytest.mark.parametrize(
    ("gres", "indices"),
    [
        ("gpu:h100:8(IDX:0-7)", tuple(range(8))),
        ("gpu:2(IDX:1,5)", (1, 5)),
        ("gpu:a100:1(IDX:4),gpu:h100:2(IDX:0-1)", (0, 1, 4)),
        ("gpu:h100:4", None),
        ("shard:h100:4(2/4)", None),
        ("gpu:h100:0", ()),
        ("license:2", ()),
        ("", ()),
    ],
)
def test_gpu_indices(gres: str, indices: tuple[int, ...]) -> None:
    assert words.gpu_indices(gres) == indices


@pytest.mark.parametrize(
    ("said", "kind", "code"),
    [
        ("slurm_update error: Invalid node name specified", UnknownNode, 2018),
        ("slurm_update error: Invalid node state specified", SchedulerRefused, 2180),
        ("slurm_update error: Invalid node state transition requested", SchedulerRefused, 2180),
        ("slurm_update error: Invalid user id", SchedulerRefused, 2010),
        ("Requested operation is presently disabled for job 7", SchedulerRefused, 2037),
        ("slurm_update error: something new", SchedulerRefused, None),
        (
            "slurm_update error: Unable to contact slurm controller (connect failure)",
            SchedulerUnavailable,
            None,
        ),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", SchedulerUnavailable, None),
        ("error: Munge encode failed: Failed to access socket", SchedulerUnavailable, None),
        ("", SchedulerUnavailable, None),
    ],
)
def test_each_error_text_of_slurm_gives_its_error_class_and_code(
    said: str, kind: type[SchedulerError], code: int | None
) -> None:
    error = words.error("Slurm did not drain gpu0001", said)
    assert type(error) is kind
    assert getattr(error, "code", None) == code
    assert "gpu0001" in str(error)


def test_names_of_users_are_taken_as_directories_give_them() -> None:
    """The user of healer's worker is the one that its reservations admit."""
    assert words.checked_names("a user", ["healer", "healer@corp.example", "HEALER$"])
    for name in ("", "-healer", "a,b", "a b", "a=b", "all\n"):
        with pytest.raises(ValueError, match="not the name of a user"):
            words.checked_names("a user", [name])


def test_hostlists() -> None:
    assert words.expand_hosts("gpu[0001-0003,0007],login1") == (
        "gpu0001",
        "gpu0002",
        "gpu0003",
        "gpu0007",
        "login1",
    )
    assert words.expand_hosts("r[1-2]n[09-10]x") == ("r1n09x", "r1n10x", "r2n09x", "r2n10x")
    assert words.expand_hosts("(null)") == words.expand_hosts("") == ()


@pytest.mark.parametrize(
    "text", ["n[1-", "n]", "n[]", "n[3-1]", "n[1-99999999]", "n[a-b]", "n[1-400]m[1-400]", ",", "a b"]
)
def test_a_malformed_hostlist_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"hostlist|range|names"):
        words.expand_hosts(text)


@given(st.text(alphabet="n[]019-,", max_size=20))
def test_a_hostlist_ends_in_names_or_in_a_value_error(text: str) -> None:
    try:
        found = words.expand_hosts(text)
    except ValueError:
        return
    assert not any("[" in name or "," in name for name in found)


def test_a_command_that_takes_too_long_is_killed() -> None:
    with pytest.raises(SchedulerUnavailable, match=r"within 0\.2 s"):
        process.run([sys.executable, "-c", "import signal; signal.pause()"], {}, 0.2)


def test_a_command_that_prints_too_much_is_killed() -> None:
    program = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    with pytest.raises(SchedulerUnavailable, match="more than 1000000"):
        process.run([sys.executable, "-c", program], {}, 20, most_bytes=1_000_000)


def test_a_command_that_is_not_there() -> None:
    with pytest.raises(SchedulerUnavailable, match="could not be started"):
        process.run(["/nowhere/scontrol"], {}, 1)


def test_a_commands_output_and_status() -> None:
    program = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    output = process.run([sys.executable, "-c", program], {}, 20)
    assert (output.code, output.text, output.words) == (3, "out\n", "err\n out")


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ("slurm_update error: Unable to contact slurm controller (connect failure)", False),
        ("slurm_update error: Unable to contact slurm controller (receive failure)", True),
        ("slurm_update error: Socket timed out on send/recv operation", True),
        ("scontrol: error: Munge encode failed: Failed to access the socket", False),
        # The text does not say whose credential it was: it may be that of an answer.
        ("slurm_update error: Protocol authentication error", True),
        ("slurm_update error: Slurm backup controller in standby mode", False),
        ("Unexpected message received for job 1", True),
        ("", True),
    ],
)
def test_timeout_says_whether_a_change_may_have_happened(said: str, sent: bool) -> None:
    error = words.error("Slurm did not drain gpu0001", said)
    assert isinstance(error, SchedulerUnavailable)
    assert error.sent is sent


def test_a_command_that_never_ran_has_sent_nothing() -> None:
    with pytest.raises(SchedulerUnavailable) as caught:
        process.run(["/nowhere/scontrol"], {}, 1)
    assert caught.value.sent is False


def test_a_command_reads_what_it_is_given_and_nothing_else() -> None:
    program = "import sys; sys.stdout.write(sys.stdin.read().upper())"
    script = b"#!/bin/sh\n" + b"echo hi\n" * 100_000
    assert process.run([sys.executable, "-c", program], {}, 20, stdin=script).out == script.upper()
    assert process.run([sys.executable, "-c", program], {}, 20).out == b""
