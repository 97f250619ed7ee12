"""`healer doctor` on the users of the parts, by a picture of /proc."""

from pathlib import Path

import pytest

from healer.bootstrap.user_checks import check_users_of_parts, users_of_parts
from tests.support.units import PARTS

ANN, WORKER = 61001, 61002


def process(proc: Path, pid: int, title: str, uid: int) -> None:
    entry = proc / str(pid)
    entry.mkdir()
    (entry / "cmdline").write_text(f"{title}\0")
    (entry / "status").write_text(f"Name:\thealer\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")


@pytest.mark.parametrize(
    ("users", "state", "says"),
    [
        ({}, "ok", "detector: 61011"),
        ({"api": WORKER}, "fail", "api: run as 61002, the worker's user"),
        ({"detector": WORKER, "scraper": WORKER}, "fail", "detector, scraper: run as 61002"),
        ({"scheduler": 0}, "fail", "scheduler: run as root"),
        ({"worker": 0}, "fail", "worker: run as root"),
        (dict.fromkeys(PARTS, ANN), "fail", "the worker's user"),
    ],
)
def test_a_part_with_the_worker_s_user_or_root_s_is_named(
    tmp_path: Path, users: dict[str, int], state: str, says: str
) -> None:
    own = {part: 61010 + place for place, part in enumerate(PARTS)} | {"worker": WORKER}
    for pid, (part, uid) in enumerate((own | users).items(), 1):
        process(tmp_path, pid, f"healer {part}", uid)
    process(tmp_path, 98, "nginx: master process", 0)
    process(tmp_path, 99, "healer doctor", ANN)
    process(tmp_path, 100, "healer api", 0)
    connected = [(f"healer {part}", pid) for pid, part in enumerate((own | users), 1)]
    connected += [("healer api acting", 1), ("healer worker", 98), ("healer doctor", 99), ("healer api", 101)]
    (look,) = check_users_of_parts(users_of_parts(tmp_path, connected), together=False)
    assert look.state == state and says in str(look.text), look


def test_an_ordinary_user_s_healer_up_runs_all_parts_as_that_user() -> None:
    (look,) = check_users_of_parts({part: {ANN} for part in PARTS}, together=True)
    assert look.state == "note" and "the worker's user" in str(look.text)


def test_a_machine_without_parts_has_no_such_check(tmp_path: Path) -> None:
    assert check_users_of_parts(users_of_parts(tmp_path, []), together=False) == []
