"""One slurmrestd over HTTP: address, token, the release it speaks, and what its answers mean.

Nothing is sent twice but in two cases, in which Slurm surely did nothing: it refused the token (then once
more with another one), or it does not know the address because it came back as another release (then once
more at the address of that one). A GET never changes anything (d.8, 25).
"""

import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn, Protocol
from urllib.parse import quote

import msgspec

from healer.adapters.slurm import bounds, parse_json, rest_answers, rest_http
from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.commands import looking_first
from healer.adapters.slurm.rest_answers import Answer
from healer.adapters.slurm.rest_token import ends_at
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable

#: Finding out what slurmrestd is takes milliseconds; one that hangs must leave the next adapter its time.
_FOUND_S = 2.0
#: Answers at the door: what was asked for was not begun.
_AT_THE_DOOR = frozenset({401, 403, 407})

_USER = re.compile(r"[A-Za-z0-9_.@$-]{1,128}")
_DIGITS = re.compile(r"/slurm/v0\.0\.(\d+)/")


class Token(Protocol):
    def current(self, now: datetime) -> str: ...
    def refused(self, token: str) -> None: ...


class Found(NamedTuple):
    """What slurmrestd is: 42 of `v0.0.42`, its release and cluster."""

    number: int
    slurm: rest_answers.Slurm

    @property
    def shape(self) -> str:
        return f"v0.0.{self.number}"


class RestLink:
    """Safe for threads. `url`: `http://host:port`, `https://host/prefix` or `unix:///path`.

    `cluster`: the one that is meant; else the one that answers first. Nothing that another one says counts,
    and before each write the address must have answered as this one.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None,
        token: Token,
        timeout_s: float,
        cluster: str | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if user is not None and not _USER.fullmatch(user):
            raise ValueError(f"{user!r} is not the name of a user for slurmrestd")
        self._user, self._token, self._timeout_s, self._now = user, token, timeout_s, now
        self.where, self._http = url, rest_http.RestHttp(url)
        self._lock = threading.Lock()
        self._meant = cluster
        self._found: Found | None = None
        self._finding: Future[Found] | None = None

    def close(self) -> None:
        self._http.close()

    def found(self) -> Found:
        """Asked once, and anew when slurmrestd answers as another one. One caller asks; who comes meanwhile
        shares what it finds, also that there is no answer."""
        with self._lock:
            if self._found is not None:
                return self._found
            finding, first = self._finding, self._finding is None
            if finding is None:
                finding = self._finding = Future()
        if first:
            self._find(finding)
        try:
            return finding.result()
        except SchedulerUnavailable as error:
            raise SchedulerUnavailable(str(error), sent=False) from error

    def _find(self, finding: Future[Found]) -> None:
        try:
            found = self._discover()
        except BaseException as error:
            with self._lock:
                self._finding = None
            finding.set_exception(error)
        else:
            with self._lock:
                self._found, self._finding = found, None
                self._meant = self._meant or found.slurm.cluster or None
            finding.set_result(found)

    def call(
        self,
        method: str,
        path: str,
        action: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        right: str = "",
        patience: float = 1,
    ) -> Answer:
        """`/nodes` -> its answer, free of errors. `action` goes into errors ("read all nodes"); `right` says
        which right it takes; `patience` times the usual time-out is waited."""
        answer = self.ask(method, path, body=body, query=query, patience=patience)
        self._judge(answer, f"Slurm did not {action}", right, wrote=body is not None)
        return answer

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        patience: float = 1,
    ) -> Answer:
        """As `call`, with whatever slurmrestd answered, also errors."""
        found = self._looked() if method != "GET" else self._of_meant(self.found())
        answer = self._with_token(method, f"/slurm/{found.shape}{path}", body, query, patience)
        if answer.unknown_address:
            self._forget(found)
            newer = self._of_meant(self.found())
            if newer.number != found.number:
                answer = self._with_token(method, f"/slurm/{newer.shape}{path}", body, query, patience)
        elif answer.slurm.release and answer.slurm != found.slurm:
            self._forget(found)
        self._check_cluster(answer.slurm.cluster, sent=method != "GET")
        return answer

    def _looked(self) -> Found:
        """Behind a name, a proxy or a shared address may stand another cluster than a moment ago."""
        with looking_first():
            found = self.found()
            answer = self._with_token("GET", f"/slurm/{found.shape}/ping", None, None, 1)
            if answer.unknown_address or (answer.slurm.release and answer.slurm != found.slurm):
                self._forget(found)
                found = self.found()
            elif answer.said is None:
                self._judge(answer, "slurmrestd did not tell its cluster", "", wrote=False)
            return self._of_meant(found)

    def _of_meant(self, found: Found) -> Found:
        self._check_cluster(found.slurm.cluster, sent=False)
        return found

    def _check_cluster(self, told: str, *, sent: bool) -> None:
        if told and self._meant not in (None, told):
            raise SchedulerUnavailable(
                f"slurmrestd at {self.where} answers as the cluster {told}, not {self._meant}: "
                "mend HEALER_SLURM_REST_URL or what it leads to.",
                sent=sent,
            )

    def _discover(self) -> Found:
        """The newest version that both sides know. Each is tried: slurmrestd's own list takes it long to
        write, and a proxy may keep it to itself."""
        self._token.current(self._now())  # a command that makes it has a time-out of its own
        with bounds.within(min(_FOUND_S, self._timeout_s)):
            return self._newest()

    def _newest(self) -> Found:
        readable = [int(shape.rpartition(".")[2]) for shape in parse_json.DATA_PARSERS]
        for number in readable:
            answer = self._with_token("GET", f"/slurm/v0.0.{number}/ping", None, None, 1)
            if answer.said is not None and answer.slurm.release:
                return Found(number, answer.slurm)
            if not answer.unknown_address:
                self._judge(answer, "slurmrestd did not tell its release", "", wrote=False)
        listed = self._with_token("GET", "/openapi/v3", None, None, 1)
        offered = {int(number) for number in _DIGITS.findall(listed.body.decode("utf-8", "replace"))}
        known = f"v0.0.{readable[-1]} to v0.0.{readable[0]}"
        other = ", ".join(f"v0.0.{number}" for number in sorted(offered)) or f"none at {self.where}"
        raise SchedulerUnavailable(
            f"healer speaks to slurmrestd in {known} (Slurm 23.02 and newer); this one offers {other}.",
            sent=False,
        )

    def _forget(self, found: Found) -> None:
        with self._lock:
            if self._found is found:
                self._found = None

    def _with_token(
        self, method: str, path: str, body: object | None, query: Mapping[str, str] | None, patience: float
    ) -> Answer:
        token = self._token.current(self._now())
        answer = self._send(method, path, body, query, patience, token)
        if not answer.token_refused:
            return answer
        self._token.refused(token)
        other = self._token.current(self._now())
        if other != token:
            answer = self._send(method, path, body, query, patience, other)
        if answer.token_refused:
            self._raise_token_refused(answer, other)
        return answer

    def _raise_token_refused(self, answer: Answer, token: str) -> NoReturn:
        said = next((problem.error for problem in answer.problems if problem.error), "authentication failure")
        end = ends_at(token)
        at = words.moment(end) if end is not None and end < self._now().timestamp() else None
        why = f" (it ended {at:%Y-%m-%d %H:%M:%SZ})" if at else ""
        raise SchedulerUnavailable(f"Slurm did not take the token for slurmrestd{why}: {said}.", sent=False)

    def _send(
        self,
        method: str,
        path: str,
        body: object | None,
        query: Mapping[str, str] | None,
        patience: float,
        token: str,
    ) -> Answer:
        headers = {"X-SLURM-USER-TOKEN": token, "Accept": "application/json", "Accept-Encoding": "identity"}
        if self._user is not None:
            headers["X-SLURM-USER-NAME"] = self._user
        content = None if body is None else msgspec.json.encode(body)
        if content is not None:
            headers["Content-Type"] = "application/json"
        # Who does not take a connection within a second is away; the rest is for the answer.
        status, raw = self._http.ask(
            method,
            path,
            query or {},
            headers,
            content,
            timeout_s=self._timeout_s * patience,
            connect_s=self._timeout_s / 4,
        )
        # A proxy may show a request that it refuses, with all its headers.
        return rest_answers.answer(status, raw.replace(token.encode(), "…".encode()))

    def _judge(self, answer: Answer, action: str, right: str, *, wrote: bool) -> None:
        """Raises what the answer means, unless it is an answer (d.8, 24: HTTP 200 may be none)."""
        if answer.problems:
            # Several may be told; one with a number says more than one without.
            told = max(answer.problems, key=lambda problem: bool(problem.error_number))
            raise rest_answers.error_of(told, action, right)
        if answer.status != 304 and (answer.said is None or answer.status >= 400):
            text = " ".join(answer.body[:200].decode("utf-8", "replace").split()) or "nothing"
            raise SchedulerUnavailable(
                f"{action}: {self.where} answered {answer.status}, but not as slurmrestd does: {text}",
                sent=answer.status not in _AT_THE_DOOR,
            )
        ignored = [
            each.description for each in answer.warnings if "unknown field" in (each.description or "")
        ]
        if wrote and ignored:
            raise SchedulerRefused(f"{action}: slurmrestd ignored a part of it: {ignored[0]}")


def in_path(text: str) -> str:
    """One part of an address; names are checked besides."""
    return quote(text, safe="")
