"""The follower's token: enrolled through munge, renewed in time, never lost for one that cannot be saved."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from healer.adapters.postgres.tokens import ENROLLED_ID
from tests.support.follower import Following, Hub, following, within
from tests.support.munge import realm
from tests.support.processes import clean_environ
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy

#: As healer makes them: the id of an enrolled one is the longer.
ENROLLED, MADE_BY_HAND = "heal_0123456789abcdef01234567_first", "heal_0123abcd_first"
NEW = "heal_89abcdef0123456789abcdef_second"
RENEWED = (201, {}, {"token": NEW, "node": "gpu0001", "cluster": "pod1"})
NO_DISK = "/proc/no-such-folder"


@pytest.fixture
def socket() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ht-", dir="/tmp"))
    folder.chmod(0o755)
    with realm(folder) as munge:
        yield munge.machine("127.0.0.1")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def node(tmp_path: Path, hub: Hub, socket: Path) -> Iterator[Following]:
    """Without a folder for its state. Its token lies in a folder of its own."""
    settings = {"HEALER_MUNGE_SOCKET": str(socket), "HEALER_TOKEN_FILE": str(tmp_path / "etc/token")}
    with following(tmp_path / "node", hub.url, HEALER_HOOK_SPOOL=NO_DISK, **settings) as one:
        one.token = tmp_path / "etc/token"
        one.token.parent.mkdir()
        yield one


def has_token(node: Following, text: str, days: int) -> None:
    """Written so many days ago."""
    node.token.write_text(text + "\n")
    node.token.chmod(0o600)
    at = time.time() - days * 86400
    os.utime(node.token, (at, at))


def starts(node: Following, *options: str) -> None:
    """Where the token's folder is read-only."""
    folder = node.token.parent
    inner = f'mount --bind {folder} {folder} && mount -o remount,bind,ro {folder} && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", inner, "sh", *node.command(*options)]
    with node.said.open("ab") as said:
        node.process = subprocess.Popen(command, stderr=said, env=clean_environ())


def shown(hub: Hub) -> set[str]:
    """The tokens of all requests that were taken."""
    return {headers["authorization"].removeprefix("Bearer ") for _, headers, _ in list(hub.requests)}


def test_a_token_is_renewed_without_a_folder_for_the_state(node: Following, hub: Hub) -> None:
    """Nor is a renewal lost with a follower that was killed as it had saved the token and no state."""
    has_token(node, ENROLLED, days=31)
    hub.answers.append(RENEWED)
    node.start()
    wait_until(hub.beats, 10, what="a heartbeat")
    assert node.token.read_text() == NEW + "\n" and shown(hub) == {NEW}
    node.stop()
    node.start()
    wait_until(lambda: len(hub.beats()) > 1, 10, what="a heartbeat of the next one")
    assert node.printed().count("enroll") == 1


@pytest.mark.parametrize(
    ("text", "days"), [(ENROLLED, 29), (MADE_BY_HAND, 400), ("no token of healer's", 400)]
)
def test_a_token_that_is_fresh_or_a_persons_is_not_renewed(
    node: Following, hub: Hub, text: str, days: int
) -> None:
    has_token(node, text, days)
    node.start()
    wait_until(hub.beats, 10, what="a heartbeat")
    assert shown(hub) == {text.partition(" ")[0]} and "enroll" not in node.printed()


def test_the_follower_knows_how_long_the_id_of_an_enrolled_token_is(node: Following) -> None:
    assert within(node, "print(follow.ENROLLED_ID)") == f"{ENROLLED_ID}\n"


def test_a_token_is_not_renewed_where_the_new_one_cannot_be_saved(node: Following, hub: Hub) -> None:
    """healer ends the one before in 10 minutes, and the hook reads the file."""
    has_token(node, ENROLLED, days=31)
    starts(node, "--kmsg", str(node.kmsg))
    wait_until(hub.beats, 10, what="a heartbeat")
    assert shown(hub) == {ENROLLED} and "a new token cannot be saved" in node.printed()


def test_where_it_cannot_be_saved_a_token_lasts_as_long_as_the_follower(node: Following, hub: Hub) -> None:
    has_token(node, ENROLLED, days=1)
    hub.answers.extend([(401, {}, {"detail": "this needs a token"}), RENEWED])
    starts(node, "--kmsg", str(node.kmsg))
    wait_until(lambda: len(hub.requests) > 1, 20, what="two requests")
    assert shown(hub) == {NEW} and "the new token cannot be saved" in node.printed()


def test_a_token_is_saved_once_its_disk_takes_it(node: Following, hub: Hub) -> None:
    """healer has ended the one in the file, which the hook reads."""
    has_token(node, ENROLLED, days=1)
    hub.answers.extend([(401, {}, {"detail": "this needs a token"}), RENEWED])
    starts(node, "--kmsg", str(node.kmsg))
    wait_until(lambda: len(hub.beats()) > 1, 20, what="two heartbeats")
    assert shown(hub) == {NEW} and node.token.read_text() == ENROLLED + "\n"
    assert node.process is not None
    into = ["nsenter", f"--target={node.process.pid}", "--mount"]
    subprocess.run([*into, "mount", "-o", "remount,bind,rw", str(node.token.parent)], check=True)
    wait_until(lambda: node.token.read_text() == NEW + "\n", 20, what="the token is saved")


def test_a_token_that_a_person_put_there_meanwhile_stays(node: Following) -> None:
    script = (
        "import os; path = one.token.path; folder = os.path.dirname(path)\n"
        "os.rename(folder, folder + '.away'); open(folder, 'w').close()\n"
        f"try: one.token.keep({NEW!r})\n"
        "except follow.Trouble as trouble: print(trouble)\n"
        "os.unlink(folder); os.rename(folder + '.away', folder)\n"
        f"with open(path, 'w') as file: file.write({MADE_BY_HAND!r})\n"
        "one.token.save()\n"
        "with open(path) as file: print(one.token.current(), file.read())\n"
    )
    has_token(node, ENROLLED, days=1)
    why, kept = within(node, script).splitlines()
    assert "cannot be saved" in why and kept == f"{MADE_BY_HAND} {MADE_BY_HAND}"


@pytest.mark.parametrize("days", [None, 1])
def test_enrolling_by_hand_fails_where_the_token_cannot_be_saved(
    node: Following, hub: Hub, days: int | None
) -> None:
    if days is not None:
        has_token(node, ENROLLED, days)
    hub.answers.append(RENEWED)
    starts(node, "--kmsg", str(node.kmsg), "--enroll")
    assert node.process is not None and node.process.wait(10) == 1
    assert "token cannot be saved" in node.printed()
    assert bool(hub.answers) == (days is not None), "a token that is in force is not given up"


def test_enrolling_by_hand_renews_the_token(node: Following, hub: Hub) -> None:
    has_token(node, ENROLLED, days=1)
    hub.answers.append(RENEWED)
    node.start("--kmsg", str(node.kmsg), "--enroll")
    assert node.process is not None and node.process.wait(10) == 0
    assert node.token.read_text() == NEW + "\n" and list(node.token.parent.iterdir()) == [node.token]
