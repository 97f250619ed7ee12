"""Parses slurmrestd's answers (v0.0.39 to v0.0.45): errors by number, warnings, release and cluster.

The HTTP status says little: 200 may contain an error (d.8, 24), and 500, 422 and 404 are refusals by Slurm.
`errors[].error_number` decides.
"""

from typing import TypeVar

import msgspec

from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm.parse_json import Problem
from healer.ports.scheduling import SchedulerError, SchedulerRefused, SchedulerUnavailable, UnknownNode
from healer.text import Said, say

#: Error numbers of slurm_errno.h. The token was refused, by slurmctld and by slurmrestd:
_TOKEN_REFUSED = frozenset({1007, 9008})
#: No connection to slurmctld, or an incompatible one: nothing was done.
_NO_CONTACT = frozenset({1001, 1005, 1006, 1800})
#: "Invalid node state specified" before 25.05, and its later number.
_SAME = {2028: 2180}

T = TypeVar("T")


class _Number(msgspec.Struct, frozen=True):
    number: int = 0


class Slurm(msgspec.Struct, frozen=True):
    """`cluster` is empty before v0.0.40."""

    release: str = ""
    cluster: str = ""


class _Meta(msgspec.Struct, frozen=True):
    """v0.0.39 writes `Slurm`, all later ones `slurm`."""

    slurm: Slurm | None = None
    old: Slurm | None = msgspec.field(default=None, name="Slurm")


class _Envelope(msgspec.Struct, frozen=True):
    """The fields of every answer of slurmrestd besides its data."""

    errors: list[Problem] | None = None
    warnings: list[Problem] | None = None
    last_update: _Number | int | None = None
    meta: _Meta | None = None


class Answer(msgspec.Struct, frozen=True):
    """`envelope` is None if the body is not slurmrestd's JSON, for example a proxy's page."""

    status: int
    body: bytes
    envelope: _Envelope | None

    @property
    def problems(self) -> list[Problem]:
        return (self.envelope.errors if self.envelope else None) or []

    @property
    def warnings(self) -> list[Problem]:
        return (self.envelope.warnings if self.envelope else None) or []

    @property
    def updated(self) -> int:
        """Time of the last change, in Unix seconds on Slurm's clock; 0 if Slurm does not report it."""
        at = self.envelope.last_update if self.envelope else None
        return at.number if isinstance(at, _Number) else at or 0

    @property
    def slurm(self) -> Slurm:
        meta = (self.envelope.meta if self.envelope else None) or _Meta()
        return meta.slurm or meta.old or Slurm()

    @property
    def good(self) -> bool:
        """Whether it is Slurm's answer without an error (HTTP 200 may contain one: d.8, 24)."""
        return self.status < 400 and self.envelope is not None and not self.problems

    @property
    def token_refused(self) -> bool:
        return self.status == 401 or any(problem.error_number in _TOKEN_REFUSED for problem in self.problems)

    @property
    def no_contact(self) -> bool:
        """Whether slurmrestd found no slurmctld, after trying for about 9 s: a retry is of no use."""
        return any(problem.error_number in _NO_CONTACT for problem in self.problems)

    @property
    def unknown_address(self) -> bool:
        return self.status == 404 and self.envelope is None


def answer(status: int, body: bytes) -> Answer:
    try:
        envelope = msgspec.json.decode(body, type=_Envelope)
    except UnicodeDecodeError:
        # A user's job name may contain any bytes.
        return answer(status, body.decode("utf-8", "replace").encode())
    except msgspec.DecodeError:
        envelope = None
    # Every answer of slurmrestd has one of them; JSON without is from a proxy.
    is_slurms = envelope is not None and (envelope.meta is not None or envelope.errors is not None)
    return Answer(status, body, envelope if is_slurms else None)


def error_of(problem: Problem, what: Said, right: str) -> SchedulerError:
    """The error for an entry of `errors[]`, by its number. `what`: what was not done; `right`: see
    `slurm_words`."""
    number = problem.error_number or 0
    number = _SAME.get(number, number)
    message = (problem.error if number else problem.description) or problem.description
    message = message or say("slurm.no_reason")
    whole = say("slurm.because", what=what, words=message)
    if number > 0:
        whole = say("slurm.because_code", what=what, words=message, code=number)
    if number == words.NODE_UNKNOWN:
        return UnknownNode(whole, number)
    # Communication errors, and "unspecified": slurmrestd got no usable answer.
    if number < 0 or 1000 <= number < 2000:
        return SchedulerUnavailable(whole, sent=number not in _NO_CONTACT)
    if number == 0 or "standby" in message:
        return words.error(what, message)
    refused = SchedulerRefused(whole, number)
    if refused.no_right:
        if not right:
            return SchedulerRefused(say("slurm.no_right_token", error=whole), number)
        text = say("slurm.no_right_token_for", error=whole, right=say(f"slurm.right_{right}"))
        return SchedulerRefused(text, number)
    return refused


class _JobError(msgspec.Struct, frozen=True):
    code: int = 0
    string: str | None = None


class _JobStatus(msgspec.Struct, frozen=True):
    """One job or task. `error` is an object for DELETE /jobs, and a text for POST /jobs/requeue."""

    error: str | _JobError | None = None
    error_code: int = 0


class _Result(msgspec.Struct, frozen=True):
    job_id: int | None = None


class _Written(msgspec.Struct, frozen=True):
    """The answer to a change of jobs. Before v0.0.42 the id of a submitted job is in `result`."""

    job_id: int | None = None
    result: _Result | None = None
    status: list[_JobStatus | list[_JobStatus]] | None = None


def check_jobs(answer: Answer, action: Said) -> None:
    """Raises the error of the first job that DELETE /jobs or POST /jobs/requeue refused. The answer is 200
    nevertheless; the entries are in one list, or in one list for each job."""
    for entry in read(answer, _Written).status or []:
        for job in entry if isinstance(entry, list) else [entry]:
            text, number = job.error, job.error_code
            if isinstance(text, _JobError):
                text, number = text.string, text.code
            if number:
                raise error_of(Problem(text, None, number), words.not_done(action), words.JOB_RIGHT)


def submitted(answer: Answer) -> str:
    """The id of the job that POST /job/submit created."""
    written = read(answer, _Written)
    job = written.job_id or (written.result.job_id if written.result else None)
    if not job:
        raise SchedulerUnavailable(say("slurm.rest_no_job_id"))
    return str(job)


def read(answer: Answer, shape: type[T]) -> T:
    """Decodes the body. The SchedulerUnavailable that it raises names the field in question."""
    try:
        return msgspec.json.decode(answer.body, type=shape)
    except msgspec.DecodeError as error:
        raise SchedulerUnavailable(say("slurm.unread_rest", error=str(error))) from error
