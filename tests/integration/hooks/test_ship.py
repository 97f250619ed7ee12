"""healer-ship as a process of its own, with the test in rsyslog's place and a real server in healer's."""

import ast
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.follower import PROBLEM, Hub
from tests.support.processes import clean_environ
from tests.support.rsyslog import SHIP
from tests.support.tls import certificates, serve_tls
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy


class Shipping:
    """`say` is a record of rsyslog; its answer is what rsyslog would get."""

    def __init__(self, folder: Path, url: str, **settings: object) -> None:
        self.folder, self.head = folder, folder / "spool" / "ship.head"
        (folder / "token").write_text("heal_test_token\n")
        conf = {"URL": url, "TOKEN_FILE": folder / "token", "HOOK_SPOOL": folder / "spool"} | settings
        (folder / "hook.conf").write_text("".join(f"HEALER_{key}={value}\n" for key, value in conf.items()))
        self.said = folder / "said.txt"

    @contextmanager
    def running(self) -> Iterator["Shipping"]:
        with self.said.open("ab") as said:
            self.process = subprocess.Popen(
                [SHIP, "--conf", str(self.folder / "hook.conf")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=clean_environ(),
            )  # fmt: skip
        try:
            assert self.answer() == "OK"  # it is ready
            yield self
        finally:
            self.process.kill()
            self.process.communicate(timeout=10)

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def say(self, record: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(record.encode() + b"\n")
        self.process.stdin.flush()
        return self.answer()


def record(number: int) -> str:
    return json.dumps({"inputname": "imkmsg", "facility": "0", "msg": f"line {number}"})


def taken(hub: Hub) -> list[str]:
    return [json.loads(body)["msg"] for _, _, body in hub.requests]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as one:
        yield one


@pytest.fixture
def shipping(tmp_path: Path, hub: Hub) -> Shipping:
    return Shipping(tmp_path, hub.url)


def test_it_is_written_for_python_3_6_without_packages() -> None:
    tree = ast.parse(SHIP.read_text(), feature_version=(3, 6))
    names = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    assert names == {"http.client", "os", "ssl", "sys", "time", "urllib.parse"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


def test_each_record_is_confirmed_when_healer_has_it(shipping: Shipping, hub: Hub) -> None:
    with shipping.running():
        assert [shipping.say(record(n)) for n in range(3)] == ["OK"] * 3
    assert taken(hub) == ["line 0", "line 1", "line 2"]
    path, headers, _ = hub.requests[0]
    assert (path, headers["authorization"]) == ("/api/v1/signals/logs", "Bearer heal_test_token")
    assert hub.connections == 1
    assert not shipping.head.exists()


@pytest.mark.parametrize("status", [400, 401, 403, 413, 429, 500, 503])
def test_temporary_refusal_makes_rsyslog_send_the_record_again(
    shipping: Shipping, hub: Hub, status: int
) -> None:
    hub.answers.append((status, {}, {"detail": "not now"}))
    with shipping.running():
        assert shipping.say(record(1)).startswith(f"Error: healer answered {status}")
        assert shipping.say(record(1)) == "OK"
    assert taken(hub) == ["line 1"]


def test_a_page_of_a_proxys_with_status_202_has_not_taken_the_record(shipping: Shipping, hub: Hub) -> None:
    hub.answers.append((202, {"Content-Type": "text/html"}, "<html>Prove that you are a browser</html>"))
    with shipping.running():
        assert shipping.say(record(1)).startswith("Error: healer answered 202")
        assert shipping.say(record(1)) == "OK"


@pytest.mark.parametrize("status", [400, 413, 415, 422])
def test_undeliverable_records_are_reported_and_dropped(shipping: Shipping, hub: Hub, status: int) -> None:
    hub.answers.append((status, PROBLEM, {"detail": "no"}))
    with shipping.running():
        assert [shipping.say(record(1)), shipping.say(record(2))] == ["OK", "OK"]
    assert taken(hub) == ["line 2"]
    assert f"dropped: healer answered {status}" in shipping.said.read_text()


def test_records_cut_short_by_a_stop_are_sent_first(shipping: Shipping, hub: Hub) -> None:
    hub.stop()
    for number in (1, 2):  # each stop makes rsyslog forget the record that it was sending
        with shipping.running():
            assert shipping.say(record(number)).startswith("Error: healer does not answer")
            assert shipping.say(record(number)).startswith("Error")
    assert shipping.head.read_text().count("\n") == 1
    assert shipping.head.stat().st_mode & 0o777 == 0o600
    hub.start()
    with shipping.running():
        assert shipping.say(record(3)) == "OK"
    assert taken(hub) == ["line 1", "line 2", "line 3"]
    assert not shipping.head.exists()


def test_idle_connection_closed_by_the_server_is_reopened(shipping: Shipping, hub: Hub) -> None:
    with shipping.running():
        assert shipping.say(record(1)) == "OK"
        hub.stop()
        hub.start()
        assert shipping.say(record(2)) == "OK"
    assert taken(hub) == ["line 1", "line 2"]


@pytest.mark.parametrize("text", ["heal_ship\r\n", "heal_ship\n# of gpu0001\n"])
def test_the_first_word_of_the_file_is_the_token(shipping: Shipping, hub: Hub, text: str) -> None:
    """As hook and follower read it: they share the file."""
    (shipping.folder / "token").write_bytes(text.encode())
    with shipping.running():
        assert shipping.say(record(1)) == "OK"
    assert hub.requests[-1][1]["authorization"] == "Bearer heal_ship"


def test_record_rejected_by_healer_is_reported(shipping: Shipping, hub: Hub) -> None:
    rejected = {"accepted": 0, "rejected": [{"index": 0, "reason": "node: gpu9 is not a node"}]}
    hub.answers.append((202, {}, rejected))
    with shipping.running():
        assert shipping.say(record(1)) == "OK"
        wait_until(lambda: "gpu9 is not a node" in shipping.said.read_text(), what="it is said")


def test_oversized_record_is_reported_and_dropped(shipping: Shipping, hub: Hub) -> None:
    with shipping.running():
        assert shipping.say("x" * 70_000) == "OK"
        assert shipping.say(record(1)) == "OK"
    assert taken(hub) == ["line 1"]
    assert "70000 bytes" in shipping.said.read_text()


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "file").write_text("")
    shipping = Shipping(tmp_path, hub.url, HOOK_SPOOL=tmp_path / "file" / "spool")
    hub.answers.append((503, {}, {}))
    with shipping.running():
        assert shipping.say(record(1)).startswith("Error")
        assert shipping.say(record(1)) == "OK"
    assert taken(hub) == ["line 1"]


def test_it_speaks_tls_and_believes_its_own_authority_alone(tmp_path: Path, hub: Hub) -> None:
    made = certificates(tmp_path)
    with serve_tls(made.server, hub.port) as url:
        (tmp_path / "good").mkdir()
        with Shipping(tmp_path / "good", url, CA_FILE=made.authority).running() as good:
            assert good.say(record(1)) == "OK"
        (tmp_path / "bad").mkdir()
        with Shipping(tmp_path / "bad", url).running() as bad:
            assert "certificate" in bad.say(record(2)).lower()
    assert taken(hub) == ["line 1"]


def test_names_of_cluster_and_node_are_in_the_address(tmp_path: Path, hub: Hub) -> None:
    with Shipping(tmp_path, hub.url, CLUSTER="pod1", NODE="gpu0001").running() as shipping:
        assert shipping.say(record(1)) == "OK"
    assert hub.requests[0][0] == "/api/v1/signals/logs?cluster=pod1&node=gpu0001"


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ("", "does not set HEALER_URL"),
        ("HEALER_URL=ftp://x\n", "http or https"),
        ("what\n", "line 1: expected KEY=VALUE"),
    ],
)
def test_wrong_settings_end_it_with_one_sentence(tmp_path: Path, conf: str, words: str) -> None:
    (tmp_path / "hook.conf").write_text(conf)
    command = [SHIP, "--conf", str(tmp_path / "hook.conf")]
    done = subprocess.run(
        command, env=clean_environ(), capture_output=True, text=True, timeout=20, check=False, input=""
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
