"""healer-follow as a process of its own, against a real server, with a pipe in the place of /dev/kmsg."""

import ast
import json
import os
import signal
import socket
import stat
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.follower import BOOT, FOLLOW, PROBLEM, XID_79, Following, Hub, following, heard, within
from tests.support.processes import clean_environ
from tests.support.tls import certificates, serve_tls
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy


def alive(hub: Hub, beats: int = 1) -> None:
    wait_until(lambda: len(hub.beats()) >= beats, 10, what="a heartbeat")


def ended(node: Following) -> "subprocess.CompletedProcess[str]":
    """Runs it where it is expected to end by itself."""
    command = node.command("--kmsg", str(node.kmsg))
    return subprocess.run(
        command, env=clean_environ(), capture_output=True, text=True, timeout=10, check=False
    )


def test_it_is_written_for_python_3_6_without_packages() -> None:
    tree = ast.parse(FOLLOW.read_text(), feature_version=(3, 6))
    names = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    assert names == {
        "errno", "fcntl", "json", "os", "select", "signal", "socket", "ssl", "stat", "sys", "time", "zlib",
    }  # fmt: skip
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


def test_a_line_of_the_kernel_arrives_with_boot_number_and_time(node: Following, hub: Hub) -> None:
    node.start()
    node.say("first", since_s=100)
    node.say(XID_79)
    heard(hub, "first", XID_79)
    assert [entry["seq"] for entry in hub.entries()] == [0, 1]
    assert {entry["boot_id"] for entry in hub.entries()} == {BOOT}
    first, second = (datetime.fromisoformat(entry["time"]) for entry in hub.entries())
    assert abs(second - first - timedelta(seconds=100)) < timedelta(seconds=5)
    assert abs(datetime.now(UTC) - second) < timedelta(seconds=20)
    body = hub.bodies("signals/kernel-log")[0]
    assert (body["node"], body["boot_id"], "cluster" in body) == ("gpu0001", BOOT, False)
    path, headers, _ = hub.requests[0]
    assert path.startswith("/api/v1/signals/") and headers["authorization"] == "Bearer heal_test_token"


def test_heartbeats_carry_boot_id_and_time(node: Following, hub: Hub) -> None:
    node.start()
    alive(hub)
    beat = hub.beats()[0]
    assert (beat["node"], beat["boot_id"], beat["lost"]) == ("gpu0001", BOOT, 0)
    assert abs(datetime.now(UTC) - datetime.fromisoformat(beat["time"])) < timedelta(seconds=20)


@pytest.mark.parametrize("priority", [8 + 4, 3 * 8 + 2, 23 * 8])
def test_a_line_that_another_than_the_kernel_wrote_is_dropped(
    node: Following, hub: Hub, priority: int
) -> None:
    """`logger` and other writers to /dev/kmsg get a facility other than 0 from the kernel."""
    node.start()
    node.say(XID_79.replace("79", "48"), priority=priority)
    node.say(XID_79)
    heard(hub, XID_79)


def test_a_line_break_in_a_record_makes_no_second_record(node: Following, hub: Hub) -> None:
    """The kernel writes it as \\x0a; what follows a record indented is its dictionary."""
    node.start()
    node.say(f"usb: name\\x0a4,7,1,-;{XID_79}\n DEVICE=+pci:0000:9b:00.0\n SUBSYSTEM=4,9,1,-;{XID_79}")
    node.say(XID_79)
    heard(hub, f"usb: name\\x0a4,7,1,-;{XID_79}", XID_79)


def test_lines_below_warning_are_the_drivers_alone(node: Following, hub: Hub) -> None:
    node.start()
    node.say("systemd: something ordinary", "NVRM: loading", "nvidia 0000:9b:00.0: enabling", priority=6)
    node.say("EXT4-fs error (device sda1)", priority=3)
    heard(hub, "NVRM: loading", "nvidia 0000:9b:00.0: enabling", "EXT4-fs error (device sda1)")


def test_a_flood_of_others_is_bounded_and_counted_and_hides_no_line_of_the_driver(
    node: Following, hub: Hub
) -> None:
    node.start()
    node.burst([f"firewall: dropped {number}" for number in range(1000)])
    node.say(XID_79)
    wait_until(lambda: XID_79 in hub.lines(), 10, what="the driver's line")
    others = [line for line in hub.lines() if "firewall" in line]
    assert others == [f"firewall: dropped {number}" for number in range(len(others))]
    assert 100 <= len(others) < 200
    node.stop()
    assert node.state()["lost"] == 1000 - len(others)


def test_all_lines_of_a_burst_arrive_in_order(node: Following, hub: Hub) -> None:
    lines = [f"NVRM: Xid (PCI:0000:9b:00): 31, number {number}" for number in range(10_000)]
    node.start()
    node.burst(lines)
    wait_until(lambda: len(hub.lines()) >= 10_000, 30, what="10,000 lines", every_s=0.2)
    assert hub.lines() == lines


def test_unsent_lines_are_kept_and_sent_in_order_when_healer_returns(node: Following, hub: Hub) -> None:
    node.start()
    node.say(XID_79)
    heard(hub, XID_79)
    hub.stop()
    node.say("NVRM: Xid one")
    wait_until(lambda: node.lies() == 1, 10, what="it lies on disk")
    node.say("NVRM: Xid two", "NVRM: Xid three")
    hub.start()
    heard(hub, XID_79, "NVRM: Xid one", "NVRM: Xid two", "NVRM: Xid three", timeout_s=20)
    wait_until(lambda: node.lies() == 0, 5, what="the spool is empty")


def test_a_restart_goes_on_behind_what_was_delivered(node: Following, hub: Hub) -> None:
    node.start()
    node.say("NVRM: Xid one")
    wait_until(lambda: node.state().get("mark") == 0, 10, what="it knows that it was delivered")
    node.stop()
    node.seq = 0  # the ring still holds the old line, and every reader starts at its beginning
    node.say("NVRM: Xid one", "NVRM: Xid two")
    node.start()
    heard(hub, "NVRM: Xid one", "NVRM: Xid two")


def test_a_kill_in_the_middle_loses_nothing(node: Following, hub: Hub) -> None:
    """What was neither delivered nor written down is read again from the ring."""
    hub.answers.append(None)  # no answer to the first heartbeat
    node.start()
    wait_until(lambda: hub.requests, 10, what="it waits for an answer")
    node.say("NVRM: Xid one")
    node.stop(signal.SIGKILL)
    hub.answers.clear()
    node.seq = 0
    node.start()
    node.say("NVRM: Xid one", "NVRM: Xid two")
    wait_until(lambda: "NVRM: Xid two" in hub.lines(), 10, what="the line after")
    assert "NVRM: Xid one" in hub.lines()


def test_reboot_restarts_numbering_and_old_lines_keep_their_boot(node: Following, hub: Hub) -> None:
    node.start()
    node.say("NVRM: Xid zero", "NVRM: Xid one")
    heard(hub, "NVRM: Xid zero", "NVRM: Xid one")
    hub.stop()
    node.say("NVRM: Xid last words")
    wait_until(lambda: node.lies() == 1, 10, what="it lies on disk")
    node.stop()
    fresh = "11111111-1685-44bd-a6ed-5fc0bc1c44ae"
    node.boot(fresh)
    node.seq = 0
    node.say("NVRM: Xid after")
    hub.start()
    node.start()
    heard(hub, "NVRM: Xid zero", "NVRM: Xid one", "NVRM: Xid last words", "NVRM: Xid after")
    assert [(entry["boot_id"], entry["seq"]) for entry in hub.entries()][2:] == [(BOOT, 2), (fresh, 0)]


def test_lines_lost_by_the_ring_buffer_are_counted_and_reported(node: Following, hub: Hub) -> None:
    node.start()
    node.say("NVRM: one")
    heard(hub, "NVRM: one")
    node.seq += 41
    node.say("NVRM: two")
    heard(hub, "NVRM: one", "NVRM: two")
    node.stop()
    node.start()
    wait_until(lambda: hub.beats()[-1]["lost"] == 41, 10, what="the next heartbeat reports it")


def test_an_empty_line_of_the_kernel_is_no_lost_one(node: Following, hub: Hub) -> None:
    node.start()
    node.say("NVRM: one", "", "", "NVRM: two")
    heard(hub, "NVRM: one", "NVRM: two")
    node.stop()
    assert node.state()["lost"] == 0


@pytest.mark.parametrize("wrong", ["null", '"many"', "[1]", "{}", "1.5"])
def test_a_state_with_values_of_another_kind_stops_nothing(node: Following, hub: Hub, wrong: str) -> None:
    (node.spool / "follow").mkdir(parents=True, mode=0o700)
    keys = ("boot_id", "mark", "node", "host", "lost", "segment", "offset")
    state = "{" + ",".join(f'"{key}": {wrong}' for key in keys) + "}"
    (node.spool / "follow/state").write_text(state)
    node.start()
    node.say("NVRM: one")
    node.seq += 1
    node.say("NVRM: two")
    heard(hub, "NVRM: one", "NVRM: two")
    node.stop()
    assert (node.state()["lost"], node.state()["boot_id"]) == (1, BOOT)


def test_while_an_nvidia_smi_hangs_it_looks_once_a_second(node: Following) -> None:
    """One that hangs in the kernel stays for hours, and the time for the next one passes meanwhile."""
    script = (
        "one.smi, now = follow.Child(['/bin/sleep', '60']), time.monotonic()\n"
        "one.smi_at, one.beat_at = now - 5, now + 8\n"
        "print(one.wait_s(now))\n"
        "one.smi.kill()\n"
    )
    assert within(node, script) == "1.0\n"


def test_healer_is_asked_less_often_while_it_does_not_know_the_node(node: Following) -> None:
    """As of one that Slurm does not name yet: a whole new rack would ask twice a second."""
    script = (
        'refusal = b\'{"rejected": [{"index": 0, "reason": "node: gpu0001 is not a node"}]}\'\n'
        "print([one.answered(refusal, 1) for _ in range(4)], one.fails)\n"
        "print(one.answered(b'{}', 1), one.fails)\n"
    )
    assert within(node, script) == "[False, False, False, False] 4\nTrue 0\n"


@pytest.mark.parametrize(("host", "named"), [("", "gpu0099"), ("another-host", "")])
def test_a_name_of_an_enrolment_counts_on_the_host_that_enrolled(
    tmp_path: Path, hub: Hub, host: str, named: str
) -> None:
    """A disk that was moved would make this machine speak as the other node, and have that one drained."""
    here = socket.gethostname().split(".")[0]
    with following(tmp_path, hub.url, HEALER_NODE="") as node:
        (node.spool / "follow").mkdir(parents=True, mode=0o700)
        state = {"boot_id": BOOT, "node": "gpu0099", "host": host or here}
        (node.spool / "follow/state").write_text(json.dumps(state))
        node.start()
        alive(hub)
        assert hub.beats()[0]["node"] == (named or here)


def test_the_spool_is_bounded_and_its_oldest_lines_go_first(tmp_path: Path, hub: Hub) -> None:
    folder = tmp_path / "node/spool/follow"
    folder.mkdir(parents=True)
    (tmp_path / "node/spool").chmod(0o700)
    entry = json.dumps({"boot_id": BOOT, "time": "2026-11-20T03:00:00Z", "line": "x" * 1000}).encode() + b"\n"
    for number in range(10):
        (folder / f"lines.{number + 1}").write_bytes(entry * (1024 * 1024 // len(entry)))
    before = sum(path.stat().st_size for path in folder.iterdir())
    hub.stop()
    with following(tmp_path / "node", hub.url) as node:
        node.start()
        node.say("NVRM: Xid the newest")
        wait_until((folder / "lines.11").exists, 10, what="the new line lies on disk")
        node.burst(["NVRM: " + "y" * 900] * 200)
        wait_until(lambda: not (folder / "lines.1").exists(), 10, what="the oldest have gone")
        node.stop()
    sizes = [path.stat().st_size for path in folder.glob("lines.*")]
    assert before < sum(sizes) + 1024 * 1024 and sum(sizes) <= 10 * 1024 * 1024
    assert json.loads((folder / "state").read_text())["lost"] == 1024 * 1024 // len(entry)


@pytest.mark.parametrize(
    ("spoilt", "lost"),
    [
        (b'{"line": "cut {"line": "NVRM: behind it"}\n', 1),
        (b'{"line": "' + b"\0" * 100 + b'"}\n', 1),
        (b"\0" * 200_000 + b"\n", 1),
        (b'{"line": "\xff"}\n', 1),
    ],
)
def test_a_spoilt_line_of_the_spool_costs_no_other(
    node: Following, hub: Hub, spoilt: bytes, lost: int
) -> None:
    """As a full disk or a loss of power leaves it. healer would refuse the whole request for it."""
    folder = node.spool / "follow"
    folder.mkdir(parents=True, mode=0o700)
    first, last = (json.dumps({"boot_id": BOOT, "line": f"NVRM: {word}"}).encode() for word in ("one", "two"))
    (folder / "lines.1").write_bytes(first + b"\n" + spoilt + last + b"\n")
    node.start()
    heard(hub, "NVRM: one", "NVRM: two")
    wait_until(lambda: not (folder / "lines.1").exists(), 10, what="the spool is empty")
    node.stop()
    assert node.state()["lost"] == lost


@pytest.mark.parametrize("name", ["lines.²", "lines.٢", "lines.02", "lines.2.bak"])
def test_a_file_of_another_name_in_the_spool_stops_nothing(tmp_path: Path, hub: Hub, name: str) -> None:
    with following(tmp_path, hub.url) as node:
        folder = node.spool / "follow"
        folder.mkdir(parents=True, mode=0o700)
        for path in (folder / "lines.1", folder / name):
            path.write_text(json.dumps({"boot_id": BOOT, "line": f"NVRM: {path.name}"}) + "\n")
        script = (
            "print([line.decode() for line in one.store.peek()]); one.store.done(1)\n"
            'one.store.add(1, b\'{"line": "new"}\'); one.store.park()\n'
            "print(one.store.segments, one.store.state['lost'])\n"
        )
        found, kept = within(node, script).splitlines()
        assert "NVRM: lines.1" in found and kept == "[2] 0"
        assert (folder / name).exists()


def test_a_file_of_the_spool_that_an_admin_removes_stops_nothing(node: Following, hub: Hub) -> None:
    """Before it is read, while it is sent, and while others are written."""
    folder = node.spool / "follow"
    script = (
        f"import os; folder = {str(folder)!r}\n"
        "store = one.store\n"
        "def spooled(number):\n"
        '    store.add(number, b\'{"line": "%d"}\' % number)\n'
        "    store.park()\n"
        "    return store._path(store.segments[-1])\n"
        "def peeked():\n"
        "    return [line.decode() for line in store.peek()]\n"
        "os.unlink(spooled(1)); kept = spooled(2); print(peeked())\n"
        "os.unlink(kept); store.done(1); spooled(3); print(peeked())\n"
        "follow.SPOOL_BYTES = follow.SEGMENT_BYTES = 10; os.unlink(store._path(store.segments[0]))\n"
        "spooled(4); spooled(5); print(peeked())\n"
    )
    heard = within(node, script).splitlines()
    assert heard == ['[\'{"line": "2"}\']', '[\'{"line": "3"}\']', '[\'{"line": "5"}\']']


def test_a_delivered_file_that_cannot_be_removed_blocks_none_after_it(node: Following, hub: Hub) -> None:
    """As on a disk whose errors made it read-only for a while."""
    folder = node.spool / "follow"
    script = (
        f"import os, subprocess; folder = {str(folder)!r}\n"
        "store = one.store\n"
        "def spooled(number):\n"
        '    store.add(number, b\'{"line": "%d"}\' % number)\n'
        "    store.park()\n"
        "    return [os.path.basename(store._path(one)) for one in store.segments], len(store.memory)\n"
        "print(spooled(1))\n"
        "subprocess.check_call(['mount', '--bind', folder, folder])\n"
        "subprocess.check_call(['mount', '-o', 'remount,bind,ro', folder])\n"
        "store.done(len(store.peek()))\n"
        "subprocess.check_call(['umount', folder])\n"
        "print(spooled(2), store.peek())\n"
    )
    assert within(node, script, "unshare", "--mount") == (
        "(['lines.1'], 0)\n(['lines.2'], 0) [b'{\"line\": \"2\"}']\n"
    )


def test_lines_wait_in_memory_when_the_spool_cannot_be_written(tmp_path: Path, hub: Hub) -> None:
    hub.stop()
    with following(tmp_path, hub.url, HEALER_HOOK_SPOOL="/proc/no-such-folder") as node:
        node.start()
        node.say("NVRM: Xid one")
        wait_until(lambda: "does not answer" in node.printed(), 10, what="it was tried")
        assert "nothing can be kept on disk" in node.printed()
        hub.start()
        heard(hub, "NVRM: Xid one")


def test_each_failed_request_keeps_what_memory_has_room_for(tmp_path: Path, hub: Hub) -> None:
    script = (
        "for number in range(4900):\n"
        "    one.store.add(number, b'{}')\n"
        "one.failed(None)\n"
        "print(len(one.store.memory), one.store.state['lost'])\n"
        "for number in range(4900, 5100):\n"
        "    one.store.add(number, b'{}')\n"
        "print(one.store.memory[-1], len(one.store.memory) + one.store.state['lost'])\n"
    )
    with following(tmp_path, hub.url, HEALER_HOOK_SPOOL="/proc/no-such-folder") as node:
        assert within(node, script) == "4900 0\n(5099, b'{}') 5100\n"


def test_a_full_disk_stops_nothing(tmp_path: Path, hub: Hub) -> None:
    """A file system of 64 KiB of its own, in a mount namespace of its own."""
    hub.stop()
    with following(tmp_path, hub.url) as node:
        node.spool.mkdir(mode=0o700)
        inner = f'mount -t tmpfs -o size=64k,mode=700 none {node.spool} && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", inner, "sh", *node.command("--kmsg", str(node.kmsg))]
        with node.said.open("ab") as said:
            node.process = subprocess.Popen(command, stderr=said, env=clean_environ())
        node.burst([f"NVRM: {number} " + "z" * 900 for number in range(500)])
        wait_until(lambda: "undelivered lines stay in memory" in node.printed(), 10, what="the disk is full")
        hub.start()
        wait_until(lambda: len(hub.lines()) == 500, 20, what="all lines", every_s=0.1)
        assert [int(line.split()[1]) for line in hub.lines()] == list(range(500))


def test_a_disk_that_stays_full_is_not_filled_with_empty_files(node: Following) -> None:
    """Each attempt made one more, where more waited than a file takes: a night's outage left thousands."""
    node.spool.mkdir(mode=0o700)
    inner = f'mount -t tmpfs -o size=64k,mode=700 none {node.spool} && exec "$@"'
    script = (
        "one.store.memory = [(n, b'x' * 900) for n in range(3000)]\n"
        "for _ in range(5):\n    one.store.park()\n"
        "import os\n"
        "print(sorted(os.listdir(one.store.folder)), len(one.store.memory))\n"
    )
    assert within(node, script, "unshare", "--mount", "sh", "-c", inner, "sh") == "['lines.1', 'lock'] 3000\n"


def test_files_are_private_and_a_planted_link_is_not_followed(tmp_path: Path, hub: Hub) -> None:
    victim = tmp_path / "victim"
    victim.write_text('{"line":"a secret"}\n')
    hub.stop()
    with following(tmp_path / "node", hub.url) as node:
        (node.spool / "follow").mkdir(parents=True, mode=0o700)
        for name in ("lines.1", "state"):
            (node.spool / "follow" / name).symlink_to(victim)
        node.start()
        node.say("NVRM: Xid one")
        private = {stat.S_IFREG | 0o600}
        wait_until(lambda: node.lies() == 1 and set(node.files().values()) == private, 10, what="all is ours")
        hub.start()
        heard(hub, "NVRM: Xid one", timeout_s=20)
    assert victim.read_text() == '{"line":"a secret"}\n'


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path, hub: Hub) -> None:
    with following(tmp_path, hub.url) as node:
        (node.spool / "follow").mkdir(parents=True)
        (node.spool / "follow").chmod(0o777)
        node.start()
        alive(hub)
        assert "is not a folder that only healer-follow can write" in node.printed()
        assert not list((node.spool / "follow").iterdir())


def test_a_second_one_in_the_same_spool_ends_at_once(node: Following, hub: Hub) -> None:
    node.start()
    alive(hub)
    second = ended(node)
    assert second.returncode == 1 and "another healer-follow is using" in second.stderr


def test_sigterm_delivers_what_waits_and_ends_within_2_s(node: Following, hub: Hub) -> None:
    node.start()
    alive(hub)
    node.say("NVRM: an ordinary line that would wait a second")
    assert node.stop() < 2
    assert hub.lines() == ["NVRM: an ordinary line that would wait a second"]
    assert node.process is not None and node.process.returncode == 0


def test_sigterm_ends_it_within_2_s_also_while_healer_hangs(node: Following, hub: Hub) -> None:
    node.start()
    alive(hub)
    hub.answers.extend([None] * 5)
    node.say("NVRM: Xid one")
    wait_until(lambda: hub.lines() == ["NVRM: Xid one"], 10, what="it waits for an answer")
    assert node.stop() < 2
    assert node.lies() == 1


def test_retry_after_is_obeyed(node: Following, hub: Hub) -> None:
    hub.answers.append((429, {"Retry-After": "3"}, {"detail": "too much"}))
    started = datetime.now(UTC)
    node.start()
    alive(hub)
    assert datetime.now(UTC) - started > timedelta(seconds=3)
    assert "429" in node.printed()


def test_one_connection_serves_many_requests(node: Following, hub: Hub) -> None:
    node.start()
    alive(hub)
    for number in range(5):
        node.say(f"NVRM: Xid {number}")
        wait_until(lambda: f"NVRM: Xid {number}" in hub.lines(), 10, what="the line")  # noqa: B023
    assert hub.connections == 1


def test_a_body_that_is_never_taken_does_not_stop_the_next(node: Following, hub: Hub) -> None:
    node.start()
    alive(hub)
    hub.answers.append((422, PROBLEM, {"detail": "body: no"}))
    node.say("NVRM: Xid bad")
    wait_until(lambda: "422" in node.printed(), 10, what="the refusal")
    node.say("NVRM: Xid good")
    heard(hub, "NVRM: Xid good")
    node.stop()
    assert node.state()["lost"] == 1


@pytest.mark.parametrize("status", [200, 400, 413])
def test_a_page_in_place_of_healers_answer_delivers_nothing(node: Following, hub: Hub, status: int) -> None:
    """As a proxy gives one while healer is away, or for a wrong port. healer answers with 202, when it has
    stored the lines, and names its refusals as its own."""
    node.start()
    alive(hub)
    hub.answers.append((status, {"Content-Type": "text/html"}, "<h1>We are back soon</h1>"))
    node.say(XID_79)
    heard(hub, XID_79)
    assert f"was answered with {status}" in node.printed()
    node.stop()
    assert node.state()["lost"] == 0


def test_a_page_of_a_proxys_with_status_202_delivers_nothing(node: Following, hub: Hub) -> None:
    """One that asks for proof of a browser gives its page so; healer's own answer is an object."""
    node.start()
    alive(hub)
    hub.answers.append((202, {"Content-Type": "text/html"}, "<html>Prove that you are a browser</html>"))
    node.say(XID_79)
    heard(hub, XID_79, XID_79)
    assert "was answered with 202" in node.printed()
    node.stop()
    assert node.state()["lost"] == 0


def test_lines_of_a_node_that_healer_does_not_know_yet_are_kept(node: Following, hub: Hub) -> None:
    node.start()
    alive(hub)
    unknown = {"rejected": [{"index": 0, "reason": "node: gpu0001 is not a node of cluster pod1"}]}
    hub.answers.append((202, {}, unknown))
    node.say("NVRM: Xid one")
    wait_until(lambda: hub.lines() == ["NVRM: Xid one"] * 2, 10, what="it is sent again")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 \xb202 Accepted\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 202 Accepted\r\nContent-Length: \xb2\r\n\r\n{}",
        b"HTTP/1.1 503 Busy\r\nRetry-After: \xb2\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 202 Accepted\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000,
        b'HTTP/1.1 202 Accepted\r\nContent-Length: 20\r\n\r\n{"rejected":{"a":1}}',
        b'HTTP/1.1 202 Accepted\r\nContent-Length: 16\r\n\r\n{"rejected":[1]}',
        b"\x00\xff\r\n\r\n",
    ],
)
def test_what_is_no_answer_of_healer_ends_nothing(node: Following, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = (
            f"one.link.port = {server.getsockname()[1]}\n"
            "print(one.send('/signals/heartbeat', b'{}') in (True, False))\n"
        )
        thread = threading.Thread(target=answer_once, args=(server, answer))
        thread.start()
        assert within(node, script) == "True\n"
        thread.join()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_an_answer_that_ends_with_its_connection_is_understood(node: Following, version: str) -> None:
    """A proxy that changes or packs answers may send them without a length."""
    answer = f'HTTP/{version} 202 Accepted\r\nConnection: close\r\n\r\n{{"accepted":1,"rejected":[]}}'
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = (
            f"one.link.port = {server.getsockname()[1]}\nprint(one.send('/signals/kernel-log', b'{{}}', 1))\n"
        )
        thread = threading.Thread(target=answer_once, args=(server, answer.encode()))
        thread.start()
        assert within(node, script) == "True\n"
        thread.join()


def answer_once(server: socket.socket, answer: bytes) -> None:
    line, _ = server.accept()
    with line:
        line.recv(65536)
        line.sendall(answer)


def test_an_answer_in_chunks_is_understood(node: Following, hub: Hub) -> None:
    hub.chunked = True
    node.start()
    alive(hub)
    unknown = {"rejected": [{"index": 0, "reason": "node: gpu0001 is not a node of cluster pod1"}]}
    hub.answers.append((202, {}, unknown))
    node.say("NVRM: Xid one")
    wait_until(lambda: hub.lines() == ["NVRM: Xid one"] * 2, 10, what="it is sent again")
    assert (
        "healer rejected 1 of 1 entries: node: gpu0001 is not a node" in node.printed()
        and hub.connections == 1
    )


def test_a_new_token_in_the_file_is_used_without_a_restart(node: Following, hub: Hub) -> None:
    node.start()
    alive(hub)
    node.token.write_text("heal_another_token\n")
    node.say(XID_79)
    heard(hub, XID_79)
    assert hub.requests[-1][1]["authorization"] == "Bearer heal_another_token"


def test_a_refused_token_is_not_given_up(node: Following, hub: Hub) -> None:
    hub.answers.extend([(401, {}, {"detail": "this needs a token"})] * 2)
    node.start()
    node.say(XID_79)
    heard(hub, XID_79)
    assert "401" in node.printed()


def test_tls_is_spoken_and_the_server_has_to_prove_itself(tmp_path: Path, hub: Hub) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
    pems, strange = certificates(own), certificates(other)
    with serve_tls(pems.server, hub.port) as url:
        with following(tmp_path / "stranger", url, HEALER_CA_FILE=str(strange.authority)) as node:
            node.start()
            node.say(XID_79)
            wait_until(
                lambda: "certificate verify failed" in node.printed(), 10, what="it refuses the server"
            )
            wait_until(lambda: node.lies() == 1, 10, what="the line is kept")
            assert hub.requests == []
        with following(tmp_path / "node", url, HEALER_CA_FILE=str(pems.authority)) as node:
            node.start()
            for number in range(5):
                node.say(f"NVRM: Xid {number}")
                wait_until(lambda: f"NVRM: Xid {number}" in hub.lines(), 10, what="the line")  # noqa: B023
            assert hub.connections == 1


# --- nvidia-smi -------------------------------------------------------------------------------------------


def smi(folder: Path, script: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return str(path)


def shows(hub: Hub) -> list[bytes]:
    return [body for path, _, body in hub.requests if path == "/api/v1/signals/nvidia-smi?node=gpu0001"]


@pytest.fixture
def soon(tmp_path: Path) -> str:
    """The follower, with 60 s between two looks at nvidia-smi made 1 s: the file is the same otherwise."""
    text = FOLLOW.read_text()
    assert text.count("SMI_EVERY_S, SMI_SLOWEST_S, SMI_TIMEOUT_S, SMI_BYTES = 60.0, 1800.0, 30.0,") == 1
    path = tmp_path / "healer-follow"
    path.write_text(text.replace("SMI_BYTES = 60.0, 1800.0, 30.0,", "SMI_BYTES = 0.5, 1800.0, 1.0,"))
    path.chmod(0o755)
    return str(path)


def test_output_of_nvidia_smi_is_sent_repeatedly(tmp_path: Path, hub: Hub, soon: str) -> None:
    chosen = smi(tmp_path, 'echo "<nvidia_smi_log><args>$*</args></nvidia_smi_log>"; nice >&2; exit 0')
    with following(tmp_path / "node", hub.url, HEALER_NVIDIA_SMI=chosen) as node:
        node.program = soon
        node.start()
        wait_until(lambda: len(shows(hub)) >= 2, 10, what="it is sent, and again")
        assert shows(hub)[0] == b"<nvidia_smi_log><args>-q -x</args></nvidia_smi_log>\n"


def test_names_of_processes_are_not_sent(tmp_path: Path, hub: Hub, soon: str) -> None:
    """nvidia-smi prints them as they are: a user may write XML into it, or what is none."""
    name = tmp_path / "name"
    name.write_text("a&b<c")
    listed = f"<processes><process_name>$(cat {name})</process_name></processes>"
    chosen = smi(
        tmp_path,
        'echo "<nvidia_smi_log><attached_gpus>1</attached_gpus>"\n'
        f"echo \"<gpu id='a'><uuid>GPU-a</uuid>{listed}</gpu></nvidia_smi_log>\"",
    )
    with following(tmp_path / "node", hub.url, HEALER_NVIDIA_SMI=chosen) as node:
        node.program = soon
        node.start()
        wait_until(lambda: shows(hub), 10, what="it is sent")
        assert b"<uuid>GPU-a</uuid></gpu>" in shows(hub)[0]
        name.write_text("</processes></gpu><gpu id='b'><processes>")
        wait_until(lambda: "the name of a process" in node.printed(), 10, what="it notices")
        assert b"<gpu id='b'>" not in b"".join(shows(hub))


def test_an_nvidia_smi_that_hangs_stops_nothing_and_is_ended(tmp_path: Path, hub: Hub, soon: str) -> None:
    chosen = smi(tmp_path, f"echo $$ >> {tmp_path}/pids; exec /bin/sleep 600")
    with following(tmp_path / "node", hub.url, HEALER_NVIDIA_SMI=chosen) as node:
        node.program = soon
        node.start()
        wait_until((tmp_path / "pids").exists, 10, what="it was started")
        node.say(XID_79)
        heard(hub, XID_79)
        pid = int((tmp_path / "pids").read_text().split()[0])
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), 10, what="it was killed and collected")
        wait_until(lambda: answers(hub), 10, what="healer was notified")
        assert set(answers(hub)) == {0}  # reported again while it hangs
        assert shows(hub) == [] and "nvidia-smi did not end" in node.printed()


def answers(hub: Hub) -> list[int]:
    bodies = [json.loads(body) for path, _, body in hub.requests if path == "/api/v1/signals/metrics"]
    assert all(body["node"] == "gpu0001" for body in bodies)
    return [body["host"]["nvidia_smi_answers"] for body in bodies]


def test_recovered_target_is_reported(tmp_path: Path, hub: Hub, soon: str) -> None:
    hangs = tmp_path / "hangs"
    hangs.touch()
    chosen = smi(tmp_path, f"[ -e {hangs} ] && exec /bin/sleep 600; echo '<nvidia_smi_log/>'")
    with following(tmp_path / "node", hub.url, HEALER_NVIDIA_SMI=chosen) as node:
        node.program = soon
        node.start()
        wait_until(lambda: 0 in answers(hub), 40, what="healer is notified that it hangs")
        hangs.unlink()
        # It runs at the lowest priority: on a busy machine one more run may be too slow before one is not.
        wait_until(lambda: answers(hub)[-1] == 1, 120, what="it answers again")
        assert answers(hub)[:-1] == [0] * (len(answers(hub)) - 1)


def test_failing_nvidia_smi_sends_nothing(tmp_path: Path, hub: Hub, soon: str) -> None:
    chosen = smi(tmp_path, f"echo x >> {tmp_path}/runs; echo 'No devices were found'; exit 6")
    with following(tmp_path / "node", hub.url, HEALER_NVIDIA_SMI=chosen) as node:
        node.program = soon
        node.start()
        wait_until(lambda: (tmp_path / "runs").exists() and len((tmp_path / "runs").read_text()) >= 4, 10)
        assert shows(hub) == []


# --- the journal, the real kernel, systemd ----------------------------------------------------------------

JOURNAL = """#!/bin/sh
echo "$*" >> {folder}/asked
cat {folder}/entries
exec /bin/sleep 600
"""


def entry(cursor: str, message: object, facility: str = "0") -> str:
    record = {
        "__CURSOR": cursor,
        "__REALTIME_TIMESTAMP": "1795188422000000",
        "_SOURCE_MONOTONIC_TIMESTAMP": "6781753400584",
        "_BOOT_ID": BOOT.replace("-", ""),
        "PRIORITY": "4",
        "SYSLOG_FACILITY": facility,
        "MESSAGE": message,
    }
    return json.dumps(record) + "\n"


def test_the_journal_serves_where_kmsg_cannot_be_read(node: Following, hub: Hub, tmp_path: Path) -> None:
    program = tmp_path / "journalctl"
    program.write_text(JOURNAL.format(folder=tmp_path))
    program.chmod(0o755)
    forged = entry("s=2", XID_79.replace("79", "48"), facility="1")
    bytes_form = entry("s=3", list(b"NVRM: Xid \xff"))
    (tmp_path / "entries").write_text(entry("s=1", XID_79) + forged + "no json\n" + bytes_form)
    node.start("--journal", str(program))
    heard(hub, f"[6781753.400584] {XID_79}", "[6781753.400584] NVRM: Xid �")
    assert hub.entries()[0]["time"] == "2026-11-20T15:27:02.000000Z" and "seq" not in hub.entries()[0]
    node.stop()
    node.start("--journal", str(program))
    wait_until(lambda: (tmp_path / "asked").read_text().count("\n") == 2, 10, what="a second start")
    first, second = (tmp_path / "asked").read_text().splitlines()
    assert (
        first.startswith("_TRANSPORT=kernel -f -n all ")
        and first.endswith("--boot")
        and second.endswith("--cursor=s=3")
    )


def test_a_cursor_that_the_journal_does_not_know_is_given_up(
    node: Following, hub: Hub, tmp_path: Path
) -> None:
    program = tmp_path / "journalctl"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *--cursor=*) echo "Failed to seek to cursor" >&2; exit 1;; esac\n'
        f"cat {tmp_path}/entries\nexec /bin/sleep 600\n"
    )
    program.chmod(0o755)
    (tmp_path / "entries").write_text(entry("s=1", XID_79))
    (node.spool / "follow").mkdir(parents=True, mode=0o700)
    (node.spool / "follow/state").write_text(json.dumps({"boot_id": BOOT, "mark": "s=0"}))
    node.start("--journal", str(program))
    heard(hub, f"[6781753.400584] {XID_79}")


@pytest.mark.parametrize(("mark", "heard_of"), [("s=1", ["one", "two"]), ("s=2", ["two"])])
def test_no_line_is_passed_over_where_the_last_one_was_vacuumed(
    node: Following, hub: Hub, tmp_path: Path, mark: str, heard_of: list[str]
) -> None:
    """journalctl looks for the nearest entry; with --after-cursor it passes over that one, the cursor's or
    not."""
    program = tmp_path / "journalctl"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *--after-cursor*) from=2;; *) from=1;; esac\n'
        f"tail -n +$from {tmp_path}/entries\nexec /bin/sleep 600\n"
    )
    program.chmod(0o755)
    (tmp_path / "entries").write_text(entry("s=2", "NVRM: one") + entry("s=3", "NVRM: two"))
    (node.spool / "follow").mkdir(parents=True, mode=0o700)
    (node.spool / "follow/state").write_text(json.dumps({"boot_id": BOOT, "mark": mark}))
    node.start("--journal", str(program))
    heard(hub, *(f"[6781753.400584] NVRM: {word}" for word in heard_of))


def test_the_real_kernel_marks_what_we_write_as_not_its_own(node: Following, hub: Hub) -> None:
    """All readers of this machine's kernel log see the line too, so it shows no fault."""
    ours = f"healer's tests write this line, and it means nothing: {os.getpid()}"
    with open("/dev/kmsg", "w") as kmsg:
        kmsg.write(f"<0>{ours}\n")
    node.start("--kmsg", "/dev/kmsg")
    alive(hub)
    wait_until(hub.lines, 10, what="what the kernel itself has said")
    assert not [line for line in hub.lines() if ours in line]


def test_systemd_is_notified_of_ready_alive_and_stopping(node: Following, hub: Hub, tmp_path: Path) -> None:
    messages: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(10)
        node.start("--kmsg", str(node.kmsg), NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="400000")
        while messages.count(b"WATCHDOG=1") < 3:
            messages.append(systemd.recv(200))
        assert node.stop() < 2
        while b"STOPPING=1" not in messages:
            messages.append(systemd.recv(200))
    assert messages[0] == b"READY=1\nSTATUS=following as gpu0001"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not set HEALER_URL"),
        ("HEALER_URL=http://x\nnonsense\n", "line 2: expected KEY=VALUE"),
        ("HEALER_URL=ftp://x\n", "must be an http or https address"),
        ("HEALER_URL=https://x\nHEALER_CA_FILE=/no/such\n", "HEALER_CA_FILE /no/such cannot be read"),
    ],
)
def test_a_wrong_setting_ends_it_with_one_sentence(node: Following, text: str, why: str) -> None:
    node.conf.write_text(text + f"HEALER_HOOK_SPOOL={node.spool}\n")
    done = ended(node)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1) and why in done.stderr
