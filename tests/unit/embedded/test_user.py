"""Where the embedded servers' files may lie, and that no folder of others is ever opened up."""

import os
from pathlib import Path

import pytest

from healer.embedded.user import (
    SOCKET_FOLDER_MAX,
    EmbeddedError,
    ServerUser,
    make_data_dir,
    server_home,
    server_user,
    socket_folder,
)

STRANGER = ServerUser(uid=os.getuid() + 4242, gid=os.getgid() + 4242, name="stranger", drop=True)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_new_data_directory_can_be_entered_by_the_servers_and_listed_by_no_one(scratch: Path) -> None:
    data_dir = make_data_dir(scratch / "a" / "data")
    assert mode(data_dir) == 0o711
    assert STRANGER.can_enter(data_dir)
    assert server_home(data_dir, STRANGER) == data_dir


def test_a_data_directory_that_exists_keeps_its_mode(scratch: Path) -> None:
    (scratch / "data").mkdir(mode=0o700)
    assert mode(make_data_dir(scratch / "data")) == 0o700


def test_a_private_home_is_left_alone_and_the_other_place_is_remembered(scratch: Path) -> None:
    home = scratch / "home"
    home.mkdir(mode=0o700)
    data_dir = make_data_dir(home / "data")
    place = server_home(data_dir, STRANGER, state=scratch / "state")
    assert place.parent == scratch / "state"
    assert STRANGER.can_enter(place)
    assert mode(home) == 0o700
    home.chmod(0o755)
    assert server_home(data_dir, STRANGER, state=scratch / "state") == place, "the database is still there"


def test_two_private_data_directories_of_one_name_do_not_meet(scratch: Path) -> None:
    places = set[Path]()
    for name in ("ada", "bob"):
        (scratch / name).mkdir(mode=0o700)
        places.add(server_home(make_data_dir(scratch / name / "data"), STRANGER, state=scratch / "state"))
    assert len(places) == 2


def test_a_file_in_the_place_of_the_data_directory_is_named(scratch: Path) -> None:
    (scratch / "data").touch()
    with pytest.raises(EmbeddedError, match=f"{scratch}/data is a file"):
        make_data_dir(scratch / "data")


def test_a_socket_never_has_a_path_that_the_kernel_refuses(scratch: Path) -> None:
    long = scratch / ("x" * SOCKET_FOLDER_MAX)
    long.mkdir(mode=0o711)
    user = server_user()
    folder = socket_folder(long, "redis", user)
    try:
        assert len(os.fsencode(folder / ".s.PGSQL.5432")) < 107
        assert not mode(folder) & 0o007
        assert socket_folder(long, "redis", user) == folder
    finally:
        folder.rmdir()


def test_a_socket_folder_that_is_a_link_is_refused(scratch: Path) -> None:
    long = scratch / ("y" * SOCKET_FOLDER_MAX)
    long.mkdir(mode=0o711)
    user = server_user()
    folder = socket_folder(long, "redis", user)
    folder.rmdir()
    folder.symlink_to(scratch)
    try:
        with pytest.raises(EmbeddedError, match="belongs to another user"):
            socket_folder(long, "redis", user)
    finally:
        folder.unlink()
