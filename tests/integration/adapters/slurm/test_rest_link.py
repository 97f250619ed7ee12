"""What slurmrestd's answers and silences mean, over a real connection."""

import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from healer.adapters.slurm.rest import RestScheduler
from healer.ports.scheduling import SchedulerError, SchedulerRefused, SchedulerUnavailable, UnknownNode
from tests.support.rest_server import TOKEN, Answer, RestServer, serve_rest

pytestmark = pytest.mark.heavy

OTHER = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJvdGhlciJ9.c2lnbmVk"
REASON = "healer:gpu-lost inc:1a2b3c4d"


class Tokens:
    """Hands out the first until it is refused, then the next; the last for ever."""

    def __init__(self, *tokens: str) -> None:
        self.tokens, self.refusals = list(tokens), 0

    def current(self, now: datetime) -> str:
        return self.tokens[0]

    def refused(self, token: str) -> None:
        self.refusals += 1
        if len(self.tokens) > 1 and token == self.tokens[0]:
            self.tokens.pop(0)


@pytest.fixture
def rest() -> Iterator[RestServer]:
    with serve_rest("25.11") as server:
        yield server


def scheduler_of(rest: RestServer, *tokens: str, timeout_s: float = 4) -> RestScheduler:
    return RestScheduler(rest.url, user=None, token=Tokens(*(tokens or (TOKEN,))), timeout_s=timeout_s)


def failure(scheduler: RestScheduler) -> SchedulerError:
    with pytest.raises(SchedulerError) as caught:
        scheduler.drain("n1", REASON)
    assert TOKEN not in str(caught.value) and OTHER not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("status", "number", "said", "kind", "code"),
    [
        # The same refusal as HTTP 500 (to 24.11), 422 (26.05) and 200: the number counts.
        (500, 2018, "Invalid node name specified", UnknownNode, 2018),
        (422, 2018, "Invalid node name specified", UnknownNode, 2018),
        (200, 2018, "Invalid node name specified", UnknownNode, 2018),
        (422, 2180, "Invalid node state transition requested", SchedulerRefused, 2180),
        # 24.11's number for the same.
        (500, 2028, "Invalid node state specified", SchedulerRefused, 2180),
        (500, 2037, "Requested operation is presently disabled", SchedulerRefused, 2037),
        (404, 2017, "Invalid job id specified", SchedulerRefused, 2017),
        (500, 0, "No error", SchedulerRefused, None),
    ],
)
def test_a_refusal_is_known_by_its_number(
    rest: RestServer, status: int, number: int, said: str, kind: type[SchedulerError], code: int | None
) -> None:
    rest.refuse("POST", "/node/n1", number, said, status)
    error = failure(scheduler_of(rest))
    assert type(error) is kind
    assert isinstance(error, SchedulerRefused) and error.code == code
    assert "drain n1" in str(error)


@pytest.mark.parametrize(("number", "said"), [(2010, "Invalid user id"), (2002, "Access/permission denied")])
def test_rights_that_are_too_low_are_named(rest: RestServer, number: int, said: str) -> None:
    rest.refuse("POST", "/node/n1", number, said)
    error = failure(scheduler_of(rest))
    assert isinstance(error, SchedulerRefused) and error.code == number
    assert "AdminLevel=Administrator" in str(error) and "Operator is not enough" in str(error)


@pytest.mark.parametrize(
    ("status", "number", "said", "sent"),
    [
        (502, 1800, "Unable to contact slurm controller (connect failure)", False),
        (500, 1001, "Communication connection failure", False),
        (500, 1005, "Incompatible versions of client and server code", False),
        (500, 1002, "Communication send failure", True),
        (500, 1802, "Unable to contact slurm controller (receive failure)", True),
        (500, -1, "Unspecified error", True),
        (500, 9999, "Slurm backup controller in standby mode", False),
    ],
)
def test_a_controller_that_is_away_is_no_refusal(
    rest: RestServer, status: int, number: int, said: str, sent: bool
) -> None:
    rest.refuse("POST", "/node/n1", number, said, status)
    error = failure(scheduler_of(rest))
    assert isinstance(error, SchedulerUnavailable) and error.sent is sent
    assert said in str(error)


@pytest.mark.parametrize(
    ("status", "body", "sent"),
    [
        (502, b"<html>Bad Gateway</html>", True),
        (503, b'{"message": "no healthy upstream"}', True),
        (200, b"{}", True),
        (200, b"", True),
        (200, b'{"errors": "none"}', True),
        (403, b"Forbidden", False),
    ],
)
def test_answer_of_a_proxy_is_not_taken_for_an_answer_of_slurm(
    rest: RestServer, status: int, body: bytes, sent: bool
) -> None:
    rest.set_answer("POST", "/node/n1", body, status)
    error = failure(scheduler_of(rest))
    assert isinstance(error, SchedulerUnavailable) and error.sent is sent
    assert str(status) in str(error)


def test_a_part_that_slurmrestd_ignored_was_not_done(rest: RestServer) -> None:
    ignored = {"description": 'Ignoring unknown field "reason" of type string', "source": "#/reason/"}
    rest.set_answer("POST", "/node/n1", rest.shape.answer(warnings=[ignored]))
    error = failure(scheduler_of(rest))
    assert isinstance(error, SchedulerRefused) and '"reason"' in str(error)


def test_another_warning_is_no_failure(rest: RestServer) -> None:
    noted = {"description": "Expected OpenAPI type=array but got OpenAPI type=string", "source": "#/name/"}
    rest.set_answer("POST", "/node/n1", rest.shape.answer(warnings=[noted]))
    scheduler_of(rest).drain("n1", REASON)


# --- tokens


def test_a_refused_token_is_renewed_and_the_request_sent_once_more(rest: RestServer) -> None:
    rest.set_answer("POST", "/node/n1")
    rest.tokens = {OTHER}
    scheduler = scheduler_of(rest, TOKEN, OTHER)
    scheduler.drain("n1", REASON)
    scheduler.drain("n1", REASON)
    sent = [each.headers["x-slurm-user-token"] for each in rest.asked if each.method == "POST"]
    assert sent == [TOKEN, OTHER, OTHER]


def test_two_refused_tokens_are_the_end(rest: RestServer) -> None:
    rest.set_answer("POST", "/node/n1")
    rest.tokens = set()
    error = failure(scheduler_of(rest, TOKEN, OTHER))
    assert isinstance(error, SchedulerUnavailable) and error.sent is False
    assert "rejected the token" in str(error) and "Protocol authentication error" in str(error)
    assert len(rest.writes) == 2


def test_the_same_token_is_not_sent_twice(rest: RestServer) -> None:
    rest.set_answer("POST", "/node/n1")
    rest.tokens = set()
    failure(scheduler_of(rest, TOKEN))
    assert len(rest.writes) == 1


def test_expired_token_is_reported_with_its_expiry(rest: RestServer) -> None:
    ended = "eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjE3OTUxODg0MzIsInN1biI6InJvb3QifQ.c2lnbmVk"
    long_ago = "eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjE2MDAwMDAwMDAsInN1biI6InJvb3QifQ.c2lnbmVk"
    rest.tokens = set()
    assert "(it expired 2020-09-13 12:26:40Z)" in str(failure(scheduler_of(rest, ended, long_ago)))


# --- releases


def test_another_release_after_a_restart_is_found_out(rest: RestServer) -> None:
    scheduler = scheduler_of(rest)
    assert scheduler.describe() == "rest, Slurm 25.11.0, v0.0.44"
    rest.release = "26.05"
    rest.set_answer("POST", "/node/n1")
    scheduler.drain("n1", REASON)
    assert scheduler.describe() == "rest, Slurm 26.05.0, v0.0.45"
    # The look before it found the new address.
    assert rest.writes == [("POST", "/node/n1", {"state": ["DRAIN"], "reason": REASON})]


def test_a_newer_release_that_still_knows_the_address_is_noticed(rest: RestServer) -> None:
    scheduler = scheduler_of(rest)
    older = rest.shape
    rest.set_answer("POST", "/node/n1", older.answer().replace(b"25.11.0", b"25.11.1"))
    scheduler.drain("n1", REASON)
    rest.release = "26.05"
    assert scheduler.describe() == "rest, Slurm 26.05.0, v0.0.45"


def test_an_address_that_is_really_missing_is_said_so(rest: RestServer) -> None:
    error = failure(scheduler_of(rest))
    assert isinstance(error, SchedulerUnavailable)
    assert "returned 404" in str(error)
    assert len(rest.writes) == 1


def test_the_newest_version_is_found_without_slurmrestds_own_list(rest: RestServer) -> None:
    class Hiding(RestServer):
        def answer(self, asked, version):  # type: ignore[no-untyped-def]
            hidden = asked.path == "/openapi/v3"
            return (403, b"not for you") if hidden else super().answer(asked, version)

    rest.__class__ = Hiding
    assert scheduler_of(rest).describe() == "rest, Slurm 25.11.0, v0.0.44"


def test_a_slurmrestd_that_is_too_old_is_named(rest: RestServer) -> None:
    class Old(RestServer):
        def answer(self, asked, version):  # type: ignore[no-untyped-def]
            found = super().answer(asked, version)
            if asked.path == "/openapi/v3":
                return found._replace(
                    body=b'{"paths": {"/slurm/v0.0.37/ping": {}, "/slurm/v0.0.38/ping": {}}}'
                )
            return Answer(404, b"Unable find requested URL.")

    rest.__class__ = Old
    with pytest.raises(SchedulerUnavailable) as caught:
        scheduler_of(rest).describe()
    assert caught.value.sent is False
    assert "v0.0.39 to v0.0.45" in str(caught.value) and "v0.0.37, v0.0.38" in str(caught.value)


# --- silence


def test_no_answer_in_time_may_have_arrived(rest: RestServer) -> None:
    scheduler = scheduler_of(rest, timeout_s=0.3)
    scheduler.describe()
    rest.silent_to = "POST"
    error = failure(scheduler)
    assert isinstance(error, SchedulerUnavailable) and error.sent is True
    assert "did not answer within 0.3 s" in str(error)
    assert len(rest.writes) == 1, "it is not sent again"


def test_a_write_that_only_looked_has_sent_nothing(rest: RestServer) -> None:
    scheduler = scheduler_of(rest, timeout_s=0.3)
    scheduler.describe()
    rest.silent.set()
    with pytest.raises(SchedulerUnavailable) as caught:
        scheduler.hold("7")
    assert caught.value.sent is False
    assert rest.writes == []
    # Nor has one that did not get to know the release.
    with pytest.raises(SchedulerUnavailable) as caught:
        scheduler_of(rest, timeout_s=0.3).drain("n1", REASON)
    assert caught.value.sent is False


def test_of_many_nodes_the_unknown_ones_are_named(rest: RestServer) -> None:
    rest.refuse("POST", "/nodes", 2018, "Invalid node name specified")
    rest.set_answer("GET", "/nodes", rest.shape.answer(nodes=[rest.shape.node("n1", "IDLE", "DRAIN")]))
    with pytest.raises(UnknownNode, match="Unknown: n8, n9; read the others back") as caught:
        scheduler_of(rest).drain(["n8", "n1", "n9"], REASON)
    assert caught.value.code == 2018
    rest.refuse("POST", "/nodes", 2180, "Invalid node state transition requested")
    with pytest.raises(SchedulerRefused, match="read each back") as refused:
        scheduler_of(rest).resume(["n1", "n2"])
    assert refused.value.code == 2180


def test_connection_refused_means_the_request_was_not_received(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        for address in (url, f"unix://{tmp_path}/none.sock"):
            error = failure(RestScheduler(address, user=None, token=Tokens(TOKEN)))
            assert isinstance(error, SchedulerUnavailable) and error.sent is False
            assert "is unreachable" in str(error)


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:6820", "ftp://h", "http://", "unix://host/path", "unix:relative", "http://h/?a=b",
        "https://me:secret@h",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_said_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="slurmrestd's address") as caught:
        RestScheduler(url, user=None, token=Tokens(TOKEN))
    assert "secret" not in str(caught.value)


def test_a_user_that_could_end_a_header_is_refused(rest: RestServer) -> None:
    with pytest.raises(ValueError, match="valid user name"):
        RestScheduler(rest.url, user="root\r\nX-SLURM-USER-TOKEN: x", token=Tokens(TOKEN))


def test_a_prefix_of_a_proxy_is_kept(rest: RestServer) -> None:
    rest.prefix = "/clusters/pod1"
    rest.set_answer("POST", "/node/n1")
    for url in (f"{rest.url}/clusters/pod1", f"{rest.url}/clusters/pod1/"):
        RestScheduler(url, user=None, token=Tokens(TOKEN)).drain("n1", REASON)
    assert [path for _, path, _ in rest.writes] == ["/node/n1", "/node/n1"]
    assert "/clusters/pod2" in str(
        failure(RestScheduler(f"{rest.url}/clusters/pod2", user=None, token=Tokens(TOKEN)))
    )
