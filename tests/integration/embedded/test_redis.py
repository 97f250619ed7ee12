"""The binary that is chosen is one that Celery can use."""

from pathlib import Path

import pytest

from healer.embedded.redis import OLDEST, find_binary, version_of

pytestmark = pytest.mark.heavy


def program(folder: Path, prints: str) -> str:
    path = folder / "redis-server"
    path.write_text(f"#!/bin/sh\necho '{prints}'\n")
    path.chmod(0o755)
    return str(path)


def test_versions_are_read_from_redis_and_valkey(tmp_path: Path) -> None:
    assert version_of(program(tmp_path, "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc bits=64")) == (
        7,
        0,
    )
    assert version_of(program(tmp_path, "Valkey server v=8.1.1 sha=00000000:0")) == (8, 1)


def test_an_old_an_odd_and_a_missing_program_are_too_old(tmp_path: Path) -> None:
    assert version_of(program(tmp_path, "Redis server v=6.0.16 sha=0")) < OLDEST
    assert version_of(program(tmp_path, "hello")) < OLDEST
    assert version_of("/no/such/program") < OLDEST


def test_the_one_found_here_is_new_enough() -> None:
    binary = find_binary()
    assert binary is not None
    assert version_of(str(binary)) >= OLDEST
