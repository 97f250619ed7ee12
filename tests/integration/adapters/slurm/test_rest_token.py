"""slurmrestd's token, out of a file and out of a command: when it is read again, what is wrong with it."""

import os
import sys
from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from healer.adapters.slurm.rest_token import CommandToken, FileToken
from healer.ports.scheduling import SchedulerUnavailable

pytestmark = pytest.mark.heavy

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def jwt(mark: str, **claims: Any) -> str:
    parts = [{"alg": "HS256"}, {"sun": "healer", "mark": mark, **claims}]
    coded = [urlsafe_b64encode(msgspec.json.encode(part)).decode().rstrip("=") for part in parts]
    return ".".join([*coded, "c2lnbmVk"])


def put(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def lives(mark: str, from_: datetime, for_s: int) -> str:
    return jwt(mark, iat=int(from_.timestamp()), exp=int(from_.timestamp()) + for_s)


# --- file


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = put(tmp_path / "token", jwt("a") + "\n")
    token = FileToken(path)
    assert token.current(NOW) == jwt("a")
    put(tmp_path / "new", f"SLURM_JWT={jwt('b')}\n").rename(path)
    assert token.current(NOW) == jwt("b")


def test_a_file_is_read_again_after_a_refusal_also_if_it_looks_unchanged(tmp_path: Path) -> None:
    path = put(tmp_path / "token", jwt("a"))
    token = FileToken(path)
    before = path.stat()
    token.current(NOW)
    put(path, jwt("b"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert token.current(NOW) == jwt("a")
    token.refused(jwt("a"))
    assert token.current(NOW) == jwt("b")


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644])
def test_a_file_that_others_may_read_is_refused_with_the_way_out(tmp_path: Path, mode: int) -> None:
    path = put(tmp_path / "token", jwt("a"), mode)
    token = FileToken(path)
    with pytest.raises(SchedulerUnavailable, match=f"chmod 600 {path}") as caught:
        token.current(NOW)
    assert caught.value.sent is False
    path.chmod(0o640)
    assert token.current(NOW) == jwt("a")


@pytest.mark.parametrize(
    "text",
    [
        "", "SLURM_JWT=", "not a token", "a.b.c d", "Bearer " + jwt("a"), jwt("a") + "\n" + jwt("b"), "a.b",
        "ä.b.c", "eyJ.!!!.c", "eyJhbGciOiJIUzI1NiJ9.bm8ganNvbg.c2lnbmVk", "eyJhbGciOiJIUzI1NiJ9.A.c2lnbmVk",
    ],
)  # fmt: skip
def test_file_without_a_token_is_reported_and_its_text_is_not_shown(tmp_path: Path, text: str) -> None:
    path = put(tmp_path / "token", text)
    with pytest.raises(SchedulerUnavailable, match=r"contains no (readable )?token") as caught:
        FileToken(path).current(NOW)
    assert caught.value.sent is False
    assert str(path) in str(caught.value)
    assert jwt("a") not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SchedulerUnavailable, match=r"none cannot be read: No such file") as caught:
        FileToken(tmp_path / "none").current(NOW)
    assert caught.value.sent is False


def test_a_file_that_went_away_is_not_replaced_by_what_it_held(tmp_path: Path) -> None:
    path = put(tmp_path / "token", jwt("a"))
    token = FileToken(path)
    token.current(NOW)
    path.unlink()
    with pytest.raises(SchedulerUnavailable):
        token.current(NOW)


# --- command


class Maker:
    """A command that prints a file, and counts how often it ran."""

    def __init__(self, folder: Path) -> None:
        self.says, self.ran = folder / "says", folder / "ran"
        program = "import sys, pathlib as p; p.Path(sys.argv[2]).open('a').write('x')\n"
        program += "text = p.Path(sys.argv[1]).read_text(); print(text) if text else sys.exit('no such user')"
        self.argv = [sys.executable, "-S", "-c", program, str(self.says), str(self.ran)]

    @property
    def times(self) -> int:
        return len(self.ran.read_text()) if self.ran.exists() else 0


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


def test_a_command_makes_a_token_that_is_used_for_three_quarters_of_its_life(maker: Maker) -> None:
    token = CommandToken(maker.argv, timeout_s=20)
    maker.says.write_text("SLURM_JWT=" + lives("a", NOW, 1000))
    assert token.current(NOW) == lives("a", NOW, 1000)
    assert token.current(NOW + timedelta(seconds=740)) == lives("a", NOW, 1000)
    assert maker.times == 1
    later = NOW + timedelta(seconds=760)
    maker.says.write_text(lives("b", later, 1000))
    assert token.current(later) == lives("b", later, 1000)
    assert maker.times == 2


@pytest.mark.parametrize("ahead", [timedelta(days=1), timedelta(days=-1)])
def test_an_issuer_whose_clock_differs_is_not_asked_all_the_time(maker: Maker, ahead: timedelta) -> None:
    token = CommandToken(maker.argv, timeout_s=20)
    maker.says.write_text(lives("a", NOW + ahead, 1000))
    token.current(NOW)
    token.current(NOW + timedelta(seconds=700))
    assert maker.times == 1
    token.current(NOW + timedelta(seconds=800))
    assert maker.times == 2


def test_token_made_earlier_is_renewed_by_its_remaining_life(maker: Maker) -> None:
    token = CommandToken(maker.argv, timeout_s=20)
    maker.says.write_text(lives("a", NOW - timedelta(seconds=900), 1000))
    token.current(NOW)
    token.current(NOW + timedelta(seconds=70))
    assert maker.times == 1
    token.current(NOW + timedelta(seconds=80))
    assert maker.times == 2


def test_a_token_without_an_end_is_made_once_and_again_after_a_refusal(maker: Maker) -> None:
    token = CommandToken(maker.argv, timeout_s=20)
    maker.says.write_text(jwt("a"))
    token.current(NOW)
    token.current(NOW + timedelta(days=400))
    assert maker.times == 1
    maker.says.write_text(jwt("b"))
    token.refused(jwt("a"))
    assert token.current(NOW) == jwt("b")


def test_a_renewal_that_fails_leaves_the_old_token_in_use(maker: Maker) -> None:
    token = CommandToken(maker.argv, timeout_s=20)
    maker.says.write_text(lives("a", NOW, 1000))
    token.current(NOW)
    maker.says.write_text("")
    for seconds in (760, 761, 774):
        assert token.current(NOW + timedelta(seconds=seconds)) == lives("a", NOW, 1000)
    assert maker.times == 2, "tried again after 15 s"
    token.current(NOW + timedelta(seconds=776))
    assert maker.times == 3
    # One that Slurm refused is not used again.
    token.refused(lives("a", NOW, 1000))
    with pytest.raises(SchedulerUnavailable):
        token.current(NOW + timedelta(seconds=777))


def test_a_command_that_fails_is_named_and_what_it_said_is_kept_back() -> None:
    said = f"debug: SLURM_JWT={jwt('a')} client_secret=hunter2"
    argv = [sys.executable, "-S", "-c", f"import sys; sys.exit({said!r})"]
    with pytest.raises(SchedulerUnavailable, match=r"exited with 1: run it") as caught:
        CommandToken(argv, timeout_s=20).current(NOW)
    assert caught.value.sent is False
    message = str(caught.value)
    assert argv[0] in message
    assert jwt("a") not in message and "hunter2" not in message, "neither as output nor as an argument"


def test_a_command_that_fails_is_not_run_by_each_who_asks(maker: Maker) -> None:
    maker.says.write_text("")
    token = CommandToken(maker.argv, timeout_s=20)
    for seconds in (0, 1, 14):
        with pytest.raises(SchedulerUnavailable, match="exited with 1") as caught:
            token.current(NOW + timedelta(seconds=seconds))
        assert caught.value.sent is False
    assert maker.times == 1
    maker.says.write_text(jwt("a"))
    assert token.current(NOW + timedelta(seconds=16)) == jwt("a")


def test_many_who_were_refused_with_one_old_token_make_one_new_one(maker: Maker) -> None:
    token = CommandToken(maker.argv, timeout_s=20)
    maker.says.write_text(jwt("a"))
    old = token.current(NOW)
    maker.says.write_text(jwt("b"))
    for _ in range(8):
        token.refused(old)
        assert token.current(NOW) == jwt("b")
    assert maker.times == 2


def test_a_command_that_hangs_or_is_missing_is_unavailable_in_time(tmp_path: Path) -> None:
    for argv in (["sleep", "60"], [str(tmp_path / "none")], ["cat", "/dev/zero"]):
        with pytest.raises(SchedulerUnavailable) as caught:
            CommandToken(argv, timeout_s=0.5).current(NOW)
        assert caught.value.sent is False
    with pytest.raises(ValueError):
        CommandToken([])
