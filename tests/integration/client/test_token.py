"""How a job's ranks come by their token: a real munged makes the credential, a made-up healer answers."""

import errno
import fcntl
import json
import os
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import healer_steps
import pytest
from healer_steps import _token
from healer_steps._environ import Settings
from healer_steps._link import Link
from healer_steps._token import NoToken, Token

from healer.adapters.munge import Munge
from tests.integration.client.conftest import Receiver
from tests.support.munge import realm
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy

ENROLL = "/api/v1/enroll"


@pytest.fixture
def short() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hm-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def socket(short: Path) -> Iterator[Path]:
    with realm(short) as munge:
        yield munge.machine("127.0.0.1")


class Rank:
    """Ranks of one node: they share a folder."""

    def __init__(self, receiver: Receiver, socket: Path, folder: Path, **more: str) -> None:
        self.receiver, self.socket, self.folder, self.more = receiver, socket, folder, more

    def token(self) -> Token:
        settings = Settings(
            self.receiver.environ(HEALER_TOKEN="", HEALER_MUNGE_SOCKET=str(self.socket), **self.more)
        )
        return Token(settings, Link(settings).post, str(self.folder))

    def gives(self, *tokens: str) -> None:
        for token in tokens:
            self.receiver.sink.answers.append((201, {}, json.dumps({"token": token}).encode()))

    def asked(self) -> list[Any]:
        return [json.loads(body) for headers, body in self.receiver.sink.asked if headers[":path"] == ENROLL]


@pytest.fixture
def rank(receiver: Receiver, socket: Path, tmp_path: Path) -> Rank:
    return Rank(receiver, socket, tmp_path / "tokens")


def test_the_credential_is_the_users_own_and_says_which_job(rank: Rank) -> None:
    rank.gives("heal_1_a")
    assert rank.token().value() == "heal_1_a"
    (body,) = rank.asked()
    made = Munge(rank.socket).decode(body["credential"])
    said = json.loads(made.payload)
    assert (made.uid, said["for"], said["job"]) == (os.getuid(), "healer enroll job", "4711")
    assert "authorization" not in rank.receiver.sink.asked[0][0]


def test_the_ranks_of_a_node_share_one_token_in_a_folder_of_their_user(rank: Rank) -> None:
    rank.gives("heal_1_a", "heal_1_b", "heal_1_c", "heal_1_d")
    got: list[str] = []
    threads = [threading.Thread(target=lambda: got.append(rank.token().value())) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert got == ["heal_1_a"] * 4 and len(rank.asked()) == 1
    assert stat.S_IMODE(rank.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in rank.folder.iterdir()} == {0o600}


def test_a_process_forked_while_a_rank_gets_its_token_keeps_no_other_rank_waiting(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a loader's worker is, which lives for the whole epoch."""
    rank.gives("heal_1_a")
    first, children = rank.token(), list[int]()
    post = first._post

    def forks(path: str, body: bytes, token: str) -> Any:
        child = os.fork()
        if child == 0:
            signal.pause()
        children.append(child)
        return post(path, body, token)

    first._post = forks
    monkeypatch.setattr(_token, "_WAIT_S", 0.5)
    try:
        assert [first.value(), rank.token().value()] == ["heal_1_a"] * 2
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert len(children) == 1


def test_a_folder_that_others_may_read_is_not_used(rank: Rank) -> None:
    rank.folder.mkdir(mode=0o755)
    rank.folder.chmod(0o755)
    rank.gives("heal_1_a", "heal_1_b")
    assert [rank.token().value(), rank.token().value()] == ["heal_1_a", "heal_1_b"]
    assert list(rank.folder.iterdir()) == []


def test_a_folder_on_a_file_system_without_locks_is_used_all_the_same(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Lustre is, mounted without `flock`."""

    def refuses(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuses)
    monkeypatch.setattr(_token, "_WAIT_S", 0.2)
    rank.gives("heal_1_a", "heal_1_b")
    assert [rank.token().value(), rank.token().value()] == ["heal_1_a"] * 2


def test_rejected_token_is_dropped_by_all_users_and_renewed(rank: Rank) -> None:
    rank.gives("heal_1_a", "heal_1_b")
    first, second = rank.token(), rank.token()
    assert first.value() == second.value() == "heal_1_a"
    first.refused()
    assert first.value() == "heal_1_b"
    second.refused()  # another rank was faster
    assert second.value() == "heal_1_b" and len(rank.asked()) == 2


def test_an_old_token_is_renewed(rank: Rank) -> None:
    rank.gives("heal_1_a", "heal_1_b")
    token = rank.token()
    token.value()
    (kept,) = [one for one in rank.folder.iterdir() if one.suffix != ".lock"]
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"until": 0}))
    assert rank.token().value() == "heal_1_b"
    token._until = 0.0
    assert token.value() == "heal_1_b" and len(rank.asked()) == 2


@pytest.mark.parametrize(
    "text", ["", "[]", '{"token": 3', '{"token": "x"}'], ids=["empty", "list", "half", "no-end"]
)
def test_a_broken_file_is_no_trouble(rank: Rank, text: str) -> None:
    rank.gives("heal_1_a", "heal_1_b")
    rank.token().value()
    (kept,) = [one for one in rank.folder.iterdir() if one.suffix != ".lock"]
    kept.write_text(text)
    assert rank.token().value() == "heal_1_b"


def test_a_refusal_says_why_and_a_job_that_slurm_shows_soon_is_no_trouble(rank: Rank) -> None:
    said = json.dumps({"detail": "Slurm's picture shows no job 4711 at work"}).encode()
    rank.receiver.sink.answers.extend([(409, {}, said), (403, {}, said)])
    for soon in (True, False):
        with pytest.raises(NoToken, match="no job 4711 at work") as caught:
            rank.token().value()
        assert caught.value.soon is soon


def test_without_munge_one_line_says_what_is_missing(
    receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("healer_steps._token._FOLDERS", (str(tmp_path),))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    steps = healer_steps.Steps(every_s=0.05, environ=receiver.environ(HEALER_TOKEN=""))
    with steps.step():
        pass
    wait_until(lambda: "no munge" in caplog.text, 20, what="it is said")
    steps.close(0.2)
    assert caplog.text.count("no munge") == 1 and receiver.sink.asked == [] and steps.dropped == 1
