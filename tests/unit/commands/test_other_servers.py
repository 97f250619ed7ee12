"""Commands that meet another program at HEALER_URL, or another version of healer."""

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from healer.commands import Failed
from healer.commands.cli import build
from tests.support.http_stand_in import Quiet, running


class Other(Quiet):
    body = b""

    def do_GET(self) -> None:
        self.give(200, {"content-type": "application/json"}, type(self).body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()


@pytest.fixture
def url() -> Iterator[str]:
    with running(ThreadingHTTPServer(("127.0.0.1", 0), Other), threading.Event()) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("words", "body", "said"),
    [
        (("nodes",), b'{"status":"ok"}', "without 'items'"),
        (("nodes", "--json"), b'{"status":"ok"}', "without 'items'"),
        (("nodes",), b'{"items":[{"name":"gpu0001"}],"next_cursor":null}', "without 'cluster'"),
        (("incidents", "ab"), b"{}", "without 'severity'"),
        (("runs", "r1"), b"{}", "without 'node'"),
        (("nodes",), b'["ok"]', "it is not healer"),
        (("nodes",), b'"ok"', "it is not healer"),
        (("nodes",), b"", "it is not healer"),
        (("nodes",), b'"\xff"', "it is not healer"),
        (("send", "heartbeat", "--node", "gpu0001"), b'{"ok":true}', "without 'accepted'"),
        (("send", "heartbeat", "--node", "gpu0001"), b"true", "it is not healer"),
        (("nodes",), b"[" * 100_000, "it is not healer"),
    ],
)
def test_an_answer_of_another_shape_is_one_sentence(
    url: str, words: tuple[str, ...], body: bytes, said: str
) -> None:
    Other.body = body
    env = {"HEALER_URL": url, "HEALER_TOKEN": "heal_x", "HEALER_TOKEN_FILE": None}
    ended = CliRunner().invoke(build(), words, env=env)
    assert isinstance(ended.exception, Failed), repr(ended.exception)
    assert said in str(ended.exception) and url in str(ended.exception)
