"""The note by which other commands find a running `healer up`."""

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from healer.embedded.running import Running, find, forget, note
from healer.embedded.user import EmbeddedError

pytestmark = pytest.mark.heavy

NOTE = Running(
    pid=os.getpid(), url="http://127.0.0.1:1", database_url="postgresql+psycopg:///x", broker_url=""
)


def test_note_of_a_running_server_is_found_and_private(tmp_path: Path) -> None:
    note(tmp_path, NOTE)
    assert find(tmp_path) == NOTE
    assert (tmp_path / "running.json").stat().st_mode & 0o777 == 0o600


def test_nothing_there_names_the_folder_and_what_to_do(tmp_path: Path) -> None:
    note(tmp_path, NOTE)
    forget(tmp_path)
    with pytest.raises(EmbeddedError, match=rf"no healer runs on {tmp_path}: start `healer up`"):
        find(tmp_path)


@pytest.mark.parametrize("cut", [b"", b'{"pid":'])
def test_a_note_that_a_power_cut_left_counts_as_none(tmp_path: Path, cut: bytes) -> None:
    (tmp_path / "running.json").write_bytes(cut)
    with pytest.raises(EmbeddedError, match="start `healer up`"):
        find(tmp_path)


def test_a_note_of_a_dead_process_is_not_believed(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    note(tmp_path, msgspec.structs.replace(NOTE, pid=ended.pid))
    with pytest.raises(EmbeddedError, match="has stopped"):
        find(tmp_path)
